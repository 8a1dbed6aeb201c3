"""
Draws one of the ways to write a text with subwords.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

__all__ = ["draw_path", "join_pairs"]


def draw_path(
    text: str,
    scores: Mapping[str, float],
    *,
    alpha: float,
    rng: np.random.Generator,
    unknown_score: float = -math.inf,
) -> list[str]:
    """
    Subword regularization (Kudo, 2018, https://arxiv.org/abs/1804.10959, section 3.3, with all segmentations instead of
    the n best): draws segmentation ``x`` of the text with probability ``exp(alpha * score(x)) / Z``, by forward
    filtering and backward sampling.

    :param text:
    :param scores: of the subwords, natural log; that of a segmentation is their sum
    :param alpha: 0: all are as likely; the larger, the more likely is the best one
    :param rng:
    :param unknown_score: of single characters without an entry
    :return: the parts
    """
    longest = max(map(len, scores), default=1)
    forward = [0.0] + [-math.inf] * len(text)  # log of the sum over all segmentations of a beginning of the text
    arcs: list[list[tuple[int, float]]] = [[]]  # of each end: begins, and forward scores over that arc
    for end in range(1, len(text) + 1):
        into = []
        for begin in range(max(0, end - longest), end):
            score = scores.get(text[begin:end], unknown_score if end - begin == 1 else -math.inf)
            if forward[begin] + score > -math.inf:
                into.append((begin, forward[begin] + alpha * score))
        best = max((score for _, score in into), default=-math.inf)
        if into:
            forward[end] = best + math.log(sum(math.exp(score - best) for _, score in into))
        arcs.append(into)
    parts, end = [], len(text)
    while end:
        drawn = rng.random()
        begin = arcs[end][-1][0]  # where rounding leaves something over
        for begin_, score in arcs[end]:
            drawn -= math.exp(score - forward[end])
            if drawn < 0:
                begin = begin_
                break
        parts.append(text[begin:end])
        end = begin
    return parts[::-1]


def join_pairs(
    symbols: Sequence[str],
    rank: Callable[[str, str], float | None],
    *,
    dropout: float = 0.0,
    rng: np.random.Generator | None = None,
) -> list[str]:
    """
    Byte-pair encoding: joins the pair of the lowest rank, wherever it comes, until there is none. With BPE-dropout
    (Provilkov et al., 2020, https://arxiv.org/abs/1910.13267, algorithm 1) each place is passed over, in each step
    anew, with that probability.

    :param symbols:
    :param rank: of two symbols that follow each other; None: they are not joined
    :param dropout: 0: none
    :param rng: needed for dropout
    :return: the joined symbols
    """
    symbols = list(symbols)
    while True:
        found: list[tuple[float, int]] = []
        for i in range(len(symbols) - 1):
            value = rank(symbols[i], symbols[i + 1])
            if value is not None and (not dropout or rng is None or rng.random() >= dropout):
                found.append((value, i))
        if not found:
            return symbols
        lowest = min(found)[0]
        places = {i for value, i in found if value == lowest}
        joined, i = [], 0
        while i < len(symbols):
            both = i in places
            joined.append(symbols[i] + symbols[i + 1] if both else symbols[i])
            i += 2 if both else 1
        symbols = joined
