"""
Phonemes of a pronunciation dictionary.
"""

from __future__ import annotations

import functools
import re
import string
from collections.abc import Iterable
from typing import Any

import numpy as np

from .._paths import PathLike
from ..interface import VocabConfig
from ._common import check_file, keep_path, refuse_unknown

__all__ = ["PhonemeVocab"]


class PhonemeVocab(VocabConfig):
    """
    Phonemes, as a pronunciation dictionary has them, such as CMUdict (http://www.speech.cs.cmu.edu/cgi-bin/cmudict).
    Words that it lacks are spelled with graphemes, which are labels of their own: ``<A>``, ... The file is read when it
    is needed first.

    There is no way back: different words have the same phonemes. :meth:`decode` gives the labels, not words. To
    recognise words, search with :class:`returnn_common.search.LexiconScorer` of ``spell_words(words, vocab.encode)``.

    :param dictionary: text file in the format of CMUdict: in each line a word and its phonemes; ``WORD(2)``, or the
        word once more, for another pronunciation; comments follow ``#``, or are lines with ``;;;``. Upper and lower
        case of words are the same.
    :param word_boundary: a label between words; None: there is none
    :param stress: whether phonemes with other digits at their end (of vowels: stress) are other ones
    :param sample_pronunciations: in training, of words that have several draws one each time; else the first one
    :param graphemes: characters in which the other words are spelled
    :raises ValueError: if a grapheme comes twice
    """

    def __init__(
        self,
        dictionary: PathLike,
        *,
        word_boundary: str | None = "|",
        stress: bool = False,
        sample_pronunciations: bool = False,
        graphemes: str = string.ascii_uppercase + "'",
    ):
        if len(set(graphemes)) != len(graphemes):
            raise ValueError(f"PhonemeVocab: graphemes, expected characters without duplicates, got {graphemes!r}")
        if word_boundary is not None and word_boundary.split() != [word_boundary]:
            raise ValueError(f"PhonemeVocab: word_boundary, expected a label without spaces, got {word_boundary!r}")
        self._dictionary = keep_path("PhonemeVocab: dictionary", dictionary)
        self.word_boundary, self._stress = word_boundary, stress
        self._sample_pronunciations, self._graphemes = sample_pronunciations, graphemes

    def __repr__(self) -> str:
        opts = self.get_dataset_opts()
        return f"{opts.pop('class')}({', '.join(f'{name}={value!r}' for name, value in opts.items())})"

    def get_num_classes(self) -> int:
        """see :class:`VocabConfig`"""
        return len(self._labels)

    def get_opts(self) -> dict[str, Any]:
        """see :class:`VocabConfig`; RETURNN's class encodes phonemes, as :meth:`decode` gives them, not words"""
        return {"class": "Vocabulary", "vocab_file": None, "labels": list(self._labels), "unknown_label": None}

    def get_dataset_opts(self) -> dict[str, Any]:
        """see :class:`VocabConfig`"""
        return {
            "class": "PhonemeVocab",
            "dictionary": self._dictionary,
            "word_boundary": self.word_boundary,
            "stress": self._stress,
            "sample_pronunciations": self._sample_pronunciations,
            "graphemes": self._graphemes,
        }

    def encode(self, text: str) -> list[int]:
        """see :class:`VocabConfig`"""
        return self._encode(text, None)

    def encode_for_training(self, text: str, *, rng: np.random.Generator) -> list[int]:
        """see :class:`VocabConfig`"""
        return self._encode(text, rng if self._sample_pronunciations else None)

    def decode(self, ids: Iterable[int]) -> str:
        """The labels, separated by spaces: phonemes, graphemes and word boundaries."""
        labels = list(self._labels)
        return " ".join(labels[i] for i in self._check_ids(ids))

    def as_decoded(self, text: str) -> str:
        """Its labels, so that error rates are those of phonemes (and word boundaries)."""
        return self.decode(self.encode(text))

    def find_unknown(self, text: str) -> list[str]:
        """Characters that are no graphemes, of words that are not in the dictionary."""
        words = self._pronunciations
        unknown = (word for word in text.split() if word.upper() not in words)
        return [char for word in unknown for char in word if char not in self._graphemes]

    def find_unpronounced(self, text: str) -> list[str]:
        """:return: words that are not in the dictionary, which are spelled"""
        return [word for word in text.split() if word.upper() not in self._pronunciations]

    def _encode(self, text: str, rng: np.random.Generator | None) -> list[int]:
        refuse_unknown(self, self.find_unknown(text), text)
        indices, words = self._labels, self._pronunciations
        ids: list[int] = []
        for i, word in enumerate(text.split()):
            if i and self.word_boundary is not None:
                ids.append(indices[self.word_boundary])
            known = words.get(word.upper(), ())
            if known:
                phonemes = known[0 if rng is None else int(rng.integers(len(known)))]
            else:
                phonemes = [_grapheme(char) for char in word]
            ids += [indices[phoneme] for phoneme in phonemes]
        return ids

    @property
    def _pronunciations(self) -> dict[str, list[tuple[str, ...]]]:
        return _read_dictionary(self._check_dictionary(), self._stress)

    @property
    def _labels(self) -> dict[str, int]:
        return _make_labels(self._check_dictionary(), self._stress, self.word_boundary, self._graphemes)

    def _check_dictionary(self) -> str:
        try:
            return check_file("PhonemeVocab", self._dictionary)
        except FileNotFoundError as error:
            raise FileNotFoundError(
                f"{error}; expected a dictionary in the format of CMUdict, such as that of the package cmudict"
            ) from None


def _grapheme(char: str) -> str:
    return f"<{char}>"


@functools.lru_cache(maxsize=4)
def _make_labels(path: str, stress: bool, word_boundary: str | None, graphemes: str) -> dict[str, int]:
    words = _read_dictionary(path, stress)
    phonemes = sorted({phoneme for known in words.values() for one in known for phoneme in one})
    boundary = [] if word_boundary is None else [word_boundary]
    labels = [*boundary, *phonemes, *map(_grapheme, graphemes)]
    for label in labels:
        if labels.count(label) > 1:
            raise ValueError(f"PhonemeVocab: {label!r} is a phoneme in {path}, so no word boundary or grapheme")
    return {label: i for i, label in enumerate(labels)}


@functools.lru_cache(maxsize=4)
def _read_dictionary(path: str, stress: bool) -> dict[str, list[tuple[str, ...]]]:
    words: dict[str, list[tuple[str, ...]]] = {}
    with open(path, encoding="utf8") as file:
        try:
            lines = file.read().splitlines()
        except UnicodeDecodeError as error:
            raise ValueError(f"PhonemeVocab: {path}: expected UTF-8, got other bytes ({error})") from error
    for number, line in enumerate(lines, start=1):
        word, *phonemes = [""] if line.startswith(";;;") else line.partition(" #")[0].split() or [""]
        if not word:
            continue
        if not phonemes:
            raise ValueError(f"PhonemeVocab: {path}, line {number}: expected a word and its phonemes, got {line!r}")
        one = tuple(phonemes if stress else [re.sub(r"(?<=.)\d+$", "", phoneme) for phoneme in phonemes])
        known = words.setdefault(re.sub(r"(?<=.)\(\d+\)$", "", word).upper(), [])
        if one not in known:
            known.append(one)
    if not words:
        raise ValueError(f"PhonemeVocab: {path}: expected words and their phonemes, found none")
    return words
