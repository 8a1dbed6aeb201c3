"""
Whether a vocabulary fits a corpus.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping

from ..interface import VocabConfig

__all__ = ["check_transcripts", "describe_misfits", "find_misfits"]


def find_misfits(vocab: VocabConfig, texts: Mapping[str, str]) -> dict[str, dict[str, int]]:
    """
    :param vocab:
    :param texts: utterance -> text
    :return: what the vocabulary lacks (a character; for words, a word) -> the utterances that have it -> how often. The
        most frequent first.
    """
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for name, text in texts.items():
        for unknown in vocab.find_unknown(text):
            found[unknown][name] += 1
    return {unknown: dict(found[unknown]) for unknown in sorted(found, key=lambda x: (-found[x].total(), x))}


def describe_misfits(misfits: Mapping[str, Mapping[str, int]], *, max_parts: int = 10, max_names: int = 3) -> str:
    """
    :param misfits: of :func:`find_misfits`
    :param max_parts: only so many of them
    :param max_names: only so many utterances of each
    :return: in words: which, how often, where
    """
    parts = []
    for unknown, utterances in list(misfits.items())[:max_parts]:
        count, names = sum(utterances.values()), list(utterances)
        times = f"{count} time{'s' * (count > 1)}"
        where = f"in {', '.join(names[:max_names])}{', ...' * (len(names) > max_names)}"
        parts.append(f"{_name(unknown)} ({times}, {where})")
    more = f", and {len(misfits) - max_parts} more" * (len(misfits) > max_parts)
    return f"{', '.join(parts)}{more}"


def check_transcripts(
    vocab: VocabConfig, texts: Mapping[str, str], *, what: str = "transcripts", total: int | None = None
):
    """
    Checks that all texts can be written with the labels of a vocabulary; before training, since a dataset would only
    find the first one, in the middle of it.

    :param vocab:
    :param texts: utterance -> text
    :param what: the texts are
    :param total: how many there are, where these are not all
    :raises ValueError: naming what the vocabulary lacks, how often it comes, and the first utterances that have it
    """
    misfits = find_misfits(vocab, texts)
    if misfits:
        affected = len({name for utterances in misfits.values() for name in utterances})
        raise ValueError(
            f"{affected} of {total or len(texts)} {what} cannot be written with {vocab!r}, "
            f"which lacks {describe_misfits(misfits)}"
        )


def _name(unknown: str) -> str:
    """Many look alike, or like nothing."""
    is_ascii = unknown.isascii() or len(unknown) > 1
    return repr(unknown) if is_ascii else f"{unknown!r} U+{ord(unknown):04X}"
