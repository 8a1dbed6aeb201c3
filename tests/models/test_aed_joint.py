"""Joint search with attention and CTC, label by label and frame by frame, against enumerating all label sequences."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from returnn_common import nn
from returnn_common.models.aed import make_aed_model
from returnn_common.models.decoder.transformer import make_transformer_decoder
from returnn_common.models.encoder.conformer import make_conformer_encoder
from returnn_common.models.lm.lstm import make_lstm_lm
from returnn_common.search import DecoderScorer, beam_search, combine, ctc_prefix_scorer, score_labels
from tests.engines import Input, run_on
from tests.models.ctc_tiny import ENCODER, FEATURES, VOCAB, features, reference_loss

LENGTHS = [12, 9, 4]  # 3, 2 and 1 frames of the encoder
DECODER = {"num_layers": 1, "model_dim": 8, "num_heads": 2, "dropout": 0.0}


class _WithLm(nn.Module):
    def __init__(self, in_dim, vocab, *, eos=None, layers=(1, 2), positions="absolute"):
        super().__init__()
        encoder = make_conformer_encoder(in_dim, **ENCODER, conv_norm="layer", dropout=0.0)
        decoder = make_transformer_decoder(encoder.out_dim, VOCAB + (eos is None), positions=positions, **DECODER)
        self.aed = make_aed_model(in_dim, vocab, encoder=encoder, decoder=decoder, eos=eos, aux_ctc_layers=layers)
        self.lm = make_lstm_lm(self.aed.decoder.vocab_dim, num_layers=1, model_dim=4, embed_dim=3)


def _run(func, *, engine="torch", lengths=LENGTHS, x=None, **options):
    nn.select_backend_torch()
    made = _WithLm(FEATURES, VOCAB, **options)
    rng = np.random.default_rng(1)
    params = {  # such that the labels' probabilities differ
        name: rng.normal(size=[d.dimension for d in p.dims]) * 2.0
        for name, p in made.named_parameters()
        if name.startswith("aed.aux_ctc_outputs") or name.endswith(("logits.weight", "input_embedding.weight"))
    }
    return run_on(
        engine,
        func,
        {"x": Input(features(lengths) if x is None else x, "batch time feat")},
        {"time": lengths, "feat": FEATURES, "vocab": VOCAB},
        make_model=lambda feat, vocab: _WithLm(feat, vocab, **options),
        params=params,
    )


def _search(**kwargs):
    """:return: a function for `_run`; `lm_scale` for the model's own LM"""

    def func(model, x, time):
        lm = {"lm": DecoderScorer(model.lm)} if kwargs.get("lm_scale") else {}
        return _outputs(model.aed.search(x, in_spatial_dim=time, **lm, **kwargs), model.aed)

    return func


def _outputs(hypotheses, aed):
    assert hypotheses.labels.sparse_dim == aed.vocab_dim
    dims = [nn.batch_dim, hypotheses.beam_dim]
    return {
        "labels": (hypotheses.labels, [*dims, hypotheses.spatial_dim]),
        "lengths": (hypotheses.lengths, dims),
        "scores": (hypotheses.scores, dims),
    }


def _nbest(result) -> list[list[tuple[float, tuple[int, ...]]]]:
    return [
        [(float(s), tuple(int(c) for c in labels[:n])) for s, labels, n in zip(*row, strict=True) if s > -np.inf]
        for row in zip(result["scores"], result["labels"], result["lengths"], strict=True)
    ]


def _enumerate(*, max_len: int, **options) -> list[dict[tuple[int, ...], np.ndarray]]:
    """:return: for each utterance, label sequence -> log probs by decoder, CTC, LM"""
    vocab = [c for c in range(VOCAB) if c != options.get("eos")]
    sequences = [seq for n in range(max_len + 1) for seq in itertools.product(vocab, repeat=n)]

    def func(model, x, time):
        aed, num = model.aed, nn.Dim(len(sequences), name="sequences")
        encoded, frames = aed.encode(x, in_spatial_dim=time)
        decoder = DecoderScorer(aed.decoder, encoder=aed.decoder.transform_encoder(encoded, axis=frames))
        sizes = nn.convert_to_tensor(np.array([len(seq) for seq in sequences], "int32"), dims=[num])
        labels_dim = nn.Dim(sizes, name="labels")
        padded = np.array([[*seq, *[0] * (max_len - len(seq))] for seq in sequences], "int32")
        labels = nn.convert_to_tensor(padded, dims=[num, labels_dim], sparse_dim=aed.decoder.vocab_dim)
        labels = nn.expand_dim(labels, nn.batch_dim)
        outputs = {}
        for name, scorer in [("decoder", decoder), ("lm", DecoderScorer(model.lm))]:
            forced = score_labels(scorer, labels, spatial_dim=labels_dim, bos=aed.bos, eos=aed.eos)
            outputs[name] = (forced, [nn.batch_dim, num])
        collected = {}
        aed.encode(x, in_spatial_dim=time, collected_outputs=collected)
        log_probs = nn.log_softmax(aed.aux_ctc_outputs[-1](collected["1"]), axis=aed.labels_dim)
        return {**outputs, "ctc": (log_probs, [nn.batch_dim, frames, aed.labels_dim])}

    result, found = _run(func, **options), []
    for i, num_frames in enumerate(result.outputs["ctc"].lengths[1]):
        log_probs, scores = result["ctc"][i, :num_frames].astype("float64"), {}
        for k, seq in enumerate(sequences):
            ctc = -reference_loss(log_probs, list(seq))
            scores[seq] = np.array([result["decoder"][i, k], ctc, result["lm"][i, k]])
        found.append(scores)
    return found


def _mix(scores, *, ctc_scale: float, lm_scale: float = 0.0) -> list[tuple[float, tuple[int, ...]]]:
    """best first; what CTC rules out is none"""
    scales = np.array([1.0 - ctc_scale, ctc_scale, lm_scale])
    mixed = [(float(parts[scales != 0] @ scales[scales != 0]), seq) for seq, parts in scores.items()]
    return sorted([(score, seq) for score, seq in mixed if score > -np.inf], reverse=True)


def _assert_same(nbest, expected):
    assert sorted(seq for _, seq in nbest) == sorted(seq for _, seq in expected)
    np.testing.assert_allclose([s for s, _ in nbest], [s for s, _ in expected], atol=2e-4)
    by_labels = {seq: s for s, seq in expected}
    np.testing.assert_allclose([s for s, _ in nbest], [by_labels[seq] for _, seq in nbest], atol=2e-4)


@pytest.mark.parametrize("eos", [None, 0])
def test_full_beam_is_enumeration(eos: int | None):
    every = _enumerate(max_len=3, eos=eos)
    num_possible = []
    for ctc_scale, lm_scale in [(0.3, 0.0), (0.6, 0.4), (1.0, 0.0), (1.0, 0.5), (0.5, -0.2)]:
        for time_sync in (False, True):
            search = _search(beam_size=100, ctc_scale=ctc_scale, time_sync=time_sync, lm_scale=lm_scale)
            for nbest, scores in zip(_nbest(_run(search, eos=eos)), every, strict=True):
                expected = _mix(scores, ctc_scale=ctc_scale, lm_scale=lm_scale)
                _assert_same(nbest, expected)
                num_possible.append(len(expected))
    assert max(num_possible) > 20


def test_lengths_and_numbers():
    """of a search label by label: options of :func:`beam_search`, with its defaults for both kinds of score"""
    every = _enumerate(max_len=3)[0]
    for kwargs, exponent in [
        ({"ctc_scale": 0.4}, 0.0),
        ({"ctc_scale": 0.4, "length_exponent": 1.0}, 1.0),
        ({"ctc_scale": 0.4, "min_len": 2}, 0.0),
        ({"ctc_scale": 0.4, "max_len": 1}, 0.0),
        ({"ctc_scale": 0.4, "num_best": 3}, 0.0),
        ({"ctc_scale": 0.4, "num_best": 3, "time_sync": True}, 0.0),
        ({"ctc_scale": 0.0}, 1.0),
        ({"ctc_scale": 0.0, "min_len": 1, "length_exponent": 0.5}, 0.5),
    ]:
        expected = [
            (score, seq)
            for score, seq in _mix(every, ctc_scale=kwargs["ctc_scale"])
            if kwargs.get("min_len", 0) <= len(seq) <= kwargs.get("max_len", 3)
        ]
        expected.sort(key=lambda x: -x[0] / (len(x[1]) + 1) ** exponent)  # noqa: B023
        expected = expected[: kwargs.get("num_best")]
        found = _nbest(_run(_search(beam_size=100, **kwargs)))[0]
        assert [seq for _, seq in found] == [seq for _, seq in expected]
        np.testing.assert_allclose([s for s, _ in found], [s for s, _ in expected], atol=2e-4)


@pytest.mark.parametrize("time_sync", [False, True])
@pytest.mark.parametrize("positions", ["absolute", "rotary"])
def test_batch_is_single_and_padding_does_not_matter(positions: str, time_sync: bool):
    lengths = [60, 12, 37]
    search = _search(beam_size=4, ctc_scale=0.5, time_sync=time_sync, lm_scale=0.3)
    batched = _nbest(_run(search, lengths=lengths, positions=positions))
    assert max(len(seq) for nbest in batched for _, seq in nbest) >= 3
    for garbage in (1e3, -7.0):
        other = _nbest(_run(search, lengths=lengths, x=features(lengths, garbage), positions=positions))
        assert [[seq for _, seq in nbest] for nbest in other] == [[seq for _, seq in nbest] for nbest in batched]
    for nbest, n in zip(batched, lengths, strict=True):
        (single,) = _nbest(_run(search, lengths=[n], positions=positions))
        assert [seq for _, seq in nbest] == [seq for _, seq in single]
        np.testing.assert_allclose([s for s, _ in nbest], [s for s, _ in single], rtol=1e-4)


@pytest.mark.parametrize("time_sync", [False, True])
def test_utterance_without_frames(time_sync: bool):
    """has no hypothesis, for the decoder has nothing to look at; the others don't notice"""
    search = _search(beam_size=3, ctc_scale=0.5, time_sync=time_sync)
    first, empty, second = _nbest(_run(search, lengths=[12, 0, 37]))
    assert empty == []
    for nbest, expected in zip((first, second), _nbest(_run(search, lengths=[12, 37])), strict=True):
        assert [seq for _, seq in nbest] == [seq for _, seq in expected]
        np.testing.assert_allclose([s for s, _ in nbest], [s for s, _ in expected], rtol=1e-4)


@pytest.mark.parametrize(
    "kwargs, message",
    [
        ({"num_best": 3}, "beam_search: num_best, expected at most the beam_size 2, got 3"),
        ({"ctc_scale": 0.3, "time_sync": True, "num_best": 3}, "num_best, expected at most the beam's 2, got 3"),
        ({"ctc_scale": 0.3, "time_sync": True, "num_best": 0}, "num_best, expected an int of at least 1, got 0"),
        ({"ctc_scale": 1.2}, "AedModel: ctc_scale, expected 0 to 1, got 1.2"),
        ({"ctc_scale": -0.1}, "AedModel: ctc_scale, expected 0 to 1, got -0.1"),
        ({"time_sync": True}, "AedModel: time_sync, expected a ctc_scale above 0, got 0.0"),
        ({"ctc_scale": 0.3, "layers": ()}, "AedModel: expected aux_ctc_layers, for there is no CTC head"),
        ({"ctc_scale": 0.3, "layers": (), "time_sync": True}, "AedModel: expected aux_ctc_layers, for there is no"),
        ({"ctc_scale": 0.3, "time_sync": True, "max_len": 3}, "AedModel: max_len, expected None with time_sync, .* 3"),
        ({"ctc_scale": 0.3, "time_sync": True, "min_len": 0}, "AedModel: min_len, expected None with time_sync, .* 0"),
        (
            {"ctc_scale": 0.3, "time_sync": True, "length_exponent": 1.0},
            "AedModel: length_exponent, expected None with time_sync, where CTC says how long, got 1.0",
        ),
    ],
)
def test_what_does_not_fit(kwargs: dict[str, Any], message: str):
    layers = kwargs.pop("layers", (2,))
    with pytest.raises(ValueError, match=message):
        _run(_search(beam_size=2, **kwargs), layers=layers)


# JAX compiles for minutes, a net dict takes as long to build: the scorer alone runs there in each test run.
@pytest.mark.parametrize(
    "engine,time_sync",
    [
        ("tensorflow", True),
        pytest.param("tensorflow", False, marks=pytest.mark.slow),
        pytest.param("tensorflow-net-dict", False, marks=pytest.mark.slow),
        pytest.param("tensorflow-net-dict", True, marks=pytest.mark.slow),
        pytest.param("jax", False, marks=pytest.mark.slow),
        pytest.param("jax", True, marks=pytest.mark.slow),
    ],
)
def test_engines_agree(engine: str, time_sync: bool, monkeypatch):
    monkeypatch.setattr(ctc_prefix_scorer, "_ROUNDS_IN_GRAPH", 2)  # for 3 frames; a net dict takes long to build
    search = _search(beam_size=3, ctc_scale=0.4, time_sync=time_sync)
    expected, result = (_run(search, engine=e) for e in ("torch", engine))
    np.testing.assert_array_equal(result["labels"], expected["labels"])
    np.testing.assert_array_equal(result["lengths"], expected["lengths"])
    np.testing.assert_allclose(result["scores"], expected["scores"], atol=1e-4)
    assert expected["lengths"].max() > 1


def test_ensemble():
    """of two models with the same labels, by their scorers"""

    class _Two(nn.Module):
        def __init__(self, feat, vocab):
            super().__init__()
            self.a, self.b = _WithLm(feat, vocab), _WithLm(feat, vocab)

    def func(model, x, time):
        parts = []
        for part, ctc_scale in ((model.a.aed, 0.3), (model.b.aed, 0.0)):
            scorer, _ = part.scorer(x, in_spatial_dim=time, ctc_scale=ctc_scale)
            parts.append((scorer, 0.5))
        aed = model.a.aed
        kwargs: dict[str, Any] = dict(bos=aed.bos, eos=aed.eos)
        found = beam_search(combine(parts), batch_dims=[nn.batch_dim], beam_size=4, max_len=3, **kwargs)
        outputs = _outputs(found, aed=type("", (), {"vocab_dim": found.labels.sparse_dim}))
        for name, (scorer, _) in zip("ab", parts, strict=True):
            forced = score_labels(scorer, found.labels, spatial_dim=found.spatial_dim, **kwargs)
            outputs[name] = (forced, [nn.batch_dim, found.beam_dim])
        return outputs

    inputs = {"x": Input(features(LENGTHS), "batch time feat")}
    result = run_on("torch", func, inputs, {"time": LENGTHS, "feat": FEATURES, "vocab": VOCAB}, make_model=_Two)
    np.testing.assert_allclose(result["scores"], 0.5 * result["a"] + 0.5 * result["b"], atol=1e-4)
    assert (np.abs(result["a"] - result["b"])[:2] > 1e-2).all()
