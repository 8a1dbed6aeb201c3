"""Label sequences drawn from a scorer: how often they come against their exact probabilities."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import numpy
import pytest

from returnn_common import nn
from returnn_common.models.lm.lstm import make_lstm_lm
from returnn_common.search import beam_search, combine, sample
from tests.engines import ENGINES, Input, run_on
from tests.search.beam_reference import ROWS, TableScorer, enumerate_all
from tests.search.test_docs import code_below

INF = float("inf")
END = 0


def _draw(scorer, starts=(0,), *, max_len=2, search=sample, scorers=None, **kwargs) -> list[list[tuple[float, list]]]:
    """:return: what nbest gives for each utterance"""
    found = []

    def func(start, lens, batch):
        for x in scorers or [scorer]:
            x.start = start
        limit = max_len if isinstance(max_len, int) else lens
        hyps = search(scorer, batch_dims=[batch], max_len=limit, bos=END, eos=END, **kwargs)
        found.extend(hyps.nbest(i) for i in range(len(starts)))
        return {}

    lens = numpy.broadcast_to(numpy.array(max_len, "int32"), len(starts)).copy()
    run_on("torch", func, {"start": Input(numpy.array(starts, "int32"), "batch"), "lens": Input(lens, "batch")})
    return found


def _exact(scorer: TableScorer, *, start=0, max_len=2, temperature=1.0, top_k=None, top_p=None) -> dict[tuple, float]:
    """reference: probability of each sequence"""

    def _following(row: int, allowed: list[int]) -> dict[int, float]:
        p = {label: numpy.exp(float(scorer.table[row, label]) / temperature) for label in allowed}
        order = sorted(allowed, key=lambda label: -p[label])[:top_k]
        total, kept, mass = sum(p[label] for label in order), [], 0.0
        for label in order:
            if top_p is None or mass < top_p:
                kept.append(label)
            mass += p[label] / total
        return {label: p[label] / sum(p[k] for k in kept) for label in kept}

    probs = {}
    todo = [((), start, END, 1.0)]
    while todo:
        labels, row, prev, prob = todo.pop()
        row = (row * 5 + prev + 1) % ROWS
        allowed = list(range(scorer.vocab_dim.dimension)) if len(labels) < max_len else [END]
        for label, p in _following(row, allowed).items():
            if label == END:
                probs[labels] = prob * p
            else:
                todo.append(((*labels, label), row, label, prob * p))
    return probs


def _chi_square(counts: Counter, probs: dict[Any, float]) -> float:
    """:return: in standard deviations from its mean"""
    n = sum(counts.values())
    assert set(counts) <= {k for k, p in probs.items() if p > 0}, "outside of the support"
    assert sum(probs.values()) == pytest.approx(1.0, abs=1e-6)
    likely = {k: p for k, p in probs.items() if n * p >= 5}
    statistic = sum((counts[k] - n * p) ** 2 / (n * p) for k, p in likely.items())
    return (statistic - len(likely) + 1) / (2 * max(1, len(likely) - 1)) ** 0.5


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 0.5},
        {"temperature": 3.0},
        {"top_k": 2},
        {"top_p": 0.7},
        {"temperature": 2.0, "top_k": 3, "top_p": 0.8},
    ],
    ids=str,
)
def test_frequencies(options: dict[str, Any]):
    scorer, probs = TableScorer(4, seed=2, spread=1.0), {}
    (found,) = _draw(scorer, num_samples=20000, seed=1, **options)
    probs = _exact(scorer, **options)
    assert abs(_chi_square(Counter(tuple(labels) for _, labels in found), probs)) < 3.5
    for score, labels in found[:: len(found) // 50]:
        assert score == pytest.approx(scorer.total(labels, bos=END, eos=END), abs=1e-4), "the score is the scorer's"
    assert [score for score, _ in found] == sorted((score for score, _ in found), reverse=True)
    # The test can fail: these aren't the frequencies of others.
    others = _exact(scorer, temperature=1.3)
    assert _chi_square(Counter({k: 20000 * p for k, p in probs.items()}), others) > 10


def test_samples_are_independent():
    """each draw tells nothing about the next, nor about the same utterance's with another seed"""

    class Coin(TableScorer):
        def score(self, prev_labels, state):
            log_probs, state = super().score(prev_labels, state)
            return log_probs * 0.0, state

    def _labels(seed: int, num_samples: int) -> numpy.ndarray:
        numbers = []

        def func(batch, start):
            scorer.start = start
            hyps = sample(scorer, batch_dims=[batch], num_samples=num_samples, max_len=1, bos=END, eos=END, seed=seed)
            numbers.append(hyps)
            return {}

        scorer = Coin(5)
        run_on("torch", func, {"start": Input(numpy.zeros(1, "int32"), "batch")})
        # All scores are equal, so the order is that of drawing.
        return numpy.array([labels[0] if labels else 0 for _, labels in numbers[0].nbest(0)])

    first, other = _labels(0, 20000), _labels(1, 20000)
    uniform = {pair: 1 / 25 for pair in itertools.product(range(5), repeat=2)}
    for a, b in ((first[:-1], first[1:]), (first[:-7], first[7:]), (first, other)):
        assert abs(_chi_square(Counter(zip(a.tolist(), b.tolist(), strict=True)), uniform)) < 3.5


def test_top_k_of_one_is_greedy():
    scorer = TableScorer(5, seed=3)
    kwargs: dict[str, Any] = dict(starts=range(20), max_len=6)
    greedy = _draw(scorer, search=beam_search, beam_size=1, **kwargs)
    for options in ({"top_k": 1}, {"top_p": 1e-6}, {"temperature": 1e-4}):
        found = _draw(scorer, num_samples=3, **options, **kwargs)
        for ((score, labels),), samples in zip(greedy, found, strict=True):
            assert [s for _, s in samples] == [labels] * 3
            assert [s for s, _ in samples] == pytest.approx([score] * 3, abs=1e-5)


def test_top_k_of_all_labels_and_top_p_of_one_change_nothing():
    scorer = TableScorer(4, seed=1)
    expected = _draw(scorer, num_samples=50)
    for options in ({"top_k": 4}, {"top_k": 9}, {"top_p": 1.0}):
        assert _draw(scorer, num_samples=50, **options) == expected


def test_seeds():
    scorer = TableScorer(4, seed=1)
    draws = [_draw(scorer, num_samples=20, seed=seed) for seed in (0, 0, 1, 2**40)]
    assert draws[0] == draws[1] == _draw(scorer, num_samples=20)
    assert draws[0] != draws[2] != draws[3] != draws[0]


def test_neither_batch_nor_number_of_samples_matters():
    scorer = TableScorer(5, seed=4)
    starts, limits = [3, 0, 17, 3], [6, 0, 9, 6]
    found = _draw(scorer, starts, max_len=limits, num_samples=12)
    for i in range(4):
        (single,) = _draw(scorer, [starts[i]], max_len=limits[i], num_samples=12)
        assert [labels for _, labels in found[i]] == [labels for _, labels in single]
        numpy.testing.assert_allclose([s for s, _ in found[i]], [s for s, _ in single], rtol=1e-5)
        (more,) = _draw(scorer, [starts[i]], max_len=limits[i], num_samples=30)
        assert not Counter(tuple(labels) for _, labels in single) - Counter(tuple(labels) for _, labels in more)
    assert all(labels == [] for _, labels in found[1])
    assert found[0] == found[3]


def test_where_nothing_is_possible():
    scorer = TableScorer(3, seed=0)
    scorer.table[1] = -INF  # where one with start 0 begins
    scorer.table[:, 2] = -INF
    stuck, other = _draw(scorer, [0, 2], num_samples=40, temperature=50.0, max_len=4)
    assert stuck == [] and len(other) == 40
    assert {label for _, labels in other for label in labels} == {1}


def test_mixtures_and_begin_of_sentence():
    """what isn't normalised is normalised; bos is no label"""
    a, b = TableScorer(3, seed=1, spread=1.0), TableScorer(3, seed=2, spread=1.0)
    mixed = TableScorer(3)
    mixed.table = a.table + numpy.float32(0.5) * b.table
    (found,) = _draw(combine([(a, 1.0), (b, 0.5)]), scorers=[a, b], num_samples=20000)
    assert abs(_chi_square(Counter(tuple(labels) for _, labels in found), _exact(mixed))) < 3.5
    totals = {tuple(labels): s for s, labels in enumerate_all(mixed, max_len=2, bos=END, eos=END)}
    for score, labels in found[::1000]:
        assert score == pytest.approx(totals[tuple(labels)], abs=1e-4)

    def func():
        hyps = sample(a, batch_dims=[nn.Dim(1, name="b")], num_samples=200, max_len=3, bos=2, eos=0)
        assert {label for _, labels in hyps.nbest(0) for label in labels} == {1}
        return {}

    a.start = None
    run_on("torch", func, {})


@pytest.mark.parametrize("engine", ENGINES[1:])
def test_engines_agree(engine: str):
    """the same samples, by the same generator"""
    starts, limits = [0, 5, 7], [2, 0, 1]

    def _run(engine: str):
        scorer = TableScorer(4, seed=1, spread=1.0)

        def func(start, lens, batch):
            scorer.start = start
            hyps = sample(
                scorer,
                batch_dims=[batch],
                num_samples=5,
                max_len=lens,
                bos=END,
                eos=END,
                temperature=1.5,
                top_k=3,
                top_p=0.95,
                seed=3,
            )
            return {
                "labels": (hyps.labels, [batch, hyps.beam_dim, hyps.spatial_dim]),
                "scores": (hyps.scores, [batch, hyps.beam_dim]),
            }

        inputs = {
            "start": Input(numpy.array(starts, "int32"), "batch"),
            "lens": Input(numpy.array(limits, "int32"), "batch"),
        }
        return run_on(engine, func, inputs, make_model=scorer.make_module, params={"table": scorer.table})

    expected, result = _run("torch"), _run(engine)
    numpy.testing.assert_array_equal(result["labels"], expected["labels"])
    numpy.testing.assert_allclose(result["scores"], expected["scores"], atol=1e-4)
    assert len({tuple(x) for x in expected["labels"].reshape(15, -1)}) > 2


def test_code_in_the_docs():
    def func(model, batch, x):
        names: dict[str, Any] = {"nn": nn, "lm": model, "bos": 0, "eos": 0}
        exec(code_below("Sampling"), names)
        assert len(names["samples"].nbest(0)) == 10
        return {}

    def make_lm(vocab):
        return make_lstm_lm(vocab, num_layers=1, model_dim=4, embed_dim=4)

    run_on("torch", func, {"x": Input(numpy.zeros(2, "float32"), "batch")}, {"vocab": 4}, make_model=make_lm)


@pytest.mark.parametrize(
    "kwargs,message",
    [
        (dict(num_samples=0), "num_samples, expected an int of at least 1, got 0"),
        (dict(bos=3), r"bos, expected an index from 0 to 2 of .*table-vocab.*, got 3"),
        (dict(eos=-1), r"eos, expected an index from 0 to 2 of .*table-vocab.*, got -1"),
        (dict(max_len=-1), "max_len, expected an int of at least 0, got -1"),
        (dict(temperature=0.0), "temperature, expected a number above 0, got 0.0"),
        (dict(temperature=INF), "temperature, expected a number above 0, got inf"),
        (dict(temperature=float("nan")), "temperature, expected a number above 0, got nan"),
        (dict(top_k=0), "top_k, expected an int of at least 1, got 0"),
        (dict(top_k=2.0), "top_k, expected an int of at least 1, got 2.0"),
        (dict(top_p=0.0), "top_p, expected a number above 0 and at most 1, got 0.0"),
        (dict(top_p=1.1), "top_p, expected a number above 0 and at most 1, got 1.1"),
        (dict(seed=-1), "seed, expected an int of at least 0, got -1"),
    ],
)
def test_errors(kwargs, message):
    args: dict[str, Any] = dict(batch_dims=[], num_samples=2, max_len=3, bos=0, eos=0)
    with pytest.raises(ValueError, match="sample: " + message):
        sample(TableScorer(3), **{**args, **kwargs})
