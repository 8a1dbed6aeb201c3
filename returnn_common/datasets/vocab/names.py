"""
Vocabularies by name.
"""

from __future__ import annotations

from collections.abc import Callable

from ...data import get_bundled_path
from ..interface import VocabConfig
from .bpe import BpeVocab
from .lists import ByteVocab, CharacterVocab
from .sentence_piece import SentencePieceVocab

__all__ = ["VOCAB_NAMES", "make_vocab"]


def _sentencepiece(name: str) -> VocabConfig:
    return SentencePieceVocab(get_bundled_path(f"{name}.model"))


_MAKERS: dict[str, Callable[[], VocabConfig]] = {
    "chars": lambda: CharacterVocab(get_bundled_path("chars.txt").read_text("utf8").replace("\n", "")),
    "bytes": ByteVocab,
    "spm1k": lambda: _sentencepiece("spm1k"),
    "spm5k": lambda: _sentencepiece("spm5k"),
    "bpe1k": lambda: BpeVocab(get_bundled_path("bpe1k.codes"), get_bundled_path("bpe1k.vocab")),
}
VOCAB_NAMES = tuple(_MAKERS)


def make_vocab(name: str) -> VocabConfig:
    """
    A vocabulary that is ready to use; all but "bytes" for text in the style of LibriSpeech's transcripts: A to Z,
    apostrophe, space. How they were made, ``data/README.md`` says.

    :param name: "chars"; "spm1k" or "spm5k", SentencePiece with 1000 or 5000 unigrams; "bpe1k", byte-pair encoding with
        1000 merges; "bytes", those of UTF-8
    :raises ValueError: if there is none of this name
    """
    if name not in _MAKERS:
        raise ValueError(f"make_vocab: expected one of {', '.join(VOCAB_NAMES)}, got {name!r}")
    return _MAKERS[name]()
