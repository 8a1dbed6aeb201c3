"""
Vocabularies: characters, words, SentencePiece and BPE subwords.
"""

from __future__ import annotations

import functools
import os
import string
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .interface import VocabConfig

__all__ = ["BpeVocab", "CharacterVocab", "SentencePieceVocab", "WordVocab", "check_transcripts"]


class CharacterVocab(VocabConfig):
    """
    Each character is a label, the space between words as well.

    :param characters: without duplicates; by default those of LibriSpeech's transcripts
    :raises ValueError: if there is none, or one comes twice
    """

    def __init__(self, characters: str = string.ascii_uppercase + "' "):
        self._labels = _check_labels("CharacterVocab", list(characters))

    def __repr__(self) -> str:
        return f"CharacterVocab({''.join(self._labels)!r})"

    def get_num_classes(self) -> int:
        """see :class:`VocabConfig`"""
        return len(self._labels)

    def get_opts(self) -> dict[str, Any]:
        """see :class:`VocabConfig`"""
        return {"class": "CharacterTargets", "vocab_file": None, "labels": list(self._labels), "unknown_label": None}

    def encode(self, text: str) -> list[int]:
        """see :class:`VocabConfig`"""
        _check_known(self, text)
        return [self._labels[char] for char in text]

    def decode(self, ids: Iterable[int]) -> str:
        """see :class:`VocabConfig`"""
        labels = list(self._labels)
        return "".join(labels[i] for i in self._check_ids(ids))

    def find_unknown(self, text: str) -> list[str]:
        """see :class:`VocabConfig`"""
        return [char for char in text if char not in self._labels]


class WordVocab(VocabConfig):
    """
    Each word is a label.

    :param words: without duplicates, in the order of their indices
    :raises ValueError: if there is none, one comes twice, or one has a space in it
    """

    def __init__(self, words: Sequence[str]):
        if isinstance(words, str):
            raise TypeError(f"WordVocab: expected a sequence of words, got the str {words!r}")
        self._labels = _check_labels("WordVocab", words)
        for word in self._labels:
            if word.split() != [word]:
                raise ValueError(f"WordVocab: expected words without spaces, got {word!r}")

    def __repr__(self) -> str:
        return f"WordVocab({list(self._labels)!r})"

    def get_num_classes(self) -> int:
        """see :class:`VocabConfig`"""
        return len(self._labels)

    def get_opts(self) -> dict[str, Any]:
        """see :class:`VocabConfig`"""
        return {"class": "Vocabulary", "vocab_file": None, "labels": list(self._labels), "unknown_label": None}

    def encode(self, text: str) -> list[int]:
        """see :class:`VocabConfig`"""
        _check_known(self, text)
        return [self._labels[word] for word in text.split()]

    def decode(self, ids: Iterable[int]) -> str:
        """see :class:`VocabConfig`; words are separated by one space"""
        labels = list(self._labels)
        return " ".join(labels[i] for i in self._check_ids(ids))

    def find_unknown(self, text: str) -> list[str]:
        """see :class:`VocabConfig`"""
        return [word for word in text.split() if word not in self._labels]


class SentencePieceVocab(VocabConfig):
    """
    Subwords of a SentencePiece model, https://github.com/google/sentencepiece (Kudo and Richardson, 2018,
    https://arxiv.org/abs/1808.06226). The file is read when it is needed first.

    :param model_file: path of the ``.model`` file
    """

    def __init__(self, model_file: str | os.PathLike[str]):
        self._model_file = os.fspath(model_file)

    def __repr__(self) -> str:
        return f"SentencePieceVocab({self._model_file!r})"

    def get_num_classes(self) -> int:
        """see :class:`VocabConfig`"""
        return self._processor.vocab_size()

    def get_opts(self) -> dict[str, Any]:
        """see :class:`VocabConfig`"""
        return {"class": "SentencePieces", "model_file": self._model_file}

    def get_eos_idx(self) -> int | None:
        """see :class:`VocabConfig`"""
        return _none_if_negative(self._processor.eos_id())

    def get_bos_idx(self) -> int | None:
        """see :class:`VocabConfig`"""
        return _none_if_negative(self._processor.bos_id())

    def encode(self, text: str) -> list[int]:
        """see :class:`VocabConfig`"""
        _check_known(self, text)
        return self._processor.encode(text, out_type=int)

    def decode(self, ids: Iterable[int]) -> str:
        """see :class:`VocabConfig`"""
        return self._processor.decode(self._check_ids(ids))

    def find_unknown(self, text: str) -> list[str]:
        """see :class:`VocabConfig`"""
        processor = self._processor
        ids, pieces = processor.encode(text, out_type=int), processor.encode(text, out_type=str)
        return [piece for i, piece in zip(ids, pieces, strict=True) if i == processor.unk_id()]

    @property
    def _processor(self):
        return _load_sentencepiece(_check_file("SentencePieceVocab", self._model_file))


class BpeVocab(VocabConfig):
    """
    Byte-pair encoding, as the program subword-nmt makes it (Sennrich et al., 2016, https://arxiv.org/abs/1508.07909),
    through RETURNN's own implementation. The files are read when they are needed first.

    :param codes_file: the merge operations
    :param vocab_file: the labels, one in a line, or a Python dict from labels to indices. ``<s>`` and ``</s>``, where
        they are there, are begin and end of sentence.
    """

    def __init__(self, codes_file: str | os.PathLike[str], vocab_file: str | os.PathLike[str]):
        self._codes_file = os.fspath(codes_file)
        self._vocab_file = os.fspath(vocab_file)

    def __repr__(self) -> str:
        return f"BpeVocab({self._codes_file!r}, {self._vocab_file!r})"

    def get_num_classes(self) -> int:
        """see :class:`VocabConfig`"""
        return len(self._vocab.labels)

    def get_opts(self) -> dict[str, Any]:
        """see :class:`VocabConfig`; without a label for unknown parts, so that RETURNN refuses them"""
        return {
            "class": "BytePairEncoding",
            "bpe_file": self._codes_file,
            "vocab_file": self._vocab_file,
            "unknown_label": None,
        }

    def get_eos_idx(self) -> int | None:
        """see :class:`VocabConfig`"""
        return self._vocab.label_to_id("</s>", default=None)

    def get_bos_idx(self) -> int | None:
        """see :class:`VocabConfig`"""
        return self._vocab.label_to_id("<s>", default=None)

    def encode(self, text: str) -> list[int]:
        """see :class:`VocabConfig`"""
        _check_known(self, text)
        return self._vocab.get_seq(text)

    def decode(self, ids: Iterable[int]) -> str:
        """see :class:`VocabConfig`; words are separated by one space"""
        text = self._vocab.get_seq_labels(self._check_ids(ids))
        return text.replace("@@ ", "").removesuffix("@@")

    def find_unknown(self, text: str) -> list[str]:
        """see :class:`VocabConfig`"""
        vocab = self._vocab
        return [label for label in vocab.bpe.segment_sentence(text) if vocab.label_to_id(label, default=None) is None]

    @property
    def _vocab(self):
        codes_file = _check_file("BpeVocab", self._codes_file)
        return _load_bpe(codes_file, _check_file("BpeVocab", self._vocab_file))


def check_transcripts(
    vocab: VocabConfig, texts: Mapping[str, str], *, what: str = "transcripts", total: int | None = None
):
    """
    Checks that all texts can be written with the labels of a vocabulary; before training, since a dataset would only
    find the first one, in the middle of it.

    :param vocab:
    :param texts: utterance -> text
    :param what: the texts are
    :param total: how many there are, where these are not all
    :raises ValueError: naming what the vocabulary lacks, how often it comes, and the first utterances that have it
    """
    counts: dict[str, int] = defaultdict(int)
    utterances: dict[str, list[str]] = defaultdict(list)
    for name, text in texts.items():
        for unknown in vocab.find_unknown(text):
            counts[unknown] += 1
            if name not in utterances[unknown][-1:]:
                utterances[unknown].append(name)
    if not counts:
        return
    parts = []
    for unknown in sorted(counts, key=lambda unknown: (-counts[unknown], unknown))[:10]:
        names = utterances[unknown]
        times = f"{counts[unknown]} time{'s' * (counts[unknown] > 1)}"
        parts.append(f"{unknown!r} ({times}, in {', '.join(names[:3])}{', ...' * (len(names) > 3)})")
    more = f", and {len(counts) - 10} more" * (len(counts) > 10)
    affected = len({name for names in utterances.values() for name in names})
    raise ValueError(
        f"{affected} of {total or len(texts)} {what} cannot be written with {vocab!r}, "
        f"which lacks {', '.join(parts)}{more}"
    )


def _check_labels(owner: str, labels: Sequence[str]) -> dict[str, int]:
    indices: dict[str, int] = {}
    for label in labels:
        if label in indices:
            raise ValueError(f"{owner}: expected labels without duplicates, got {label!r} twice")
        indices[label] = len(indices)
    if not indices:
        raise ValueError(f"{owner}: expected at least one label, got none")
    return indices


def _check_known(vocab: VocabConfig, text: str):
    unknown = vocab.find_unknown(text)
    if unknown:
        raise ValueError(f"{vocab!r} lacks {', '.join(repr(part) for part in dict.fromkeys(unknown))} in {text!r}")


def _check_file(owner: str, path: str) -> str:
    if not Path(path).is_file():
        raise FileNotFoundError(f"{owner}: no such file: {path}")
    return path


def _none_if_negative(index: int) -> int | None:
    return index if index >= 0 else None


@functools.lru_cache(maxsize=8)
def _load_sentencepiece(model_file: str):
    import sentencepiece

    try:
        return sentencepiece.SentencePieceProcessor(model_file=model_file)  # type: ignore[call-arg]
    except (RuntimeError, OSError) as error:
        raise ValueError(f"SentencePieceVocab: {model_file} is no SentencePiece model ({error})") from error


@functools.lru_cache(maxsize=8)
def _load_bpe(codes_file: str, vocab_file: str):
    from returnn.datasets.util.vocabulary import BytePairEncoding

    return BytePairEncoding(vocab_file=vocab_file, bpe_file=codes_file, unknown_label=None)
