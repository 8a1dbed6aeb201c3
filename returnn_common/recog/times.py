"""
When words are spoken: from the frames of labels (:func:`returnn_common.search.ctc_align`) to words with seconds.
"""

from __future__ import annotations

import bisect
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
    :param end: seconds, of the end of its last label. CTC models tend to give each label one or two frames somewhere
        in its sound, so that a word lasts longer than that.
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
) -> list[WordTime]:
    """
    The words of one label sequence. What is a word, the text decides: what `decode` separates by spaces. So this is for
    subwords, characters and words alike. A label that adds nothing but space (the space between characters) belongs to
    no word. Where a label has several words, each gets a share of its time by the number of characters.

    :param labels: indices, without padding
    :param decode: indices -> text, e.g. `VocabConfig.decode`
    :param starts: of each label, in frames
    :param ends: of each label, in frames, exclusive
    :param frame_shift: seconds between two frames, see :func:`frame_shift`
    :param offset: seconds, time of frame 0
    :param frame_scores: log prob of the path in each frame, for confidences
    :return: in order; `" ".join` of the texts is that of `decode(labels).split()`
    :raises ValueError: for starts or ends of another number than labels, frames that run backwards (as those of an
        alignment that is impossible), or a frame_shift that is not positive
    """
    labels = [int(c) for c in labels]
    spans = _check_spans(labels, starts, ends)
    if not frame_shift > 0:
        raise ValueError(f"word_times: frame_shift, expected seconds above 0, got {frame_shift!r}")
    probs = None if frame_scores is None else np.exp(np.asarray(frame_scores, "float64"))
    if probs is not None and spans and spans[-1][1] > len(probs):
        raise ValueError(f"word_times: frame_scores, expected at least {spans[-1][1]} frames, got {len(probs)}")
    counts = _count_characters(labels, decode)

    def time(label: int, character: int) -> float:
        """:return: when that character ends, if all of a label last equally long"""
        (start, end), before = spans[label], counts[label - 1] if label else 0
        return offset + frame_shift * (start + (end - start) * (character - before) / (counts[label] - before))

    words, done = [], 0
    for text in decode(labels).split():
        begin, done = done, done + len(text)
        # Labels of its first and last character
        first, last = bisect.bisect_right(counts, begin), bisect.bisect_left(counts, done)
        confidence = None
        if probs is not None:
            confidence = float(np.mean(np.concatenate([probs[slice(*span)] for span in spans[first : last + 1]])))
        words.append(WordTime(text, time(first, begin), time(last, done), confidence))
    return words


def _check_spans(labels: Sequence[int], starts: Sequence[int], ends: Sequence[int]) -> list[tuple[int, int]]:
    if not len(labels) == len(starts) == len(ends):
        raise ValueError(
            f"word_times: expected starts and ends of {len(labels)} labels, got {len(starts)} and {len(ends)}"
        )
    spans = [(int(start), int(end)) for start, end in zip(starts, ends, strict=True)]
    before = 0
    for i, (start, end) in enumerate(spans):
        if not before <= start < end:
            raise ValueError(
                f"word_times: label {i}, expected frames behind {before}, at least one, got {start} to {end}:"
                " no alignment, or an impossible one"
            )
        before = end
    return spans


def _count_characters(labels: list[int], decode: Callable[[list[int]], str]) -> list[int]:
    """:return: number of characters, spaces not counted, of each label and those before it"""
    counts: list[int] = []
    first, base = 0, 0  # where a word begins, what comes before no longer matters
    for i in range(len(labels)):
        words = decode(labels[first : i + 1]).split()
        before = counts[-1] if counts else 0
        counts.append(max(before, base + sum(map(len, words))))
        if len(words) > 1 and counts[-1] > before:
            first, base = i, before
    total = sum(map(len, decode(labels).split()))
    return [*(min(n, total) for n in counts[:-1]), total][: len(labels)]
