"""
Log-mel features from raw audio, and their normalisation.

Glossary of the shapes: ``batch``, ``time`` (samples on input, frames on output), ``mel``.

Differs from :func:`returnn.frontend.log_mel_filterbank_from_raw` in three points: it is composed of operations
which all four engines have, every sample is in some frame (so one sample gives one frame, not none),
and the result is the natural logarithm.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from .. import nn

__all__ = ["LogMel", "normalize_features", "mel_filters", "SAMPLING_RATE"]

SAMPLING_RATE = 16_000
_WINDOW = 400  # 25 ms
_STEP = 160  # 10 ms
_FFT = 512
_LOG_FLOOR = 1e-10


class LogMel(nn.Module):
    """
    Log-mel features: 16 kHz, window 25 ms (Hann), step 10 ms, natural logarithm, then normalised per utterance.

    Frame ``i`` covers the samples ``160 * i .. 160 * i + 399``, zeros beyond the end,
    for each ``i`` whose first sample exists: ``ceil(samples / 160)`` frames.

    :param out_dim: number of mel filters, between 0 and 8000 Hz; 80 in most publications
    :param normalize: mean 0 and variance 1 for each utterance and filter, over the valid frames only
    """

    def __init__(self, out_dim: int | nn.Dim = 80, *, normalize: bool = True):
        super().__init__()
        self.out_dim = nn.as_dim(out_dim, name="log-mel")
        self.normalize = normalize

    def __call__(self, source: nn.Tensor, *, in_spatial_dim: nn.Dim) -> tuple[nn.Tensor, nn.Dim]:
        """
        :param source: samples in [-1, 1], ``{batch, time}`` or ``{batch, time, 1}``
        :param in_spatial_dim: the samples' time
        :return: features ``{batch, frames, mel}``, and the frames' dim
        :raises ValueError: if the source isn't raw audio
        """
        source = _squeeze_channel(source, in_spatial_dim=in_spatial_dim)
        if in_spatial_dim.need_masking():
            source = source.copy_masked(0.0)
        source, (padded_dim,) = nn.pad(source, axes=[in_spatial_dim], padding=[(0, _WINDOW - 1)], value=0.0)
        spectrum, frames_dim, frequency_dim = nn.stft(
            source, in_spatial_dim=padded_dim, frame_step=_STEP, frame_length=_WINDOW, fft_length=_FFT
        )
        magnitude = nn.abs(spectrum)
        filters = nn.convert_to_tensor(
            mel_filters(self.out_dim.dimension), dims=[frequency_dim, self.out_dim], dtype=magnitude.dtype
        )
        mel = nn.matmul(magnitude * magnitude, filters, reduce=frequency_dim)
        features = nn.log(nn.maximum(mel, _LOG_FLOOR))
        features.feature_dim = self.out_dim
        if self.normalize:
            features = normalize_features(features, spatial_dim=frames_dim)
        return features, frames_dim


def normalize_features(source: nn.Tensor, *, spatial_dim: nn.Dim, epsilon: float = 1e-5) -> nn.Tensor:
    """
    Mean 0 and variance 1 over the valid frames of each utterance.

    :param source: ``{batch, time, feature}``
    :param spatial_dim: time; its padding counts neither in the mean nor in the variance
    :param epsilon: added to the variance, so that a constant (or a single frame) gives 0
    :return: like ``source``
    """
    mean = nn.reduce_mean(source, axis=spatial_dim)
    centred = source - mean
    variance = nn.reduce_mean(centred * centred, axis=spatial_dim)
    return centred * nn.rsqrt(variance + epsilon)


@lru_cache
def mel_filters(num_filters: int, *, max_frequency: float = SAMPLING_RATE / 2) -> np.ndarray:
    """
    Triangular filters on the mel scale of O'Shaughnessy 1987 (2595 log10(1 + f/700)), peak 1, not normalised by area.

    :param num_filters: equally wide on the mel scale, from 0 Hz to ``max_frequency``
    :param max_frequency: in Hz
    :return: float32, shape (257 frequencies, ``num_filters``)
    """
    frequencies = np.arange(_FFT // 2 + 1) * (SAMPLING_RATE / _FFT)
    centers = _mel_to_hertz(np.linspace(0.0, _hertz_to_mel(max_frequency), num_filters + 2))
    rising = (frequencies[:, None] - centers[None, :-2]) / (centers[1:-1] - centers[:-2])
    falling = (centers[None, 2:] - frequencies[:, None]) / (centers[2:] - centers[1:-1])
    return np.maximum(0.0, np.minimum(rising, falling)).astype("float32")


def _hertz_to_mel(frequency):
    return 2595.0 * np.log10(1.0 + np.asarray(frequency) / 700.0)


def _mel_to_hertz(mel):
    return 700.0 * (10.0 ** (np.asarray(mel) / 2595.0) - 1.0)


def _squeeze_channel(source: nn.Tensor, *, in_spatial_dim: nn.Dim) -> nn.Tensor:
    if in_spatial_dim not in source.dims or source.sparse_dim:
        raise ValueError(f"LogMel: expected raw audio with the dim {in_spatial_dim}, got {source}")
    if source.feature_dim is not None and source.feature_dim.dimension != 1:
        raise ValueError(f"LogMel: expected raw audio with one channel, got {source} with {source.feature_dim}")
    for dim in source.dims:
        if dim.dimension == 1 and dim != in_spatial_dim and not dim.is_batch_dim():
            source = nn.squeeze(source, axis=dim)
    return source
