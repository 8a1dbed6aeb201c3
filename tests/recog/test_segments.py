"""Long recordings in parts."""

from __future__ import annotations

import numpy as np
import pytest

from returnn_common.recog.segments import split_at_silence

RATE = 1000


def _noise(seconds: float, quiet: list[tuple[float, float]], level: float = 0.0) -> np.ndarray:
    samples = np.random.default_rng(1).normal(size=int(seconds * RATE)).astype("float32")
    for start, end in quiet:
        samples[int(start * RATE) : int(end * RATE)] *= level
    return samples


def _split(samples: np.ndarray, *, block: int = 1 << 30, max_seconds: float = 4.0):
    blocks = [samples[i : i + block] for i in range(0, len(samples), block)]
    segments = list(split_at_silence(blocks, max_seconds=max_seconds, sample_rate=RATE))
    assert all(0 < len(segment.samples) <= max_seconds * RATE for segment in segments)
    np.testing.assert_array_equal(np.concatenate([segment.samples for segment in segments]), samples)
    starts = np.cumsum([0, *(len(segment.samples) for segment in segments)])[:-1] / RATE
    assert [segment.offset for segment in segments] == starts.tolist()
    return segments


@pytest.mark.parametrize("level", [0.0, 0.05])
@pytest.mark.parametrize("block", [1, 777, 100_000])
def test_cuts_are_in_the_pauses(level, block):
    """and do not depend on the blocks; of two pauses that are as quiet, the later one"""
    quiet = [(0.5, 1.5), (2.5, 3.0), (5.0, 5.4), (5.8, 6.3), (9.1, 9.5)]
    samples = _noise(11.0, quiet, level)
    if block == 1:
        samples = samples[:7000]
    segments = _split(samples, block=block)
    cuts = [segment.offset for segment in segments[1:]]
    assert 2.5 < cuts[0] < 3.0 and (5.8 < cuts[1] < 6.3 or level and 5.0 < cuts[1] < 5.4)
    if block > 1:
        assert 9.1 < cuts[2] < 9.5 and len(cuts) == 3
        assert cuts == [segment.offset for segment in _split(samples)[1:]]


def test_short_and_empty():
    samples = _noise(4.0, [(1.0, 3.0)])
    assert len(_split(samples)) == 1  # as long as allowed
    assert len(_split(np.append(samples, samples[:1]))) == 2
    assert list(split_at_silence([], max_seconds=4.0)) == []
    assert list(split_at_silence([samples[:0]], max_seconds=4.0)) == []


@pytest.mark.parametrize("samples", [np.zeros(20_000, "float32"), _noise(20.0, [])])
def test_all_silence_or_none(samples):
    """then it is cut where the least energy is, not too often"""
    segments = _split(samples)
    assert 5 <= len(segments) <= 10
    assert min(len(segment.samples) for segment in segments[:-1]) >= 2 * RATE


def test_max_seconds():
    with pytest.raises(ValueError, match="split_at_silence: max_seconds, expected at least 1, got 0.5"):
        list(split_at_silence([], max_seconds=0.5))
