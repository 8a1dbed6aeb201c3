"""Minimum Bayes risk on n-best lists, against a brute force."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from returnn_common.recog.mbr import expected_errors, mbr_nbest, posteriors

INF = math.inf


def _distance(a: list[str], b: list[str]) -> int:
    """Levenshtein, as it is defined"""
    if not a or not b:
        return len(a) + len(b)
    return min(_distance(a[1:], b) + 1, _distance(a, b[1:]) + 1, _distance(a[1:], b[1:]) + (a[0] != b[0]))


def _brute_force(hypotheses: list[tuple[float, str]], scale: float) -> list[float]:
    total = sum(math.exp(scale * score) for score, _ in hypotheses)
    return [
        sum(math.exp(scale * score) / total * _distance(truth.split(), text.split()) for score, truth in hypotheses)
        for _, text in hypotheses
    ]


@pytest.mark.parametrize("scale", [0.0, 0.3, 1.0, 2.5])
@pytest.mark.parametrize("seed", range(5))
def test_brute_force(seed: int, scale: float):
    rng = random.Random(seed)
    hypotheses = [(-rng.random() * 4, " ".join(rng.choices("abc", k=rng.randrange(5)))) for _ in range(6)]
    expected = _brute_force(hypotheses, scale)
    np.testing.assert_allclose(expected_errors(hypotheses, scale=scale), expected, rtol=1e-12)
    result = mbr_nbest({"u": hypotheses}, scale=scale)["u"]
    assert [text for _, text in result] == [
        text for _, _, text in sorted((round(e, 9), -s, t) for e, (s, t) in zip(expected, hypotheses, strict=True))
    ]
    np.testing.assert_allclose([-risk for risk, _ in result], sorted(expected), atol=1e-8)


def test_the_scale_decides():
    """the best scored one is alone, the two others agree on most words"""
    nbest = {"u": [(0.0, "x y z"), (-0.5, "a b c"), (-0.5, "a b d")]}
    assert mbr_nbest(nbest)["u"][0][1] == "a b c"
    assert mbr_nbest(nbest, scale=10.0)["u"][0][1] == "x y z"


@pytest.mark.parametrize(
    "hypotheses, expected",
    [
        ([(-1.0, "a"), (-1.0, "b")], ["a", "b"]),  # equal in all: the order that there was
        ([(-1.0, "b"), (-1.0, "a")], ["b", "a"]),
        ([(-2.0, "a b"), (-1.0, "c b"), (-1.0, "a d"), (-2.0, "c d")], ["c b", "a d", "a b", "c d"]),
        ([(-5.0, "a"), (-3.0, "a")], ["a", "a"]),
    ],
)
def test_ties(hypotheses, expected):
    assert [text for _, text in mbr_nbest({"u": hypotheses})["u"]] == expected


def test_a_tie_goes_to_the_higher_score_not_to_the_first():
    """a search that normalises by the length may have a higher score later in its list"""
    result = mbr_nbest({"u": [(-3.0, "a b"), (-1.0, "a  b"), (-2.0, "a b")]})["u"]
    assert [text for _, text in result] == ["a  b", "a b", "a b"] and [risk for risk, _ in result] == [0.0] * 3


def test_one_or_none():
    assert mbr_nbest({"u": [(-7.0, "a b")], "v": [], "w": [(-INF, "")]}) == {
        "u": [(0.0, "a b")],
        "v": [],
        "w": [(0.0, "")],
    }


def test_posteriors():
    np.testing.assert_allclose(posteriors([0.0, math.log(3)]), [0.25, 0.75])
    np.testing.assert_allclose(posteriors([-1e6, -1e6 + math.log(3)]), [0.25, 0.75])  # no underflow
    np.testing.assert_allclose(posteriors([-1.0, -INF], scale=0.0), [1.0, 0.0])
    np.testing.assert_allclose(posteriors([-INF, -INF]), [0.5, 0.5])


@pytest.mark.parametrize("scores", [[], [math.nan], [0.0, INF]])
def test_scores_that_have_no_rank(scores: list[float]):
    with pytest.raises(ValueError, match="posteriors: expected one score or more, finite or -inf, got "):
        posteriors(scores)


@pytest.mark.parametrize("scale", [-1.0, INF, math.nan])
def test_scale_that_makes_no_sense(scale: float):
    with pytest.raises(ValueError, match=f"posteriors: scale, expected a finite number of at least 0, got {scale}"):
        mbr_nbest({"u": [(0.0, "a")]}, scale=scale)
