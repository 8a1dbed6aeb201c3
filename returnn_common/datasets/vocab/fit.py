"""
Whether a vocabulary fits a corpus.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from ..interface import VocabConfig

__all__ = ["check_transcripts"]


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
    counts: dict[str, int] = defaultdict(int)
    utterances: dict[str, list[str]] = defaultdict(list)
    for name, text in texts.items():
        for unknown in vocab.find_unknown(text):
            counts[unknown] += 1
            if name not in utterances[unknown][-1:]:
                utterances[unknown].append(name)
    if not counts:
        return
    parts = []
    for unknown in sorted(counts, key=lambda unknown: (-counts[unknown], unknown))[:10]:
        names = utterances[unknown]
        times = f"{counts[unknown]} time{'s' * (counts[unknown] > 1)}"
        parts.append(f"{unknown!r} ({times}, in {', '.join(names[:3])}{', ...' * (len(names) > 3)})")
    more = f", and {len(counts) - 10} more" * (len(counts) > 10)
    affected = len({name for names in utterances.values() for name in names})
    raise ValueError(
        f"{affected} of {total or len(texts)} {what} cannot be written with {vocab!r}, "
        f"which lacks {', '.join(parts)}{more}"
    )
