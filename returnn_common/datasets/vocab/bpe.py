"""
Subwords by byte-pair encoding.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from .._paths import PathLike
from ..interface import VocabConfig
from ._bytes import BYTE_LABELS, join_bytes
from ._common import check_file, keep_path, refuse_unknown
from ._sampling import join_pairs

__all__ = ["BpeVocab"]

_MORE = "@@"  # at the end of labels that do not end a word
_END = "</w>"  # at the end of words, in the codes
_BYTES = [f"{label}{more}" for more in (_MORE, "") for label in BYTE_LABELS]


class BpeVocab(VocabConfig):
    """
    Byte-pair encoding, as the program subword-nmt makes it (Sennrich et al., 2016, https://arxiv.org/abs/1508.07909).
    The files are read when they are needed first.

    :param codes_file: the merge operations
    :param vocab_file: the labels, one in a line, or a Python dict from labels to indices. ``<s>`` and ``</s>``, where
        they are there, are begin and end of sentence.
    :param dropout: for training: the probability with which a merge is left out, so that each text is written in
        another way each time (Provilkov et al., 2020, https://arxiv.org/abs/1910.13267, who use 0.1)
    :param byte_fallback: whether there are 512 more labels, at the end, for the bytes (UTF-8) of all characters that
        have none, within and at the end of words. RETURNN's class, which :meth:`get_opts` names, has these labels, but
        does not encode with them; datasets of ours do.
    :raises ValueError: if ``dropout`` is out of range
    """

    def __init__(
        self,
        codes_file: PathLike,
        vocab_file: PathLike,
        *,
        dropout: float = 0.0,
        byte_fallback: bool = False,
    ):
        if not 0.0 <= dropout <= 1.0:
            raise ValueError(f"BpeVocab: dropout, expected a probability from 0 to 1, got {dropout!r}")
        self._codes_file = keep_path("BpeVocab: codes_file", codes_file)
        self._vocab_file = keep_path("BpeVocab: vocab_file", vocab_file)
        self._dropout, self._byte_fallback = dropout, byte_fallback

    def __repr__(self) -> str:
        dropout = f", dropout={self._dropout!r}" if self._dropout else ""
        more = f"{dropout}{', byte_fallback=True' * self._byte_fallback}"
        return f"BpeVocab({self._codes_file!r}, {self._vocab_file!r}{more})"

    def get_num_classes(self) -> int:
        """see :class:`VocabConfig`"""
        return len(self._labels)

    def get_opts(self) -> dict[str, Any]:
        """see :class:`VocabConfig`; without a label for unknown parts, so that RETURNN refuses them"""
        opts = {
            "class": "BytePairEncoding",
            "bpe_file": self._codes_file,
            "vocab_file": self._vocab_file,
            "unknown_label": None,
        }
        return {**opts, "labels": self._labels} if self._byte_fallback else opts

    def get_dataset_opts(self) -> dict[str, Any]:
        """see :class:`VocabConfig`"""
        return {
            "class": "BpeVocab",
            "codes_file": self._codes_file,
            "vocab_file": self._vocab_file,
            "dropout": self._dropout,
            "byte_fallback": self._byte_fallback,
        }

    def get_eos_idx(self) -> int | None:
        """see :class:`VocabConfig`"""
        return self._model.indices.get("</s>")

    def get_bos_idx(self) -> int | None:
        """see :class:`VocabConfig`"""
        return self._model.indices.get("<s>")

    def encode(self, text: str) -> list[int]:
        """see :class:`VocabConfig`"""
        return self._encode(text, map(self._model.segment, text.split()))

    def encode_for_training(self, text: str, *, rng: np.random.Generator) -> list[int]:
        """see :class:`VocabConfig`"""
        if not self._dropout:
            return self.encode(text)
        model = self._model
        return self._encode(text, (model.draw(word, dropout=self._dropout, rng=rng) for word in text.split()))

    def decode(self, ids: Iterable[int]) -> str:
        """see :class:`VocabConfig`; words are separated by one space"""
        labels = self._labels
        return join_bytes(_with_spaces([labels[i] for i in self._check_ids(ids)]))

    def find_unknown(self, text: str) -> list[str]:
        """see :class:`VocabConfig`"""
        if self._byte_fallback:
            return []
        model = self._model
        labels = (label for word in text.split() for label in model.segment(word) if label not in model.indices)
        return [label if model.has_character(label[0]) else label.removesuffix(_MORE) for label in labels]

    def _encode(self, text: str, words: Iterable[tuple[str, ...]]) -> list[int]:
        indices = self._model.indices
        ids = []
        for word in words:
            for label in word:
                index = indices.get(label)
                if index is not None:
                    ids.append(index)
                elif self._byte_fallback:
                    ids += (len(indices) + i for i in _byte_indices(label))
                else:
                    refuse_unknown(self, self.find_unknown(text), text)
        return ids

    @property
    def _labels(self) -> list[str]:
        return [*self._model.indices, *(_BYTES if self._byte_fallback else ())]

    @property
    def _model(self) -> _Model:
        return _load_model(self._codes_file, self._vocab_file)


def _byte_indices(label: str) -> list[int]:
    """:return: in ``_BYTES``"""
    indices = list(label.removesuffix(_MORE).encode("utf8"))
    if not label.endswith(_MORE):
        indices[-1] += 256
    return indices


def _with_spaces(labels: list[str]) -> Iterator[str]:
    for i, label in enumerate(labels):
        yield label.removesuffix(_MORE)
        if not label.endswith(_MORE) and i + 1 < len(labels):
            yield " "


class _Model:
    """
    :param codes: pairs, in the order in which they are joined
    :param labels: in the order of their indices
    :param apart: whether the end of a word is a symbol of its own, as in version 0.1 of the codes
    """

    def __init__(self, codes: list[tuple[str, str]], labels: list[str], *, apart: bool):
        self.indices = {label: i for i, label in enumerate(labels)}
        self._apart = apart
        self._ranks: dict[tuple[str, str], int] = {}
        self._parts: dict[str, tuple[str, str]] = {}
        for rank, pair in enumerate(codes):
            self._ranks.setdefault(pair, rank)
            self._parts.setdefault(pair[0] + pair[1], pair)
        self.segment = functools.lru_cache(maxsize=100_000)(self.draw)

    def has_character(self, char: str) -> bool:
        """:return: whether it has a label, at any place of a word"""
        return char in self.indices or char + _MORE in self.indices

    def draw(self, word: str, *, dropout: float = 0.0, rng: np.random.Generator | None = None) -> tuple[str, ...]:
        """:return: labels; characters that have none are parts of their own"""
        symbols = [*word, _END] if self._apart else [*word[:-1], word[-1] + _END]
        symbols = join_pairs(symbols, lambda left, right: self._ranks.get((left, right)), dropout=dropout, rng=rng)
        symbols = symbols[:-1] if symbols[-1] == _END else [*symbols[:-1], symbols[-1].removesuffix(_END)]
        last = len(symbols) - 1
        return tuple(label for i, symbol in enumerate(symbols) for label in self._split(symbol, is_last=i == last))

    def _split(self, symbol: str, *, is_last: bool) -> Iterator[str]:
        """Undoes joins whose results have no label, as subword-nmt and RETURNN do."""
        label = symbol if is_last else symbol + _MORE
        parts = None if label in self.indices else self._parts.get(symbol + _END * is_last)
        if parts is None:
            yield label
            return
        left, right = parts[0], parts[1].removesuffix(_END) if is_last else parts[1]
        yield from self._split(left, is_last=is_last and not right)
        if right:
            yield from self._split(right, is_last=is_last)


@functools.lru_cache(maxsize=8)
def _load_model(codes_path: PathLike, vocab_path: PathLike) -> _Model:
    from returnn.datasets.util.vocabulary import Vocabulary

    codes_file, vocab_file = check_file("BpeVocab", codes_path), check_file("BpeVocab", vocab_path)
    labels = Vocabulary(vocab_file=vocab_file, unknown_label=None).labels
    first, *lines = Path(codes_file).read_text("utf8").splitlines() or [""]
    has_version = first.startswith("#version:")
    apart = not has_version or first.split()[-1].startswith("0.1")
    codes = []
    for number, line in enumerate(lines if has_version else [first, *lines], start=1 + has_version):
        pair = tuple(line.split())
        if len(pair) != 2:
            raise ValueError(f"BpeVocab: {codes_file}, line {number}: expected two symbols, got {line!r}")
        codes.append(pair)
    return _Model(codes, list(labels), apart=apart)
