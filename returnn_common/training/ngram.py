"""
Training of small n-gram language models, into a file in the ARPA format, which
:func:`returnn_common.search.read_arpa` reads. For large texts, take KenLM or SRILM.
"""

from __future__ import annotations

import gzip
import math
from collections import Counter
from collections.abc import Iterable, Sequence

__all__ = ["train_ngram"]


def train_ngram(sentences: Iterable[Sequence[str]], path: str, *, order: int = 3, words: Iterable[str] = ()) -> None:
    """
    Interpolated Witten-Bell smoothing (Chen and Goodman 1998, "An empirical study of smoothing techniques for language
    modeling", section 2.5): with the number c of how often a context h came, and of how many words t came after it::

        p(w | h) = (c(h w) + t(h) p(w | h without its first word)) / (c(h) + t(h))

    and below p(w), the same for each word, with `<unk>` as one of them. Nothing is pruned.

    :param sentences: of words (or subwords, characters), without begin and end of sentence
    :param path: file to write; with gzip, if it ends in ".gz"
    :param order: length of the longest n-grams
    :param words: which also get a probability, though they may not come in the sentences
    :raises ValueError: no sentence, a word that cannot be written in an ARPA file, an order below 1
    """
    if order < 1:
        raise ValueError(f"train_ngram: expected an order of at least 1, got {order!r}")
    counts: list[Counter[tuple[str, ...]]] = [Counter() for _ in range(order)]
    words, known = list(words), set()
    for sentence in sentences:
        known.update(sentence)
        padded = ("<s>", *sentence, "</s>")
        for n, counter in enumerate(counts, 1):
            counter.update(padded[i : i + n] for i in range(len(padded) - n + 1))
    if not counts[0]:
        raise ValueError("train_ngram: expected at least one sentence, got none")
    _check(known.union(words))
    for word in (*words, "<unk>"):
        counts[0].setdefault((word,), 0)
    del counts[0]["<s>",]
    log_probs, backoffs = _estimate(counts)
    text = _arpa(log_probs, backoffs)
    with gzip.open(path, "wt", encoding="utf8") if path.endswith(".gz") else open(path, "w", encoding="utf8") as file:
        file.writelines(text)


def _check(words: Iterable[str]):
    for word in sorted(words):
        if (
            not word
            or word in ("<s>", "</s>", "<unk>")
            or len(word.encode("utf8").split()) != 1
            or word != word.strip()
        ):
            raise ValueError(
                f"train_ngram: expected words without spaces, other than <s>, </s> and <unk>, got {word!r}"
            )


def _estimate(
    counts: Sequence[Counter[tuple[str, ...]]],
) -> tuple[list[dict[tuple[str, ...], float]], dict[tuple[str, ...], float]]:
    """
    :param counts: of each length, n-gram -> how often
    :return: of each length, n-gram -> log10 of its probability; context -> log10 of its backoff weight
    """
    probs: list[dict[tuple[str, ...], float]] = []
    backoffs = {}
    for counter in counts:
        total, types = Counter(), Counter()
        for gram, count in counter.items():
            total[gram[:-1]] += count
            types[gram[:-1]] += count > 0
        probs.append({})
        for gram, count in counter.items():
            context = gram[:-1]
            lower = probs[-2][gram[1:]] if context else 1.0 / len(counter)
            probs[-1][gram] = (count + types[context] * lower) / (total[context] + types[context])
        backoffs |= {h: math.log10(t / (total[h] + t)) for h, t in types.items() if h}
    return [{gram: math.log10(prob) for gram, prob in level.items()} for level in probs], backoffs


def _arpa(log_probs: list[dict[tuple[str, ...], float]], backoffs: dict[tuple[str, ...], float]) -> Iterable[str]:
    """:return: lines; log10 of zero is -99, by convention"""
    levels = [{("<s>",): -99.0, **log_probs[0]}, *log_probs[1:]]
    yield "\\data\\\n"
    yield from (f"ngram {n}={len(level)}\n" for n, level in enumerate(levels, 1))
    for n, level in enumerate(levels, 1):
        yield f"\n\\{n}-grams:\n"
        for gram, log_prob in sorted(level.items()):
            weight = f"\t{backoffs[gram]:.7f}" if gram in backoffs and n < len(levels) else ""
            yield f"{log_prob:.7f}\t{' '.join(gram)}{weight}\n"
    yield "\n\\end\\\n"
