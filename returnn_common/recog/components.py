"""
Scores of n-best lists, part by part (attention decoder, CTC, language model, ...), as the recognition stores them for
the tuning of scales.

A file is JSON, gzipped: ``{"names": [part, ...], "utterances": {seq_tag: [[text, length, score, ...], ...]}}``, the
hypotheses in the order of the search, with a score (natural log) for each part. ``length`` is the number of labels, end
of sentence included, by which a search normalises.
"""

from __future__ import annotations

import gzip
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .nbest import NBest

__all__ = ["LENGTH", "LENGTH_EXPONENT", "Components", "ScoredList", "combine_scores", "read_components", "rerank"]

LENGTH = "length"  # a scale of that name is a reward for each label
LENGTH_EXPONENT = "length_exponent"  # no scale: scores are divided by length ** length_exponent for the order


@dataclass(frozen=True)
class ScoredList:
    """
    Hypotheses of one utterance.

    :param texts: N
    :param lengths: {N}, labels, end of sentence included
    :param scores: {N, parts}, natural log; -inf: the part rules the hypothesis out
    """

    texts: list[str]
    lengths: np.ndarray
    scores: np.ndarray


@dataclass(frozen=True)
class Components:
    """
    :param names: of the parts
    :param lists: by sequence tag
    """

    names: tuple[str, ...]
    lists: Mapping[str, ScoredList]

    def write(self, path: str | os.PathLike[str]):
        """
        Writes the file, all or nothing.

        :param path:
        """
        utterances = {
            tag: [
                [text, int(length), *map(float, scores)]
                for text, length, scores in zip(one.texts, one.lengths, one.scores, strict=True)
            ]
            for tag, one in self.lists.items()
        }
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.part")
        content = json.dumps({"names": self.names, "utterances": utterances}, ensure_ascii=False).encode("utf8")
        part.write_bytes(gzip.compress(content, mtime=0))
        os.replace(part, path)


def read_components(path: str | os.PathLike[str]) -> Components:
    """
    :param path: of a file that :meth:`Components.write` has written
    :raises FileNotFoundError: if there is none
    :raises ValueError: if something else is in it
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"scores {path}: no such file")
    try:
        content = json.loads(gzip.decompress(path.read_bytes()).decode("utf8"))
        names = tuple(content["names"])
        lists = {tag: _read_list(entries, num=len(names)) for tag, entries in content["utterances"].items()}
    except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: expected scores of n-best lists: {type(error).__name__}: {error}") from error
    return Components(names, lists)


def _read_list(entries: list[list[Any]], *, num: int) -> ScoredList:
    scores = np.array([entry[2:] for entry in entries], dtype="float64").reshape(len(entries), num)
    return ScoredList([entry[0] for entry in entries], np.array([entry[1] for entry in entries], "float64"), scores)


def combine_scores(
    names: Sequence[str], scores: np.ndarray, lengths: np.ndarray, scales: Mapping[str, float]
) -> tuple[np.ndarray, np.ndarray]:
    """
    The scores that a log-linear mixture gives, and by what it orders them, as
    :func:`returnn_common.search.beam_search` does it for :func:`returnn_common.search.combine`:
    ``score = sum(scale * score of the part) + scales["length"] * length``, order by
    ``score / length ** scales["length_exponent"]``.

    A hypothesis that a part rules out (-inf) stays ruled out, whatever the scale; with scale 0, the part is ignored.

    :param names: of the parts
    :param scores: {..., parts}
    :param lengths: {...}
    :param scales: by part, :data:`LENGTH` and :data:`LENGTH_EXPONENT`; what is missing is 0
    :return: scores {...}, and what orders them {...}
    :raises ValueError: if a scale is of no part, or not finite
    """
    known = [*names, LENGTH, LENGTH_EXPONENT]
    for name, scale in scales.items():
        if name not in known:
            raise ValueError(f"scale {name}: no such part, there are {', '.join(known)}")
        if not math.isfinite(scale):
            raise ValueError(f"scale {name}: expected a finite number, got {scale!r}")
    total = scales.get(LENGTH, 0.0) * lengths
    for index, name in enumerate(names):
        scale = scales.get(name, 0.0)
        if scale:
            part = scores[..., index]
            ruled_out = part == -math.inf
            total = np.where(ruled_out, -math.inf, total + scale * np.where(ruled_out, 0.0, part))
    return total, total / np.maximum(lengths, 1.0) ** scales.get(LENGTH_EXPONENT, 0.0)


def rerank(components: Components, scales: Mapping[str, float]) -> NBest:
    """
    :param components: of n-best lists
    :param scales: see :func:`combine_scores`
    :return: the lists with new scores in the new order, among equals the old one; without what is ruled out
    :raises ValueError: see :func:`combine_scores`
    """
    result: NBest = {}
    for tag, one in components.lists.items():
        scores, ranks = combine_scores(components.names, one.scores, one.lengths, scales)
        order = [i for i in np.argsort(-ranks, kind="stable") if scores[i] > -math.inf]
        result[tag] = [(float(scores[i]), one.texts[i]) for i in order]
    return result
