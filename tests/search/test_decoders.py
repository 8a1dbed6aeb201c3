"""Searches with decoders and language models that are modules, on every engine."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from returnn_common import nn
from returnn_common.models.decoder.lstm_attention import make_lstm_attention_decoder
from returnn_common.models.decoder.transformer import make_transformer_decoder
from returnn_common.models.lm.lstm import make_lstm_lm
from returnn_common.models.lm.transformer import make_transformer_lm
from returnn_common.search import DecoderScorer, beam_search, combine, ctc_beam_search, sample, score_labels
from tests.engines import ENGINES, Input, run_on

FEATURES, VOCAB, END = 4, 4, 0
LENGTHS = [5, 2, 3]
TRANSFORMER = {"num_layers": 1, "model_dim": 4, "num_heads": 2, "dropout": 0.0}
LSTM = {"model_dim": 4, "embed_dim": 3, "dropout": 0.0}
MAKE = {
    "absolute": lambda feat, vocab: make_transformer_decoder(feat, vocab, positions="absolute", **TRANSFORMER),
    "rotary": lambda feat, vocab: make_transformer_decoder(feat, vocab, positions="rotary", **TRANSFORMER),
    "lstm-attention": lambda feat, vocab: make_lstm_attention_decoder(feat, vocab, att_dim=3, **LSTM),
    "lstm-lm": lambda feat, vocab: make_lstm_lm(vocab, num_layers=1, **LSTM),
    "transformer-lm": lambda feat, vocab: make_transformer_lm(vocab, **TRANSFORMER),
}


class _Model(nn.Module):
    """The features take the place of an encoder's output. It searches in a method, as all models do."""

    def __init__(self, decoder: Any, lm: Any):
        super().__init__()
        self.decoder = decoder
        self.lm = lm

    def search(self, x: nn.Tensor, *, time: nn.Dim) -> dict[str, Any]:
        scorer: Any = DecoderScorer(self.decoder, self.decoder.transform_encoder(x, axis=time))
        if self.lm is not None:
            scorer = combine([(scorer, 1.0), (DecoderScorer(self.lm), 0.5)])
        max_len = time.get_size_tensor(device=x.device)
        found = beam_search(
            scorer, batch_dims=[nn.batch_dim], beam_size=3, num_best=2, max_len=max_len, bos=END, eos=END
        )
        dims = [nn.batch_dim, found.beam_dim]
        outputs = {
            "labels": (found.labels, [*dims, found.spatial_dim]),
            "lengths": (found.lengths, dims),
            "scores": (found.scores, dims),
        }
        if self.lm is None:  # else it takes too long for a test on the net dict
            forced = score_labels(scorer, found.labels, spatial_dim=found.spatial_dim, bos=END, eos=END)
            outputs["forced"] = (forced, dims)
        return outputs


def _search(engine: str, *names: str):
    x = np.random.default_rng(3).normal(size=(3, 5, FEATURES)).astype("float32")

    def make_model(feat, vocab):
        decoder, *lm = (MAKE[name](feat, vocab) for name in names)
        return _Model(decoder, *(lm or [None]))

    return run_on(
        engine,
        lambda model, x, time: model.search(x, time=time),
        {"x": Input(x, "batch time feat")},
        {"time": LENGTHS, "feat": FEATURES, "vocab": VOCAB},
        make_model=make_model,
    )


@pytest.mark.parametrize("engine", ENGINES[1:])
@pytest.mark.parametrize(
    "names", [("absolute",), ("rotary", "lstm-lm"), ("lstm-attention", "transformer-lm")], ids="+".join
)
def test_engines_agree(names: tuple[str, ...], engine: str):
    expected, result = _search("torch", *names), _search(engine, *names)
    np.testing.assert_array_equal(result["labels"], expected["labels"])
    np.testing.assert_array_equal(result["lengths"], expected["lengths"])
    assert expected["lengths"].max() > 1
    for name in {"scores", "forced"} & set(result.outputs):
        np.testing.assert_allclose(result[name], expected["scores"], atol=1e-4)


def _search_frames(engine: str):
    """with a language model as scorer; it has CTC's blank, too, which is its end of sentence"""

    def _func(model, x, time):
        found = ctc_beam_search(
            nn.log_softmax(x * 2.0, axis=model.vocab_dim),
            spatial_dim=time,
            blank=VOCAB - 1,
            beam_size=3,
            scorer=DecoderScorer(model),
            scorer_scale=0.5,
            bos=VOCAB - 1,
            eos=VOCAB - 1,
        ).first(2)
        dims = [nn.batch_dim, found.beam_dim]
        return {"labels": (found.labels, [*dims, found.spatial_dim]), "scores": (found.scores, dims)}

    x = np.random.default_rng(5).normal(size=(3, 5, FEATURES)).astype("float32")
    return run_on(
        engine,
        _func,
        {"x": Input(x, "batch time feat")},
        {"time": LENGTHS, "feat": FEATURES},
        make_model=lambda feat: MAKE["transformer-lm"](feat, feat),
    )


# The engine whose loops ask the most of a state; tests/models/test_aed_joint.py has decoders, and the other engines.
@pytest.mark.parametrize("engine", ["tensorflow-net-dict"])
def test_engines_agree_frame_by_frame(engine: str):
    expected, result = _search_frames("torch"), _search_frames(engine)
    np.testing.assert_array_equal(result["labels"], expected["labels"])
    np.testing.assert_allclose(result["scores"], expected["scores"], atol=1e-4)
    assert expected["labels"].shape[-1] > 1


@pytest.mark.parametrize("names", [("absolute",), ("lstm-attention", "transformer-lm")], ids="+".join)
def test_scores_of_samples(names: tuple[str, ...]):
    """as forced, whatever the temperature"""

    def _func(model, x, time):
        scorer: Any = DecoderScorer(model.decoder, model.decoder.transform_encoder(x, axis=time))
        if model.lm is not None:
            scorer = combine([(scorer, 1.0), (DecoderScorer(model.lm), 0.5)])
        found = sample(
            scorer, batch_dims=[nn.batch_dim], num_samples=8, max_len=6, bos=END, eos=END, temperature=3.0, top_p=0.99
        )
        forced = score_labels(scorer, found.labels, spatial_dim=found.spatial_dim, bos=END, eos=END)
        dims = [nn.batch_dim, found.beam_dim]
        return {"scores": (found.scores, dims), "forced": (forced, dims), "lengths": (found.lengths, dims)}

    def _make(feat, vocab):
        decoder, *lm = (MAKE[name](feat, vocab) for name in names)
        return _Model(decoder, *(lm or [None]))

    x = np.random.default_rng(3).normal(size=(3, 5, FEATURES)).astype("float32")
    sizes = {"time": LENGTHS, "feat": FEATURES, "vocab": VOCAB}
    result = run_on("torch", _func, {"x": Input(x, "batch time feat")}, sizes, make_model=_make)
    np.testing.assert_allclose(result["scores"], result["forced"], atol=1e-4)
    assert len(set(result["lengths"].flatten())) > 2


class _OwnHistories:
    """a scorer that isn't told which dim is the beam: each hypothesis has its own state"""

    def __init__(self, scorer: Any):
        self.vocab_dim, self.initial, self.score = scorer.vocab_dim, scorer.initial_state, scorer.score

    def initial_state(self, *, batch_dims):
        return self.initial(batch_dims=batch_dims)


def _long_search(x: np.ndarray, lengths: list[int], *, wrap: Any = lambda scorer: scorer, num_best: int = 4) -> Any:
    """:return: n-best lists"""
    found = []

    def _func(model, x, time):
        scorer = DecoderScorer(model.decoder, model.decoder.transform_encoder(x, axis=time))
        scorer = wrap(combine([(scorer, 1.0), (DecoderScorer(model.lm), 0.5)]))
        options: dict[str, Any] = dict(beam_size=4, num_best=num_best, min_len=30, max_len=40, bos=END, eos=END)
        hyps = beam_search(scorer, batch_dims=[nn.batch_dim], **options)
        found.extend(hyps.nbest(i) for i in range(len(lengths)))
        return {}

    run_on(
        "torch",
        _func,
        {"x": Input(x, "batch time feat")},
        {"time": lengths, "feat": FEATURES, "vocab": VOCAB},
        make_model=lambda feat, vocab: _Model(MAKE["absolute"](feat, vocab), MAKE["transformer-lm"](feat, vocab)),
    )
    return found


@functools.cache
def _long_searches() -> tuple[np.ndarray, Any]:
    x = np.random.default_rng(4).normal(size=(3, 5, FEATURES)).astype("float32")
    return x, _long_search(x, LENGTHS)


def _assert_same(found: Any, expected: Any):
    for nbest, others in zip(found, expected, strict=True):
        assert [labels for _, labels in nbest] == [labels for _, labels in others]
        np.testing.assert_allclose([s for s, _ in nbest], [s for s, _ in others], rtol=1e-4)


def test_hypotheses_that_share_their_states():
    """long enough that what no hypothesis needs any more is dropped, more than once"""
    x, found = _long_searches()
    assert all(len(labels) >= 30 for nbest in found for _, labels in nbest)
    _assert_same(found, _long_search(x, LENGTHS, wrap=_OwnHistories))


def test_batch_and_padding_do_not_matter():
    x, found = _long_searches()
    for i, length in enumerate(LENGTHS):
        _assert_same(_long_search(x[i : i + 1, :length], [length]), found[i : i + 1])
    # Beside a longer one: other padding
    longer = np.full((4, 9, FEATURES), 1e3, "float32")
    for i, length in enumerate(LENGTHS):
        longer[i, :length] = x[i, :length]
    _assert_same(_long_search(longer, [*LENGTHS, 9])[:3], found)
