"""What is no number is impossible, frames of fixed number are frames, and what is padding may be anything."""

from __future__ import annotations

from typing import Any

import numpy
import pytest

from returnn_common import nn
from returnn_common.search import (
    CtcBeamStream,
    CtcGreedyStream,
    CtcPrefixScorer,
    CtcPruning,
    beam_search,
    ctc_align,
    ctc_beam_search,
    ctc_greedy_search,
    ctc_soft_align,
    score_labels,
)
from tests.engines import ENGINES, Input, run_on
from tests.search.ctc_reference import random_log_probs

NAN, INF = float("nan"), float("inf")
BLANK = 3
PRUNING = CtcPruning(max_labels=2, blank_threshold=0.6)


def _with_holes(hole):
    """log probs {2, 6, 4}; of the second sequence one frame is all holes"""
    x = random_log_probs(numpy.random.default_rng(1), 2, 6, 4)
    x[0, 1, 0] = x[0, 4, 2] = hole
    x[1, 3] = hole
    return x


def _results(x, time, batch, *, names=("greedy", "beam", "pruned", "labels")):
    """:return: name -> scores of hypotheses, {batch, beam}"""
    dims: dict[str, Any] = dict(spatial_dim=time, blank=BLANK)

    def by_labels():
        scorer = CtcPrefixScorer(x, eos=BLANK, **dims)
        return beam_search(scorer, batch_dims=[batch], beam_size=4, max_len=3, bos=BLANK, eos=BLANK)

    searches = {
        "greedy": lambda: ctc_greedy_search(x, **dims),
        "beam": lambda: ctc_beam_search(x, beam_size=4, **dims),
        "pruned": lambda: ctc_beam_search(x, beam_size=4, pruning=PRUNING, **dims),
        "labels": by_labels,
    }
    found = {name: searches[name]() for name in names}
    return {name: (hyps.scores, [batch, hyps.beam_dim]) for name, hyps in found.items()}


@pytest.mark.parametrize("engine", ENGINES)
def test_nan_is_impossible(engine):
    names = ("greedy", "beam", "pruned", "labels") if engine == "torch" else ("greedy", "beam")

    def run(engine, hole):
        inputs = {"x": Input(_with_holes(hole), "batch time vocab")}
        dims = {"time": [6, 5], "vocab": 4}
        return run_on(engine, lambda x, time, batch: _results(x, time, batch, names=names), inputs, dims)

    expected, found = run("torch", -INF), run(engine, NAN)
    for name in names:
        assert numpy.isfinite(expected[name][0]).all() and (expected[name][1] == -INF).all()
        numpy.testing.assert_allclose(found[name], expected[name], rtol=1e-4, atol=1e-4)


def test_fixed_number_of_frames():
    """a static dim, which has no mask"""
    x = random_log_probs(numpy.random.default_rng(2), 2, 6, 4)

    def func(x, time, batch, labels, u):
        labels = nn.set_sparse_dim(labels, x.feature_dim or x.dims[-1])
        dims: dict[str, Any] = dict(spatial_dim=time, blank=BLANK)
        known: dict[str, Any] = dict(labels=labels, labels_spatial_dim=u)
        aligned, soft = ctc_align(x, **dims, **known), ctc_soft_align(x, **dims, **known)
        scorer = CtcPrefixScorer(x, eos=BLANK, **dims)
        forced = score_labels(scorer, labels, spatial_dim=u, bos=BLANK, eos=BLANK)
        results = {**_results(x, time, batch), "aligned": aligned.scores, "soft": soft.scores, "forced": forced}
        for make, options in (
            (CtcGreedyStream, {}),
            (CtcBeamStream, {"beam_size": 4}),
            (CtcBeamStream, {"beam_size": 4, "pruning": PRUNING}),
        ):
            stream = make(scorer.vocab_dim, blank=BLANK, batch_dims=[batch], **options)
            state = stream.initial_state()
            for _ in range(2):
                state = stream.step(x, spatial_dim=time, state=state)
            hyps = stream.hypotheses(state)
            results[f"{make.__name__}-{len(options)}"] = hyps.scores, [batch, hyps.beam_dim]
        return results

    inputs = {
        "x": Input(x, "batch time vocab"),
        "labels": Input(numpy.array([[0, 1], [2, 2]], "int32"), "batch u"),
    }
    static = run_on("torch", func, inputs, {"time": 6, "vocab": 4, "u": 2})
    dynamic = run_on("torch", func, inputs, {"time": [6, 6], "vocab": 4, "u": [2, 2]})
    assert len(static.outputs) == 10
    for name in static.outputs:
        numpy.testing.assert_allclose(static[name], dynamic[name], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("padding", [-1, 99])
def test_anything_behind_the_labels(padding):
    labels = numpy.array([[0, 1, 2], [1, padding, padding], [padding] * 3], "int32")
    x = random_log_probs(numpy.random.default_rng(3), 3, 5, 4)

    def func(x, labels, time, u):
        known: dict[str, Any] = dict(labels=nn.set_sparse_dim(labels, x.dims[-1]), labels_spatial_dim=u)
        aligned = ctc_align(x, spatial_dim=time, blank=BLANK, **known)
        soft = ctc_soft_align(x, spatial_dim=time, blank=BLANK, **known)
        scorer = CtcPrefixScorer(x, spatial_dim=time, blank=BLANK, eos=BLANK)
        forced = score_labels(scorer, known["labels"], spatial_dim=u, bos=BLANK, eos=BLANK)
        starts = aligned.starts, [nn.batch_dim, u]
        return {"scores": aligned.scores, "starts": starts, "soft": soft.scores, "forced": forced}

    def run(labels):
        inputs = {"x": Input(x, "batch time vocab"), "labels": Input(labels, "batch u")}
        return run_on("torch", func, inputs, {"time": [5, 3, 4], "vocab": 4, "u": [3, 1, 0]})

    found, expected = run(labels), run(numpy.where(labels == padding, 0, labels))
    for name in expected.outputs:
        numpy.testing.assert_array_equal(found[name], expected[name])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_other_floats(dtype):
    """scores are float32: a sum over many frames in half precision would be far off"""
    x = random_log_probs(numpy.random.default_rng(4), 1, 3000, 4)

    def func(x, time, batch):
        rounded = nn.cast(x, dtype)
        found = ctc_greedy_search(rounded, spatial_dim=time, blank=BLANK)
        assert found.scores.dtype == "float32"
        ((score, _),) = found.nbest(0)
        expected = nn.cast(rounded, "float64").raw_tensor.max(dim=-1).values.sum()
        assert score == pytest.approx(float(expected), rel=1e-5)
        return {}

    run_on("torch", func, {"x": Input(x, "batch time vocab")}, {"time": [3000], "vocab": 4})
