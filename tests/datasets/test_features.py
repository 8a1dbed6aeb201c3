"""Tests for the features in NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from returnn.frontend.audio import mel as returnn_mel

from returnn_common import nn
from returnn_common.datasets.features import _mel_filters, log_mel, normalize, num_frames
from returnn_common.models.features import LogMel
from tests.engines import Input, run_on


@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("num_samples", [1, 160, 161, 399, 400, 401, 4001])
def test_same_as_in_the_model(num_samples, normalized):
    audio = np.random.default_rng(num_samples).normal(0, 0.1, num_samples).astype("float32")

    def func(model, x, time):
        features, frames = model(x, in_spatial_dim=time)
        return {"features": (features, [nn.batch_dim, frames, model.out_dim])}

    result = run_on(
        "torch",
        func,
        {"x": Input(audio[None], "batch time")},
        {"time": [num_samples]},
        make_model=lambda: LogMel(80, normalize=normalized),
    )
    features = normalize(log_mel(audio)) if normalized else log_mel(audio)  # normalised is what the datasets give
    assert features.shape == result["features"][0].shape
    np.testing.assert_allclose(features, result["features"][0], rtol=1e-3, atol=2e-3)


def test_filters_are_those_of_returnn():
    theirs = returnn_mel._mel_filter_bank_matrix_np(
        f_min=0, f_max=8000, sampling_rate=16000, fft_size=512, nr_of_filters=80
    )
    np.testing.assert_allclose(_mel_filters(), theirs, atol=1e-5)  # which rounds the centres to float32


@pytest.mark.parametrize("num_samples", [1, 159, 160, 161, 399, 400, 401, 560, 4000, 4001])
def test_against_one_window_at_a_time(num_samples):
    audio = np.random.default_rng(num_samples).normal(0, 0.1, num_samples).astype("float32")
    features = log_mel(audio)
    padded = np.concatenate([audio, np.zeros(400)])
    expected = []
    for start in range(0, num_samples, 160):
        window = padded[start : start + 400] * np.array([0.5 - 0.5 * np.cos(2 * np.pi * n / 400) for n in range(400)])
        angles = -2j * np.pi * np.outer(np.arange(257), np.arange(400)) / 512
        expected.append(np.log(np.maximum(np.abs(np.exp(angles) @ window) ** 2 @ _mel_filters(), 1e-10)))
    assert features.dtype == np.float32 and features.shape == (num_frames(num_samples), 80)
    np.testing.assert_allclose(features, expected, rtol=1e-4, atol=1e-4)


def test_silence_is_finite():
    np.testing.assert_allclose(log_mel(np.zeros(1000, "float32")), np.log(1e-10), rtol=1e-6)


def test_shape():
    with pytest.raises(ValueError, match=r"expected audio with the shape \[time\], got \[10, 1\]"):
        log_mel(np.zeros((10, 1), "float32"))
