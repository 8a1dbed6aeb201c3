"""Best path search against a loop over frames, on all engines."""

from __future__ import annotations

import itertools

import numpy
import pytest

from returnn_common import nn
from returnn_common.search import ctc_greedy_search
from tests.engines import ENGINES, Input, run_on


def best_path(log_probs, blank):
    """:return: score, labels, of log_probs [T, V]"""
    path = log_probs.argmax(-1)
    return float(log_probs.max(-1).sum()), [int(c) for c, _ in itertools.groupby(path) if c != blank]


def search(engine, log_probs, lengths, *, vocab_dim_size=None, blank):
    """:return: (score, labels) of each batch entry"""

    def func(x, time, vocab):
        labels_dim = nn.Dim(vocab_dim_size, name="labels") if vocab_dim_size else None
        hyps = ctc_greedy_search(x, spatial_dim=time, blank=blank, vocab_dim=labels_dim)
        assert hyps.beam_dim.dimension == 1
        assert hyps.labels.sparse_dim == (labels_dim or vocab)
        return {
            "labels": (hyps.labels, [nn.batch_dim, hyps.beam_dim, hyps.spatial_dim]),
            "scores": (hyps.scores, [nn.batch_dim, hyps.beam_dim]),
            "lengths": (hyps.lengths, [nn.batch_dim, hyps.beam_dim]),
        }

    dims = {"time": list(lengths), "vocab": log_probs.shape[-1]}
    res = run_on(engine, func, {"x": Input(log_probs, "batch time vocab")}, dims)
    numpy.testing.assert_array_equal(res["lengths"], res.outputs["labels"].lengths[2])
    rows = zip(res["scores"][:, 0], res["labels"][:, 0], res["lengths"][:, 0], strict=True)
    return [(float(score), [int(c) for c in labels[:n]]) for score, labels, n in rows]


def check(engine, log_probs, lengths, *, blank, **kwargs):
    found = search(engine, log_probs, lengths, blank=blank, **kwargs)
    for i, length in enumerate(lengths):
        score, labels = best_path(log_probs[i, :length], blank)
        assert found[i][1] == labels
        assert found[i][0] == pytest.approx(score, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("engine,blank", [(e, 0) for e in ENGINES] + [(e, 3) for e in ENGINES] + [("torch", 1)])
def test_random(engine, blank):
    rng = numpy.random.default_rng(blank)
    log_probs = numpy.log(rng.dirichlet([0.3] * 4, (20, 12))).astype("float32")
    lengths = rng.integers(1, 13, 20)
    lengths[0] = 12
    for i, length in enumerate(lengths):
        log_probs[i, length:] = rng.choice([numpy.nan, 1e30, -numpy.inf, 0.0])
    check(engine, log_probs, lengths, blank=blank, vocab_dim_size=3 if blank == 3 else None)


@pytest.mark.parametrize("engine", ENGINES)
def test_one_frame_and_all_blank(engine):
    """also where the whole batch is empty"""
    one_hot = numpy.log(numpy.eye(3, dtype="float32") + 0.01)
    check(engine, one_hot[[[1], [2], [0]]], [1, 1, 1], blank=2)
    check(engine, one_hot[[[2, 2, 2], [2, 1, 0]]], [3, 1], blank=2)


def test_repeats():
    one_hot = numpy.log(numpy.eye(3, dtype="float32") + 0.01)
    found = search("torch", one_hot[[[0, 0, 2, 0, 1, 1], [2, 0, 2, 2, 0, 0]]], [6, 6], blank=2)
    assert [labels for _, labels in found] == [[0, 0, 1], [0, 0]]


def test_long_input_needs_little_memory():
    """1500 frames of 32 sequences: positions stay exact, and there is no T x T tensor"""
    torch = pytest.importorskip("torch")
    rng = numpy.random.default_rng(4)
    log_probs = rng.standard_normal((32, 1500, 5)).astype("float32")
    largest = 0

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            nonlocal largest
            res = func(*args, **(kwargs or {}))
            largest = max([largest] + [x.numel() for x in torch.utils._pytree.tree_leaves(res) if torch.is_tensor(x)])
            return res

    with Watch():
        check("torch", log_probs, [1500] * 31 + [700], blank=4)
    assert largest <= 2 * log_probs.size


@pytest.mark.parametrize(
    "kwargs,message",
    [
        (dict(blank=3), "ctc_greedy_search: blank, expected an index from 0 to 2 .*, got 3"),
        (
            dict(spatial_dim=nn.Dim(3, name="other")),
            "ctc_greedy_search: log_probs, expected a tensor with .*other.*, got",
        ),
        (
            dict(vocab_dim=nn.Dim(4, name="labels")),
            "vocab_dim, expected size 3, or 2 where blank is the last label, got",
        ),
    ],
)
def test_errors(kwargs, message):
    def func(x, time):
        with pytest.raises(ValueError, match=message):
            ctc_greedy_search(x, **{"spatial_dim": time, "blank": 2, **kwargs})
        return {}

    run_on(
        "torch", func, {"x": Input(numpy.zeros((1, 2, 3), "float32"), "batch time vocab")}, {"time": [2], "vocab": 3}
    )
