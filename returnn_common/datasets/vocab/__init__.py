"""
Vocabularies: characters, words, SentencePiece and BPE subwords, bytes.
"""

from __future__ import annotations

from .bpe import BpeVocab
from .fit import check_transcripts
from .lists import ByteVocab, CharacterVocab, WordVocab
from .names import VOCAB_NAMES, make_vocab
from .sentence_piece import SentencePieceVocab

__all__ = [
    "VOCAB_NAMES",
    "BpeVocab",
    "ByteVocab",
    "CharacterVocab",
    "SentencePieceVocab",
    "WordVocab",
    "check_transcripts",
    "make_vocab",
]
