"""
When words are spoken: from the frames of labels (:class:`returnn_common.search.Alignment`) to words with seconds.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["WordTime", "frame_shift", "word_times"]


@dataclass(frozen=True)
class WordTime:
    """
    :param text: the word, without spaces
    :param start: seconds
    :param end: seconds, of the end of its last label. CTC models and transducers tend to give each label one or two
        frames somewhere in its sound or behind it, so that a word lasts longer than that.
    :param confidence: mean probability of the word's labels over their frames; None if it was not asked for
    """

    text: str
    start: float
    end: float
    confidence: float | None = None


def frame_shift(model: Any, *, feature_step: float = 0.01) -> float:
    """
    :param model: with an `encoder`
    :param feature_step: seconds between two frames of features, 10 ms for log-mels of ours
    :return: seconds between two frames of the encoder's output
    """
    return feature_step * model.encoder.downsample_factor


def word_times(
    labels: Sequence[int],
    *,
    decode: Callable[[list[int]], str],
    starts: Sequence[int],
    ends: Sequence[int],
    frame_shift: float,
    offset: float = 0.0,
    frame_scores: Sequence[float] | None = None,
    label_scores: Sequence[float] | None = None,
) -> list[WordTime]:
    """
    The words of one label sequence. What is a word, the text decides: what `decode` separates by spaces. So this is for
    subwords, characters and words alike. A label that adds nothing but space (the space between characters) belongs to
    no word. Where a label has several words, each gets a share of its time by the number of characters; where a
    transducer emits several labels in one frame, each gets an equal share of that.

    :param labels: indices, without padding
    :param decode: indices -> text, e.g. `VocabConfig.decode`
    :param starts: of each label, in frames
    :param ends: of each label, in frames, exclusive
    :param frame_shift: seconds between two frames, see :func:`frame_shift`
    :param offset: seconds, time of frame 0
    :param frame_scores: log prob of the path in each frame, for confidences; not for transducers
    :param label_scores: instead, log of the mean prob of each label in its frames, see
        :class:`returnn_common.search.Alignment`
    :return: in order; `" ".join` of the texts is that of `decode(labels).split()`
    :raises ValueError: for starts or ends of another number than labels, frames that run backwards (as those of an
        alignment that is impossible), a frame_shift that is not positive, or scores of both kinds
    """
    labels = [int(c) for c in labels]
    spans = _check_spans(labels, starts, ends)
    if not frame_shift > 0:
        raise ValueError(f"word_times: frame_shift, expected seconds above 0, got {frame_shift!r}")
    probs = _label_probs(spans, frame_scores, label_scores)
    times = _share_frames(spans)
    counts = _count_characters(labels, decode)

    def time(label: int, character: int) -> float:
        """:return: when that character ends, if all of a label last equally long"""
        (start, end), before = times[label], counts[label - 1] if label else 0
        return offset + frame_shift * (start + (end - start) * (character - before) / (counts[label] - before))

    words, done = [], 0
    for text in decode(labels).split():
        begin, done = done, done + len(text)
        # Labels of its first and last character
        first, last = bisect.bisect_right(counts, begin), bisect.bisect_left(counts, done)
        confidence = None
        if probs is not None:
            weights = [end - start for start, end in spans[first : last + 1]]
            confidence = float(np.average(probs[first : last + 1], weights=weights))
        words.append(WordTime(text, time(first, begin), time(last, done), confidence))
    return words


def _label_probs(
    spans: list[tuple[int, int]], frame_scores: Sequence[float] | None, label_scores: Sequence[float] | None
) -> np.ndarray | None:
    """:return: mean probability of each label in its frames"""
    if frame_scores is not None and label_scores is not None:
        raise ValueError("word_times: expected frame_scores or label_scores, got both")
    if label_scores is not None:
        if len(label_scores) != len(spans):
            raise ValueError(
                f"word_times: label_scores, expected those of {len(spans)} labels, got {len(label_scores)}"
            )
        return np.exp(np.asarray(label_scores, "float64"))
    if frame_scores is None:
        return None
    probs = np.exp(np.asarray(frame_scores, "float64"))
    if spans and spans[-1][1] > len(probs):
        raise ValueError(f"word_times: frame_scores, expected at least {spans[-1][1]} frames, got {len(probs)}")
    return np.array([np.mean(probs[slice(*span)]) for span in spans])


def _share_frames(spans: list[tuple[int, int]]) -> list[tuple[float, float]]:
    """:return: the same, but what is in the same frame divides that equally"""
    times: list[tuple[float, float]] = []
    for (start, end), group in itertools.groupby(spans):
        size = len(list(group))
        parts = [start + (end - start) * i / size for i in range(size + 1)]
        times += itertools.pairwise(parts)
    return times


def _check_spans(labels: Sequence[int], starts: Sequence[int], ends: Sequence[int]) -> list[tuple[int, int]]:
    if not len(labels) == len(starts) == len(ends):
        raise ValueError(
            f"word_times: expected starts and ends of {len(labels)} labels, got {len(starts)} and {len(ends)}"
        )
    spans = [(int(start), int(end)) for start, end in zip(starts, ends, strict=True)]
    before = 0
    for i, (start, end) in enumerate(spans):
        is_same_frame = i > 0 and (start, end) == spans[i - 1] and end == start + 1
        if not (before <= start < end or is_same_frame):
            raise ValueError(
                f"word_times: label {i}, expected frames behind {before}, at least one, got {start} to {end}:"
                " no alignment, or an impossible one"
            )
        before = end
    return spans


def _count_characters(labels: list[int], decode: Callable[[list[int]], str]) -> list[float]:
    """
    :return: number of characters, spaces not counted, of each label and those before it. One of which only a part of
        the bytes is there yet counts as a half.
    """
    counts: list[float] = []
    first, base = 0, 0.0  # where a word begins, what comes before no longer matters
    for i in range(len(labels)):
        text = decode(labels[first : i + 1])
        complete = text.rstrip("\ufffd")
        before = counts[-1] if counts else 0
        number = sum(map(len, complete.split())) + (0.5 if complete != text else 0.0)
        counts.append(max(before, base + number))
        if len(text.split()) > 1 and counts[-1] > before:
            first, base = i, before
    total = sum(map(len, decode(labels).split()))
    return [*(min(n, total) for n in counts[:-1]), total][: len(labels)]
