"""Language models inside of decoders: against decoders whose attention was cut out, and in searches."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from returnn_common import nn
from returnn_common.models.decoder.lstm_attention import make_lstm_attention_decoder
from returnn_common.models.decoder.transformer import make_transformer_decoder
from returnn_common.search import (
    DecoderScorer,
    NgramScorer,
    average_context,
    beam_search,
    combine,
    internal_lm,
    read_arpa,
    score_labels,
    zero_context,
)
from tests.engines import ENGINES, Input, run_on
from tests.search.arpa_reference import Backoff, random_ngrams, write_arpa
from tests.search.beam_reference import TableScorer, assert_same, enumerate_all, search_on_torch

FEATURES, VOCAB, END = 4, 3, 0
LENGTHS = [5, 2, 3]
LABELS = np.array([[1, 2, 2, 1], [2, 0, 0, 0], [1, 1, 2, 0]], "int32")
NUM_LABELS = [4, 0, 3]
MAKE: dict[str, Any] = {
    "transformer": lambda feat, vocab: make_transformer_decoder(
        feat, vocab, num_layers=1, model_dim=4, num_heads=2, dropout=0.0
    ),
    "two-layers": lambda feat, vocab: make_transformer_decoder(
        feat, vocab, num_layers=2, model_dim=4, num_heads=2, dropout=0.0
    ),
    "lstm": lambda feat, vocab: make_lstm_attention_decoder(
        feat, vocab, model_dim=4, embed_dim=3, att_dim=3, num_heads=2, dropout=0.0
    ),
}
DIMS = {"time": LENGTHS, "feat": FEATURES, "vocab": VOCAB, "labels_time": NUM_LABELS}


def inputs(fill=0.0):
    x = np.random.default_rng(3).normal(size=(3, 5, FEATURES)).astype("float32")
    for i, n in enumerate(LENGTHS):
        x[i, n:] = fill
    return {"x": Input(x, "batch time feat"), "labels": Input(LABELS, "batch labels_time", sparse="vocab")}


def contexts(x, time, feat):
    own = nn.range_over_dim(feat, dtype="float32") * 0.5
    own.feature_dim = feat
    return {"zero": zero_context(feat), "average": average_context(x, spatial_dim=time), "own": own}


def cut_attention(decoder, context):
    """whatever is asked, and whatever the encoder gives, that is the answer"""
    if hasattr(decoder, "attention"):

        class Fixed:
            def __getattr__(self, name):
                return getattr(attention, name)

            def __call__(self, query, *, encoder, accumulated):
                result = nn.zeros([*query.remaining_dims(query.feature_dim), attention.encoder_dim]) + context
                result.feature_dim = attention.encoder_dim
                return result, accumulated

        attention = decoder.attention
        del decoder.attention
        object.__setattr__(decoder, "attention", Fixed())
        return decoder
    for layer in decoder.layers:
        cross = layer.cross_att

        def fixed(query, _encoder, cross=cross):
            _, values = cross.forward_kv(context)
            merged, _ = nn.merge_dims(
                values, dims=[cross.num_heads, cross.value_dim_per_head], out_dim=cross.value_dim_total
            )
            return cross.proj(merged)

        del layer.cross_att
        object.__setattr__(layer, "cross_att", fixed)
    return decoder


@pytest.mark.parametrize("context", ["zero", "average", "own"])
@pytest.mark.parametrize("kind", ["two-layers", "lstm"])
def test_is_the_decoder_without_attention(kind, context):
    def func(model, x, time, feat, labels, labels_time):
        opts: dict[str, Any] = dict(spatial_dim=labels_time, bos=END, eos=END)
        chosen = contexts(x, time, feat)[context]
        encoder = model.transform_encoder(x, axis=time)
        found = score_labels(internal_lm(model, chosen), labels, **opts)
        full = score_labels(DecoderScorer(model, encoder), labels, **opts)
        expected = score_labels(DecoderScorer(cut_attention(model, chosen), encoder), labels, **opts)
        return {"found": found, "full": full, "expected": expected}

    result = run_on("torch", func, inputs(), DIMS, make_model=MAKE[kind])
    np.testing.assert_allclose(result["found"], result["expected"], atol=1e-5)
    assert abs(result["found"] - result["full"]).max() > 1e-4


def test_average_over_valid_frames():
    x = inputs(fill=float("nan"))["x"].array

    def func(x, time, feat):
        with pytest.raises(ValueError, match="average_context: encoded, expected a tensor with .*other.*, got Tensor"):
            average_context(x, spatial_dim=nn.Dim(3, name="other"))
        x.feature_dim = feat
        average = average_context(x, spatial_dim=time)
        assert average.feature_dim == feat
        return {"average": (average, [nn.batch_dim, feat])}

    lengths = [5, 2, 0]
    result = run_on("torch", func, {"x": Input(x, "batch time feat")}, {"time": lengths, "feat": FEATURES})
    expected = [x[0].mean(0), x[1, :2].mean(0), np.zeros(FEATURES)]
    np.testing.assert_allclose(result["average"], expected, atol=1e-6)


class _Model(nn.Module):
    """It searches in a method, as all models do."""

    def __init__(self, decoder: Any):
        super().__init__()
        self.decoder = decoder

    def search(self, x: nn.Tensor, *, time: nn.Dim, beam_size: int) -> dict[str, Any]:
        decoder = DecoderScorer(self.decoder, self.decoder.transform_encoder(x, axis=time))
        ilm = internal_lm(self.decoder, average_context(x, spatial_dim=time))
        hyps = beam_search(
            combine([(decoder, 1.0), (ilm, -0.4)]),
            batch_dims=[nn.batch_dim],
            beam_size=beam_size,
            max_len=2,
            bos=END,
            eos=END,
        )
        dims = [nn.batch_dim, hyps.beam_dim]
        return {"labels": (hyps.labels, [*dims, hyps.spatial_dim]), "scores": (hyps.scores, dims)}


def search_with(engine, kind, *, beam_size):
    result = run_on(
        engine,
        lambda model, x, time: model.search(x, time=time, beam_size=beam_size),
        {"x": inputs()["x"]},
        {"time": LENGTHS, "feat": FEATURES, "vocab": VOCAB},
        make_model=lambda feat, vocab: _Model(MAKE[kind](feat, vocab)),
    )
    lengths = result.outputs["labels"].lengths[2]
    return [
        [(float(s), [int(c) for c in row[:n]]) for s, row, n in zip(*rows, strict=True) if s > -np.inf]
        for rows in zip(result["scores"], result["labels"], lengths, strict=True)
    ]


@pytest.mark.parametrize("kind", ["transformer", "lstm"])
def test_subtraction_is_enumeration(kind):
    """full beam, and each of the label sequences forced on the decoder and on its internal LM"""
    sequences = [list(s) for n in range(3) for s in itertools.product([1, 2], repeat=n)]
    padded = np.array([[*s, 0, 0][:2] for s in sequences], "int32")

    found = search_with("torch", kind, beam_size=7)
    for i, nbest in enumerate(found):
        x = inputs()["x"].array[i : i + 1, : LENGTHS[i]].repeat(len(sequences), axis=0)

        def forced(model, x, time, labels, labels_time):
            decoder = DecoderScorer(model.decoder, model.decoder.transform_encoder(x, axis=time))
            ilm = internal_lm(model.decoder, average_context(x, spatial_dim=time))
            opts: dict[str, Any] = dict(spatial_dim=labels_time, bos=END, eos=END)
            return {"scores": score_labels(decoder, labels, **opts) - 0.4 * score_labels(ilm, labels, **opts)}

        result = run_on(
            "torch",
            forced,
            {"x": Input(x, "batch time feat"), "labels": Input(padded, "batch labels_time", sparse="vocab")},
            {
                "time": [LENGTHS[i]] * len(sequences),
                "feat": FEATURES,
                "vocab": VOCAB,
                "labels_time": [len(s) for s in sequences],
            },
            make_model=lambda feat, vocab: _Model(MAKE[kind](feat, vocab)),
        )
        assert_same(nbest, list(zip(result["scores"].tolist(), sequences, strict=True)))


@pytest.mark.parametrize(
    "kind,engine",
    [
        pytest.param(
            kind, engine, marks=[] if (kind == "transformer") == (engine == "jax") else pytest.mark.slow("one of many")
        )
        for kind in ("transformer", "lstm")
        for engine in ENGINES[1:]
    ],
)
def test_engines_agree(kind, engine):
    expected, found = (search_with(e, kind, beam_size=3) for e in ("torch", engine))
    for a, b in zip(found, expected, strict=True):
        assert [labels for _, labels in a] == [labels for _, labels in b]
        np.testing.assert_allclose([s for s, _ in a], [s for s, _ in b], atol=1e-4)


def test_density_ratio(tmp_path):
    """a model, plus a language model of what is expected, less one of the transcripts in training"""
    words = ["a", "b"]
    vocab_dim = nn.Dim(3, name="vocab")
    lms, references = [], []
    for seed in (1, 2):
        levels = random_ngrams(words, order=3, seed=seed)
        model = read_arpa(write_arpa(tmp_path / "x.arpa", levels))
        lms.append(NgramScorer(model, vocab_dim, labels=["</s>", *words], eos=0))
        references.append(Backoff(levels))
    table = TableScorer(3, seed=3)

    class Sum:
        vocab_dim = table.vocab_dim

        def total(self, labels, **kwargs):
            target, source = (x.total([words[i - 1] for i in labels]) for x in references)
            return table.total(labels, **kwargs) + 0.6 * target - 0.5 * source

    mixture: Any = combine([(table, 1.0), (lms[0], 0.6), (lms[1], -0.5)])
    kwargs: dict[str, Any] = dict(max_len=4, bos=0, eos=0)
    found = search_on_torch(mixture, [0, 5, 50], beam_size=40, scorers=[table], **kwargs)
    for nbest, start in zip(found, [0, 5, 50], strict=True):
        assert_same(nbest, enumerate_all(Sum(), start=start, **kwargs))
