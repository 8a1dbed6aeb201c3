"""
Datasets and vocabularies for RETURNN configs.
"""

from __future__ import annotations

from .audio_corpus import AudioCorpus
from .audio_folder import AudioFolder, FolderTables
from .corpus_options import EvalOptions, TrainOptions
from .interface import DatasetConfig, DatasetConfigStatic, VocabConfig, VocabConfigStatic
from .librispeech import Librispeech
from .librispeech_lm import LibrispeechLm
from .synthetic import SequenceTask
from .text import TextCorpus
from .timit import Timit
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
    "AudioFolder",
    "BpeVocab",
    "ByteVocab",
    "CharacterVocab",
    "DatasetConfig",
    "DatasetConfigStatic",
    "EvalOptions",
    "FolderTables",
    "Librispeech",
    "LibrispeechLm",
    "PhonemeVocab",
    "ReturnnVocab",
    "SentencePieceVocab",
    "SequenceTask",
    "TextCorpus",
    "Timit",
    "TrainOptions",
    "VocabConfig",
    "VocabConfigStatic",
    "WordVocab",
    "check_transcripts",
    "describe_misfits",
    "find_misfits",
    "make_vocab",
    "open_vocab",
]
