"""Hypotheses: n-best lists of tensors with values, an error in graph engines."""

from __future__ import annotations

import numpy
import pytest
from returnn.tensor import batch_dim

from returnn_common import nn
from returnn_common.search import Hypotheses
from tests.engines import ENGINES, Input, run_on

LABELS = numpy.array([[[1, 2, 3], [1, 0, 0], [0, 0, 0]], [[3, 3, 0], [9, 9, 9], [9, 9, 9]]], dtype="int32")
LENGTHS = numpy.array([[3, 1, 0], [2, 0, 0]], dtype="int32")
SCORES = numpy.array([[-1.0, -2.5, -3.0], [-0.5, -numpy.inf, -numpy.inf]], dtype="float32")
NBEST = [[(-1.0, [1, 2, 3]), (-2.5, [1]), (-3.0, [])], [(-0.5, [3, 3])]]


def _hypotheses(labels, scores, lengths, *, beam, dims) -> Hypotheses:
    """whatever the dims' order is"""
    size = nn.Tensor("lengths", dims=[batch_dim, beam], dtype="int32", raw_tensor=lengths)
    spatial = nn.Dim(size, name="labels")
    vocab = nn.Dim(10, name="vocab")
    labels = nn.Tensor("labels", dims=[batch_dim, beam, spatial], dtype="int32", sparse_dim=vocab, raw_tensor=labels)
    scores = nn.Tensor("scores", dims=[batch_dim, beam], dtype="float32", raw_tensor=scores)
    order = [{"batch": batch_dim, "beam": beam, "labels": spatial}[name] for name in dims]
    labels, scores = labels.copy_transpose(order), scores.copy_transpose([d for d in order if d != spatial])
    return Hypotheses(labels=labels, scores=scores, beam_dim=beam, spatial_dim=spatial)


def test_numpy():
    for dims in (["batch", "beam", "labels"], ["labels", "beam", "batch"]):
        hyps = _hypotheses(LABELS, SCORES, LENGTHS, beam=nn.Dim(3, name="beam"), dims=dims)
        assert [hyps.nbest(i) for i in range(2)] == NBEST
        assert all(type(label) is int for _, labels in hyps.nbest(0) for label in labels)
        for i in (-1, 2):
            with pytest.raises(IndexError, match=f"nbest: expected a batch entry from 0 to 1, got {i}"):
                hyps.nbest(i)


@pytest.mark.parametrize("engine", ENGINES)
def test_engines(engine):
    def func(labels, scores, lengths, beam):
        hyps = _hypotheses(
            labels.raw_tensor,
            scores.raw_tensor,
            lengths.raw_tensor,
            beam=beam,
            dims=["batch", "beam", "labels"] if engine == "tensorflow-net-dict" else ["labels", "batch", "beam"],
        )
        if engine.startswith("tensorflow"):
            with pytest.raises(RuntimeError, match="nbest: .* has no values: in a graph engine, fetch labels, lengths"):
                hyps.nbest(0)
        else:
            assert [hyps.nbest(i) for i in range(2)] == NBEST
            assert hyps.lengths.dims == (batch_dim, beam)
        if engine == "tensorflow-net-dict":  # its labels have the dim "max": tests/search/test_decoders.py
            return {"scores": (scores, [batch_dim, beam])}
        first = hyps.first(2)
        dims = [batch_dim, first.beam_dim]
        return {
            "scores": (first.scores, dims),
            "lengths": (first.lengths, dims),
            "labels": (first.labels, [*dims, first.spatial_dim]),
        }

    inputs = {
        "labels": Input(LABELS, "batch beam max"),
        "scores": Input(SCORES, "batch beam"),
        "lengths": Input(LENGTHS, "batch beam"),
    }
    first = run_on(engine, func, inputs, {"beam": 3, "max": 3})
    for name, expected in [("scores", SCORES), ("lengths", LENGTHS), ("labels", LABELS)]:
        if engine != "tensorflow-net-dict":
            numpy.testing.assert_array_equal(first[name], numpy.where(expected[:, :2] == 9, 0, expected[:, :2]))


def test_first():
    hyps = _hypotheses(LABELS, SCORES, LENGTHS, beam=nn.Dim(3, name="beam"), dims=["batch", "beam", "labels"])
    assert hyps.first(3) is hyps
    for wrong, message in [(4, "at most the beam's 3, got 4"), (0, "an int of at least 1, got 0"), (1.0, "got 1.0")]:
        with pytest.raises(ValueError, match=f"Hypotheses: num_best, expected .*{message}"):
            hyps.first(wrong)  # pyright: ignore


def test_other_batch_dims():
    """an index for each"""
    beam, channel = nn.Dim(3, name="beam"), nn.Dim(2, name="channel")
    hyps = _hypotheses(LABELS, SCORES, LENGTHS, beam=beam, dims=["batch", "beam", "labels"])
    with pytest.raises(TypeError, match=r"nbest: expected an index for each of the batch dims \[.*B.*\], got \(0, 1\)"):
        hyps.nbest(0, 1)

    def stack(x):
        arrays = numpy.stack([x.raw_tensor, x.raw_tensor[::-1]], axis=1)
        return nn.Tensor(x.name, [batch_dim, channel, *x.dims[1:]], dtype=x.dtype, raw_tensor=arrays)

    lengths = nn.Dim(stack(hyps.lengths), name="labels")
    labels = numpy.stack([LABELS, LABELS[::-1]], axis=1)
    labels = nn.Tensor("labels", [batch_dim, channel, beam, lengths], dtype="int32", raw_tensor=labels)
    two = Hypotheses(labels=labels, scores=stack(hyps.scores), beam_dim=beam, spatial_dim=lengths)
    assert [[two.nbest(i, j) for j in range(2)] for i in range(2)] == [NBEST, NBEST[::-1]]
    with pytest.raises(IndexError, match="nbest: expected a batch entry from 0 to 1, got 2"):
        two.nbest(0, 2)
    with pytest.raises(TypeError, match="nbest: expected an index for each of the batch dims"):
        two.nbest(0)

    size = nn.Tensor("lengths", [beam], dtype="int32", raw_tensor=LENGTHS[0])
    alone = nn.Dim(size, name="labels")
    labels = nn.Tensor("labels", [beam, alone], dtype="int32", raw_tensor=LABELS[0])
    scores = nn.Tensor("scores", [beam], dtype="float32", raw_tensor=SCORES[0])
    assert Hypotheses(labels=labels, scores=scores, beam_dim=beam, spatial_dim=alone).nbest() == NBEST[0]


def test_no_values():
    beam = nn.Dim(3, name="beam")
    scores = nn.Tensor("scores", dims=[batch_dim, beam], dtype="float32")
    hyps = Hypotheses(labels=scores, scores=scores, beam_dim=beam, spatial_dim=nn.Dim(None, name="labels"))
    with pytest.raises(RuntimeError, match="nbest: .*scores.* has no values"):
        hyps.nbest(0)
