"""
Power spectra and log-mel features of PyTorch's tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from returnn.tensor import Dim

from .raw import parameter_of

if TYPE_CHECKING:
    import torch

__all__ = ["constant_of", "log_mel_of_windows", "pad_zeros_behind", "power_of_windows", "windows_of"]


def windows_of(raw: torch.Tensor, *, step: int, length: int) -> torch.Tensor:
    """
    :param raw: samples, ``{..., time}``
    :param step: from a window to the next
    :param length: of the windows
    :return: all that are whole (a view), ``{..., windows, length}``
    """
    if raw.shape[-1] < length or not raw.numel():
        return raw.new_zeros(*raw.shape[:-1], max(0, (raw.shape[-1] - length) // step + 1), length)
    return raw.unfold(-1, length, step)


def power_of_windows(windows: torch.Tensor, *, fft_length: int) -> torch.Tensor:
    """
    A third of the time of PyTorch's ``stft``, which copies all windows at the FFT's length, and no square roots.

    :param windows: ``{..., windows, length}``
    :param fft_length: at least their length
    :return: ``{..., windows, fft_length // 2 + 1}``
    """
    return _one_after_the_other(windows, lambda part: _power(part, fft_length=fft_length), fft_length // 2 + 1)


def log_mel_of_windows(windows: torch.Tensor, filters: torch.Tensor, *, floor: float) -> torch.Tensor:
    """
    :param windows: ``{..., windows, length}``
    :param filters: ``{frequencies, mel}``
    :param floor: of the filters' outputs, before the logarithm
    :return: ``{..., windows, mel}``
    """
    import torch

    fft_length = 2 * (len(filters) - 1)

    def log_mel(part: torch.Tensor) -> torch.Tensor:
        return torch.matmul(_power(part, fft_length=fft_length), filters).clamp_min_(floor).log()

    return _one_after_the_other(windows, log_mel, filters.shape[1])


@lru_cache(maxsize=16)
def constant_of(make: Callable[[int], np.ndarray], size: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """:return: what a function makes for a size, kept for the next time"""
    import torch

    with torch.inference_mode(False):  # so that it can be used in training as well
        return torch.tensor(make(size), dtype=dtype, device=device)


def _power(windows: torch.Tensor, *, fft_length: int) -> torch.Tensor:
    import torch

    weights = constant_of(_hann_window, windows.shape[-1], windows.dtype, windows.device)
    spectrum = torch.fft.rfft(windows * weights, n=fft_length)
    return spectrum.real.square().addcmul(spectrum.imag, spectrum.imag)


def _hann_window(length: int) -> np.ndarray:
    return 0.5 - 0.5 * np.cos(2.0 * np.pi * np.arange(length) / length)


def _one_after_the_other(
    windows: torch.Tensor, compute: Callable[[torch.Tensor], torch.Tensor], num_features: int
) -> torch.Tensor:
    """:return: of each window the features; on the CPU sequence by sequence, which stays in the caches"""
    import torch

    if not windows.numel():
        return windows.new_zeros(*windows.shape[:-1], num_features)
    if windows.device.type == "cpu" and windows.dim() > 2:
        return torch.stack([compute(part) for part in windows]) if len(windows) > 1 else compute(windows[0])[None]
    return compute(windows)


def pad_zeros_behind(raw: torch.Tensor, time_dim: Dim, batch_dims: Sequence[Dim], num: int) -> torch.Tensor:
    """
    :param raw: on the CPU, ``{batch_dims, time}``
    :param time_dim: with the lengths, over some of the batch dims
    :param batch_dims: all the others
    :param num: so many zeros behind the end of each sequence
    :return: ``{batch_dims, time + num}``
    """
    import torch

    out = torch.nn.functional.pad(raw, (0, num))
    sizes = time_dim.dyn_size_ext
    if sizes is not None and time_dim.need_masking():
        rows = out.view(-1, out.shape[-1])
        for i, length in enumerate(parameter_of(sizes, *batch_dims).expand(raw.shape[:-1]).reshape(-1).tolist()):
            if length < raw.shape[-1]:
                rows[i, length : raw.shape[-1]] = 0.0
    return out
