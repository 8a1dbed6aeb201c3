"""
Log-mel features from raw audio, and their normalisation; of whole utterances, or piece after piece.

Glossary of the shapes: ``batch``, ``time`` (samples on input, frames on output), ``mel``.

Differs from :func:`returnn.frontend.log_mel_filterbank_from_raw` in three points: it is composed of operations
which all four engines have, every sample is in some frame (so one sample gives one frame, not none),
and the result is the natural logarithm.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from .. import nn
from ..nn.causal_normalization import CausalNormalization
from ..nn.fused.log_mel import constant_of, log_mel_of_windows, pad_zeros_behind, windows_of
from ..nn.fused.normalization import normalize_over_time
from ..nn.fused.raw import is_on_torch, padding_of, raw_of, tensor_of
from ..nn.spectrum import pad_zeros, power_spectrum
from ..nn.stream_buffer import StreamBuffer

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
    :param prior_frames: above 0, see :func:`normalize_features`; for short utterances
    :param causal: normalised by the frames up to each one, for :meth:`step`, see
        :class:`returnn_common.nn.causal_normalization.CausalNormalization`
    :param frequency_warp: in training, the filters of each utterance are moved as for a vocal tract that is up to this
        share longer or shorter (Jaitly and Hinton 2013, "Vocal Tract Length Perturbation (VTLP) improves speech
        recognition"; 0.1 there); 0: never
    :raises ValueError: for a warp out of [0, 0.5), negative prior_frames, or causal without normalize
    """

    def __init__(
        self,
        out_dim: int | nn.Dim = 80,
        *,
        normalize: bool = True,
        prior_frames: int = 0,
        causal: bool = False,
        frequency_warp: float = 0.0,
    ):
        super().__init__()
        if prior_frames < 0:
            raise ValueError(f"LogMel: expected prior_frames >= 0, got {prior_frames}")
        if not 0.0 <= frequency_warp < 0.5:
            raise ValueError(f"LogMel: expected 0 <= frequency_warp < 0.5, got {frequency_warp}")
        if causal and not normalize:
            raise ValueError("LogMel: expected normalize=True with causal=True, which is a way to normalize")
        self.out_dim = nn.as_dim(out_dim, name="log-mel")
        self.normalize = normalize
        self.prior_frames = prior_frames
        self.causal = CausalNormalization(self.out_dim, prior_frames=prior_frames) if causal else None
        self._samples = StreamBuffer(step=_STEP, window=_WINDOW)
        self.frequency_warp = frequency_warp

    def __call__(self, source: nn.Tensor, *, in_spatial_dim: nn.Dim) -> tuple[nn.Tensor, nn.Dim]:
        """
        :param source: samples in [-1, 1], ``{batch, time}`` or ``{batch, time, 1}``
        :param in_spatial_dim: the samples' time
        :return: features ``{batch, frames, mel}``, and the frames' dim
        :raises ValueError: if the source isn't raw audio
        """
        source = _squeeze_channel(source, in_spatial_dim=in_spatial_dim)
        if self._fits_torch(source, in_spatial_dim):
            features, frames_dim = self._on_torch(source, in_spatial_dim)
        else:
            source, padded_dim = pad_zeros(source, axis=in_spatial_dim, num=_WINDOW - 1)
            features, frames_dim = self._log_mel(source, padded_dim)
        if self.causal is not None:
            features, _ = self.causal(features, spatial_dim=frames_dim)
        elif self.normalize:
            features = normalize_features(
                features, spatial_dim=frames_dim, feature_dim=self.out_dim, prior_frames=self.prior_frames
            )
        return features, frames_dim

    @property
    def can_stream(self) -> bool:
        """whether there is :meth:`step`: no frame needs what comes after it"""
        return not self.normalize or self.causal is not None

    def initial_state(self, *, batch_dims: Sequence[nn.Dim]) -> nn.State:
        """
        :param batch_dims: of the utterances
        :return: before the first sample, for :meth:`step`
        :raises ValueError: if the features are normalised over whole utterances
        """
        if not self.can_stream:
            raise ValueError(
                "LogMel: piece by piece, expected causal=True or normalize=False,"
                " for mean and variance of an utterance are known at its end"
            )
        state = nn.State(samples=self._samples.initial_state(batch_dims=batch_dims))
        if self.causal is not None:
            state.sums = self.causal.initial_state(batch_dims=batch_dims)
        return state

    def step(self, source: nn.Tensor, *, in_spatial_dim: nn.Dim, state: nn.State) -> tuple[nn.Tensor, nn.Dim, nn.State]:
        """
        :param source: the next samples, as many as there are: ``{batch, time}``, or ``{batch, time, 1}``
        :param in_spatial_dim: the samples' time
        :param state: of :meth:`initial_state`, or of the step before
        :return: the frames that are complete: features ``{batch, frames, mel}``, and the frames' dim; new state
        :raises ValueError: if the source isn't raw audio
        """
        source = _squeeze_channel(source, in_spatial_dim=in_spatial_dim)
        new_state = nn.State()
        source, time, new_state.samples = self._samples.push(source, in_spatial_dim=in_spatial_dim, state=state.samples)
        features, frames_dim = self._log_mel(source, time)
        if self.causal is not None:
            features, new_state.sums = self.causal(features, spatial_dim=frames_dim, state=state.sums)
        return features, frames_dim, new_state

    def finish(self, state: nn.State) -> tuple[nn.Tensor, nn.Dim]:
        """
        :param state: of the last :meth:`step`
        :return: the frames that reach beyond the end
        """
        source, time = self._samples.flush(state.samples)
        source, padded_dim = pad_zeros(source, axis=time, num=_WINDOW - 1)
        features, frames_dim = self._log_mel(source, padded_dim)
        if self.causal is not None:
            features, _ = self.causal(features, spatial_dim=frames_dim, state=state.sums)
        return features, frames_dim

    def _log_mel(self, source: nn.Tensor, time_dim: nn.Dim) -> tuple[nn.Tensor, nn.Dim]:
        """:return: of each window in the samples ``{batch, frames, mel}``, and the frames' dim"""
        power, frames_dim, frequency_dim = power_spectrum(
            source, in_spatial_dim=time_dim, frame_step=_STEP, frame_length=_WINDOW, fft_length=_FFT
        )
        mel = nn.cond(
            bool(self.frequency_warp) and nn.get_run_ctx().is_train_flag_enabled(func=LogMel.__call__),
            lambda: nn.matmul(power, self._warped_filters(source, time_dim, frequency_dim), reduce=frequency_dim),
            lambda: nn.matmul(
                power,
                _constant(mel_filters(self.out_dim.dimension), [frequency_dim, self.out_dim], power),
                reduce=frequency_dim,
            ),
        )
        features = nn.log(nn.maximum(mel, _LOG_FLOOR))
        features.feature_dim = self.out_dim
        return features, frames_dim

    def _fits_torch(self, source: nn.Tensor, time_dim: nn.Dim) -> bool:
        """:return: whether :meth:`_on_torch` does the same: for whole utterances, on PyTorch's CPU"""
        if not is_on_torch(source) or nn.is_static_traceable() or source.device != "cpu":
            return False
        sizes = time_dim.dyn_size_ext
        return (
            source.dtype in ("float32", "float64")
            and (sizes is None or (sizes.raw_tensor is not None and set(sizes.dims) <= set(source.dims)))
            and not (self.frequency_warp and nn.get_run_ctx().is_train_flag_enabled(func=LogMel.__call__))
        )

    def _on_torch(self, source: nn.Tensor, time_dim: nn.Dim) -> tuple[nn.Tensor, nn.Dim]:
        """:return: as :meth:`_log_mel` of the samples and zeros behind, without the frontend in between"""
        raw, batch_dims = raw_of(source, time_dim)
        raw = pad_zeros_behind(raw, time_dim, batch_dims, _WINDOW - 1)
        filters = constant_of(mel_filters, int(self.out_dim.dimension), raw.dtype, raw.device)
        features = log_mel_of_windows(windows_of(raw, step=_STEP, length=_WINDOW), filters, floor=_LOG_FLOOR)
        frames_dim = time_dim.ceildiv_right(_STEP)
        return tensor_of(features, *batch_dims, frames_dim, self.out_dim), frames_dim

    def _warped_filters(self, source: nn.Tensor, time_dim: nn.Dim, frequency_dim: nn.Dim) -> nn.Tensor:
        """:return: ``{batch, frequency, mel}``: triangles as in :func:`mel_filters`, with each utterance's own edges"""
        batch_dims = source.remaining_dims(time_dim)
        limit = float(np.log1p(self.frequency_warp))
        factor = nn.exp(
            nn.random_uniform(batch_dims, minval=-limit, maxval=limit, dtype=source.dtype, device=source.device)
        )
        edges = _mel_edges(self.out_dim.dimension).astype("float32")
        lower, center, upper = (
            _warp(nn.expand_dims(_constant(edge, [self.out_dim], source), batch_dims), factor)
            for edge in (edges[:-2], edges[1:-1], edges[2:])
        )
        frequency = _constant(_frequencies().astype("float32"), [frequency_dim], source)
        frequency = nn.expand_dims(frequency, batch_dims + [self.out_dim])
        rising = (frequency - lower) / (center - lower)
        falling = (upper - frequency) / (upper - center)
        return nn.maximum(nn.minimum(rising, falling), 0.0)


def normalize_features(
    source: nn.Tensor, *, spatial_dim: nn.Dim, feature_dim: nn.Dim, prior_frames: int = 0, epsilon: float = 1e-5
) -> nn.Tensor:
    """
    Mean 0 and variance 1 over the valid frames of each utterance.

    With ``prior_frames = 0``, for each feature on its own. That blows up features which hold nothing but noise
    (recordings of lower bandwidth), and takes from a short utterance what tells its few sounds apart. So, with
    ``prior_frames = n``, the mean of each feature is estimated as if n more frames had the mean over all features
    (maximum a posteriori), and the variance is one for all features.

    :param source: ``{batch, time, feature}``
    :param spatial_dim: time; its padding counts neither in the mean nor in the variance
    :param feature_dim: features
    :param prior_frames: see above
    :param epsilon: added to the variance, so that a constant (or a single frame) gives 0
    :return: like ``source``
    """
    if is_on_torch(source):
        raw, batch_dims = raw_of(source, spatial_dim, feature_dim)
        padding = padding_of(spatial_dim, (*batch_dims, spatial_dim), device=source.device)
        raw = normalize_over_time(raw, padding, prior_frames=prior_frames, epsilon=epsilon)
        return tensor_of(raw, *batch_dims, spatial_dim, feature_dim)
    mean = nn.reduce_mean(source, axis=spatial_dim)
    if prior_frames:
        num_frames = nn.cast(spatial_dim.get_size_tensor(device=source.device), source.dtype)
        share = num_frames / (num_frames + float(prior_frames))
        mean = share * mean + (1.0 - share) * nn.reduce_mean(mean, axis=feature_dim)
    centred = source - mean
    variance = nn.reduce_mean(centred * centred, axis=[spatial_dim, feature_dim] if prior_frames else spatial_dim)
    return centred * nn.rsqrt(variance + epsilon)


@lru_cache
def mel_filters(num_filters: int, *, max_frequency: float = SAMPLING_RATE / 2) -> np.ndarray:
    """
    Triangular filters on the mel scale of O'Shaughnessy 1987 (2595 log10(1 + f/700)), peak 1, not normalised by area.

    :param num_filters: equally wide on the mel scale, from 0 Hz to ``max_frequency``
    :param max_frequency: in Hz
    :return: float32, shape (257 frequencies, ``num_filters``)
    """
    frequencies = _frequencies()
    edges = _mel_edges(num_filters, max_frequency=max_frequency)
    rising = (frequencies[:, None] - edges[None, :-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[None, 2:] - frequencies[:, None]) / (edges[2:] - edges[1:-1])
    return np.maximum(0.0, np.minimum(rising, falling)).astype("float32")


def _frequencies() -> np.ndarray:
    """in Hz, of the spectrum's bins"""
    return np.arange(_FFT // 2 + 1) * (SAMPLING_RATE / _FFT)


def _mel_edges(num_filters: int, *, max_frequency: float = SAMPLING_RATE / 2) -> np.ndarray:
    """in Hz: filter i rises from edge i to i + 1, and falls to i + 2"""
    return _mel_to_hertz(np.linspace(0.0, _hertz_to_mel(max_frequency), num_filters + 2))


_WARP_KNEE = 4800.0  # Hz; above, the warp bends so that the highest frequency stays where it is (equation 1, F_hi)


def _warp(frequency: nn.Tensor, factor: nn.Tensor) -> nn.Tensor:
    """Jaitly and Hinton 2013, equation 1; frequency in Hz up to 8000"""
    nyquist = SAMPLING_RATE / 2
    knee = nn.minimum(factor, 1.0) * _WARP_KNEE
    start = knee / factor
    low = frequency * factor
    high = nyquist - (nyquist - frequency) * ((nyquist - knee) / (nyquist - start))
    return nn.where(frequency <= start, low, high)


def _constant(values: np.ndarray, dims: list[nn.Dim], like: nn.Tensor) -> nn.Tensor:
    return nn.convert_to_tensor(values, dims=dims, dtype=like.dtype, device=like.device)


def _hertz_to_mel(frequency):
    return 2595.0 * np.log10(1.0 + np.asarray(frequency) / 700.0)


def _mel_to_hertz(mel):
    return 700.0 * (10.0 ** (np.asarray(mel) / 2595.0) - 1.0)


def _squeeze_channel(source: nn.Tensor, *, in_spatial_dim: nn.Dim) -> nn.Tensor:
    if in_spatial_dim not in source.dims or source.sparse_dim:
        raise ValueError(f"LogMel: expected raw audio with the dim {in_spatial_dim}, got {source}")
    if source.feature_dim is not None and source.feature_dim.dimension != 1:
        raise ValueError(f"LogMel: expected raw audio with one channel, got {source} with {source.feature_dim}")
    lengths = in_spatial_dim.dyn_size_ext
    batch_dims = lengths.dims if lengths is not None else ()
    for dim in source.dims:
        if dim.dimension == 1 and dim != in_spatial_dim and not dim.is_batch_dim() and dim not in batch_dims:
            source = nn.squeeze(source, axis=dim)
    return source
