"""
Between vocabularies and plain data, for the options of datasets.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .. import _returnn_vocab
from ..interface import VocabConfig
from .bpe import BpeVocab
from .lists import ByteVocab, CharacterVocab, WordVocab
from .phonemes import PhonemeVocab
from .sentence_piece import SentencePieceVocab

__all__ = ["ReturnnVocab", "open_vocab"]

_CLASSES: dict[str, type[VocabConfig]] = {
    cls.__name__: cls for cls in (BpeVocab, ByteVocab, CharacterVocab, PhonemeVocab, SentencePieceVocab, WordVocab)
}


class ReturnnVocab(VocabConfig):
    """
    Any of RETURNN's vocabularies. What it is told to draw, it draws as RETURNN does.

    :param opts: for :func:`returnn.datasets.util.vocabulary.Vocabulary.create_vocab`
    """

    def __init__(self, opts: Mapping[str, Any]):
        self._opts = dict(opts)

    def __repr__(self) -> str:
        return f"ReturnnVocab({self._opts!r})"

    def get_num_classes(self) -> int:
        """see :class:`VocabConfig`"""
        return _returnn_vocab.open_vocab(self._opts).num_labels

    def get_opts(self) -> dict[str, Any]:
        """see :class:`VocabConfig`"""
        return dict(self._opts)

    def get_eos_idx(self) -> int | None:
        """see :class:`VocabConfig`"""
        return _returnn_vocab.open_vocab(self._opts).eos_label_id

    def get_bos_idx(self) -> int | None:
        """see :class:`VocabConfig`"""
        return _returnn_vocab.open_vocab(self._opts).bos_label_id


def open_vocab(opts: Mapping[str, Any]) -> VocabConfig:
    """
    :param opts: what :meth:`VocabConfig.get_dataset_opts` gives
    :return: a vocabulary that encodes and decodes as that one
    """
    name = opts.get("class")
    if name in _CLASSES:
        return _CLASSES[name](**{key: value for key, value in opts.items() if key != "class"})
    return ReturnnVocab(opts)
