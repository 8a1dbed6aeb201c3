"""Label-synchronous beam search against enumerating all label sequences."""

from __future__ import annotations

from typing import Any

import numpy
import pytest

from returnn_common import nn
from returnn_common.search import beam_search, combine
from tests.engines import ENGINES, Input, run_on
from tests.search.beam_reference import (
    TableScorer,
    assert_same,
    enumerate_all,
    list_search,
    rank,
    search_on_torch,
)

INF = float("inf")


@pytest.mark.parametrize("length_exponent", [0.0, 1.0, 0.6])
@pytest.mark.parametrize(
    "size,max_len,bos,eos", [(2, 4, 0, 0), (3, 4, 2, 2), (4, 4, 3, 0), (4, 3, 1, 1), (5, 3, 0, 4), (5, 3, 4, 4)]
)
def test_full_beam_is_enumeration(size, max_len, bos, eos, length_exponent):
    for seed in range(2):
        rng = numpy.random.default_rng(seed)
        scorer = TableScorer(size, seed=10 * size + seed, spread=rng.choice([0.5, 2.0, 4.0]))
        starts, limits = rng.integers(0, 200, 20), rng.integers(0, max_len + 1, 20)
        kwargs: dict[str, Any] = dict(bos=bos, eos=eos, length_exponent=length_exponent)
        found = search_on_torch(scorer, starts, max_len=limits, beam_size=100, **kwargs)
        for nbest, start, limit in zip(found, starts, limits, strict=True):
            assert_same(nbest, enumerate_all(scorer, max_len=limit, start=start, **kwargs), length_exponent)


@pytest.mark.parametrize("beam_size", [1, 2, 3, 5])
@pytest.mark.parametrize("length_exponent", [0.0, 1.0])
def test_narrow_beam(beam_size, length_exponent):
    scorer = TableScorer(4, seed=beam_size)
    starts, limits = numpy.arange(31), numpy.arange(31) % 7
    kwargs: dict[str, Any] = dict(beam_size=beam_size, bos=3, eos=3, length_exponent=length_exponent)
    found = search_on_torch(scorer, starts, max_len=limits, **kwargs)
    for nbest, start, limit in zip(found, starts, limits, strict=True):
        expected = list_search(scorer, start=start, max_len=limit, **kwargs)
        assert [labels for _, labels in nbest] == [labels for _, labels in expected]
        numpy.testing.assert_allclose([s for s, _ in nbest], [s for s, _ in expected], atol=1e-4)
        for score, labels in nbest:
            assert score == pytest.approx(scorer.total(labels, bos=3, eos=3, start=start), abs=1e-4)


def test_beam_of_one_is_greedy():
    scorer = TableScorer(5, seed=3)
    found = search_on_torch(scorer, range(40), max_len=6, beam_size=1, bos=0, eos=0)
    for start, ((_, labels),) in enumerate(found):
        row, prev, expected = start, 0, []
        while len(expected) < 6:
            row = (row * 5 + prev + 1) % len(scorer.table)
            prev = int(scorer.table[row].argmax())
            if prev == 0:
                break
            expected.append(prev)
        assert labels == expected


def test_batch_is_single():
    scorer = TableScorer(5, seed=4)
    starts, limits = [3, 0, 17, 9, 30], [6, 0, 9, 1, 3]
    for kwargs in (dict(beam_size=3), dict(beam_size=4, num_best=1), dict(beam_size=60, length_exponent=0.3)):
        kwargs = dict(bos=4, eos=4, min_len=1, **kwargs)
        found = search_on_torch(scorer, starts, max_len=limits, **kwargs)
        for i in range(5):
            (single,) = search_on_torch(scorer, starts[i : i + 1], max_len=limits[i], **kwargs)
            assert [labels for _, labels in found[i]] == [labels for _, labels in single]
            numpy.testing.assert_allclose([s for s, _ in found[i]], [s for s, _ in single], rtol=1e-5)


def test_max_len_as_tensor_or_int():
    scorer = TableScorer(3, seed=4)
    kwargs: dict[str, Any] = dict(max_len=4, beam_size=5, bos=0, eos=0)
    assert search_on_torch(scorer, [1, 2], as_tensor=True, **kwargs) == search_on_torch(scorer, [1, 2], **kwargs)
    longer = search_on_torch(scorer, [1, 2], **{**kwargs, "max_len": 9})
    assert max(len(labels) for _, labels in longer[0] + longer[1]) > 4


@pytest.mark.parametrize("length_exponent", [0.0, 0.5, 1.0])
def test_num_best(length_exponent):
    """the same as the first of all, in fewer steps"""
    kwargs: dict[str, Any] = dict(max_len=6, bos=0, eos=0, length_exponent=length_exponent)
    scorer = TableScorer(3, seed=9, spread=4.0)
    starts = range(30)
    steps = {}
    for num_best in (1, 3, 400):
        scorer.num_steps = 0
        found = search_on_torch(scorer, starts, beam_size=400, num_best=num_best, **kwargs)
        steps[num_best] = scorer.num_steps
        for start in starts:
            expected = enumerate_all(scorer, start=start, **kwargs)
            assert_same(found[start], expected[:num_best], length_exponent)
    assert steps[400] == 7 and steps[1] <= steps[3] <= 7


def test_stops_as_soon_as_nothing_can_win():
    scorer = TableScorer(3, seed=1)
    for length_exponent, first_eos, expected in ((0.0, 0.6, 1), (0.0, 0.3, 3), (1.0, 0.6, 21)):
        # End of sentence first_eos at first and 0.5 later; two labels share the rest: 0.35 each, then 0.0875
        rest = 1 - first_eos
        scorer.table[:] = numpy.log([0.5, 0.25, 0.25])
        scorer.table[1] = numpy.log([first_eos, rest / 2, rest / 2])
        scorer.num_steps = 0
        ((best,),) = search_on_torch(
            scorer, [0], max_len=20, beam_size=4, num_best=1, bos=0, eos=0, length_exponent=length_exponent
        )
        assert scorer.num_steps <= expected
        if first_eos > 0.5:
            assert best[1] == []
            assert best[0] == pytest.approx(numpy.log(first_eos))
    scorer.can_exceed_zero = True  # then it goes on as long as the beam has unfinished hypotheses
    kwargs: dict[str, Any] = dict(max_len=20, bos=0, eos=0, beam_size=4, length_exponent=0.0)
    steps = []
    for num_best in (1, None):
        scorer.num_steps = 0
        search_on_torch(scorer, [0], num_best=num_best, **kwargs)
        steps.append(scorer.num_steps)
    assert steps[0] == steps[1] > 1


def _steps_needed(scorer, *, max_len, min_len, num_best, length_exponent):
    """reference: number of steps of a full beam after which no open hypothesis can become one of the best"""
    still_open, ended = [(0.0, [], 0)], []
    for length in range(max_len + 1):
        longer = []
        for score, labels, row in still_open:
            row = (row * 5 + (labels or [0])[-1] + 1) % len(scorer.table)
            if length >= min(min_len, max_len):
                ended.append(rank(score + float(scorer.table[row, 0]), labels, length_exponent))
            longer += [(score + float(scorer.table[row, c]), [*labels, c], row) for c in (1, 2)]
        ended.sort(reverse=True)
        worst = ended[num_best - 1] if len(ended) >= num_best else -INF
        best_case = (max_len + 1) ** length_exponent
        still_open = [x for x in longer if x[0] / best_case > worst] if length < max_len else []
        if not still_open:
            return length + 1
    raise AssertionError


@pytest.mark.parametrize("length_exponent", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("num_best,min_len", [(1, 0), (1, 2), (3, 0)])
def test_stops_in_the_very_step(length_exponent: float, num_best: int, min_len: int):
    """neither before nor after the one in which it is known that nothing better can follow"""
    kwargs: dict[str, Any] = dict(max_len=6, min_len=min_len, num_best=num_best, length_exponent=length_exponent)
    steps = []
    for seed in range(8):
        scorer = TableScorer(3, seed=seed, spread=1.0)
        scorer.table[:, 0] += 2.0  # often, an end is likely
        scorer.table -= numpy.log(numpy.exp(scorer.table).sum(-1, keepdims=True))
        search_on_torch(scorer, [0], beam_size=200, bos=0, eos=0, **kwargs)
        assert scorer.num_steps == _steps_needed(scorer, **kwargs)
        steps.append(scorer.num_steps)
    assert min(steps) < 7 or length_exponent == 1.0


def test_scores_above_zero():
    """so hypotheses can get better the longer they are: no early stop"""
    first, second = TableScorer(3, seed=5), TableScorer(3, seed=6)
    both = combine([(first, 1.0), (second, -0.9)])
    kwargs: dict[str, Any] = dict(max_len=4, bos=0, eos=0)
    mixed = TableScorer(3)
    mixed.table = first.table - numpy.float32(0.9) * second.table
    for length_exponent in (0.0, 1.0):
        expected = enumerate_all(mixed, length_exponent=length_exponent, **kwargs)
        (found,) = search_on_torch(both, [0], beam_size=40, num_best=1, length_exponent=length_exponent, **kwargs)
        assert_same(found, expected[:1], length_exponent)
    assert any(score > 0 for score, _ in expected)


def test_min_len():
    scorer = TableScorer(3, seed=2)
    scorer.table[:, 0] += 5  # end of sentence is likely, always
    for min_len in (0, 1, 3):
        kwargs: dict[str, Any] = dict(bos=0, eos=0, min_len=min_len)
        found = search_on_torch(scorer, [4, 8, 9], max_len=[4, 3, 2], beam_size=40, **kwargs)
        for nbest, start, limit in zip(found, [4, 8, 9], [4, 3, 2], strict=True):
            assert_same(nbest, enumerate_all(scorer, start=start, max_len=limit, **kwargs))
            assert min(len(labels) for _, labels in nbest) == min(min_len, limit)
        (((_, labels),),) = search_on_torch(scorer, [4], max_len=5, beam_size=1, **kwargs)
        assert len(labels) == min_len


def test_end_of_sentence_is_certain_at_once():
    scorer = TableScorer(3, seed=2)
    scorer.table[:] = [0.0, -INF, -INF]
    assert search_on_torch(scorer, [0, 1], max_len=5, beam_size=7, bos=0, eos=0) == [[(0.0, [])]] * 2


@pytest.mark.parametrize("length_exponent", [0.0, 1.0])
def test_end_of_sentence_only_at_the_last_step(length_exponent):
    """Step by step, row t + 1 follows row t: there, end of sentence is possible after three labels only."""

    class Steps(TableScorer):
        def score(self, prev_labels, state):
            table = nn.convert_to_tensor(self.table, dims=[self.rows_dim, self.vocab_dim])
            row = nn.set_sparse_dim(nn.cast(state["row"], "int32"), self.rows_dim)
            log_probs = nn.gather(table, indices=row, axis=self.rows_dim)
            return log_probs, {"row": nn.minimum(state["row"] + 1.0, 4.0)}

    scorer = Steps(3, seed=0)
    scorer.table[:, 0] = -INF
    kwargs: dict[str, Any] = dict(beam_size=30, bos=0, eos=0, length_exponent=length_exponent)
    assert search_on_torch(scorer, [0], max_len=3, **kwargs) == [[]], "no finite hypothesis"
    scorer.table[3] = [0.0, -INF, -INF]
    for max_len in (3, 10):
        (found,) = search_on_torch(scorer, [0], max_len=max_len, **kwargs)
        assert len(found) == 8
        assert all(len(labels) == 3 for _, labels in found)
        for score, labels in found:
            assert score == pytest.approx(float(sum(scorer.table[i, c] for i, c in enumerate(labels))), abs=1e-5)
    assert search_on_torch(scorer, [0], max_len=2, **kwargs) == [[]]


def test_no_finite_hypothesis_beside_others():
    scorer = TableScorer(3, seed=0)
    scorer.table[1] = -INF  # where one with start 0 begins

    def func(start, batch):
        scorer.start = start
        hyps = beam_search(scorer, batch_dims=[batch], beam_size=3, max_len=4, bos=0, eos=0)
        scores = hyps.scores.copy_compatible_to_dims_raw([batch, hyps.beam_dim]).numpy()
        lengths = hyps.lengths.copy_compatible_to_dims_raw([batch, hyps.beam_dim]).numpy()
        assert (scores[0] == -INF).all() and (lengths[0] == 0).all() and hyps.nbest(0) == []
        assert (scores[1] > -INF).all() and len(hyps.nbest(1)) == 3
        return {}

    run_on("torch", func, {"start": Input(numpy.array([0, 2], "int32"), "batch")})


@pytest.mark.parametrize("max_len", [0, 1, 5])
def test_vocabulary_of_one_label(max_len):
    scorer = TableScorer(1)
    scorer.table[:] = 0.0
    assert search_on_torch(scorer, [0, 3], max_len=max_len, beam_size=4, bos=0, eos=0) == [[(0.0, [])]] * 2


def test_begin_of_sentence_is_no_label():
    scorer = TableScorer(3, seed=1)
    (found,) = search_on_torch(scorer, [0], max_len=3, beam_size=40, bos=2, eos=0)
    assert sorted(labels for _, labels in found) == [[], [1], [1, 1], [1, 1, 1]]


def test_what_the_scorer_gives_after_the_end_does_not_matter():
    class Broken(TableScorer):
        def score(self, prev_labels, state):
            log_probs, new_state = super().score(prev_labels, state)
            ended = nn.compare(prev_labels, "equal", 0)
            return nn.where(ended, float("nan"), log_probs), new_state

    kwargs: dict[str, Any] = dict(max_len=4, beam_size=7, bos=2, eos=0)
    assert search_on_torch(Broken(4, seed=1), [0, 9], **kwargs) == search_on_torch(
        TableScorer(4, seed=1), [0, 9], **kwargs
    )


def test_batch_dims():
    """none, and more than one"""
    scorer = TableScorer(3, seed=8)
    expected = enumerate_all(scorer, max_len=3, bos=0, eos=0)[:5]

    def func():
        for dims in ([], [nn.Dim(2, name="a"), nn.Dim(3, name="b")]):
            hyps = beam_search(scorer, batch_dims=dims, beam_size=20, max_len=3, bos=0, eos=0, num_best=5)
            assert hyps.scores.dims_set == {*dims, hyps.beam_dim}
            assert hyps.labels.dims_set == {*dims, hyps.beam_dim, hyps.spatial_dim}
            assert hyps.labels.sparse_dim == scorer.vocab_dim and hyps.beam_dim.dimension == 5
            scores = hyps.scores.copy_compatible_to_dims_raw([*dims, hyps.beam_dim]).numpy().reshape(-1, 5)
            for row in scores:
                numpy.testing.assert_allclose(row, [score for score, _ in expected], atol=1e-4)
        return {}

    run_on("torch", func, {})


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("num_best", [None, 2])
def test_engines_agree(engine, num_best):
    scorer = TableScorer(3, seed=1)
    starts, limits = [0, 5, 7], [2, 0, 1]
    kwargs: dict[str, Any] = dict(bos=0, eos=0, length_exponent=0.5 if num_best else 1.0)

    def func(start, lens, batch):
        scorer.start = start
        max_len = 2 if num_best else lens
        hyps = beam_search(scorer, batch_dims=[batch], max_len=max_len, beam_size=8, num_best=num_best, **kwargs)
        return {
            "labels": (hyps.labels, [batch, hyps.beam_dim, hyps.spatial_dim]),
            "scores": (hyps.scores, [batch, hyps.beam_dim]),
        }

    inputs = {
        "start": Input(numpy.array(starts, "int32"), "batch"),
        "lens": Input(numpy.array(limits, "int32"), "batch"),
    }
    res = run_on(engine, func, inputs, make_model=scorer.make_module, params={"table": scorer.table})
    scores, lengths = res["scores"], res.outputs["labels"].lengths[2]
    for i, start in enumerate(starts):
        nbest = [
            (float(score), [int(c) for c in labels[:n]])
            for score, labels, n in zip(scores[i], res["labels"][i], lengths[i], strict=True)
            if score > -INF
        ]
        expected = enumerate_all(scorer, start=start, max_len=2 if num_best else limits[i], **kwargs)
        assert_same(nbest, expected[:num_best], kwargs["length_exponent"])


@pytest.mark.parametrize(
    "kwargs,message",
    [
        (dict(beam_size=0), "beam_size, expected an int of at least 1, got 0"),
        (dict(beam_size=2.0), "beam_size, expected an int of at least 1, got 2.0"),
        (dict(bos=3), r"bos, expected an index from 0 to 2 of .*table-vocab.*, got 3"),
        (dict(eos=-1), r"eos, expected an index from 0 to 2 of .*table-vocab.*, got -1"),
        (dict(max_len=-1), "max_len, expected an int of at least 0, got -1"),
        (dict(min_len=-1), "min_len, expected an int of at least 0, got -1"),
        (dict(length_exponent=-0.5), "length_exponent, expected at least 0, got -0.5"),
        (dict(length_exponent="1"), "length_exponent, expected a finite number, got '1'"),
        (dict(num_best=0), "num_best, expected an int of at least 1, got 0"),
        (dict(num_best=3), "num_best, expected at most the beam_size 2, got 3"),
    ],
)
def test_errors(kwargs, message):
    args: dict[str, Any] = dict(batch_dims=[], beam_size=2, max_len=3, bos=0, eos=0)
    with pytest.raises(ValueError, match="beam_search: " + message):
        beam_search(TableScorer(3), **{**args, **kwargs})


class Returns:
    """a scorer with another `score`"""

    def __init__(self, make):
        self.make, self.vocab_dim, self.other_dim = make, nn.Dim(3, name="returns-vocab"), nn.Dim(3, name="other")

    def initial_state(self, *, batch_dims):
        return {}

    def score(self, prev_labels, state):
        return self.make(self, prev_labels, state)


@pytest.mark.parametrize(
    "kwargs,error,message",
    [
        (dict(scorer=None), TypeError, "beam_search: scorer, expected a scorer, with a static vocab_dim, .* NoneType"),
        (dict(scorer=nn.Module()), TypeError, "beam_search: scorer, expected a scorer, .*, got Module"),
        (dict(batch_dims=nn.batch_dim), TypeError, "batch_dims, expected a sequence of dims, got Dim{B}"),
        (dict(batch_dims=["B"]), TypeError, r"batch_dims, expected a sequence of dims, got \['B'\]"),
        (
            dict(scorer=Returns(lambda s, x, state: nn.zeros([*x.dims, s.vocab_dim]))),
            TypeError,
            "Returns.score: expected to return log_probs, a Tensor, and the new state, got returnn.*Tensor",
        ),
        (
            dict(scorer=Returns(lambda s, x, state: (None, state))),
            TypeError,
            r"Returns.score: expected to return log_probs, a Tensor, and the new state, got \(NoneType, dict\)",
        ),
        (
            dict(scorer=Returns(lambda s, x, state: (nn.zeros([*x.dims, s.other_dim]), state))),
            ValueError,
            r"Returns.score: log_probs, expected a tensor with .*returns-vocab.*, got Tensor.*other",
        ),
    ],
)
def test_what_is_no_scorer(kwargs, error, message):
    args: dict[str, Any] = dict(scorer=TableScorer(3), batch_dims=[], beam_size=2, max_len=3, bos=0, eos=0)

    def func():
        with pytest.raises(error, match=message):
            beam_search(**{**args, **kwargs})
        return {}

    run_on("torch", func, {})


def test_wrong_max_len():
    def func(x, lens, batch):
        args: dict[str, Any] = dict(batch_dims=[], beam_size=2, bos=0, eos=0)
        with pytest.raises(TypeError, match="max_len, expected an int or an integer tensor, got float32"):
            beam_search(TableScorer(3), max_len=x, **args)
        with pytest.raises(ValueError, match=r"max_len, expected dims of \[\], got Tensor.*lens"):
            beam_search(TableScorer(3), max_len=lens, **args)
        return {}

    inputs = {"x": Input(numpy.zeros(2, "float32"), "batch"), "lens": Input(numpy.zeros(2, "int32"), "batch")}
    run_on("torch", func, inputs)


def test_rank_of_the_reference():
    assert rank(-4.0, [1, 2, 3], 1.0) == -1.0
