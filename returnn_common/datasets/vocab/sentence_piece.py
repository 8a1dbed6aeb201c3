"""
Subwords of SentencePiece models.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable
from typing import Any

from ..interface import VocabConfig
from ._common import check_file, fspath, refuse_unknown

__all__ = ["SentencePieceVocab"]


class SentencePieceVocab(VocabConfig):
    """
    Subwords of a SentencePiece model, https://github.com/google/sentencepiece (Kudo and Richardson, 2018,
    https://arxiv.org/abs/1808.06226). The file is read when it is needed first.

    :param model_file: path of the ``.model`` file
    """

    def __init__(self, model_file: str | os.PathLike[str]):
        self._model_file = fspath("SentencePieceVocab: model_file", model_file)

    def __repr__(self) -> str:
        return f"SentencePieceVocab({self._model_file!r})"

    def get_num_classes(self) -> int:
        """see :class:`VocabConfig`"""
        return self._processor.vocab_size()

    def get_opts(self) -> dict[str, Any]:
        """see :class:`VocabConfig`"""
        return {"class": "SentencePieces", "model_file": self._model_file}

    def get_eos_idx(self) -> int | None:
        """see :class:`VocabConfig`"""
        return _none_if_negative(self._processor.eos_id())

    def get_bos_idx(self) -> int | None:
        """see :class:`VocabConfig`"""
        return _none_if_negative(self._processor.bos_id())

    def encode(self, text: str) -> list[int]:
        """see :class:`VocabConfig`"""
        processor = self._processor
        ids = processor.encode(text, out_type=int)
        if processor.unk_id() in ids:
            refuse_unknown(self, self.find_unknown(text), text)
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """see :class:`VocabConfig`"""
        return self._processor.decode(self._check_ids(ids))

    def find_unknown(self, text: str) -> list[str]:
        """see :class:`VocabConfig`"""
        processor = self._processor
        ids, pieces = processor.encode(text, out_type=int), processor.encode(text, out_type=str)
        return [piece for i, piece in zip(ids, pieces, strict=True) if i == processor.unk_id()]

    @property
    def _processor(self):
        return _load_sentencepiece(check_file("SentencePieceVocab", self._model_file))


def _none_if_negative(index: int) -> int | None:
    return index if index >= 0 else None


@functools.lru_cache(maxsize=8)
def _load_sentencepiece(model_file: str):
    import sentencepiece

    try:
        return sentencepiece.SentencePieceProcessor(model_file=model_file)  # type: ignore[call-arg]
    except (RuntimeError, OSError) as error:
        raise ValueError(f"SentencePieceVocab: {model_file} is no SentencePiece model ({error})") from error
