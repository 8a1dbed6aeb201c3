"""
Power spectra of overlapping windows.
"""

from __future__ import annotations

import returnn.frontend as rf
from returnn.tensor import Dim, Tensor

from .fused.log_mel import pad_zeros_behind, power_of_windows, windows_of
from .fused.raw import is_on_torch, raw_of, tensor_of

__all__ = ["pad_zeros", "power_spectrum"]


def power_spectrum(
    source: Tensor, *, in_spatial_dim: Dim, frame_step: int, frame_length: int, fft_length: int
) -> tuple[Tensor, Dim, Dim]:
    """
    ``abs(rf.stft(...)) ** 2``: with a Hann window, zeros behind it up to the FFT's length.

    :param source: samples, ``{..., in_spatial_dim}``
    :param in_spatial_dim: time
    :param frame_step: from a window to the next, in samples
    :param frame_length: of the windows, an even number of samples. Only whole windows count
    :param fft_length: at least ``frame_length``
    :return: ``{..., frames, frequency}`` (in some order), and both dims; ``fft_length // 2 + 1`` frequencies
    """
    if is_on_torch(source) and source.dtype in ("float32", "float64") and not rf.is_static_traceable():
        return _on_torch(
            source,
            in_spatial_dim=in_spatial_dim,
            frame_step=frame_step,
            frame_length=frame_length,
            fft_length=fft_length,
        )
    spectrum, frames_dim, frequency_dim = rf.stft(
        source,
        in_spatial_dim=in_spatial_dim,
        frame_step=frame_step,
        frame_length=frame_length,
        fft_length=fft_length,
    )
    magnitude = rf.abs(spectrum)
    return magnitude * magnitude, frames_dim, frequency_dim


def pad_zeros(source: Tensor, *, axis: Dim, num: int) -> tuple[Tensor, Dim]:
    """
    :param source: ``{..., axis}``
    :param axis: time
    :param num: so many zeros behind the end of each sequence
    :return: ``{..., axis + num}``, and that dim; behind each sequence and its zeros, anything
    """
    sizes = axis.dyn_size_ext
    is_plain = is_on_torch(source) and not rf.is_static_traceable() and source.raw_tensor.device.type == "cpu"
    if not is_plain or sizes is None or sizes.raw_tensor is None or not set(sizes.dims) <= set(source.dims):
        padded, (padded_dim,) = rf.pad(source, axes=[axis], padding=[(0, num)], value=0.0)
        return padded, padded_dim
    raw, batch_dims = raw_of(source, axis)
    padded_dim = axis + num
    return tensor_of(pad_zeros_behind(raw, axis, batch_dims, num), *batch_dims, padded_dim), padded_dim


def _on_torch(
    source: Tensor, *, in_spatial_dim: Dim, frame_step: int, frame_length: int, fft_length: int
) -> tuple[Tensor, Dim, Dim]:
    raw, batch_dims = raw_of(source, in_spatial_dim)
    (frames_dim,) = rf.make_conv_out_spatial_dims(
        [in_spatial_dim], filter_size=frame_length, strides=frame_step, padding="valid"
    )
    dims = frames_dim, Dim(fft_length // 2 + 1, name="frequency")
    power = power_of_windows(windows_of(raw, step=frame_step, length=frame_length), fft_length=fft_length)
    return tensor_of(power, *batch_dims, *dims), *dims
