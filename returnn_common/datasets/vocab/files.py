"""
Vocabularies from files of which the name says the kind.
"""

from __future__ import annotations

import os
from pathlib import Path

from ..interface import VocabConfig
from .bpe import BpeVocab
from .lists import CharacterVocab, WordVocab
from .phonemes import PhonemeVocab
from .sentence_piece import SentencePieceVocab

__all__ = ["VOCAB_SUFFIXES", "read_vocab"]

VOCAB_SUFFIXES = (".model", ".codes", ".chars", ".words", ".dict")


def read_vocab(
    path: str | os.PathLike[str], *, sampling: float | None = None, byte_fallback: bool = False
) -> VocabConfig:
    """
    - ``NAME.model``: SentencePiece, see :class:`.SentencePieceVocab`
    - ``NAME.codes``, beside ``NAME.vocab``: byte-pair encoding, see :class:`.BpeVocab`
    - ``NAME.chars``, ``NAME.words``: characters or words, one in a line
    - ``NAME.dict``: phonemes of this pronunciation dictionary, see :class:`.PhonemeVocab`

    :param path:
    :param sampling: of subwords, in training: ``sampling_alpha`` of :class:`.SentencePieceVocab`, ``dropout`` of
        :class:`.BpeVocab`; None: none
    :param byte_fallback: of characters and BPE; SentencePiece models have it or not
    :raises ValueError: for other names, options that the kind has not, or another content
    :raises FileNotFoundError: if a list is not there; the others are read when they are needed
    """
    path = Path(path)
    if path.suffix not in VOCAB_SUFFIXES:
        raise ValueError(f"read_vocab: expected a file that ends in {', '.join(VOCAB_SUFFIXES)}, got {str(path)!r}")
    if sampling is not None and path.suffix not in (".model", ".codes"):
        raise ValueError(f"read_vocab: sampling is for subwords, not for {str(path)!r}")
    if byte_fallback and path.suffix not in (".codes", ".chars"):
        raise ValueError(f"read_vocab: byte_fallback is for characters and BPE, not for {str(path)!r}")
    if path.suffix == ".model":
        return SentencePieceVocab(path, sampling_alpha=sampling)
    if path.suffix == ".codes":
        return BpeVocab(path, path.with_suffix(".vocab"), dropout=sampling or 0.0, byte_fallback=byte_fallback)
    if path.suffix == ".dict":
        return PhonemeVocab(path)
    labels = path.read_bytes().decode("utf8").removesuffix("\n").split("\n")
    if path.suffix == ".words":
        return WordVocab(labels)
    for number, label in enumerate(labels, start=1):
        if len(label) != 1:
            raise ValueError(f"read_vocab: {path}, line {number}: expected one character, got {label!r}")
    return CharacterVocab("".join(labels), byte_fallback=byte_fallback)
