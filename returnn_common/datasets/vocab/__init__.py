"""
Vocabularies: characters, bytes, words, phonemes, SentencePiece and BPE subwords.
"""

from __future__ import annotations

from .bpe import BpeVocab
from .files import VOCAB_SUFFIXES, read_vocab
from .fit import check_transcripts, describe_misfits, find_misfits
from .lists import ByteVocab, CharacterVocab, WordVocab
from .names import VOCAB_NAMES, make_vocab
from .phonemes import PhonemeVocab
from .plain import ReturnnVocab, open_vocab
from .sentence_piece import SentencePieceVocab

__all__ = [
    "VOCAB_NAMES",
    "VOCAB_SUFFIXES",
    "BpeVocab",
    "ByteVocab",
    "CharacterVocab",
    "PhonemeVocab",
    "ReturnnVocab",
    "SentencePieceVocab",
    "WordVocab",
    "check_transcripts",
    "describe_misfits",
    "find_misfits",
    "make_vocab",
    "open_vocab",
    "read_vocab",
]
