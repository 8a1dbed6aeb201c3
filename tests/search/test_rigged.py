"""
Rigged models, all in one batch, through every search: end of sentence for certain at once, or only at the last step;
nothing possible; no end possible; no frames; and vocabularies of one label, or none. Against enumeration.
Transducers: tests/search/test_transducer.py.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy
import pytest

from returnn_common import nn
from returnn_common.models.joint_search import JointSearch
from returnn_common.search import CtcPruning, LexiconScorer, beam_search, combine, ctc_beam_search, sample
from tests.engines import Input, run_on
from tests.search.ctc_reference import enumerate_all

INF = numpy.inf
STEPS = 3
Scores = dict[tuple[int, ...], float]


class Positions:
    """log probs by the number of labels so far, whichever they are"""

    def __init__(self, table: nn.Tensor, *, steps: nn.Dim, vocab_dim: nn.Dim):
        self.table, self.steps, self.vocab_dim = table, steps, vocab_dim

    def initial_state(self, *, batch_dims):
        return {"step": nn.constant(0, dims=batch_dims, dtype="int32")}

    def score(self, prev_labels, state):
        indices = nn.set_sparse_dim(state["step"], self.steps)
        return nn.gather(self.table, indices=indices, axis=self.steps), {"step": state["step"] + 1}


def _log(rows: Any) -> numpy.ndarray:
    with numpy.errstate(divide="ignore"):
        return numpy.log(numpy.array(rows, "float32"))


def _by_label() -> numpy.ndarray:
    """[utterance, step, label]; label 0 ends"""
    end, one, any_label, nothing = [1, 0, 0], [0, 1, 0], [0.2, 0.5, 0.3], [0, 0, 0]
    rows = [
        [end] * 4,
        [one, one, one, end],
        [nothing] * 4,
        [any_label, nothing, nothing, nothing],
        [one] * 4,
        [any_label] * 4,
    ]
    return _log(rows)


def _by_frame() -> numpy.ndarray:
    """[utterance, frame, label]; label 2 is blank"""
    blank, zero, any_label, nothing = [0, 0, 1], [1, 0, 0], [0.5, 0.3, 0.2], [0, 0, 0]
    rows = [[blank] * 3, [blank, blank, zero], [any_label, nothing, blank], [any_label] * 3, [any_label] * 3]
    return _log(rows)


LENGTHS = [3, 3, 3, 0, 3]  # of _by_frame


def _enumerate(table: numpy.ndarray, *, end: int = 0, max_len: int = STEPS) -> Scores:
    """:param table: [step, label]"""
    labels = [c for c in range(table.shape[1]) if c != end]
    sequences = [seq for n in range(max_len + 1) for seq in itertools.product(labels, repeat=n)]
    scores = {seq: float(sum(table[i, c] for i, c in enumerate((*seq, end)))) for seq in sequences}
    return {seq: score for seq, score in scores.items() if score > -INF}


def _is_word(seq: tuple[int, ...], words: list[tuple[int, ...]]) -> bool:
    return not seq or any(seq[: len(w)] == w and _is_word(seq[len(w) :], words) for w in words)


def _assert_best(nbest: list[tuple[float, list[int]]], expected: Scores, *, size: int, complete: bool):
    """:param complete: whether the beam holds all hypotheses; if not, the best one can be lost on the way"""
    assert len({tuple(labels) for _, labels in nbest}) == len(nbest) <= size
    for score, labels in nbest:
        numpy.testing.assert_allclose(score, expected[tuple(labels)], atol=1e-4)
    scores = [score for score, _ in nbest]
    assert scores == sorted(scores, reverse=True)
    if complete or len(expected) <= 1:
        assert len(nbest) == min(size, len(expected))
        best = sorted(expected.values(), reverse=True)[: len(nbest)]
        numpy.testing.assert_allclose(scores, best, atol=1e-4)


def _search(func: Any, tables: numpy.ndarray) -> None:
    """:param func: (table {batch, steps, vocab}, steps, vocab dim)"""

    def call(table, steps, vocab):
        func(table, steps, vocab)
        return {}

    dims = {"steps": tables.shape[1], "vocab": tables.shape[2]}
    run_on("torch", call, {"table": Input(tables, "batch steps vocab")}, dims)


@pytest.mark.parametrize("beam_size", [1, 2, 50])
@pytest.mark.parametrize("words", [None, [(1,)], [(1, 2), (2,)]])
def test_label_synchronous(beam_size: int, words: list[tuple[int, ...]] | None):
    def func(table, steps, vocab):
        scorer: Any = Positions(table, steps=steps, vocab_dim=vocab)
        if words is not None:
            scorer = combine([(scorer, 1.0), (LexiconScorer(words, vocab, eos=0, allow_empty=True), 1.0)])
        options: dict[str, Any] = dict(max_len=STEPS, bos=0, eos=0, length_exponent=0.0)
        found = beam_search(scorer, batch_dims=[nn.batch_dim], beam_size=beam_size, **options)
        for i, rows in enumerate(tables):
            expected = _enumerate(rows)
            if words is not None:
                expected = {seq: score for seq, score in expected.items() if _is_word(seq, words)}
            # A beam of 1 or 2 can be full of beginnings that don't become words, or that nothing follows.
            complete = beam_size == 50
            nothing_follows = numpy.isneginf(rows[1]).all() and not numpy.isneginf(rows[0]).all()
            if complete or (words is None and not nothing_follows):
                _assert_best(found.nbest(i), expected, size=beam_size, complete=complete)
            assert {tuple(labels) for _, labels in found.nbest(i)} <= set(expected)

    tables = _by_label()
    assert [len(_enumerate(rows)) for rows in tables] == [1, 1, 0, 1, 0, 15]
    _search(func, tables)
    for row in tables:
        tables = row[None]
        _search(func, tables)


@pytest.mark.parametrize("temperature", [1.0, 5.0])
def test_samples(temperature: float):
    def func(table, steps, vocab):
        scorer = Positions(table, steps=steps, vocab_dim=vocab)
        options: dict[str, Any] = dict(max_len=STEPS, bos=0, eos=0, seed=1, temperature=temperature)
        found = sample(scorer, batch_dims=[nn.batch_dim], num_samples=30, **options)
        for i, rows in enumerate(tables):
            expected, drawn = _enumerate(rows), found.nbest(i)
            for score, labels in drawn:
                numpy.testing.assert_allclose(score, expected[tuple(labels)], atol=1e-4)
            if len(expected) != 1 or i < 2:  # at utterance 3, draws end where nothing follows
                assert len(drawn) == (30 if expected else 0)

    tables = _by_label()
    _search(func, tables)


@pytest.mark.parametrize("size", [1, 2])
def test_vocabulary_of_one_label_or_none(size: int):
    def func(table, steps, vocab):
        scorer = Positions(table, steps=steps, vocab_dim=vocab)
        options: dict[str, Any] = dict(batch_dims=[nn.batch_dim], max_len=STEPS, bos=0, eos=0)
        found = beam_search(scorer, beam_size=9, length_exponent=0.0, **options)
        _assert_best(found.nbest(0), _enumerate(tables[0]), size=9, complete=True)
        assert {len(labels) for _, labels in sample(scorer, num_samples=90, **options).nbest(0)} == set(lengths)

    lengths = range(STEPS + 1) if size == 2 else range(1)
    tables = _log([[[0.4, 0.6][:size]] * 4])
    _search(func, tables)


def _search_frames(func: Any, tables: numpy.ndarray, lengths: list[int]) -> None:
    """:param func: (log probs {batch, time, vocab}, time, vocab dim)"""

    def call(table, time, vocab):
        table.feature_dim = vocab
        func(table, time, vocab)
        return {}

    run_on("torch", call, {"table": Input(tables, "batch time vocab")}, {"time": lengths, "vocab": tables.shape[2]})


def _full_ctc(tables: numpy.ndarray, lengths: list[int], **kwargs) -> list[Scores]:
    blank = tables.shape[2] - 1
    full = [enumerate_all(x[:n], blank=blank, **kwargs) for x, n in zip(tables, lengths, strict=True)]
    return [{seq: score for seq, score in scores.items() if score > -INF} for scores in full]


@pytest.mark.parametrize("beam_size", [1, 2, 50])
@pytest.mark.parametrize("recombine", ["sum", "max"])
@pytest.mark.parametrize("words", [None, [(0,)]])
def test_time_synchronous(beam_size: int, recombine: str, words: list[tuple[int, ...]] | None):
    tables = _by_frame()

    def func(log_probs, time, vocab):
        options: dict[str, Any] = dict(recombine=recombine)
        if words is not None:
            scorer = LexiconScorer(words, vocab, eos=2, allow_empty=True)
            options.update(scorer=scorer, scorer_scale=1.0, bos=2, eos=2)
        found = ctc_beam_search(log_probs, spatial_dim=time, blank=2, beam_size=beam_size, **options)
        for i, expected in enumerate(_full_ctc(tables, LENGTHS, recombine=recombine)):
            if words is not None:
                expected = {seq: score for seq, score in expected.items() if _is_word(seq, words)}
            if beam_size == 50 or len(expected) <= 1:
                _assert_best(found.nbest(i), expected, size=beam_size, complete=True)
            assert {tuple(labels) for _, labels in found.nbest(i)} <= set(expected)

    assert [len(x) for x in _full_ctc(tables, LENGTHS)][:4] == [1, 1, 0, 1]
    _search_frames(func, tables, LENGTHS)


@pytest.mark.parametrize(
    "pruning", [CtcPruning(max_labels=1), CtcPruning(blank_threshold=0.5), CtcPruning(max_labels=9)]
)
def test_pruned(pruning: CtcPruning):
    tables = _by_frame()

    def func(log_probs, time, vocab):
        found = ctc_beam_search(log_probs, spatial_dim=time, blank=2, beam_size=4, pruning=pruning)
        for i, expected in enumerate(_full_ctc(tables, LENGTHS)[:4]):
            assert [tuple(labels) for _, labels in found.nbest(i)] == list(expected)

    _search_frames(func, tables, LENGTHS)


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("beam_size", [1, 9])
def test_ctc_of_one_label_or_none(size: int, beam_size: int):
    tables = _log([[[0.7, 0.3][-size:]] * 3] * 2)

    def func(log_probs, time, vocab):
        found = ctc_beam_search(log_probs, spatial_dim=time, blank=size - 1, beam_size=beam_size)
        for i, expected in enumerate(_full_ctc(tables, [3, 0])):
            nbest = found.nbest(i)
            assert len(nbest) == min(beam_size, len(expected))
            assert beam_size == 1 or {tuple(labels) for _, labels in nbest} == set(expected)

    _search_frames(func, tables, [3, 0])


@pytest.mark.parametrize("beam_size", [1, 50])
def test_attention_and_ctc_frame_by_frame(beam_size: int):
    """each rigged CTC with each rigged decoder"""
    decoders = numpy.roll(_by_label(), -1, axis=2)  # the end of sentence is where CTC has blank
    frames = _by_frame()
    pairs = list(itertools.product(range(len(frames)), range(len(decoders))))

    def call(log_probs, decoder, time, vocab, steps):
        joint = JointSearch(
            decoder=Positions(decoder, steps=steps, vocab_dim=vocab),
            log_probs=log_probs,
            vocab_dim=vocab,
            spatial_dim=time,
            blank=2,
            bos=2,
            eos=2,
        )
        found = joint.search_frames(beam_size=beam_size, ctc_scale=0.4, lm=None, lm_scale=0.0)
        for i, (k, j) in enumerate(pairs):
            ctc, attention = _full_ctc(frames, LENGTHS)[k], _enumerate(decoders[j], end=2)
            expected = {seq: 0.4 * ctc[seq] + 0.6 * attention[seq] for seq in ctc if seq in attention}
            if beam_size == 50:
                _assert_best(found.nbest(i), expected, size=50, complete=True)
            assert {tuple(labels) for _, labels in found.nbest(i)} <= set(expected)
        return {}

    inputs = {
        "log_probs": Input(frames[[k for k, _ in pairs]], "batch time vocab"),
        "decoder": Input(decoders[[j for _, j in pairs]], "batch steps vocab"),
    }
    run_on("torch", call, inputs, {"time": [LENGTHS[k] for k, _ in pairs], "vocab": 3, "steps": 4})
