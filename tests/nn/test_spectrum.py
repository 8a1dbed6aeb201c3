"""Power spectra and padding on PyTorch beside RETURNN's. (On the other engines: tests/models/test_features.py.)"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from returnn_common import nn
from returnn_common.nn.spectrum import pad_zeros, power_spectrum


@pytest.fixture(autouse=True)
def _on_torch():
    nn.select_backend_torch()
    nn.set_random_seed(1)


def _source(lengths: list[int], *, order: str = "bt", fill: float = 9.0) -> tuple[nn.Tensor, nn.Dim, nn.Dim]:
    values = np.random.default_rng(1).standard_normal((len(lengths), max(lengths))).astype("float32")
    for row, length in zip(values, lengths, strict=True):
        row[length:] = fill
    batch_dim = nn.Dim(len(lengths), name="batch")
    time_dim = nn.Dim(nn.convert_to_tensor(np.array(lengths, "int32"), dims=[batch_dim]), name="time")
    source = nn.convert_to_tensor(values, dims=[batch_dim, time_dim])
    return source.copy_transpose([{"b": batch_dim, "t": time_dim}[c] for c in order]), batch_dim, time_dim


@pytest.mark.parametrize("order", ["bt", "tb"])
@pytest.mark.parametrize("lengths", [[50, 31, 10], [9, 12], [10], [3]], ids=str)
def test_power_is_that_of_stft(lengths, order):
    source, batch_dim, time_dim = _source(lengths, order=order)
    sizes = {"frame_step": 4, "frame_length": 10, "fft_length": 16}
    found, frames_dim, frequency_dim = power_spectrum(source, in_spatial_dim=time_dim, **sizes)
    expected, expected_frames_dim, expected_frequency_dim = nn.stft(source, in_spatial_dim=time_dim, **sizes)
    assert frames_dim.dyn_size.tolist() == [max(0, (n - 10) // 4 + 1) for n in lengths]
    found = found.copy_compatible_to_dims_raw([batch_dim, frames_dim, frequency_dim])
    expected = expected.copy_compatible_to_dims_raw([batch_dim, expected_frames_dim, expected_frequency_dim])
    assert found.shape == expected.shape
    for a, b, n in zip(found, expected.abs().square(), frames_dim.dyn_size, strict=True):
        torch.testing.assert_close(a[:n], b[:n], rtol=1e-4, atol=1e-5)


def test_gradients():
    values = torch.randn(2, 20, dtype=torch.float64, requires_grad=True)
    dims = nn.Dim(2, name="batch"), nn.Dim(20, name="time")

    def func(values):
        source = nn.convert_to_tensor(values, dims=dims)
        return power_spectrum(source, in_spatial_dim=dims[1], frame_step=4, frame_length=8, fft_length=8)[0].raw_tensor

    assert torch.autograd.gradcheck(func, [values])


def test_no_utterance():
    """what a batch of none gives, though PyTorch transforms no empty one"""
    dims = nn.Dim(0, name="batch"), nn.Dim(20, name="time")
    found, *new_dims = power_spectrum(
        nn.zeros(dims), in_spatial_dim=dims[1], frame_step=4, frame_length=8, fft_length=8
    )
    assert found.copy_compatible_to_dims_raw([dims[0], *new_dims]).shape == (0, 4, 5)


@pytest.mark.parametrize("order", ["bt", "tb"])
def test_pad_zeros(order):
    source, batch_dim, time_dim = _source([5, 0, 3], order=order)
    before = source.raw_tensor.clone()
    padded, padded_dim = pad_zeros(source, axis=time_dim, num=2)
    torch.testing.assert_close(source.raw_tensor, before)
    assert padded_dim.dyn_size.tolist() == [7, 2, 5]
    found = padded.copy_compatible_to_dims_raw([batch_dim, padded_dim])
    for row, old, length in zip(found, before if order == "bt" else before.t(), [5, 0, 3], strict=True):
        torch.testing.assert_close(row[: length + 2], torch.cat([old[:length], torch.zeros(2)]))


def test_gradients_of_padded_audio():
    """are 0 on padding"""
    source, _, time_dim = _source([50, 31])
    source.raw_tensor.requires_grad_()
    padded, padded_dim = pad_zeros(source, axis=time_dim, num=9)
    power, _, _ = power_spectrum(padded, in_spatial_dim=padded_dim, frame_step=4, frame_length=10, fft_length=16)
    power.raw_tensor.sum().backward()
    grad = source.raw_tensor.grad
    assert not grad[1, 31:].any() and (grad[0, 1:] != 0).all()
