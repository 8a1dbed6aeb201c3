"""
Alignments in files: as HDF for RETURNN, words with times as CTM, and what a report shows of them.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from .times import WordTime

__all__ = ["AlignmentHdf", "AlignmentNotes", "ctm_lines", "frame_labels", "soft_frames", "write_lines"]

_NUM_EXAMPLES = 6
_MAX_EXAMPLE_FRAMES = 400  # of the encoder; what is longer cannot be seen in a picture


def frame_labels(
    labels: Sequence[int], *, starts: Sequence[int], ends: Sequence[int], num_frames: int, blank: int, topology: str
) -> np.ndarray:
    """
    :param labels: of an utterance
    :param starts: first frame of each
    :param ends: the frame behind the last one of each
    :param num_frames: T
    :param blank: index
    :param topology: of the model, see :class:`returnn_common.nn.TransducerTargets`
    :return: int32: with "ctc" and "monotonic" the label of each frame or blank, {T}; with "rnnt" the whole alignment,
        the labels of the first frame, blank, the labels of the second one, blank, ..., {T + number of labels}
    """
    if topology == "rnnt":
        symbols = np.full(num_frames + len(labels), blank, "int32")
        # Before a label there are those before it, and the blanks that have ended the frames before its own.
        symbols[np.arange(len(labels)) + np.asarray(starts, int)] = labels
        return symbols
    symbols = np.full(num_frames, blank, "int32")
    for label, start, end in zip(labels, starts, ends, strict=True):
        symbols[start:end] = label
    return symbols


def soft_frames(
    soft_labels: np.ndarray, soft_blank: np.ndarray, labels: Sequence[int], *, blank: int, num_labels: int
) -> np.ndarray:
    """
    :param soft_labels: {T, L}, see :class:`returnn_common.search.SoftAlignment`
    :param soft_blank: {T}, see there
    :param labels: L
    :param blank: index
    :param num_labels: V, with blank
    :return: float32 {T, V}, how often each of the vocabulary is in each frame: with "ctc" and "monotonic" a
        distribution, with "rnnt" 1 for blank and the mean numbers of labels
    """
    frames = np.zeros((len(soft_blank), num_labels), "float32")
    np.add.at(frames.T, np.asarray(labels, int), np.asarray(soft_labels, "float32").T)
    frames[:, blank] += soft_blank
    return frames


class AlignmentHdf:
    """
    A HDF file that RETURNN's HDFDataset reads, with the key "data": {T} sparse, or {T, V}. It is there when it is
    complete.

    :param path: replaced if it is there. The folder is made if missing.
    :param num_labels: V, with blank
    :param names: of these; None: none
    """

    def __init__(self, path: str, *, num_labels: int, names: Sequence[str] | None = None):
        self.path = Path(path)
        self.num_labels = num_labels
        self.names = names
        self._part = self.path.with_name(f".{self.path.name}.part")
        self._writer: Any = None

    def write(self, tag: str, frames: np.ndarray) -> None:
        """
        :param tag: of the sequence
        :param frames: {T} or {T, V}, the same kind for all
        """
        from returnn.datasets.hdf import SimpleHDFWriter

        if self._writer is None:
            self._part.parent.mkdir(parents=True, exist_ok=True)
            self._part.unlink(missing_ok=True)
            names = list(self.names) if self.names else None
            self._writer = SimpleHDFWriter(str(self._part), dim=self.num_labels, ndim=frames.ndim, labels=names)
        self._writer.insert_batch(frames[None], seq_len=[len(frames)], seq_tag=[tag])

    def close(self) -> None:
        """It is complete, with one sequence at least."""
        self._writer.close()
        os.replace(self._part, self.path)


@dataclass
class AlignmentNotes:
    """
    What a report shows of alignments, as JSON.

    :param scores: natural log of the probability of the alignment of each utterance; -inf: there is none
    :param examples: of a few utterances: "tag", "labels" (names), "num_frames", "starts" and "ends" (in frames) of the
        best alignment, or "soft" {T, L}
    :param topology: of the model
    :param blank: index
    :param frame_shift: seconds
    """

    scores: dict[str, float] = field(default_factory=dict)
    examples: list[dict[str, Any]] = field(default_factory=list)
    topology: str = ""
    blank: int = 0
    frame_shift: float = 0.0

    @property
    def without_alignment(self) -> list[str]:
        """tags"""
        return [tag for tag, score in self.scores.items() if score == -math.inf]

    def add_example(
        self, tag: str, labels: list[str], *, num_frames: int, soft: np.ndarray | None = None, **spans: Any
    ):
        """
        Keeps those with the most labels that can still be seen.

        :param tag:
        :param labels: names
        :param num_frames: T
        :param soft: {T, L}
        :param spans: "starts" and "ends"
        """
        if not labels or num_frames > _MAX_EXAMPLE_FRAMES:
            return
        example = {"tag": tag, "labels": labels, "num_frames": num_frames, **spans}
        if soft is not None:
            example["soft"] = np.round(soft, 4).tolist()
        self.examples = sorted([*self.examples, example], key=lambda x: (-len(x["labels"]), x["tag"]))[:_NUM_EXAMPLES]

    def write(self, path: str):
        """
        :param path: of the file, all or nothing
        """
        content = {**vars(self), "scores": {k: v if v > -math.inf else None for k, v in self.scores.items()}}
        write_lines(path, [json.dumps(content)])

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> AlignmentNotes:
        """
        :param path: of a file that :meth:`write` has written
        :raises ValueError: if it is something else
        """
        try:
            content = json.loads(Path(path).read_text("utf8"))
            content["scores"] = {k: -math.inf if v is None else v for k, v in content["scores"].items()}
            return cls(**content)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path}: expected notes about alignments: {type(error).__name__}: {error}") from None


def ctm_lines(tag: str, words: Sequence[WordTime]) -> list[str]:
    """
    NIST's CTM, see the manual of sclite in its Scoring Toolkit: file, channel, begin, duration, word, confidence.

    :param tag: the file; white space in it becomes "_"
    :param words: of it
    :return: a line for each word, without line break
    """
    tag = re.sub(r"\s", "_", tag)
    lines = []
    for word in words:
        # Rounded so that words which follow each other at once still do.
        start, end = round(word.start, 2), round(word.end, 2)
        lines.append(f"{tag} 1 {start:.2f} {max(end - start, 0.01):.2f} {word.text} {word.confidence or 0.0:.4f}")
    return lines


def write_lines(path: str, lines: Sequence[str]):
    """
    :param path: of the file, all or nothing; the folder is made if missing
    :param lines: without line breaks
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{target.name}.part")
    part.write_text("".join(f"{line}\n" for line in lines), "utf8")
    os.replace(part, target)
