"""Phrases with a bonus, against counting them."""

from __future__ import annotations

from typing import Any

import numpy
import pytest

from returnn_common import nn
from returnn_common.search import PhraseBias, beam_search, combine, ctc_beam_search, score_labels
from tests.engines import ENGINES, Input, run_on
from tests.search.beam_reference import TableScorer, assert_same, enumerate_all, search_on_torch
from tests.search.ctc_reference import enumerate_all as enumerate_ctc

SIZE, END = 4, 1
VOCAB = nn.Dim(SIZE, name="vocab")
PHRASES = [[0, 2], [0, 2, 3, 0], [2, 3], [3], [3, 3, 3], [2, 0, 2, 0], [0, 2]]


def occurrences(labels, phrases) -> int:
    """reference"""
    distinct = {tuple(phrase) for phrase in phrases}
    return sum(tuple(labels[i : i + len(p)]) == p for p in distinct for i in range(len(labels) - len(p) + 1))


def random_phrases(seed):
    rng = numpy.random.default_rng(seed)
    lengths = rng.integers(1, 6, rng.integers(1, 12))
    return [rng.choice([0, 2, 3], n).tolist() for n in lengths]


def all_scores(scorer, labels, engine="torch"):
    """:return: of the label that comes, and end of sentence: each {sequences, labels + 1}"""
    labels = numpy.pad(numpy.array(labels, "int32"), [(0, 0), (0, 1)], constant_values=END)

    def func(labels, time, batch):
        state = scorer.initial_state(batch_dims=[batch])
        label = nn.set_sparse_dim(nn.constant(END, dims=[batch], dtype="int32"), VOCAB)
        result = {}
        for i in range(size):
            scores, state = scorer.score(label, state)
            label = nn.set_sparse_dim(nn.gather(labels, indices=i, axis=time), VOCAB)
            result[f"label{i}"] = nn.gather(scores, indices=label, axis=VOCAB)
            result[f"end{i}"] = nn.gather(scores, indices=END, axis=VOCAB)
        return result

    size = labels.shape[1]
    result = run_on(engine, func, {"labels": Input(labels, "batch time")}, {"time": size})
    return [numpy.stack([result[f"{name}{i}"] for i in range(size)], 1) for name in ("label", "end")]


@pytest.mark.parametrize("dense_limit", [2**22, 0])
def test_bonus_of_each_occurrence(dense_limit):
    """after each label of random sequences: what was paid, less what end of sentence takes back"""
    rng = numpy.random.default_rng(5)
    num_taken_back = 0
    for seed in range(12):
        phrases = PHRASES if not seed else random_phrases(seed)
        bonus = 2.0 if seed % 3 else -1.5
        labels = rng.choice([0, 2, 3], (60, 14))
        paid, end = all_scores(PhraseBias(phrases, VOCAB, bonus=bonus, eos=END, dense_limit=dense_limit), labels)
        so_far = numpy.cumsum(paid, axis=1) - paid
        for row in range(60):
            expected = [bonus * occurrences(labels[row, :n].tolist(), phrases) for n in range(15)]
            numpy.testing.assert_allclose((so_far + end)[row], expected, atol=1e-4)
        assert (end <= 0).all() and (bonus > 0 or (end == 0).all())
        num_taken_back += (end < 0).sum()
    assert num_taken_back > 100


def test_shares():
    """each label of a phrase gets the same, the largest where there are several phrases; all is taken back"""
    scorer = PhraseBias([[0, 2, 3, 0], [0, 3]], VOCAB, bonus=2.0, eos=END)
    paid, end = all_scores(scorer, [[0, 2, 3, 0], [0, 3, 3, 3], [0, 2, 3, 3], [2, 0, 0, 0]])
    expected = [[1.0, 0.0, 0.5, 1.5, -1.0], [1, 1, 0, 0, 0], [1, 0, 0.5, -1.5, 0], [0, 1, 0, 0, -1]]
    numpy.testing.assert_allclose(paid, expected, atol=1e-6)
    numpy.testing.assert_allclose(end[0], [0, -1, -1, -1.5, -1], atol=1e-6)


@pytest.mark.parametrize("engine", ENGINES)
def test_engines(engine):
    """forced scores, of sequences of several lengths; the first label is what the search begins with"""
    rng = numpy.random.default_rng(1)
    labels, lengths = rng.choice([0, 2, 3], (5, 6)).astype("int32"), [6, 0, 1, 5, 3]

    def func(labels, time):
        labels = nn.set_sparse_dim(labels, VOCAB)
        opts: dict[str, Any] = dict(spatial_dim=time, bos=0, eos=END)
        dense = PhraseBias(PHRASES, VOCAB, bonus=1.5, eos=END)
        if engine != "torch":
            return {"dense": score_labels(dense, labels, **opts)}
        sparse = PhraseBias(PHRASES, VOCAB, bonus=1.5, eos=END, dense_limit=0)
        return {"dense": score_labels(dense, labels, **opts), "sparse": score_labels(sparse, labels, **opts)}

    result = run_on(engine, func, {"labels": Input(labels, "batch time")}, {"time": lengths})
    expected = [1.5 * occurrences(row[:n].tolist(), PHRASES) for row, n in zip(labels, lengths, strict=True)]
    for values in result.outputs.values():
        numpy.testing.assert_allclose(values.array, expected, atol=1e-4)


class Sum:
    def __init__(self, table, phrases, bonus):
        self.table, self.phrases, self.bonus, self.vocab_dim = table, phrases, bonus, table.vocab_dim

    def total(self, labels, **kwargs):
        return self.table.total(labels, **kwargs) + self.bonus * occurrences(labels, self.phrases)


def test_search_is_enumeration():
    """with a full beam; the best one needs no full beam, though it gets better at its end: nothing stops too early"""
    table = TableScorer(SIZE, seed=3)
    for bonus in (3.0, -2.0):
        bias = PhraseBias(PHRASES, VOCAB, bonus=bonus, eos=END)
        assert bias.can_exceed_zero == (bonus > 0)
        mixture, expected = combine([(table, 1.0), (bias, 1.0)]), Sum(table, PHRASES, bonus)
        for max_len, num_best in ((3, None), (5, 1)):
            kwargs: dict[str, Any] = dict(bos=END, eos=END)
            starts = [0, 7, 33]
            found = search_on_torch(
                mixture, starts, max_len=max_len, beam_size=400, num_best=num_best, scorers=[table], **kwargs
            )
            for nbest, start in zip(found, starts, strict=True):
                all_hyps = enumerate_all(expected, max_len=max_len, start=start, **kwargs)
                assert_same(nbest, all_hyps[:num_best])
                single = search_on_torch(
                    mixture, [start], max_len=max_len, beam_size=400, num_best=num_best, scorers=[table], **kwargs
                )
                assert single == [nbest] or num_best is None


def test_phrase_survives_a_narrow_beam():
    """its first labels are paid at once"""
    table = TableScorer(3)
    table.table[:] = numpy.log([0.6, 0.1, 0.3])
    vocab = table.vocab_dim
    kwargs: dict[str, Any] = dict(max_len=3, beam_size=1, bos=1, eos=1, length_exponent=0.0)
    ((plain,),) = search_on_torch(table, [0], **kwargs)
    bias = PhraseBias([[2, 2, 2]], vocab, bonus=6.0, eos=1)
    ((biased,),) = search_on_torch(combine([(table, 1.0), (bias, 1.0)]), [0], scorers=[table], **kwargs)
    assert plain[1] == [0, 0, 0] and biased[1] == [2, 2, 2]
    assert biased[0] == pytest.approx(numpy.log(0.3) * 3 + numpy.log(0.1) + 6.0, abs=1e-5)


def test_ctc():
    """blank has the place of end of sentence"""
    rng = numpy.random.default_rng(0)
    x = rng.standard_normal((2, 5, SIZE)).astype("float32")
    log_probs = x - numpy.log(numpy.exp(x).sum(-1, keepdims=True))
    bias = PhraseBias(PHRASES, VOCAB, bonus=1.2, eos=END)
    lengths, found = [5, 2], []

    def func(x, time, batch, out):
        x.feature_dim = out
        opts: dict[str, Any] = dict(beam_size=200, scorer=bias, scorer_scale=0.5, bos=END, eos=END)
        hyps = ctc_beam_search(x, spatial_dim=time, blank=END, **opts)
        found.extend(hyps.nbest(i) for i in range(2))
        return {}

    run_on("torch", func, {"x": Input(log_probs, "batch time out")}, {"time": lengths, "out": SIZE})
    for i, length in enumerate(lengths):
        scores = enumerate_ctc(log_probs[i, :length], blank=END)
        expected = [(score + 0.6 * occurrences(labels, PHRASES), list(labels)) for labels, score in scores.items()]
        assert_same(found[i], expected, length_exponent=0.0)


def test_no_phrases():
    paid, end = all_scores(PhraseBias([], VOCAB, bonus=1.0, eos=END), [[0, 2, 3]])
    assert not paid.any() and not end.any()
    paid, end = all_scores(PhraseBias([], VOCAB, bonus=1.0, eos=END, dense_limit=0), [[0, 2, 3]])
    assert not paid.any() and not end.any()


def test_several_with_their_own_bonus():
    parts: Any = [PhraseBias([[0, 2]], VOCAB, bonus=2.0, eos=END), PhraseBias([[2, 3]], VOCAB, bonus=-1.0, eos=END)]
    paid, _ = all_scores(combine([(part, 1.0) for part in parts]), [[0, 2, 3], [0, 2, 0], [2, 3, 3], [0, 0, 0]])
    numpy.testing.assert_allclose(paid.sum(1), [1.0, 2.0, -1.0, 0.0], atol=1e-6)


def test_many_phrases_take_no_table():
    """a thousand phrases, ten thousand labels"""
    rng = numpy.random.default_rng(0)
    vocab = nn.Dim(10_000, name="large-vocab")
    phrases = [rng.integers(1, 10_000, 4).tolist() for _ in range(1000)]
    bias = PhraseBias(phrases, vocab, bonus=1.0, eos=0)

    def func(labels, time):
        labels = nn.set_sparse_dim(labels, vocab)
        return {"scores": score_labels(bias, labels, spatial_dim=time, bos=0, eos=0)}

    labels = numpy.array([[*phrases[3], *phrases[7]], [*phrases[5][:3], *phrases[9], 5]], "int32")
    result = run_on("torch", func, {"labels": Input(labels, "batch time")}, {"time": [8, 8]})
    numpy.testing.assert_allclose(result["scores"], [2.0, 1.0], atol=1e-5)


@pytest.mark.parametrize(
    "phrases,kwargs,message",
    [
        ([[0], []], {}, "phrase 1, expected at least one label, got none"),
        ([[0, 4]], {}, r"phrase 0 \(\[0, 4\]\), expected an index from 0 to 3 of .*vocab.*, got 4"),
        (["ab"], {}, r"phrase 0 \(\['a', 'b'\]\), expected an index from 0 to 3 of .*vocab.*, got 'a'"),
        ([[0, 1]], {}, r"phrase 0 \(\[0, 1\]\), expected it without end of sentence 1"),
        ([[0]], dict(eos=9), "eos, expected an index from 0 to 3 of .*vocab.*, got 9"),
        ([[0]], dict(bonus=float("inf")), "bonus, expected a finite number, got inf"),
    ],
)
def test_errors(phrases, kwargs, message):
    args: dict[str, Any] = dict(bonus=1.0, eos=END)
    with pytest.raises(ValueError, match="PhraseBias: " + message):
        PhraseBias(phrases, VOCAB, **{**args, **kwargs})


@pytest.mark.parametrize("phrases,got", [([1, 2], "1"), (None, "None")])
def test_what_is_no_phrase(phrases, got):
    with pytest.raises(TypeError, match=f"PhraseBias: phrases, expected the label indices of each, .*, got {got}"):
        PhraseBias(phrases, VOCAB, bonus=1.0, eos=END)


def test_labels_may_be_numpy_ints():
    phrases = [numpy.array([0, 2])]
    paid, _ = all_scores(PhraseBias(phrases, VOCAB, bonus=1.0, eos=END), [[0, 2]])
    numpy.testing.assert_allclose(paid, [[0.5, 0.5, 0.0]])


def test_beam_search_alone():
    bias = PhraseBias([[0, 2, 3]], VOCAB, bonus=1.0, eos=END)

    def func(batch, x):
        hyps = beam_search(
            bias, batch_dims=[batch], beam_size=3, max_len=4, bos=END, eos=END, length_exponent=0.0, num_best=1
        )
        for i in range(2):
            ((score, labels),) = hyps.nbest(i)
            assert score == pytest.approx(1.0) and occurrences(labels, [[0, 2, 3]]) == 1
        return {}

    run_on("torch", func, {"x": Input(numpy.zeros(2, "float32"), "batch")})
