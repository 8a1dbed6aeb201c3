"""
Subwords by byte-pair encoding.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable
from typing import Any

from ..interface import VocabConfig
from ._common import check_file, fspath, refuse_unknown

__all__ = ["BpeVocab"]


class BpeVocab(VocabConfig):
    """
    Byte-pair encoding, as the program subword-nmt makes it (Sennrich et al., 2016, https://arxiv.org/abs/1508.07909),
    through RETURNN's own implementation. The files are read when they are needed first.

    :param codes_file: the merge operations
    :param vocab_file: the labels, one in a line, or a Python dict from labels to indices. ``<s>`` and ``</s>``, where
        they are there, are begin and end of sentence.
    """

    def __init__(self, codes_file: str | os.PathLike[str], vocab_file: str | os.PathLike[str]):
        self._codes_file = fspath("BpeVocab: codes_file", codes_file)
        self._vocab_file = fspath("BpeVocab: vocab_file", vocab_file)

    def __repr__(self) -> str:
        return f"BpeVocab({self._codes_file!r}, {self._vocab_file!r})"

    def get_num_classes(self) -> int:
        """see :class:`VocabConfig`"""
        return len(self._vocab.labels)

    def get_opts(self) -> dict[str, Any]:
        """see :class:`VocabConfig`; without a label for unknown parts, so that RETURNN refuses them"""
        return {
            "class": "BytePairEncoding",
            "bpe_file": self._codes_file,
            "vocab_file": self._vocab_file,
            "unknown_label": None,
        }

    def get_eos_idx(self) -> int | None:
        """see :class:`VocabConfig`"""
        return self._vocab.label_to_id("</s>", default=None)

    def get_bos_idx(self) -> int | None:
        """see :class:`VocabConfig`"""
        return self._vocab.label_to_id("<s>", default=None)

    def encode(self, text: str) -> list[int]:
        """see :class:`VocabConfig`"""
        refuse_unknown(self, self.find_unknown(text), text)
        return self._vocab.get_seq(text)

    def decode(self, ids: Iterable[int]) -> str:
        """see :class:`VocabConfig`; words are separated by one space"""
        text = self._vocab.get_seq_labels(self._check_ids(ids))
        return text.replace("@@ ", "").removesuffix("@@")

    def find_unknown(self, text: str) -> list[str]:
        """see :class:`VocabConfig`"""
        vocab = self._vocab
        return [label for label in vocab.bpe.segment_sentence(text) if vocab.label_to_id(label, default=None) is None]

    @property
    def _vocab(self):
        codes_file = check_file("BpeVocab", self._codes_file)
        return _load_bpe(codes_file, check_file("BpeVocab", self._vocab_file))


@functools.lru_cache(maxsize=8)
def _load_bpe(codes_file: str, vocab_file: str):
    from returnn.datasets.util.vocabulary import BytePairEncoding

    return BytePairEncoding(vocab_file=vocab_file, bpe_file=codes_file, unknown_label=None)
