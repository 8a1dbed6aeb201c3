"""
Power spectra of overlapping windows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import returnn.frontend as rf
from returnn.tensor import Dim, Tensor

from .fused.raw import is_on_torch, raw_of, tensor_of

if TYPE_CHECKING:
    import torch

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
    import torch

    raw, batch_dims = raw_of(source, axis)
    out = torch.nn.functional.pad(raw, (0, num))
    if axis.need_masking():
        rows = out.view(-1, out.shape[-1])
        lengths = sizes.copy_compatible_to_dims_raw(batch_dims).expand(raw.shape[:-1]).reshape(-1)
        for i, length in enumerate(lengths.tolist()):
            rows[i, length : raw.shape[-1]] = 0.0
    padded_dim = axis + num
    return tensor_of(out, *batch_dims, padded_dim), padded_dim


def _on_torch(
    source: Tensor, *, in_spatial_dim: Dim, frame_step: int, frame_length: int, fft_length: int
) -> tuple[Tensor, Dim, Dim]:
    """A third of the time of PyTorch's ``stft``, which copies all windows at the FFT's length, and no square roots."""
    import torch

    raw, batch_dims = raw_of(source, in_spatial_dim)
    (frames_dim,) = rf.make_conv_out_spatial_dims(
        [in_spatial_dim], filter_size=frame_length, strides=frame_step, padding="valid"
    )
    dims = frames_dim, Dim(fft_length // 2 + 1, name="frequency")
    num_frames = max(0, (raw.shape[-1] - frame_length) // frame_step + 1)
    if not num_frames or not raw.numel():
        return tensor_of(raw.new_zeros(*raw.shape[:-1], num_frames, fft_length // 2 + 1), *batch_dims, *dims), *dims
    windows = raw.unfold(-1, frame_length, frame_step)
    weights = torch.hann_window(frame_length, dtype=raw.dtype, device=raw.device)

    def power_of(windows: torch.Tensor) -> torch.Tensor:
        spectrum = torch.fft.rfft(windows * weights, n=fft_length)
        return spectrum.real.square().addcmul(spectrum.imag, spectrum.imag)

    if raw.device.type == "cpu" and raw.dim() > 1 and len(raw) > 1:  # one after the other, which stays in the caches
        power = torch.stack([power_of(part) for part in windows])
    else:
        power = power_of(windows)
    return tensor_of(power, *batch_dims, *dims), *dims
