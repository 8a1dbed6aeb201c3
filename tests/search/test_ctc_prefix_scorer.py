"""CTC as a scorer against enumerating all alignments."""

from __future__ import annotations

from typing import Any

import numpy
import pytest

from returnn_common import nn
from returnn_common.search import CtcPrefixScorer, beam_search, combine, ctc_prefix_scorer, score_labels
from tests.engines import ENGINES, Input, run_on
from tests.search.beam_reference import TableScorer, assert_same
from tests.search.ctc_reference import random_log_probs
from tests.search.prefix_reference import AllAlignments, score_prefixes

INF = float("inf")
# labels with blank, frames, blank, labels of the scorer, its end of sentence
CASES = [
    (3, 4, 2, None, 2),  # in the place of blank
    (4, 3, 0, None, 0),
    (4, 3, 0, None, 3),  # beside blank
    (4, 3, 3, 3, 1),  # without blank
    (4, 3, 1, 3, 2),
    (5, 3, 4, None, 4),
    (2, 5, 1, None, 1),  # one label
    (1, 2, 0, None, 0),  # none
    (2, 3, 1, 1, 0),
]


@pytest.mark.parametrize("size,frames,blank,own_size,eos", CASES)
def test_is_enumeration(size, frames, blank, own_size, eos):
    """also the repeats, prefixes longer than there are frames, no frames, frames after the end"""
    rng, batch, beam = numpy.random.default_rng(size), 40, 3
    log_probs = random_log_probs(rng, batch, frames, size)
    impossible = rng.random(log_probs.shape) < 0.05
    log_probs[impossible & ~impossible.all(-1, keepdims=True)] = -INF
    log_probs -= numpy.logaddexp.reduce(log_probs, axis=-1, keepdims=True)
    lengths = rng.integers(0, frames + 1, batch)
    lengths[:2] = 0, frames
    labels = [c for c in range(own_size or size) if c != eos and (own_size or c != blank)]
    max_len = frames + 1 if labels else 0
    prefixes = rng.choice(labels or [eos], (batch, beam, max(max_len, 1)))
    kwargs: dict[str, Any] = dict(blank=blank, eos=eos, size=own_size)
    found = score_prefixes(log_probs, lengths, prefixes, **kwargs)
    assert not numpy.isnan(found).any() and (found < 1e-5).all()
    num_possible = 0
    for i, length in enumerate(lengths):
        to_label = (lambda c: c - (c > blank)) if own_size else (lambda c: c)
        every = AllAlignments(log_probs[i, :length].astype("float64"), blank=blank, to_label=to_label)
        for k in range(beam):
            for n in range(max_len + 1):
                expected = every.scores(list(prefixes[i, k, :n]), size=found.shape[-1], eos=eos)
                numpy.testing.assert_allclose(found[i, k, n], expected, atol=1e-4)
                num_possible += numpy.isfinite(expected).sum()
    assert num_possible > batch


def test_far_from_each_other():
    """
    Log probs down to hundreds: sums that float32 cannot hold miss frames at most, and what follows makes up for it.
    """
    rng, batch = numpy.random.default_rng(1), 100
    log_probs = numpy.maximum(random_log_probs(rng, batch, 4, 4) * 60.0, -900.0).astype("float64")
    log_probs -= numpy.logaddexp.reduce(log_probs, axis=-1, keepdims=True)
    prefixes = rng.integers(0, 3, (batch, 4, 3))
    found = score_prefixes(log_probs.astype("float32"), [4] * batch, prefixes, blank=3, eos=3)
    num_small = num_less = 0
    for i, k in numpy.ndindex(batch, 4):
        every, labels, total, exact = AllAlignments(log_probs[i], blank=3), list(prefixes[i, k]), 0.0, True
        for n in range(4):
            expected, scores = every.scores(labels[:n], size=4, eos=3), found[i, k, n]
            if exact:
                large = expected > -69.0
                numpy.testing.assert_allclose(scores[large], expected[large], atol=2e-3)
                assert (scores <= expected + 2e-3).all()
                num_small, num_less = num_small + (~large[:3]).sum(), num_less + (scores < expected - 1.0)[:3].sum()
                exact = large[[*labels, 3][n]]
            assert (numpy.isfinite(scores) == numpy.isfinite(expected)).all(), (scores, expected, log_probs[i], labels)
            total += scores[[*labels, 3][n]]
        numpy.testing.assert_allclose(total, every.whole(labels), rtol=1e-5, atol=2e-3)
    assert num_small > 200 and num_less < num_small * 0.1


@pytest.mark.parametrize("frames,size,num_labels", [(60, 20, 8), (300, 6, 20), (7, 3, 2)])
def test_sum_of_scores_is_ctc_loss(frames, size, num_labels):
    """and it is that of each utterance alone, with other padding"""
    rng, batch = numpy.random.default_rng(frames), 5
    log_probs = random_log_probs(rng, batch, frames, size)
    lengths = [frames, frames // 2 + 1, frames - 1, num_labels * 2, frames]
    label_lengths = [num_labels, 1, 0, num_labels, num_labels]
    labels = rng.integers(0, size - 1, (batch, num_labels)).astype("int32")
    padded = log_probs.copy()
    for i, length in enumerate(lengths):
        padded[i, length:] = [numpy.nan, numpy.inf, 1e9, 0.0, -numpy.inf][i]

    def run(log_probs, lengths, labels, label_lengths):
        def func(x, time, y, labels, vocab):
            labels_dim = nn.Dim(size - 1, name="labels-without-blank")
            scorer = CtcPrefixScorer(x, spatial_dim=time, blank=size - 1, eos=size - 1)
            own = nn.set_sparse_dim(y, scorer.vocab_dim)
            forced = score_labels(scorer, own, spatial_dim=labels, bos=size - 1, eos=size - 1)
            clean = nn.where(time.get_mask(), x, 0.0)
            clean.feature_dim = vocab
            kwargs: dict[str, Any] = dict(input_spatial_dim=time, targets_spatial_dim=labels, blank_index=size - 1)
            loss = nn.ctc_loss(logits=clean, logits_normalized=True, targets=nn.set_sparse_dim(y, labels_dim), **kwargs)
            return {"forced": (forced, [nn.batch_dim]), "loss": (loss, [nn.batch_dim])}

        inputs = {"x": Input(log_probs, "batch time vocab"), "y": Input(labels, "batch labels")}
        return run_on("torch", func, inputs, {"time": lengths, "labels": label_lengths, "vocab": size})

    result = run(padded, lengths, labels, label_lengths)
    numpy.testing.assert_allclose(result["forced"], -result["loss"], rtol=2e-5, atol=1e-3)
    for i, (length, n) in enumerate(zip(lengths, label_lengths, strict=True)):
        single = run(log_probs[i : i + 1, :length], [length], labels[i : i + 1, :n], [n])
        numpy.testing.assert_allclose(single["forced"], result["forced"][i], rtol=1e-5, atol=1e-4)


def test_next_labels_sum_up_to_one():
    rng = numpy.random.default_rng(4)
    log_probs = random_log_probs(rng, 30, 40, 8)
    found = score_prefixes(log_probs, rng.integers(1, 41, 30), rng.integers(0, 7, (30, 2, 5)), blank=7, eos=7)
    sums = numpy.exp(found.astype("float64")).sum(-1)
    possible = numpy.isfinite(found).any(-1)
    assert possible.mean() > 0.5
    numpy.testing.assert_allclose(sums[possible], 1.0, atol=1e-3)


@pytest.fixture
def few_rounds(monkeypatch):
    """enough for 7 frames: a net dict takes long to build"""
    monkeypatch.setattr(ctc_prefix_scorer, "_ROUNDS_IN_GRAPH", 3)


def search(log_probs, lengths, scorer, *, scales, engine="torch", **kwargs):
    """:return: n-best lists of the mixture of CTC and the scorer"""
    blank = log_probs.shape[-1] - 1

    def func(x, time):
        ctc = CtcPrefixScorer(x, spatial_dim=time, blank=blank, eos=blank)
        mixture = combine([(ctc, scales[0]), (scorer, scales[1])])
        hyps = beam_search(mixture, batch_dims=[nn.batch_dim], bos=blank, eos=blank, **kwargs)
        dims = [nn.batch_dim, hyps.beam_dim]
        return {
            "labels": (hyps.labels, [*dims, hyps.spatial_dim]),
            "lengths": (hyps.lengths, dims),
            "scores": (hyps.scores, dims),
        }

    params = {"table": scorer.table} if engine != "torch" else None
    result = run_on(
        engine,
        func,
        {"x": Input(log_probs, "batch time vocab")},
        {"time": lengths, "vocab": blank + 1},
        make_model=scorer.make_module if params else None,
        params=params,
    )
    return [
        [
            (float(score), [int(c) for c in labels[:n]])
            for score, labels, n in zip(*row, strict=True)
            if score > -numpy.inf
        ]
        for row in zip(result["scores"], result["labels"], result["lengths"], strict=True)
    ]


@pytest.mark.parametrize("engine", ENGINES)
def test_joint_search_is_enumeration(engine, few_rounds):
    size, frames, batch, max_len = (4, 3, 20, 4) if engine == "torch" else (3, 2, 3, 2)
    log_probs = random_log_probs(numpy.random.default_rng(0), batch, frames, size)
    lengths = numpy.arange(batch) % (frames + 1)
    scorer, scales = TableScorer(size, seed=2), (0.4, 0.6)
    kwargs: dict[str, Any] = dict(beam_size=100 if engine == "torch" else 6, max_len=max_len, length_exponent=0.0)
    found = search(log_probs, lengths, scorer, scales=scales, engine=engine, **kwargs)
    for i, length in enumerate(lengths):
        wholes = AllAlignments(log_probs[i, :length], blank=size - 1).wholes
        expected = [
            (0.4 * score + 0.6 * scorer.total(labels, bos=size - 1, eos=size - 1), list(labels))
            for labels, score in wholes.items()
            if len(labels) <= max_len
        ]
        expected.sort(key=lambda x: -x[0])
        assert_same(found[i], expected[: len(found[i])], 0.0)
        assert len(found[i]) == len(expected)  # so only what has an alignment


def test_nothing_possible():
    """CTC forbids what the other scorer wants: no hypothesis, and no NaN"""
    scorer = TableScorer(3)
    scorer.table[:] = -INF
    scorer.table[:, 0] = 0.0
    log_probs = numpy.log(numpy.array([[[0.0, 1.0, 0.0]] * 2, [[0.5, 0.0, 0.5]] * 2]) + 1e-45).astype("float32")
    log_probs[log_probs < -50] = -INF
    kwargs: dict[str, Any] = dict(scales=(0.5, 0.5), beam_size=3)
    assert search(log_probs, [2, 2], scorer, max_len=4, **kwargs) == [[], []]
    scorer.table[:, 2] = 0.0
    first, second = search(log_probs, [2, 0], scorer, max_len=4, **kwargs)
    assert first == [] and second == [(0.0, [])]


def test_ends_when_ctc_does():
    """CTC allows one end: at the first step, or only at the last one. The other scorer wants another one."""
    table = numpy.full((3, 3, 4), -INF, "float32")
    table[0, :, 3] = 0.0  # nothing but blank
    table[1, [0, 1, 2], [0, 1, 0]] = 0.0  # a label per frame
    table[2, :, 1] = 0.0  # one label, in all frames
    scorer = TableScorer(4, seed=1)
    for end in (-20.0, -0.01):
        scorer.table[:, 3] = end
        for kwargs in (dict(beam_size=1), dict(beam_size=9), dict(beam_size=9, num_best=1, length_exponent=0.0)):
            found = search(table, [3, 3, 3], scorer, scales=(0.2, 0.8), max_len=3, **kwargs)
            assert [[labels for _, labels in nbest] for nbest in found] == [[[]], [[0, 1, 0]], [[1]]]
            for nbest in found:
                score, labels = nbest[0]
                assert score == pytest.approx(0.8 * scorer.total(labels, bos=3, eos=3), abs=1e-4)
    found = search(table, [3, 3, 3], scorer, scales=(0.2, 0.8), beam_size=9, max_len=2, min_len=2)
    assert found == [[], [], []]


@pytest.mark.parametrize(
    "kwargs,message",
    [
        (dict(blank=4), "blank, expected an index from 0 to 3 .*, got 4"),
        (dict(eos=4), "eos, expected an index from 0 to 3 of .*vocab.*, got 4"),
        (dict(eos=3, vocab_dim=nn.Dim(3, name="decoder")), "eos, expected an index from 0 to 2 of .*decoder.*, got 3"),
        (dict(vocab_dim=nn.Dim(5, name="decoder")), "vocab_dim, expected 4 labels, or 3 without blank, got .*decoder"),
        (dict(spatial_dim=nn.Dim(3, name="other")), "log_probs, expected a tensor with .*other.*, got Tensor"),
    ],
)
def test_errors(kwargs, message):
    def func(x, time):
        args: dict[str, Any] = dict(spatial_dim=time, blank=3, eos=3)
        with pytest.raises(ValueError, match="CtcPrefixScorer: " + message):
            CtcPrefixScorer(x, **{**args, **kwargs})
        return {}

    run_on("torch", func, {"x": Input(numpy.zeros((1, 2, 4)), "batch time vocab")}, {"time": [2], "vocab": 4})
