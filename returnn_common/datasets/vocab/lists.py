"""
Vocabularies that are lists of labels: characters, words, bytes.
"""

from __future__ import annotations

import string
from collections.abc import Iterable, Sequence
from typing import Any

from ..interface import VocabConfig
from ._bytes import BYTE_LABELS, join_bytes
from ._common import check_labels, refuse_unknown

__all__ = ["ByteVocab", "CharacterVocab", "WordVocab"]


class CharacterVocab(VocabConfig):
    """
    Each character is a label, the space between words as well.

    :param characters: without duplicates; by default those of LibriSpeech's transcripts
    :param byte_fallback: whether there are 256 more labels, at the end, for the bytes (UTF-8) of all other characters.
        RETURNN's class, which :meth:`get_opts` names, has these labels, but does not encode with them; datasets of ours
        do.
    :raises ValueError: if there is none, or one comes twice
    """

    def __init__(self, characters: str = string.ascii_uppercase + "' ", *, byte_fallback: bool = False):
        self._characters = check_labels("CharacterVocab", list(characters))
        self._byte_fallback = byte_fallback

    def __repr__(self) -> str:
        return f"CharacterVocab({''.join(self._characters)!r}{', byte_fallback=True' * self._byte_fallback})"

    def get_num_classes(self) -> int:
        """see :class:`VocabConfig`"""
        return len(self._labels)

    def get_opts(self) -> dict[str, Any]:
        """see :class:`VocabConfig`"""
        return {"class": "CharacterTargets", "vocab_file": None, "labels": self._labels, "unknown_label": None}

    def get_dataset_opts(self) -> dict[str, Any]:
        """see :class:`VocabConfig`"""
        characters = "".join(self._characters)
        return {"class": "CharacterVocab", "characters": characters, "byte_fallback": self._byte_fallback}

    def encode(self, text: str) -> list[int]:
        """see :class:`VocabConfig`"""
        indices, ids = self._characters, []
        try:
            return list(map(indices.__getitem__, text))  # twice as fast as a loop
        except KeyError:
            pass
        refuse_unknown(self, self.find_unknown(text), text)
        for char in text:
            index = indices.get(char)
            ids += [len(indices) + byte for byte in char.encode("utf8")] if index is None else [index]
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """see :class:`VocabConfig`; bytes that are no UTF-8, as a model can give them, become U+FFFD"""
        labels = self._labels
        return join_bytes(labels[i] for i in self._check_ids(ids))

    def find_unknown(self, text: str) -> list[str]:
        """see :class:`VocabConfig`"""
        return [] if self._byte_fallback else [char for char in text if char not in self._characters]

    @property
    def _labels(self) -> list[str]:
        return [*self._characters, *(BYTE_LABELS if self._byte_fallback else ())]


class WordVocab(VocabConfig):
    """
    Each word is a label.

    :param words: without duplicates, in the order of their indices
    :raises ValueError: if there is none, one comes twice, or one has a space in it
    """

    def __init__(self, words: Sequence[str]):
        if isinstance(words, str):
            raise TypeError(f"WordVocab: expected a sequence of words, got the str {words!r}")
        self._labels = check_labels("WordVocab", words)
        for word in self._labels:
            if word.split() != [word]:
                raise ValueError(f"WordVocab: expected words without spaces, got {word!r}")

    def __repr__(self) -> str:
        return f"WordVocab({list(self._labels)!r})"

    def get_num_classes(self) -> int:
        """see :class:`VocabConfig`"""
        return len(self._labels)

    def get_opts(self) -> dict[str, Any]:
        """see :class:`VocabConfig`"""
        return {"class": "Vocabulary", "vocab_file": None, "labels": list(self._labels), "unknown_label": None}

    def get_dataset_opts(self) -> dict[str, Any]:
        """see :class:`VocabConfig`"""
        return {"class": "WordVocab", "words": list(self._labels)}

    def encode(self, text: str) -> list[int]:
        """see :class:`VocabConfig`"""
        refuse_unknown(self, self.find_unknown(text), text)
        return [self._labels[word] for word in text.split()]

    def decode(self, ids: Iterable[int]) -> str:
        """see :class:`VocabConfig`; words are separated by one space"""
        labels = list(self._labels)
        return " ".join(labels[i] for i in self._check_ids(ids))

    def find_unknown(self, text: str) -> list[str]:
        """see :class:`VocabConfig`"""
        return [word for word in text.split() if word not in self._labels]


class ByteVocab(VocabConfig):
    """
    The 256 bytes of UTF-8: for any text.
    """

    def __repr__(self) -> str:
        return "ByteVocab()"

    def get_num_classes(self) -> int:
        """256"""
        return 256

    def get_opts(self) -> dict[str, Any]:
        """see :class:`VocabConfig`"""
        return {"class": "Utf8ByteTargets"}

    def get_dataset_opts(self) -> dict[str, Any]:
        """see :class:`VocabConfig`"""
        return {"class": "ByteVocab"}

    def encode(self, text: str) -> list[int]:
        """see :class:`VocabConfig`"""
        return list(text.encode("utf8"))

    def decode(self, ids: Iterable[int]) -> str:
        """see :class:`VocabConfig`; bytes that are no UTF-8, as a model can give them, become U+FFFD"""
        return bytes(self._check_ids(ids)).decode("utf8", errors="replace")

    def find_unknown(self, text: str) -> list[str]:
        """Nothing is unknown."""
        return []
