"""Random ARPA files, and back-off written down as in the definition."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from pathlib import Path


def random_ngrams(
    words: Sequence[str], *, order: int, seed: int, regular: bool = True, keep: float = 0.5, unknown: bool = True
) -> list[dict[tuple[str, ...], tuple[float, float]]]:
    """
    :param regular: the first and the last words of each n-gram are one as well, as they are in most files
    :param keep: share of the n-grams
    :return: for each length, n-gram -> log10 of its prob and its backoff weight (not normalised)
    """
    rng = random.Random(seed)
    levels: list = [{(word,): () for word in [*["<unk>"] * unknown, "<s>", "</s>", *words]}]
    for _ in range(1, order):
        grams = {}
        for gram in levels[-1] if regular or len(levels) < 2 else [(*a, b[0]) for a in levels[-2] for b in levels[0]]:
            for (word,) in levels[0]:
                new = (*gram, word)
                if word != "<s>" and "</s>" not in gram and "<s>" not in gram[1:] and rng.random() < keep:
                    if not regular or new[1:] in levels[-1]:
                        grams[new] = ()
        levels.append(grams)
    for n, grams in enumerate(levels, 1):
        for gram in grams:
            has_backoff = n < order and gram[-1] != "</s>" and rng.random() < 0.7
            backoff = round(rng.random() - 0.7, 5) if has_backoff else 0.0
            grams[gram] = (-99.0 if gram == ("<s>",) else round(-3 * rng.random(), 5), backoff)
    return levels


def arpa_text(levels: list[dict[tuple[str, ...], tuple[float, float]]]) -> str:
    lines = ["made at random", "\\data\\", *[f"ngram {n}={len(grams)}" for n, grams in enumerate(levels, 1)]]
    for n, grams in enumerate(levels, 1):
        lines += ["", f"\\{n}-grams:"]
        for i, (gram, (log_prob, backoff)) in enumerate(grams.items()):
            # Zero backoff weights may be there or not.
            weight = [f"{backoff}"] if backoff or (n < len(levels) and i % 2) else []
            lines.append("\t".join([f"{log_prob}", " ".join(gram), *weight]))
    return "\n".join([*lines, "", "\\end\\", ""])


def write_arpa(path: Path, levels: list[dict[tuple[str, ...], tuple[float, float]]]) -> str:
    path.write_text(arpa_text(levels), "utf8")
    return str(path)


class Backoff:
    """reference"""

    def __init__(self, levels: list[dict[tuple[str, ...], tuple[float, float]]]):
        self.levels = levels

    def log_prob(self, word: str, context: tuple[str, ...]) -> float:
        """:return: natural log of p(word | context)"""
        levels = self.levels
        context = context[max(len(context) - len(levels) + 1, 0) :]
        found = levels[len(context)].get((*context, word))
        if found:
            return math.log(10) * found[0]
        _, backoff = levels[len(context) - 1].get(context, (0.0, 0.0))
        return math.log(10) * backoff + self.log_prob(word, context[1:])

    def total(self, words: Sequence[str]) -> float:
        """:return: of a sentence, end of sentence included"""
        known = [word if (word,) in self.levels[0] else "<unk>" for word in words]
        sentence = ("<s>", *known, "</s>")
        return sum(self.log_prob(sentence[i], sentence[:i]) for i in range(1, len(sentence)))
