"""
From label indices to text, with RETURNN's vocabularies.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from returnn.datasets.util.vocabulary import (
    BytePairEncoding,
    CharacterTargets,
    SamplingBytePairEncoding,
    SentencePieces,
    Utf8ByteTargets,
    Vocabulary,
)

__all__ = ["label_text"]

_BYTE = re.compile("<0x([0-9A-F]{2})>")  # a label for a byte, as SentencePiece and our vocabularies name them


def label_text(ids: Iterable[int], vocab: Vocabulary | None) -> str:
    """
    :param ids: label indices
    :param vocab: of characters, bytes, BPE or SentencePiece subwords, or of labels between which there are spaces, such
        as words and phonemes; None: the text is the indices
    :return: the text, the inverse of what the vocabulary encodes. Bytes that are no UTF-8, as a model can give them,
        become U+FFFD.
    """
    ids = [int(i) for i in ids]
    if vocab is None:
        return " ".join(map(str, ids))
    if isinstance(vocab, SentencePieces):
        return vocab.sp.decode(ids)
    if isinstance(vocab, Utf8ByteTargets):
        return bytes(ids).decode("utf8", errors="replace")
    if isinstance(vocab, CharacterTargets):
        return _join(vocab.labels[i] for i in ids)
    if isinstance(vocab, (BytePairEncoding, SamplingBytePairEncoding)):
        labels = [vocab.labels[i] for i in ids]
        return _join(part for i, label in enumerate(labels) for part in _bpe_parts(label, is_last=i == len(ids) - 1))
    return vocab.get_seq_labels(ids)


def _bpe_parts(label: str, *, is_last: bool) -> tuple[str, ...]:
    if label.endswith("@@"):
        return (label[:-2],)
    return (label,) if is_last else (label, " ")


def _join(labels: Iterable[str]) -> str:
    found = ((label, _BYTE.fullmatch(label)) for label in labels)
    parts = (bytes([int(byte[1], 16)]) if byte else label.encode("utf8") for label, byte in found)
    return b"".join(parts).decode("utf8", errors="replace")
