"""
Datasets and vocabularies for RETURNN configs.
"""

from __future__ import annotations

from .audio_corpus import AudioCorpus, EvalOptions, TrainOptions
from .interface import DatasetConfig, DatasetConfigStatic, VocabConfig
from .librispeech import Librispeech
from .synthetic import SequenceTask
from .text import TextCorpus
from .vocab import (
    VOCAB_NAMES,
    BpeVocab,
    ByteVocab,
    CharacterVocab,
    PhonemeVocab,
    ReturnnVocab,
    SentencePieceVocab,
    WordVocab,
    check_transcripts,
    describe_misfits,
    find_misfits,
    make_vocab,
    open_vocab,
)

__all__ = [
    "VOCAB_NAMES",
    "AudioCorpus",
    "BpeVocab",
    "ByteVocab",
    "CharacterVocab",
    "DatasetConfig",
    "DatasetConfigStatic",
    "EvalOptions",
    "Librispeech",
    "PhonemeVocab",
    "ReturnnVocab",
    "SentencePieceVocab",
    "SequenceTask",
    "TextCorpus",
    "TrainOptions",
    "VocabConfig",
    "WordVocab",
    "check_transcripts",
    "describe_misfits",
    "find_misfits",
    "make_vocab",
    "open_vocab",
]
