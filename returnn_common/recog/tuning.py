"""
Scales of a log-linear mixture, tuned on stored scores of n-best lists: no model runs.

The word error rate of each choice of scales is exactly that of ordering the lists anew by them. It is not that of
another search with these scales, which may have found other hypotheses: the lists should be long.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .components import Components, combine_scores
from .scoring import UtteranceScore, align_words

__all__ = ["ListErrors", "TunedPoint", "grid", "random_points", "tune"]

Point = dict[str, float]


@dataclass(frozen=True)
class TunedPoint:
    """
    :param point: the choice
    :param errors: with it
    :param wer: in percent
    """

    point: Point
    errors: int
    wer: float


def grid(values: Mapping[str, Sequence[float]]) -> Iterator[Point]:
    """
    :param values: by name, at least one each
    :return: all combinations; the last name changes fastest
    :raises ValueError: if there are none
    """
    for name, of_name in values.items():
        if not len(of_name):
            raise ValueError(f"grid: {name}: expected at least one value, got none")
    for combination in itertools.product(*values.values()):
        yield dict(zip(values, map(float, combination), strict=True))


def random_points(ranges: Mapping[str, tuple[float, float]], *, num: int, seed: int = 1) -> Iterator[Point]:
    """
    Better than a grid where some of the scales hardly matter (Bergstra and Bengio 2012, "Random search for
    hyper-parameter optimization").

    :param ranges: by name, lowest and highest value
    :param num: how many points
    :param seed:
    :return: points, uniformly distributed
    :raises ValueError: if there are none, or a range is upside down
    """
    if num < 1:
        raise ValueError(f"random_points: num, expected at least 1, got {num}")
    for name, (low, high) in ranges.items():
        if not -math.inf < low <= high < math.inf:
            raise ValueError(f"random_points: {name}: expected a range from low to high, got {low} to {high}")
    generator = np.random.default_rng(seed)
    for _ in range(num):
        yield {name: float(generator.uniform(low, high)) for name, (low, high) in ranges.items()}


class ListErrors:
    """
    Errors of every hypothesis, counted once, so that a choice of scales costs a few operations on arrays.

    An utterance without hypotheses, or all of whose hypotheses are ruled out, counts as recognised as nothing.

    :param components: of n-best lists; those without a reference are not counted
    :param references: ``{seq_tag: text}``
    :raises ValueError: if there is no reference word
    """

    def __init__(self, components: Components, references: Mapping[str, str]):
        self.names = components.names
        self.num_words = sum(len(text.split()) for text in references.values())
        if not self.num_words:
            raise ValueError(f"tuning: expected references with words, got {len(references)} without any")
        lists = [components.lists.get(tag) for tag in references]
        # One place more than the longest list has: the empty result, which all others precede.
        num = 1 + max((len(one.texts) for one in lists if one is not None), default=0)
        self.errors = np.zeros([len(lists), num], "int64")
        self.lengths = np.ones([len(lists), num])
        self.scores = np.full([len(lists), num, len(self.names)], -math.inf)
        self.used = np.zeros([len(lists), num], bool)
        for row, (one, (tag, text)) in enumerate(zip(lists, references.items(), strict=True)):
            words = text.split()
            self.errors[row, :] = len(words)
            for i in range(len(one.texts) if one is not None else 0):
                assert one is not None
                self.errors[row, i] = UtteranceScore(tag, align_words(words, one.texts[i].split())).errors
                self.lengths[row, i], self.scores[row, i], self.used[row, i] = one.lengths[i], one.scores[i], True

    def count(self, scales: Mapping[str, float]) -> int:
        """
        :param scales: see :func:`.components.combine_scores`
        :return: word errors of the first hypotheses in the order that they give
        """
        scores, ranks = combine_scores(self.names, self.scores, self.lengths, scales)
        ranks = np.where(self.used & (scores > -math.inf), ranks, -math.inf)
        best = ranks.argmax(axis=1)  # of equals the first, as the search ordered them
        best[ranks.max(axis=1) == -math.inf] = -1
        return int(self.errors[np.arange(len(best)), best].sum())


def tune(
    components: Components,
    references: Mapping[str, str],
    *,
    points: Iterator[Point] | Sequence[Point],
    scales_of: Callable[[Point], Mapping[str, float]] = dict,
) -> list[TunedPoint]:
    """
    :param components: of n-best lists
    :param references: ``{seq_tag: text}``
    :param points: to try, see :func:`grid`, :func:`random_points`
    :param scales_of: from a point to the scales; by default, it has them
    :return: all points, the best first, of equals that which came first
    :raises ValueError: if there is no point, or see :func:`.components.combine_scores`, :class:`ListErrors`
    """
    lists = ListErrors(components, references)
    result = []
    for point in points:
        errors = lists.count(scales_of(point))
        result.append(TunedPoint(point, errors, 100.0 * errors / lists.num_words))
    if not result:
        raise ValueError("tune: expected at least one point, got none")
    return sorted(result, key=lambda tuned: tuned.errors)
