"""
Waveform augmentation for training.

Each is called as ``augment(audio, rng=rng)`` with ``audio`` {time}, float32, 16 kHz, and returns the same kind. All its
chance comes from ``rng``, which the dataset makes from the seed, the epoch and the name of the utterance
(:func:`utterance_rng`): neither the number of processes that load data nor the order of the utterances matters.
A function of your own fits too, if it can be pickled.
"""

from __future__ import annotations

import hashlib
import math
from typing import Protocol

import numpy as np

__all__ = ["Augment", "Chain", "Equalizer", "Gain", "Noise", "SpeedPerturbation", "utterance_rng"]


class Augment(Protocol):
    """
    What the dataset calls. (A class, since RETURNN pickles everything that a config imports, and cannot pickle an alias
    of a generic type.)
    """

    def __call__(self, audio: np.ndarray, *, rng: np.random.Generator) -> np.ndarray: ...


def utterance_rng(*, seed: int, epoch: int, seq_tag: str) -> np.random.Generator:
    """The random generator of one utterance in one epoch, independent of those of all others."""
    digest = hashlib.sha256(f"{seed}\0{epoch}\0{seq_tag}".encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:16], "little"))


class SpeedPerturbation:
    """
    Plays faster or slower, which changes the pitch as well (Ko et al., 2015, "Audio Augmentation for Speech
    Recognition", section 2.3; there with factors of 0.9, 1 and 1.1).

    :param low: smallest factor, above 0; the factor is drawn uniformly
    :param high: greatest factor; 2 makes an utterance half as long
    :raises ValueError: if they are not in order
    """

    def __init__(self, low: float, high: float):
        if not 0 < low <= high < math.inf:
            raise ValueError(f"SpeedPerturbation: expected 0 < low <= high, got {low!r} and {high!r}")
        self.low, self.high = low, high

    def __repr__(self) -> str:
        return f"SpeedPerturbation({self.low!r}, {self.high!r})"

    def __call__(self, audio: np.ndarray, *, rng: np.random.Generator) -> np.ndarray:
        """see the module"""
        import soxr

        factor = rng.uniform(self.low, self.high)
        if factor == 1:
            return audio
        changed = soxr.resample(audio, 16_000, 16_000 / factor, quality="HQ")
        return changed if len(changed) else audio  # of a few samples, nothing may be left


class Gain:
    """
    Louder or softer. What exceeds [-1, 1] is not clipped.

    :param low_db: smallest gain in decibels; it is drawn uniformly
    :param high_db: greatest gain
    :raises ValueError: if they are not in order
    """

    def __init__(self, low_db: float, high_db: float):
        if not -math.inf < low_db <= high_db < math.inf:
            raise ValueError(f"Gain: expected low_db <= high_db, got {low_db!r} and {high_db!r}")
        self.low_db, self.high_db = low_db, high_db

    def __repr__(self) -> str:
        return f"Gain({self.low_db!r}, {self.high_db!r})"

    def __call__(self, audio: np.ndarray, *, rng: np.random.Generator) -> np.ndarray:
        """see the module"""
        return audio * np.float32(10 ** (rng.uniform(self.low_db, self.high_db) / 20))


class Noise:
    """
    White noise, at a random distance below the utterance's own level (root mean square).

    :param low_db: smallest signal-to-noise ratio in decibels; it is drawn uniformly
    :param high_db: greatest one
    :raises ValueError: if they are not in order
    """

    def __init__(self, low_db: float, high_db: float):
        if not -math.inf < low_db <= high_db < math.inf:
            raise ValueError(f"Noise: expected low_db <= high_db, got {low_db!r} and {high_db!r}")
        self.low_db, self.high_db = low_db, high_db

    def __repr__(self) -> str:
        return f"Noise({self.low_db!r}, {self.high_db!r})"

    def __call__(self, audio: np.ndarray, *, rng: np.random.Generator) -> np.ndarray:
        """see the module"""
        level = np.sqrt(np.mean(np.square(audio))) * 10 ** (-rng.uniform(self.low_db, self.high_db) / 20)
        return audio + np.float32(level) * rng.standard_normal(len(audio), dtype="float32")


class Equalizer:
    """
    Louder and softer by frequency, as other microphones and rooms would be: a random smooth curve over the mel scale,
    of four cosines, the first a tilt, each half as strong, a third as strong, ... as the first.

    :param strength_db: standard deviation of the first cosine's amplitude in decibels
    :raises ValueError: if it is negative
    """

    def __init__(self, strength_db: float):
        if not 0 <= strength_db < math.inf:
            raise ValueError(f"Equalizer: expected strength_db >= 0, got {strength_db!r}")
        self.strength_db = strength_db

    def __repr__(self) -> str:
        return f"Equalizer({self.strength_db!r})"

    def __call__(self, audio: np.ndarray, *, rng: np.random.Generator) -> np.ndarray:
        """see the module"""
        length = 1 << (len(audio) - 1).bit_length()  # a power of two is fastest
        spectrum = np.fft.rfft(audio, length)
        grid = np.linspace(0, 8000, 257)  # in Hz; the curve is smooth enough to be interpolated between
        position = np.log1p(grid / 700) / np.log1p(8000 / 700)
        gain_db = np.zeros(len(grid))
        for i in range(1, 5):
            phase = rng.uniform(0, 2 * np.pi) if i > 1 else 0.0
            gain_db += self.strength_db * rng.standard_normal() / i * np.cos(np.pi * i * position + phase)
        gain = np.interp(np.linspace(0, 8000, len(spectrum)), grid, 10 ** (gain_db / 20)).astype("float32")
        return np.fft.irfft(spectrum * gain, length)[: len(audio)].astype("float32")


class Chain:
    """
    One after the other.

    :param augments: at least one
    :raises ValueError: if there is none, or one cannot be called
    """

    def __init__(self, *augments: Augment):
        if not augments or not all(callable(augment) for augment in augments):
            raise ValueError(f"Chain: expected functions, got {list(augments)!r}")
        self.augments = augments

    def __repr__(self) -> str:
        return f"Chain({', '.join(map(repr, self.augments))})"

    def __call__(self, audio: np.ndarray, *, rng: np.random.Generator) -> np.ndarray:
        """see the module"""
        for augment in self.augments:
            audio = augment(audio, rng=rng)
        return audio
