"""
Subwords of SentencePiece models.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import numpy as np

from .._paths import PathLike
from ..interface import VocabConfig
from ._bytes import BYTE_LABELS
from ._common import check_file, keep_path, refuse_unknown
from ._sampling import draw_path, join_pairs

__all__ = ["SentencePieceVocab"]

_UNKNOWN_PENALTY = 10.0  # of SentencePiece: so much worse than the worst piece is a character that is none


class SentencePieceVocab(VocabConfig):
    """
    Subwords of a SentencePiece model, https://github.com/google/sentencepiece (Kudo and Richardson, 2018,
    https://arxiv.org/abs/1808.06226). The file is read when it is needed first. Models that were trained with
    ``byte_fallback`` have labels for bytes, and encode any text.

    In training, each text can be written in another way each time. The draws depend on the given random generator
    alone, unlike SentencePiece's own, which share one generator per thread.

    :param model_file: path of the ``.model`` file
    :param sampling_alpha: for training. Unigram models: exponent of the probabilities of the ways to write a text, see
        :func:`._sampling.draw_path`; Kudo (2018) uses 0.1 to 0.5. BPE models: the probability with which a merge is
        left out. None: always the best way.
    :param sampling_nbest: of unigram models: draws from so many best ways, at least 2; -1: from all
    :raises ValueError: if these are out of range
    """

    def __init__(self, model_file: PathLike, *, sampling_alpha: float | None = None, sampling_nbest: int = -1):
        if sampling_alpha is not None and not 0.0 <= sampling_alpha < float("inf"):
            raise ValueError(f"SentencePieceVocab: sampling_alpha, expected at least 0, got {sampling_alpha!r}")
        if sampling_nbest != -1 and (sampling_alpha is None or sampling_nbest < 2):
            raise ValueError(
                "SentencePieceVocab: sampling_nbest, expected -1, or with sampling_alpha at least 2, "
                f"got {sampling_nbest!r}"
            )
        self._model_file = keep_path("SentencePieceVocab: model_file", model_file)
        self._sampling_alpha, self._sampling_nbest = sampling_alpha, sampling_nbest

    def __repr__(self) -> str:
        alpha, nbest = self._sampling_alpha, self._sampling_nbest
        sampling = "" if alpha is None else f", sampling_alpha={alpha!r}"
        return f"SentencePieceVocab({self._model_file!r}{sampling}{f', sampling_nbest={nbest}' * (nbest != -1)})"

    def get_num_classes(self) -> int:
        """see :class:`VocabConfig`"""
        return self._model.processor.vocab_size()

    def get_opts(self) -> dict[str, Any]:
        """see :class:`VocabConfig`"""
        return {"class": "SentencePieces", "model_file": self._model_file}

    def get_dataset_opts(self) -> dict[str, Any]:
        """see :class:`VocabConfig`"""
        return {
            "class": "SentencePieceVocab",
            "model_file": self._model_file,
            "sampling_alpha": self._sampling_alpha,
            "sampling_nbest": self._sampling_nbest,
        }

    def get_eos_idx(self) -> int | None:
        """see :class:`VocabConfig`"""
        return _none_if_negative(self._model.processor.eos_id())

    def get_bos_idx(self) -> int | None:
        """see :class:`VocabConfig`"""
        return _none_if_negative(self._model.processor.bos_id())

    def encode(self, text: str) -> list[int]:
        """see :class:`VocabConfig`"""
        model = self._model
        ids = model.processor.encode(text)
        if model.unknown in ids:
            refuse_unknown(self, self.find_unknown(text), text)
        return ids

    def encode_for_training(self, text: str, *, rng: np.random.Generator) -> list[int]:
        """
        see :class:`VocabConfig`

        :raises ValueError: also, if a model is to draw that is neither of unigrams nor BPE
        """
        alpha = self._sampling_alpha
        if alpha is None:
            return self.encode(text)
        model = self._model
        if model.kind not in ("unigram", "bpe"):
            raise ValueError(f"{self!r}: sampling_alpha needs a model of unigrams or BPE, this one is neither")
        if model.kind == "bpe" and (alpha > 1.0 or self._sampling_nbest != -1):
            raise ValueError(f"{self!r}: a BPE model has a sampling_alpha of at most 1, and no sampling_nbest")
        if self._sampling_nbest != -1:
            ids = self._draw_of_nbest(text, alpha, rng)
        else:
            normalised = model.processor.normalize(text)
            ids = model.ids_of(model.draw(normalised, alpha, rng))
        if model.unknown in ids:
            refuse_unknown(self, self.find_unknown(text), text)
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """see :class:`VocabConfig`"""
        return self._model.processor.decode(self._check_ids(ids))

    def find_unknown(self, text: str) -> list[str]:
        """see :class:`VocabConfig`"""
        model = self._model
        ids = model.processor.encode(text)
        if model.unknown not in ids:
            return []
        pieces = zip(ids, model.processor.encode(text, out_type=str), strict=True)
        return [part for i, piece in pieces if i == model.unknown for part in model.unknown_parts(piece)]

    def _draw_of_nbest(self, text: str, alpha: float, rng: np.random.Generator) -> list[int]:
        processor = self._model.processor
        ways = processor.nbest_encode_as_ids(text, self._sampling_nbest)
        scores = alpha * np.array([sum(map(processor.get_score, ids)) for ids in ways])
        probs = np.exp(scores - scores.max())
        return ways[int(rng.choice(len(ways), p=probs / probs.sum()))]

    @property
    def _model(self) -> _Model:
        return _load_model(self._model_file)


class _Model:
    """
    :param processor: of SentencePiece
    """

    def __init__(self, processor: Any):
        self.processor = processor
        self.unknown = processor.unk_id()  # asked for once: each question takes as long as a short text
        self.kind = _find_kind(processor)
        special = (processor.is_unknown, processor.is_control, processor.is_unused, processor.is_byte)
        pieces = [i for i in range(processor.vocab_size()) if not any(is_special(i) for is_special in special)]
        self._ids = {processor.id_to_piece(i): i for i in pieces}
        self._scores = {piece: processor.get_score(i) for piece, i in self._ids.items()}
        self._has_characters = any(len(piece) == 1 for piece in self._ids)
        self._unknown_score = min(self._scores.values(), default=0.0) - _UNKNOWN_PENALTY
        self._first_byte = processor.piece_to_id(BYTE_LABELS[0])
        self._has_bytes = processor.is_byte(self._first_byte)

    def draw(self, text: str, alpha: float, rng: np.random.Generator) -> list[str]:
        """
        :param text: normalised
        :return: pieces
        """
        if self.kind == "bpe":
            return join_pairs(list(text), self._bpe_rank, dropout=alpha, rng=rng)
        return draw_path(text, self._scores, alpha=alpha, rng=rng, unknown_score=self._unknown_score)

    def ids_of(self, pieces: list[str]) -> list[int]:
        """:return: their indices; of the bytes of those that are none, or the one for unknown"""
        ids = []
        for piece in pieces:
            if piece in self._ids:
                ids.append(self._ids[piece])
            elif self._has_bytes:
                ids += [self.processor.piece_to_id(BYTE_LABELS[byte]) for byte in piece.encode("utf8")]
            else:
                ids.append(self.unknown)
        return ids

    def unknown_parts(self, piece: str) -> list[str]:
        """:return: its characters that are no pieces; itself in models of words, which have none of one character"""
        return [char for char in piece if char not in self._ids] if self._has_characters else [piece]

    def _bpe_rank(self, left: str, right: str) -> float | None:
        score = self._scores.get(left + right)
        return None if score is None else -score


def _find_kind(processor: Any) -> str:
    """:return: "unigram", "bpe", or something else"""
    try:
        processor.nbest_encode_as_ids("", 1)
        return "unigram"
    except RuntimeError:  # of the kinds that have no n-best lists, only BPE draws
        try:
            processor.sample_encode_as_ids("", -1, 0.0)
            return "bpe"
        except RuntimeError:
            return "other"


def _none_if_negative(index: int) -> int | None:
    return index if index >= 0 else None


@functools.lru_cache(maxsize=8)
def _load_model(path: PathLike) -> _Model:
    import sentencepiece

    model_file = check_file("SentencePieceVocab", path)
    try:
        return _Model(sentencepiece.SentencePieceProcessor(model_file=model_file))  # type: ignore[call-arg]
    except (RuntimeError, OSError) as error:
        raise ValueError(f"SentencePieceVocab: {model_file} is no SentencePiece model ({error})") from error
