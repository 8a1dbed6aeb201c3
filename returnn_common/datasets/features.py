"""
Log-mel features in NumPy, for the engines on which the model cannot compute them; the same as
:mod:`returnn_common.models.features` computes.
"""

from __future__ import annotations

import functools

import numpy as np

__all__ = ["NUM_MELS", "SAMPLE_RATE", "log_mel", "normalize", "num_frames"]

SAMPLE_RATE = 16_000
NUM_MELS = 80
_WINDOW, _STEP, _FFT = 400, 160, 512  # samples: 25 ms, 10 ms


def num_frames(num_samples: int) -> int:
    """The number of frames of :func:`log_mel`: one for each 160 samples, the last ones may be fewer."""
    return -(-num_samples // _STEP)


def log_mel(audio: np.ndarray) -> np.ndarray:
    """
    Natural logarithm of the energies in 80 mel bands from 0 to 8 kHz, windows of 25 ms every 10 ms, of which the last
    ones are filled up with zeros. Not normalised.

    The triangular filters are those of Huang, Acero and Hon, "Spoken Language Processing" (2001), equation 6.141.

    :param audio: {time}, 16 kHz, samples in [-1, 1]
    :return: {frames, 80}, float32, see :func:`num_frames`; energies below 1e-10 count as 1e-10
    :raises ValueError: if it does not have one axis
    """
    if audio.ndim != 1:
        raise ValueError(f"log_mel: expected audio with the shape [time], got {list(audio.shape)}")
    padded = np.pad(audio, (0, _WINDOW - 1))
    windows = np.lib.stride_tricks.sliding_window_view(padded, _WINDOW)[::_STEP]
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(_WINDOW) / _WINDOW)
    spectrum = np.fft.rfft(windows * hann, _FFT, axis=-1)
    energies = (spectrum.real**2 + spectrum.imag**2) @ _mel_filters()
    return np.log(np.maximum(energies, 1e-10)).astype("float32")


def normalize(features: np.ndarray) -> np.ndarray:
    """
    Mean 0 and variance 1 for each feature over the frames of the utterance, as our models do.

    :param features: {frames, feature}
    :return: {frames, feature}, float32; 1e-5 is added to the variance
    """
    centred = features - features.mean(axis=0)
    return (centred / np.sqrt(np.mean(np.square(centred), axis=0) + 1e-5)).astype("float32")


@functools.lru_cache(maxsize=1)
def _mel_filters() -> np.ndarray:
    """
    :return: {_FFT // 2 + 1, NUM_MELS}
    """
    top = 1125.0 * np.log(1 + SAMPLE_RATE / 2 / 700)
    mels = np.linspace(0.0, top, NUM_MELS + 2)
    centers = 700.0 * (np.exp(mels / 1125) - 1) * _FFT / SAMPLE_RATE
    bins = np.arange(_FFT // 2 + 1)[:, None]
    left, center, right = centers[:-2], centers[1:-1], centers[2:]
    rising, falling = (bins - left) / (center - left), (right - bins) / (right - center)
    return np.maximum(np.minimum(rising, falling), 0.0)
