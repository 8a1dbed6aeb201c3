"""
RETURNN's own vocabularies, for :class:`.interface.VocabConfig`\\ s that only say their options.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["decode", "encode", "find_unknown", "open_vocab"]


def encode(opts: Mapping[str, Any], text: str) -> list[int]:
    """
    :param opts: for ``Vocabulary.create_vocab``
    :param text:
    :return: label indices
    :raises KeyError: if a label is not there
    """
    return [int(i) for i in open_vocab(opts).get_seq(text)]


def decode(opts: Mapping[str, Any], ids: Sequence[int]) -> str:
    """
    :param opts: for ``Vocabulary.create_vocab``
    :param ids: label indices
    :return: text
    """
    vocab = open_vocab(opts)
    kind = type(vocab).__name__
    if kind == "SentencePieces":
        return vocab.sp.decode(list(ids))
    text = vocab.get_seq_labels(list(ids))
    return text.replace("@@ ", "").removesuffix("@@") if kind.endswith("BytePairEncoding") else text


def find_unknown(opts: Mapping[str, Any], text: str) -> list[str]:
    """
    :param opts: for ``Vocabulary.create_vocab``
    :param text:
    :return: words that cannot be encoded
    """
    return [word for word in text.split() if not _is_known(opts, word)]


def _is_known(opts: Mapping[str, Any], word: str) -> bool:
    try:
        return open_vocab(opts).unknown_label_id not in encode(opts, word)
    except KeyError:
        return False


def open_vocab(opts: Mapping[str, Any]) -> Any:
    """
    :param opts: for ``Vocabulary.create_vocab``
    :return: RETURNN's vocabulary
    """
    return _cached(_Options(opts))


class _Options(dict):
    """Hashable, by what it says."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(repr(sorted(self.items(), key=lambda item: item[0])))


@functools.lru_cache(maxsize=8)
def _cached(opts: _Options):
    from returnn.datasets.util.vocabulary import Vocabulary

    return Vocabulary.create_vocab(**opts)
