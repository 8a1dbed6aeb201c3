"""
Datasets and vocabularies for RETURNN configs.
"""

from __future__ import annotations

from .interface import DatasetConfig, DatasetConfigStatic, VocabConfig
from .librispeech import Librispeech
from .synthetic import SequenceTask
from .text import TextCorpus
from .vocab import BpeVocab, CharacterVocab, SentencePieceVocab, WordVocab, check_transcripts

__all__ = [
    "BpeVocab",
    "CharacterVocab",
    "DatasetConfig",
    "DatasetConfigStatic",
    "Librispeech",
    "SentencePieceVocab",
    "SequenceTask",
    "TextCorpus",
    "VocabConfig",
    "WordVocab",
    "check_transcripts",
]
