"""Prefix beam search against enumerating all alignments."""

from __future__ import annotations

import itertools
from typing import Any

import numpy
import pytest

from returnn_common import nn
from returnn_common.search import ctc_beam_search
from tests.engines import ENGINES, Input, run_on


class Trigram:
    """A scorer whose state matters: it remembers the label before the last one."""

    def __init__(self, size, *, bos, seed=0):
        rng = numpy.random.default_rng(seed)
        table = rng.standard_normal((size, size, size)).astype("float32") * 2
        self.table = table - numpy.log(numpy.exp(table).sum(-1, keepdims=True))  # [label before, previous, next]
        self.bos = bos
        self.vocab_dim = nn.Dim(size, name="lm-vocab")
        self.rows_dim = nn.Dim(size * size, name="lm-rows")
        self.parameter = None  # instead of a constant: in a net dict, a constant cannot be an array

    def make_module(self):
        module = nn.Module()
        self.parameter = nn.Parameter([self.rows_dim, self.vocab_dim])
        setattr(module, "table", self.parameter)  # noqa: B010
        return module

    def initial_state(self, *, batch_dims):
        return {"before": nn.constant(self.bos, dims=batch_dims, dtype="int32", sparse_dim=self.vocab_dim)}

    def score(self, prev_labels, state):
        size, table = len(self.table), self.parameter
        if table is None:
            table = self.table.reshape(size * size, size)
            table = nn.convert_to_tensor(table, dims=[self.rows_dim, self.vocab_dim])
        # By float: an int32 with a sparse dim and one without it do not mix in a net dict.
        row = nn.cast(nn.cast(state["before"], "float32") * float(size) + nn.cast(prev_labels, "float32"), "int32")
        log_probs = nn.gather(table, indices=nn.set_sparse_dim(row, self.rows_dim), axis=self.rows_dim)
        return log_probs, {"before": prev_labels}

    def total(self, labels, eos):
        """reference"""
        seq = [self.bos, self.bos, *labels] + ([eos] if eos is not None else [])
        return sum(self.table[seq[i - 2], seq[i - 1], seq[i]] for i in range(2, len(seq)))


def enumerate_all(log_probs, *, blank, recombine="sum", scorer=None, scale=0.0, eos=None, to_lm=lambda c: c):
    """:return: labels -> score, of all alignments of log_probs [T, V]"""
    num_frames, size = log_probs.shape
    scores = {}
    for path in itertools.product(range(size), repeat=num_frames):
        labels = tuple(c for c, _ in itertools.groupby(path) if c != blank)
        score = float(sum(log_probs[t, c] for t, c in enumerate(path)))
        scores.setdefault(labels, []).append(score)
    add = numpy.logaddexp.reduce if recombine == "sum" else max
    scores = {labels: float(add(ls)) for labels, ls in scores.items()}
    if scorer is not None:
        scores = {k: v + scale * scorer.total([to_lm(c) for c in k], eos) for k, v in scores.items()}
    return {k: v for k, v in scores.items() if v > -numpy.inf}


def random_log_probs(rng, batch, frames, size):
    x = rng.standard_normal((batch, frames, size)) * rng.choice([0.5, 2.0, 5.0], (batch, 1, 1))
    return (x - numpy.log(numpy.exp(x).sum(-1, keepdims=True))).astype("float32")


def search_on_torch(log_probs, lengths, **kwargs):
    """:return: n-best list of each batch entry"""
    found = []

    def func(x, time):
        hyps = ctc_beam_search(x, spatial_dim=time, **kwargs)
        found.extend(hyps.nbest(i) for i in range(len(log_probs)))
        return {}

    dims = {"time": list(lengths), "vocab": log_probs.shape[-1]}
    run_on("torch", func, {"x": Input(log_probs, "batch time vocab")}, dims)
    return found


def assert_same(nbest, expected, *, exact=True):
    """order and scores; equal scores may come in any order"""
    assert len({tuple(labels) for _, labels in nbest}) == len(nbest), "one label sequence twice"
    scores = [score for score, _ in nbest]
    assert scores == sorted(scores, reverse=True)
    for score, labels in nbest:
        assert score <= expected[tuple(labels)] + 1e-4
        if exact:
            assert score == pytest.approx(expected[tuple(labels)], abs=1e-4)
    if exact:
        assert len(nbest) == len(expected)
        numpy.testing.assert_allclose(scores, sorted(expected.values(), reverse=True), atol=1e-4)


@pytest.mark.parametrize("recombine", ["sum", "max"])
@pytest.mark.parametrize("size,frames,blank", [(3, 4, 2), (3, 4, 0), (4, 3, 1), (5, 3, 4), (2, 4, 1)])
def test_full_beam_is_enumeration(size, frames, blank, recombine):
    rng = numpy.random.default_rng(size * 10 + blank)
    log_probs = random_log_probs(rng, 40, frames, size)
    lengths = rng.integers(0, frames + 1, 40)
    lengths[:2] = frames
    found = search_on_torch(log_probs, lengths, blank=blank, beam_size=200, recombine=recombine)
    for i, length in enumerate(lengths):
        assert_same(found[i], enumerate_all(log_probs[i, :length], blank=blank, recombine=recombine))


@pytest.mark.parametrize("recombine", ["sum", "max"])
@pytest.mark.parametrize("eos", [None, "blank"])
@pytest.mark.parametrize("size,frames,blank", [(3, 4, 2), (3, 4, 0), (4, 3, 1), (5, 3, 4)])
def test_full_beam_with_scorer(size, frames, blank, eos, recombine):
    rng = numpy.random.default_rng(size)
    log_probs = random_log_probs(rng, 20, frames, size)
    lengths = rng.integers(0, frames + 1, 20)
    if eos:  # the scorer's end of sentence is where CTC has blank
        scorer, eos, to_lm = Trigram(size, bos=blank), blank, lambda c: c
    else:
        scorer, to_lm = Trigram(size - 1, bos=1), lambda c: c - (c > blank)
    kwargs: dict[str, Any] = dict(blank=blank, scorer=scorer, recombine=recombine, eos=eos)
    found = search_on_torch(log_probs, lengths, beam_size=200, scorer_scale=0.7, bos=scorer.bos, **kwargs)
    for i, length in enumerate(lengths):
        assert_same(found[i], enumerate_all(log_probs[i, :length], scale=0.7, to_lm=to_lm, **kwargs))


@pytest.mark.parametrize("beam_size", [1, 2, 3, 5])
@pytest.mark.parametrize("with_scorer", [False, True])
def test_narrow_beam(beam_size, with_scorer):
    rng = numpy.random.default_rng(beam_size)
    log_probs = random_log_probs(rng, 60, 4, 4)
    lengths = rng.integers(0, 5, 60)
    kwargs: dict[str, Any] = dict(blank=3)
    if with_scorer:
        kwargs.update(scorer=Trigram(4, bos=3), eos=3)
    found = search_on_torch(log_probs, lengths, beam_size=beam_size, scorer_scale=1.5 * with_scorer, **kwargs)
    num_exact = 0
    for i, length in enumerate(lengths):
        expected = enumerate_all(log_probs[i, :length], scale=1.5, **kwargs)
        assert_same(found[i], expected, exact=False)
        assert len(found[i]) <= beam_size
        num_exact += tuple(found[i][0][1]) == max(expected, key=lambda k: expected[k])
    assert num_exact > 60 * (0.4 if beam_size == 1 else 0.6)  # it's a search, after all


def test_prefix_comes_back_after_its_extension():
    """
    The beam holds "ab" while "a" has been pruned and comes back: then "a" + "b" must join "ab".

    Random draws with narrow beams have such cases; the reference is a search over dicts, so with exact recombination.
    """
    rng = numpy.random.default_rng(5)
    log_probs = random_log_probs(rng, 200, 9, 3)
    found = search_on_torch(log_probs, [9] * 200, blank=2, beam_size=3)
    for i in range(200):
        expected = _dict_search(log_probs[i].astype("float64"), blank=2, beam_size=3)
        assert [labels for _, labels in found[i]] == [list(k) for k, _ in expected]
        numpy.testing.assert_allclose([s for s, _ in found[i]], [s for _, s in expected], atol=1e-4)


def _dict_search(log_probs, *, blank, beam_size):
    add, nothing = numpy.logaddexp, float("-inf")
    beam: dict[tuple, tuple[float, float]] = {(): (0.0, nothing)}
    for frame in log_probs:
        new = {}
        for prefix, (in_blank, in_label) in beam.items():
            total = add(in_blank, in_label)
            arrivals = [(prefix, total + frame[blank], nothing)]
            arrivals += [(prefix, nothing, in_label + frame[prefix[-1]])] if prefix else []
            for c in set(range(len(frame))) - {blank}:
                before = in_blank if prefix and prefix[-1] == c else total
                arrivals.append((prefix + (c,), nothing, before + frame[c]))
            for key, b, n in arrivals:
                old = new.get(key, (nothing, nothing))
                new[key] = (float(add(old[0], b)), float(add(old[1], n)))
        beam = dict(sorted(new.items(), key=lambda kv: -add(*kv[1]))[:beam_size])
    return sorted(((k, add(*v)) for k, v in beam.items()), key=lambda kv: -kv[1])


@pytest.mark.parametrize("with_scorer", [False, True])
def test_batch_is_single_and_padding_does_not_matter(with_scorer):
    rng = numpy.random.default_rng(7)
    lengths = [12, 1, 7, 0, 30]
    log_probs = random_log_probs(rng, 5, 30, 6)
    kwargs: dict[str, Any] = dict(blank=5, beam_size=4)
    if with_scorer:
        kwargs.update(scorer=Trigram(6, bos=5), scorer_scale=0.5, eos=5)
    padded = log_probs.copy()
    for i, length in enumerate(lengths):
        padded[i, length:] = [numpy.nan, numpy.inf, 1e9, 0.0, -numpy.inf][i]
    found = search_on_torch(padded, lengths, **kwargs)
    assert found == search_on_torch(log_probs, lengths, **kwargs)
    for i, length in enumerate(lengths):
        (single,) = search_on_torch(log_probs[i : i + 1, :length], [length], **kwargs)
        assert [labels for _, labels in found[i]] == [labels for _, labels in single]
        numpy.testing.assert_allclose([s for s, _ in found[i]], [s for s, _ in single], rtol=1e-5)


def test_impossible_labels():
    """log prob -inf, in CTC or in the scorer: not reported, and no NaN"""
    inf = numpy.inf
    probs = numpy.array([[[0.5, 0.0, 0.5], [0.0, 1.0, 0.0]], [[0.0, 0.0, 1.0], [0.0, 0.0, 1.0]]])
    with numpy.errstate(divide="ignore"):
        log_probs = numpy.log(probs).astype("float32")
    found = search_on_torch(log_probs, [2, 2], blank=2, beam_size=8)
    assert_same(found[0], {(0, 1): numpy.log(0.5), (1,): numpy.log(0.5)})
    assert_same(found[1], {(): 0.0})
    for scale in (1.0, 0.01):
        scorer = Trigram(3, bos=2)
        scorer.table[:, 0, 1] = -inf  # 1 never follows 0
        found = search_on_torch(log_probs, [2, 2], blank=2, beam_size=8, scorer=scorer, scorer_scale=scale, eos=2)
        assert_same(found[0], {(1,): numpy.log(0.5) + scale * scorer.total([1], 2)})


def test_scorer_scale_zero_ignores_the_scorer():
    log_probs = random_log_probs(numpy.random.default_rng(1), 2, 5, 4)
    scorer = Trigram(4, bos=3)
    scorer.table[:] = -numpy.inf
    kwargs: dict[str, Any] = dict(blank=3, beam_size=3)
    with_scorer = search_on_torch(log_probs, [5, 4], scorer=scorer, **kwargs)
    assert with_scorer == search_on_torch(log_probs, [5, 4], **kwargs)


def test_default_bos():
    log_probs = random_log_probs(numpy.random.default_rng(2), 1, 4, 4)
    common: dict[str, Any] = dict(blank=3, beam_size=5, scorer_scale=1.0)

    def search(**kwargs):
        return search_on_torch(log_probs, [4], **common, **kwargs)

    assert search(scorer=Trigram(4, bos=2), eos=2) == search(scorer=Trigram(4, bos=2), eos=2, bos=2)
    assert search(scorer=Trigram(4, bos=0)) == search(scorer=Trigram(4, bos=0), bos=0)
    assert search(scorer=Trigram(4, bos=0)) != search(scorer=Trigram(4, bos=0), bos=1)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("with_scorer", [False, True])
def test_engines_agree(engine, with_scorer):
    log_probs = random_log_probs(numpy.random.default_rng(11), 3, 3, 4)
    lengths = [3, 1, 2]
    log_probs[1, 1:] = numpy.nan
    kwargs: dict[str, Any] = dict(blank=3, recombine="sum")
    if with_scorer:
        kwargs.update(scorer=Trigram(4, bos=3), eos=3)

    def func(x, time, vocab):
        labels_dim = nn.Dim(vocab.dimension - 1, name="labels")
        hyps = ctc_beam_search(
            x, spatial_dim=time, beam_size=50, scorer_scale=0.5 * with_scorer, vocab_dim=labels_dim, **kwargs
        )
        assert hyps.labels.sparse_dim == labels_dim
        return {
            "labels": (hyps.labels, [nn.batch_dim, hyps.beam_dim, hyps.spatial_dim]),
            "scores": (hyps.scores, [nn.batch_dim, hyps.beam_dim]),
        }

    scorer = kwargs.get("scorer")
    res = run_on(
        engine,
        func,
        {"x": Input(log_probs, "batch time vocab")},
        {"time": lengths, "vocab": 4},
        make_model=scorer.make_module if scorer else None,
        params={"table": scorer.table.reshape(16, 4)} if scorer else None,
    )
    for i, length in enumerate(lengths):
        expected = enumerate_all(log_probs[i, :length], scale=0.5, **kwargs)
        lens = res.outputs["labels"].lengths[2][i]
        nbest = [
            (float(score), [int(c) for c in labels[:n]])
            for score, labels, n in zip(res["scores"][i], res["labels"][i], lens, strict=True)
        ]
        used = [(score, labels) for score, labels in nbest if score > -numpy.inf]
        assert all(score == -numpy.inf and not labels for score, labels in nbest[len(used) :])
        assert_same(used, expected)


@pytest.mark.parametrize(
    "kwargs,message",
    [
        (dict(beam_size=0), "beam_size, expected an int of at least 1, got 0"),
        (dict(beam_size=2.5), "beam_size, expected an int of at least 1, got 2.5"),
        (dict(blank=4), "blank, expected an index from 0 to 3 .*, got 4"),
        (dict(blank=-1), "blank, expected an index from 0 to 3 .*, got -1"),
        (dict(recombine="mean"), "recombine, expected 'sum' or 'max', got 'mean'"),
        (dict(spatial_dim=nn.Dim(3, name="other")), "log_probs, expected a tensor with .*other.*, got Tensor"),
        (
            dict(scorer=Trigram(2, bos=0)),
            r"scorer, expected a vocabulary of 4 labels, or one less .*, got .*lm-vocab.*2",
        ),
        (dict(scorer=Trigram(3, bos=0), eos=3), "eos, expected an index of the scorer's .*, got 3"),
        (dict(scorer=Trigram(3, bos=0), bos=-1), "bos, expected an index of the scorer's .*, got -1"),
        (dict(scorer_scale=0.5), "scorer_scale, bos and eos expect a scorer, got scorer=None"),
        (dict(vocab_dim=nn.Dim(3, name="labels"), blank=0), "vocab_dim, expected size 4, or 3 where blank is the last"),
    ],
)
def test_errors(kwargs, message):
    def func(x, time):
        args: dict[str, Any] = dict(spatial_dim=time, blank=3, beam_size=2)
        with pytest.raises(ValueError, match="ctc_beam_search: " + message):
            ctc_beam_search(x, **{**args, **kwargs})
        return {}

    run_on(
        "torch", func, {"x": Input(numpy.zeros((1, 2, 4), "float32"), "batch time vocab")}, {"time": [2], "vocab": 4}
    )


def test_wrong_types():
    array: Any = numpy.zeros((1, 2, 4))

    def func(x, labels, time):
        with pytest.raises(TypeError, match="log_probs, expected a Tensor, got ndarray"):
            ctc_beam_search(array, spatial_dim=time, blank=3, beam_size=1)
        with pytest.raises(TypeError, match="log_probs, expected a float tensor, got int32"):
            ctc_beam_search(labels, spatial_dim=time, blank=3, beam_size=1)
        with pytest.raises(ValueError, match="log_probs, expected a feature dim or one static dim, got Tensor"):
            ctc_beam_search(x, spatial_dim=time, blank=3, beam_size=1)
        return {}

    inputs = {
        "x": Input(numpy.zeros((1, 2), "float32"), "batch time"),
        "labels": Input(numpy.zeros((1, 2), "int32"), "batch time"),
    }
    run_on("torch", func, inputs, {"time": [2]})
