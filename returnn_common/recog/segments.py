"""
Long recordings in parts, cut where it is quiet.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

__all__ = ["Segment", "split_at_silence"]

_WINDOW_SECONDS = 0.3  # over which it has to be quiet: longer than the closure of a plosive
_STEP_SECONDS = 0.01


@dataclass(frozen=True)
class Segment:
    """
    Part of a recording.

    :param samples: {time}, float32, in [-1, 1], 16 kHz
    :param offset: where it begins, in seconds
    """

    samples: np.ndarray
    offset: float = 0.0


def split_at_silence(
    blocks: Iterable[np.ndarray], *, max_seconds: float, sample_rate: int = 16_000
) -> Iterator[Segment]:
    """
    What is longer than ``max_seconds`` is cut in the second half of that time, in the middle of the 0.3 seconds with
    the least energy, and so on with the rest. Where nobody pauses, that can be within a word. Nothing is left out.

    No more than ``max_seconds`` and one block are in memory at a time, and the cuts do not depend on the blocks.

    :param blocks: the samples, {time} each
    :param max_seconds: of a segment, at least 1
    :param sample_rate: in Hz
    :return: segments in order, none of them empty
    :raises ValueError: for max_seconds below 1
    """
    if not max_seconds >= 1.0:
        raise ValueError(f"split_at_silence: max_seconds, expected at least 1, got {max_seconds!r}")
    longest, start = int(max_seconds * sample_rate), 0
    rest = np.zeros(0, "float32")
    for block in blocks:
        rest = np.concatenate([rest, block])
        while len(rest) > longest:
            cut = _find_cut(rest[:longest], sample_rate=sample_rate)
            yield Segment(rest[:cut], start / sample_rate)
            start, rest = start + cut, rest[cut:]
    if len(rest):
        yield Segment(rest, start / sample_rate)


def _find_cut(samples: np.ndarray, *, sample_rate: int) -> int:
    """:return: index in the second half, where it is quietest; of several such, the last"""
    window, step = int(_WINDOW_SECONDS * sample_rate), int(_STEP_SECONDS * sample_rate)
    sums = np.concatenate([[0.0], np.cumsum(np.square(samples, dtype="float64"))])
    starts = np.arange(len(samples) - window, len(samples) // 2 - 1, -step)
    energies = sums[starts + window] - sums[starts]
    # Sums of squares that are all zero differ by rounding.
    energies = np.where(energies < 1e-9 * max(sums[-1], 1e-30), 0.0, energies)
    return int(starts[np.argmin(energies)]) + window // 2
