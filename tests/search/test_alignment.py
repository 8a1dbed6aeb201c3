"""CTC forced alignment against all alignments, and against the search."""

from __future__ import annotations

import itertools
from typing import Any

import numpy
import pytest

from returnn_common import nn
from returnn_common.search import ctc_align, ctc_beam_search
from tests.engines import ENGINES, Input, run_on
from tests.search.ctc_reference import random_log_probs

INF = float("inf")


def all_paths(labels, frames):
    """:return: of each frame the position of its label, or -1; all that give the labels"""
    for path in itertools.product(range(-1, len(labels)), repeat=frames):
        merged = [(key, len(list(group))) for key, group in itertools.groupby(path)]
        spoken = [key for key, _ in merged if key >= 0]
        if spoken != list(range(len(labels))):
            continue
        keys = [key for key, _ in merged]
        if not any(a >= 0 and b >= 0 and labels[a] == labels[b] for a, b in itertools.pairwise(keys)):
            yield path


def best_path(log_probs, labels, blank):
    """:return: score, path, of log_probs [T, V]"""
    best = (-INF, (-1,) * len(log_probs))
    for path in all_paths(labels, len(log_probs)):
        score = sum(float(log_probs[t, blank if i < 0 else labels[i]]) for t, i in enumerate(path))
        best = max(best, (score, path), key=lambda x: x[0])
    return best


def align(engine, log_probs, lengths, labels, *, blank, without_blank=False):
    """:param labels: a list for each batch entry; lists of lists if there is a beam"""
    has_beam = any(isinstance(c, list) for seq in labels for c in seq)
    rows = labels if has_beam else [[seq] for seq in labels]
    beam = len(rows[0])
    sizes = numpy.array([[len(seq) for seq in row] for row in rows], "int32")
    array = numpy.zeros((len(rows), beam, max(1, sizes.max())), "int32")
    for i, j in numpy.ndindex(*sizes.shape):
        array[i, j, : sizes[i, j]] = rows[i][j]
    inputs = {"x": Input(log_probs, "batch time vocab")}
    if has_beam:
        inputs.update(c=Input(array, "batch beam room"), n=Input(sizes, "batch beam"))
    else:
        inputs.update(c=Input(array[:, 0], "batch room"), n=Input(sizes[:, 0], "batch"))

    def func(x, c, n, time, vocab, room, beam):
        del room
        spatial_dim = nn.Dim(nn.relu(n), name="labels")  # net dict: a dim needs a layer
        room = c.dims[-1]
        positions = nn.range_over_dim(spatial_dim, dtype="int32")
        c = nn.gather(c, indices=positions, axis=room)
        c = nn.set_sparse_dim(c, nn.Dim(vocab.dimension - 1, name="labels") if without_blank else vocab)
        res = ctc_align(x, spatial_dim=time, labels=c, labels_spatial_dim=spatial_dim, blank=blank)
        dims = [nn.batch_dim, *([beam] if beam in c.dims else [])]
        return {
            "path": (res.path, [*dims, time]),
            "starts": (res.starts, [*dims, spatial_dim]),
            "ends": (res.ends, [*dims, spatial_dim]),
            "frame_scores": (res.frame_scores, [*dims, time]),
            "scores": (res.scores, dims),
            "label_scores": (res.label_scores, [*dims, spatial_dim]),
        }

    dims = {"time": list(lengths), "vocab": log_probs.shape[-1], "room": array.shape[-1], "beam": beam}
    return run_on(engine, func, inputs, dims)


def check(result, log_probs, lengths, labels, *, blank):
    """:return: number of possible ones"""
    num_possible = 0
    for index in numpy.ndindex(*result["scores"].shape):
        seq: Any = labels
        for i in index:
            seq = seq[i]
        frames = lengths[index[0]]
        x = log_probs[index[0], :frames]
        score, expected = best_path(x, seq, blank)
        path = list(result["path"][index][:frames])
        starts, ends, label_scores = (list(result[k][index][: len(seq)]) for k in ("starts", "ends", "label_scores"))
        per_frame = result["frame_scores"][index][:frames]
        if score == -INF:
            assert result["scores"][index] == -INF
            assert path == [-1] * frames
            assert starts == ends == list(label_scores) == [0] * len(seq)
            numpy.testing.assert_allclose(per_frame, x[:, blank], rtol=1e-5)
            continue
        num_possible += 1
        assert result["scores"][index] == pytest.approx(score, rel=1e-5, abs=1e-5)
        assert path == list(expected)  # random scores have no ties
        assert starts == [path.index(i) for i in range(len(seq))]
        assert ends == [frames - path[::-1].index(i) for i in range(len(seq))]
        numpy.testing.assert_allclose(per_frame.sum(), score, rtol=1e-5, atol=1e-5)
        mean = [numpy.exp(per_frame[i:j]).mean() for i, j in zip(starts, ends, strict=True)]
        numpy.testing.assert_allclose(numpy.exp(label_scores), mean, rtol=1e-4)
    return num_possible


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("beam", [False, True])
def test_best_of_all_paths(engine, beam):
    rng = numpy.random.default_rng(3)
    batch, frames, size = (60 if engine == "torch" else 6), 5, 4
    blank = 3 if beam else 1
    spoken = [c for c in range(size) if c != blank]

    def draw():
        return [int(c) for c in rng.choice(spoken, rng.integers(0, 5))]

    log_probs = random_log_probs(rng, batch, frames, size)
    lengths = rng.integers(0, frames + 1, batch)
    lengths[0] = frames
    for i, length in enumerate(lengths):
        log_probs[i, length:] = rng.choice([numpy.nan, numpy.inf, 1e30, 0.0])
    labels = [[draw() for _ in range(3)] for _ in range(batch)] if beam else [draw() for _ in range(batch)]
    result = align(engine, log_probs, lengths, labels, blank=blank, without_blank=beam)
    assert 0 < check(result, log_probs, lengths, labels, blank=blank) < result["scores"].size


def test_every_small_case():
    """one label and blank; all numbers of frames and labels, none of either included; blank at each place"""
    rng = numpy.random.default_rng(4)
    for size, blank in [(2, 0), (2, 1), (3, 0), (3, 1), (3, 2)]:
        spoken = [c for c in range(size) if c != blank]
        for frames in range(5):
            labels = [list(seq) for n in range(4) for seq in itertools.product(spoken, repeat=n)]
            log_probs = random_log_probs(rng, len(labels), frames, size)
            lengths = [frames] * len(labels)
            result = align("torch", log_probs, lengths, labels, blank=blank)
            check(result, log_probs, lengths, labels, blank=blank)


def test_labels_that_cannot_be():
    """log prob -inf: of a label that could be elsewhere, of one that must be there, of blank"""
    with numpy.errstate(divide="ignore"):
        log_probs = numpy.log([[[0.5, 0.0, 0.5], [0.0, 1.0, 0.0], [0.25, 0.25, 0.5]]] * 4).astype("float32")
    labels = [[1], [0, 1], [0, 0], []]
    result = align("torch", log_probs, [3] * 4, labels, blank=2)
    assert check(result, log_probs, [3] * 4, labels, blank=2) == 2
    assert list(result["starts"][0]) == [1, 0] and list(result["ends"][0]) == [2, 0]


def test_batch_is_single():
    rng = numpy.random.default_rng(5)
    log_probs = random_log_probs(rng, 4, 40, 6)
    lengths, labels = [40, 11, 0, 25], [[0, 1, 1, 4, 2, 0, 3], [2], [], [0, 0, 0, 0]]
    together = align("torch", log_probs, lengths, labels, blank=5)
    for i, (length, seq) in enumerate(zip(lengths, labels, strict=True)):
        single = align("torch", log_probs[i : i + 1, :length], [length], [seq], blank=5)
        for key, size in [("path", length), ("starts", len(seq)), ("ends", len(seq)), ("frame_scores", length)]:
            numpy.testing.assert_array_equal(together[key][i, :size], single[key][0, :size])
        assert together["scores"][i] == single["scores"][0]


@pytest.mark.parametrize("engine", ENGINES)
def test_hypotheses_of_a_search(engine):
    """with the best alignment for the sum, the search's scores are those of the alignments"""
    rng = numpy.random.default_rng(6)
    frames = 12 if engine == "torch" else 4
    log_probs = random_log_probs(rng, 3, frames, 4)
    lengths = [frames, frames // 2, 0]

    def func(x, time, vocab):
        labels_dim = nn.Dim(vocab.dimension - 1, name="labels")
        hyps = ctc_beam_search(x, spatial_dim=time, blank=3, beam_size=4, recombine="max", vocab_dim=labels_dim)
        res = ctc_align(x, spatial_dim=time, labels=hyps.labels, labels_spatial_dim=hyps.spatial_dim, blank=3)
        dims = [nn.batch_dim, hyps.beam_dim]
        return {
            "found": (hyps.scores, dims),
            "aligned": (res.scores, dims),
            "labels": (hyps.labels, [*dims, hyps.spatial_dim]),
            "starts": (res.starts, [*dims, hyps.spatial_dim]),
        }

    dims = {"time": lengths, "vocab": 4}
    result = run_on(engine, func, {"x": Input(log_probs, "batch time vocab")}, dims)
    used = result["found"] > -INF
    assert used.sum(axis=1).tolist() == [4, 4, 1]
    numpy.testing.assert_allclose(result["aligned"][used], result["found"][used], rtol=1e-5, atol=1e-5)
    for i, j in zip(*numpy.nonzero(used), strict=True):
        n = result.outputs["labels"].lengths[2][i, j]
        _, path = best_path(log_probs[i, : lengths[i]], result["labels"][i, j, :n], 3) if frames < 6 else (0, None)
        starts = list(result["starts"][i, j, :n])
        assert starts == sorted(set(starts)) if path is None else starts == [path.index(k) for k in range(n)]


@pytest.mark.parametrize(
    "kwargs,error,message",
    [
        (dict(blank=4), ValueError, "blank, expected an index from 0 to 3 .*, got 4"),
        (dict(spatial_dim=nn.Dim(3, name="other")), ValueError, "log_probs, expected a tensor with .*other.*, got Ten"),
        (dict(labels_spatial_dim=nn.Dim(3, name="other")), ValueError, "labels, expected a tensor with .*other.*, got"),
        (dict(labels=[1, 2]), TypeError, "labels, expected a Tensor, got list"),
        (dict(blank=0, num_labels=3), ValueError, "labels, expected indices of 4 labels, got Tensor.*3"),
        (dict(num_labels=5), ValueError, "labels, expected indices of 4 or 3 labels, got Tensor.*5"),
        (dict(no_batch=True), ValueError, r"labels, expected a tensor with \[.*B.*labels.*\], got Tensor"),
    ],
)
def test_errors(kwargs, error, message):
    def func(x, c, time, labels):
        args: dict[str, Any] = dict(spatial_dim=time, labels=c, labels_spatial_dim=labels, blank=3)
        args.update(kwargs)
        if args.pop("no_batch", False):
            args["labels"] = nn.gather(c, indices=0, axis=nn.batch_dim)
        size = args.pop("num_labels", 4)
        if isinstance(args["labels"], nn.Tensor):
            args["labels"] = nn.set_sparse_dim(args["labels"], nn.Dim(size, name="label"))
        with pytest.raises(error, match="ctc_align: " + message):
            ctc_align(x, **args)
        return {}

    inputs = {
        "x": Input(numpy.zeros((1, 2, 4), "float32"), "batch time vocab"),
        "c": Input(numpy.zeros((1, 2), "int32"), "batch labels"),
    }
    run_on("torch", func, inputs, {"time": [2], "labels": [2], "vocab": 4})
