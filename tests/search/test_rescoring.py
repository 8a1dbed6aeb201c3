"""Scores of given labels, and n-best lists ordered anew."""

from __future__ import annotations

from typing import Any

import numpy
import pytest

from returnn_common import nn
from returnn_common.search import beam_search, rescore, score_labels
from tests.engines import ENGINES, Input, run_on
from tests.search.beam_reference import TableScorer

INF = float("inf")
LABELS = numpy.array([[1, 2, 3, 1], [1, 0, 0, 0], [2, 2, 0, 0]], "int32")
LENGTHS = [4, 0, 2]
STARTS = [0, 5, 7]


def run_score_labels(engine, scorer, labels, *, bos, eos):
    def func(start, labels, time, batch):
        scorer.start = start
        labels = nn.set_sparse_dim(labels, scorer.vocab_dim)
        return {"scores": score_labels(scorer, labels, spatial_dim=time, bos=bos, eos=eos)}

    inputs = {"start": Input(numpy.array(STARTS, "int32"), "batch"), "labels": Input(labels, "batch time")}
    params = {"table": scorer.table} if engine != "torch" else None
    make_model = scorer.make_module if params else None
    return run_on(engine, func, inputs, {"time": LENGTHS}, make_model=make_model, params=params)["scores"]


@pytest.mark.parametrize("engine", ENGINES)
def test_score_labels(engine):
    scorer = TableScorer(4, seed=1)
    expected = [
        scorer.total(labels[:n], bos=2, eos=0, start=start)
        for labels, n, start in zip(LABELS, LENGTHS, STARTS, strict=True)
    ]
    scores = run_score_labels(engine, scorer, LABELS, bos=2, eos=0)
    numpy.testing.assert_allclose(scores, expected, atol=1e-4)


def test_padding_and_impossible_labels():
    scorer = TableScorer(4, seed=1)
    scores = run_score_labels("torch", scorer, LABELS, bos=0, eos=0)
    padded = LABELS.copy()
    for row, length in zip(padded, LENGTHS, strict=True):
        row[length:] = 99
    numpy.testing.assert_array_equal(run_score_labels("torch", scorer, padded, bos=0, eos=0), scores)
    assert (run_score_labels("torch", scorer, LABELS, bos=1, eos=0) != scores).any()
    scorer.table[5 * STARTS[2] + 1, 2] = -INF
    assert list(run_score_labels("torch", scorer, LABELS, bos=0, eos=0)) == [scores[0], scores[1], -INF]


@pytest.mark.parametrize("size,engine", [(2, "torch"), (0, "torch"), (2, "tensorflow-net-dict")])
def test_static_length(size: int, engine: str):
    scorer = TableScorer(4, seed=1)

    def func(start, labels, time):
        scorer.start = start
        labels = nn.set_sparse_dim(labels, scorer.vocab_dim)
        return {"scores": score_labels(scorer, labels, spatial_dim=time, bos=2, eos=0)}

    params = {"table": scorer.table} if engine != "torch" else None
    inputs = {"start": Input(numpy.array(STARTS, "int32"), "batch"), "labels": Input(LABELS[:, :size], "batch time")}
    make_model = scorer.make_module if params else None
    scores = run_on(engine, func, inputs, {"time": size}, make_model=make_model, params=params)["scores"]
    expected = [scorer.total(labels[:size], bos=2, eos=0, start=s) for labels, s in zip(LABELS, STARTS, strict=True)]
    numpy.testing.assert_allclose(scores, expected, atol=1e-4)


@pytest.mark.parametrize("scale,own_scale,length_exponent", [(0.7, 1.0, 0.0), (-0.5, 2.0, 1.0), (1.0, 0.0, 1.0)])
def test_rescore(scale, own_scale, length_exponent):
    first, second = TableScorer(4, seed=1), TableScorer(4, seed=2, name="other")
    second.table[numpy.random.default_rng(0).random(second.table.shape) < 0.1] = -INF
    starts = range(40)
    num_ruled_out = 0

    def func(start, batch):
        nonlocal num_ruled_out
        first.start = second.start = start
        # max_len 1 and 4: of the shorter ones, there are fewer than the beam has room for.
        limits = nn.cast(nn.cast(start, "float32") / 20.0, "int32") * 3 + 1
        hyps = beam_search(first, batch_dims=[batch], beam_size=6, max_len=limits, bos=0, eos=0)
        opts: dict[str, Any] = dict(own_scale=own_scale, length_exponent=length_exponent)
        new = rescore(hyps, second, scale=scale, bos=0, eos=0, **opts)
        for i in starts:
            expected = []
            for score, labels in hyps.nbest(i):
                other = second.total(labels, bos=0, eos=0, start=i)
                if other > -INF:
                    expected.append((own_scale * score + scale * other, labels))
            num_ruled_out += len(hyps.nbest(i)) - len(expected)
            expected.sort(key=lambda x: -x[0] / (len(x[1]) + 1) ** length_exponent)
            assert [labels for _, labels in new.nbest(i)] == [labels for _, labels in expected]
            numpy.testing.assert_allclose([s for s, _ in new.nbest(i)], [s for s, _ in expected], atol=1e-4)
        return {}

    run_on("torch", func, {"start": Input(numpy.array(starts, "int32"), "batch")})
    assert num_ruled_out > 5


def test_rescore_with_scale_zero():
    scorer, other = TableScorer(3, seed=1), TableScorer(3)
    other.table[:] = -INF

    def func(start, batch):
        hyps = beam_search(scorer, batch_dims=[batch], beam_size=4, max_len=3, bos=0, eos=0)
        new = rescore(hyps, other, scale=0.0, bos=0, eos=0, length_exponent=1.0)
        assert new.nbest(0) == hyps.nbest(0) and new.labels.sparse_dim == hyps.labels.sparse_dim
        return {}

    run_on("torch", func, {"start": Input(numpy.array([0], "int32"), "batch")})


def test_errors():
    scorer = TableScorer(4)

    def func(labels, time, batch):
        good = nn.set_sparse_dim(labels, scorer.vocab_dim)
        args: dict[str, Any] = dict(spatial_dim=time, bos=0, eos=0)
        with pytest.raises(ValueError, match=r"score_labels: bos, expected an index from 0 to 3 of .*, got 4"):
            score_labels(scorer, good, **{**args, "bos": 4})
        with pytest.raises(ValueError, match=r"score_labels: eos, expected an index from 0 to 3 of .*, got -1"):
            score_labels(scorer, good, **{**args, "eos": -1})
        with pytest.raises(ValueError, match=r"score_labels: labels, expected a tensor with .*other.*, got Tensor"):
            score_labels(scorer, good, **{**args, "spatial_dim": nn.Dim(3, name="other")})
        with pytest.raises(TypeError, match="score_labels: labels, expected a Tensor, got list"):
            score_labels(scorer, [1, 2], **args)  # pyright: ignore
        with pytest.raises(TypeError, match="score_labels: scorer, expected a scorer, .*, got str"):
            score_labels("lm", good, **args)  # pyright: ignore
        hyps = beam_search(scorer, batch_dims=[batch], beam_size=2, max_len=1, bos=0, eos=0)
        options: dict[str, Any] = dict(scale=1.0, bos=0, eos=0)
        with pytest.raises(TypeError, match="rescore: hypotheses, expected those of a search, got list"):
            rescore([(0.0, [1])], scorer, **options)  # pyright: ignore
        for name in ("scale", "own_scale", "length_exponent"):
            with pytest.raises(ValueError, match=f"rescore: {name}, expected a finite number, got nan"):
                rescore(hyps, scorer, **{**options, name: float("nan")})
        with pytest.raises(ValueError, match="rescore: length_exponent, expected at least 0, got -1"):
            rescore(hyps, scorer, length_exponent=-1, **options)
        for wrong in (labels, nn.set_sparse_dim(labels, nn.Dim(5, name="more"))):
            with pytest.raises(ValueError, match=r"labels, expected indices of .*table-vocab.*, got Tensor"):
                score_labels(scorer, wrong, **args)
        return {}

    run_on("torch", func, {"labels": Input(LABELS, "batch time")}, {"time": LENGTHS})
