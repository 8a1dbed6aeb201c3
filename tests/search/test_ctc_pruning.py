"""CTC prefix beam search that leaves something out, against a search over dicts that does the same."""

from __future__ import annotations

from typing import Any

import numpy
import pytest

from returnn_common import nn
from returnn_common.search import CtcPruning, LexiconScorer, combine, ctc_beam_search
from tests.engines import ENGINES, Input, run_on
from tests.search.ctc_reference import (
    Trigram,
    assert_same,
    dict_search,
    enumerate_all,
    random_log_probs,
    search_on_torch,
)

PRUNINGS: list[dict[str, Any]] = [
    dict(max_labels=1),
    dict(max_labels=2),
    dict(score_margin=1.0),
    dict(blank_threshold=0.3),
    dict(blank_threshold=0.9),
    dict(max_labels=2, score_margin=3.0, blank_threshold=0.5),
]


def _draw(seed, *, batch=60, frames=9, size=5, blank=4):
    rng = numpy.random.default_rng(seed)
    log_probs = random_log_probs(rng, batch, frames, size)
    log_probs[:, :, blank] += rng.choice([0.0, 4.0], (batch, frames))
    log_probs -= numpy.logaddexp.reduce(log_probs, axis=-1, keepdims=True)
    lengths = rng.integers(0, frames + 1, batch)
    lengths[0] = frames
    return log_probs, lengths


def _assert_same_as_reference(found, log_probs, lengths, **kwargs):
    for i, length in enumerate(lengths):
        expected = dict_search(log_probs[i, :length].astype("float64"), **kwargs)
        assert [labels for _, labels in found[i]] == [list(k) for k, _ in expected]
        numpy.testing.assert_allclose([s for s, _ in found[i]], [s for _, s in expected], atol=1e-4)


@pytest.mark.parametrize("pruning", PRUNINGS, ids=str)
def test_same_as_reference(pruning):
    log_probs, lengths = _draw(1)
    exact = search_on_torch(log_probs, lengths, blank=4, beam_size=4)
    padded = log_probs.copy()
    for i, length in enumerate(lengths):
        padded[i, length:] = [numpy.nan, numpy.inf, 1e9, 0.0][i % 4]
    found = search_on_torch(padded, lengths, blank=4, beam_size=4, pruning=CtcPruning(**pruning))
    _assert_same_as_reference(found, log_probs, lengths, blank=4, beam_size=4, **pruning)
    assert found != exact
    assert search_on_torch(log_probs, lengths, blank=4, beam_size=4, pruning=CtcPruning()) == exact


def test_blank_first():
    """blank anywhere among the labels"""
    log_probs, lengths = _draw(2, blank=1, batch=20)
    pruning: dict[str, Any] = dict(max_labels=2, blank_threshold=0.7)
    found = search_on_torch(log_probs, lengths, blank=1, beam_size=3, pruning=CtcPruning(**pruning))
    _assert_same_as_reference(found, log_probs, lengths, blank=1, beam_size=3, **pruning)


def test_as_many_labels_as_there_are():
    log_probs, lengths = _draw(3, batch=10)
    exact = search_on_torch(log_probs, lengths, blank=4, beam_size=4)
    for max_labels in (4, 5, 100):
        pruning = CtcPruning(max_labels=max_labels)
        assert search_on_torch(log_probs, lengths, blank=4, beam_size=4, pruning=pruning) == exact


def test_all_frames_left_out():
    log_probs = numpy.log(numpy.array([[[0.1, 0.9]] * 3] * 3, "float32"))
    found = search_on_torch(log_probs, [3, 1, 0], blank=1, beam_size=2, pruning=CtcPruning(blank_threshold=0.5))
    for nbest, n in zip(found, [3, 1, 0], strict=True):
        assert nbest == [(pytest.approx(n * numpy.log(0.9), abs=1e-6), [])]


def test_batch_is_single():
    log_probs, lengths = _draw(4, batch=6, frames=25)
    kwargs: dict[str, Any] = dict(blank=4, beam_size=4, pruning=CtcPruning(max_labels=2, blank_threshold=0.7))
    kwargs.update(scorer=Trigram(5, bos=4), scorer_scale=0.5, eos=4)
    found = search_on_torch(log_probs, lengths, **kwargs)
    for i, length in enumerate(lengths):
        (single,) = search_on_torch(log_probs[i : i + 1, :length], [length], **kwargs)
        assert [labels for _, labels in found[i]] == [labels for _, labels in single]
        numpy.testing.assert_allclose([s for s, _ in found[i]], [s for s, _ in single], rtol=1e-5)


def test_scorer_sees_the_labels_chosen():
    """with a beam for all, only the labels left out are missing, whatever the scorer"""
    log_probs, lengths = _draw(5, batch=20, frames=3)
    scorer = Trigram(5, bos=4)
    kwargs: dict[str, Any] = dict(blank=4, scorer=scorer, eos=4)
    found = search_on_torch(
        log_probs, lengths, beam_size=150, scorer_scale=0.7, pruning=CtcPruning(max_labels=3), **kwargs
    )
    for i, length in enumerate(lengths):
        x = log_probs[i, :length].copy()
        for frame in x:  # the worst label; it can't be repeated either, as it is nowhere else in a full beam of these
            frame[numpy.argmin(frame[:4])] = -numpy.inf
        full = enumerate_all(log_probs[i, :length], scale=0.7, **kwargs)
        for score, labels in found[i]:
            assert score <= full[tuple(labels)] + 1e-4
        must = enumerate_all(x, scale=0.7, **kwargs)
        scores = {tuple(labels): score for score, labels in found[i]}
        assert all(scores[labels] >= score - 1e-4 for labels, score in must.items())


@pytest.mark.parametrize("words", [None, [(0,), (0, 1), (2, 3)]])
def test_scorer_of_tensors_is_repeated(words):
    """on PyTorch: same hypotheses, but only the first frames call it"""
    log_probs, lengths = _draw(7, batch=5, frames=40)

    class Counting(Trigram):
        calls = 0

        def score(self, prev_labels, state):
            self.calls += 1
            return super().score(prev_labels, state)

    found, calls = [], []
    for tensors_only in (False, True):
        lm = Counting(5, bos=4)
        setattr(lm, "tensors_only", tensors_only)  # noqa: B010 of a scorer, if it has it
        scorer: Any = lm
        if words:
            scorer = combine([(lm, 1.0), (LexiconScorer(words, lm.vocab_dim, eos=4), 1.0)])
            assert scorer.tensors_only == tensors_only
        kwargs: dict[str, Any] = dict(blank=4, beam_size=4, scorer=scorer, scorer_scale=0.5, bos=4, eos=4)
        found.append(search_on_torch(log_probs, lengths, pruning=CtcPruning(max_labels=3), **kwargs))
        calls.append(lm.calls)
    assert found[0] == found[1]
    assert calls[0] == 41 and calls[1] < 7


@pytest.mark.parametrize("engine", ENGINES)
def test_engines(engine):
    log_probs, lengths = _draw(6, batch=3, frames=4)
    lengths[1:] = 2, 0
    options: dict[str, Any] = dict(max_labels=2, score_margin=8.0, blank_threshold=0.6)

    def func(x, time):
        hyps = ctc_beam_search(x, spatial_dim=time, beam_size=3, blank=4, pruning=CtcPruning(**options))
        return {
            "labels": (hyps.labels, [nn.batch_dim, hyps.beam_dim, hyps.spatial_dim]),
            "scores": (hyps.scores, [nn.batch_dim, hyps.beam_dim]),
        }

    res = run_on(engine, func, {"x": Input(log_probs, "batch time vocab")}, {"time": lengths, "vocab": 5})
    sizes = res.outputs["labels"].lengths[2]
    found = [
        [(s, [int(c) for c in seq[:n]]) for s, seq, n in zip(*row, strict=True) if s > -numpy.inf]
        for row in zip(res["scores"], res["labels"], sizes, strict=True)
    ]
    _assert_same_as_reference(found, log_probs, lengths, blank=4, beam_size=3, **options)


@pytest.mark.parametrize("recombine", ["sum", "max"])
def test_many_draws(recombine):
    """any vocabulary, one label included; with and without scorer, end of sentence, impossible labels"""
    rng = numpy.random.default_rng(8)
    for draw in range(24):
        size, frames = int(rng.integers(2, 6)), int(rng.integers(0, 5 - draw % 2))
        blank = int(rng.integers(0, size))
        log_probs = random_log_probs(rng, 12, frames, size)
        log_probs[rng.random(log_probs.shape) < 0.1] = -numpy.inf
        lengths = rng.integers(0, frames + 1, 12)
        kwargs: dict[str, Any] = dict(blank=blank, recombine=recombine)
        scale = 0.0
        if draw % 3:
            kwargs.update(scorer=Trigram(size, bos=blank, seed=draw), eos=[None, blank][draw % 2])
            scale = float(rng.choice([0.3, 1.0, -0.2]))
        pruning = CtcPruning(max_labels=size) if draw % 4 else None
        bos = dict(bos=blank) if draw % 3 else {}
        found = search_on_torch(log_probs, lengths, beam_size=300, scorer_scale=scale, pruning=pruning, **kwargs, **bos)
        for i, length in enumerate(lengths):
            with numpy.errstate(invalid="ignore"):
                expected = enumerate_all(log_probs[i, :length], scale=scale, **kwargs)
            assert_same(found[i], {k: v for k, v in expected.items() if v > -1e6})


@pytest.mark.parametrize(
    "kwargs,message",
    [
        (dict(max_labels=0), "max_labels, expected an int of at least 1, got 0"),
        (dict(max_labels=2.0), "max_labels, expected an int of at least 1, got 2.0"),
        (dict(score_margin=-0.5), "score_margin, expected at least 0, got -0.5"),
        (dict(score_margin=numpy.nan), "score_margin, expected at least 0, got nan"),
        (dict(blank_threshold=1.0), "blank_threshold, expected a probability between 0 and 1, got 1.0"),
        (dict(blank_threshold=0), "blank_threshold, expected a probability between 0 and 1, got 0"),
    ],
)
def test_errors(kwargs, message):
    with pytest.raises(ValueError, match="CtcPruning: " + message):
        CtcPruning(**kwargs)
