"""
Minimum Bayes risk: of an n-best list, the hypothesis with the fewest word errors to be expected, instead of the one
with the highest score.

Goel and Byrne 2000, "Minimum Bayes-risk automatic speech recognition", https://doi.org/10.1006/csla.2000.0138:
rescoring of n-best lists, which are both the evidence and the choice.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from .nbest import NBest

__all__ = ["expected_errors", "mbr_nbest", "order_by_risk", "posteriors"]

_DECIMALS = 9  # of an expected number of errors: what differs less is a tie, however the floats were summed


def posteriors(scores: Sequence[float], *, scale: float = 1.0) -> np.ndarray:
    """
    :param scores: {hypotheses}, natural log, any offset; -inf: impossible
    :param scale: of the scores: below 1, the list's lower entries count for more. 0: all are equally likely
    :return: {hypotheses}, ``softmax(scale * scores)``, float64, sum 1
    :raises ValueError: if there is no score, one is NaN or +inf, or the scale is negative or not finite
    """
    values = np.asarray(scores, dtype="float64")
    if not values.size or np.isnan(values).any() or (values == math.inf).any():
        raise ValueError(f"posteriors: expected one score or more, finite or -inf, got {list(scores)!r:.80}")
    if not 0 <= scale < math.inf:
        raise ValueError(f"posteriors: scale, expected a finite number of at least 0, got {scale!r}")
    possible = values > -math.inf
    if not possible.any():
        possible[:], values = True, np.zeros_like(values)
    weights = np.zeros_like(values)
    weights[possible] = np.exp(scale * (values[possible] - values[possible].max()))
    return weights / weights.sum()


def expected_errors(hypotheses: Sequence[tuple[float, str]], *, scale: float = 1.0) -> np.ndarray:
    """
    :param hypotheses: (score, text) of one utterance; what comes twice as text counts twice, as it should
    :param scale: see :func:`posteriors`
    :return: {hypotheses}, for each as the result: the errors (Levenshtein distance over words) to be expected if the
        truth is one of the list, with their posteriors
    """
    import kaldialign

    weights = posteriors([score for score, _ in hypotheses], scale=scale)
    texts = [tuple(text.split()) for _, text in hypotheses]
    mass: dict[tuple[str, ...], float] = {}
    for text, weight in zip(texts, weights, strict=True):
        mass[text] = mass.get(text, 0.0) + weight
    risks = {}
    for text in mass:
        terms = (p * kaldialign.edit_distance(other, text)["total"] for other, p in mass.items() if p and other != text)
        risks[text] = math.fsum(terms)
    return np.array([risks[text] for text in texts])


def order_by_risk(hypotheses: Sequence[tuple[float, str]], *, scale: float = 1.0) -> dict[int, float]:
    """
    :param hypotheses: (score, text) of one utterance, at least one
    :param scale: see :func:`posteriors`
    :return: index -> expected errors, the fewest first; among equals, the higher score is first, then what was first
    :raises ValueError: see :func:`posteriors`
    """
    risks = [round(float(risk), _DECIMALS) + 0.0 for risk in expected_errors(hypotheses, scale=scale)]
    order = sorted(range(len(risks)), key=lambda i: (risks[i], -hypotheses[i][0], i))
    return {i: risks[i] for i in order}


def mbr_nbest(nbest: Mapping[str, Sequence[tuple[float, str]]], *, scale: float = 1.0) -> NBest:
    """
    N-best lists in the order of the expected errors. Among equals, the higher score is first, then what was first.

    :param nbest: ``{seq_tag: [(score, text), ...]}``
    :param scale: see :func:`posteriors`. Scores of a search are often too sharp; it is tuned like a scale of a model.
    :return: the same hypotheses; their scores are now minus the expected errors
    :raises ValueError: see :func:`posteriors`
    """
    result: NBest = {}
    for tag, hypotheses in nbest.items():
        risks = order_by_risk(hypotheses, scale=scale) if hypotheses else {}
        result[tag] = [(0.0 - risk, hypotheses[i][1]) for i, risk in risks.items()]
    return result
