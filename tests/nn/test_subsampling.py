"""Convolutional subsampling, against torch's convolutions on each sequence alone."""

from __future__ import annotations

import numpy as np
import pytest

from returnn_common import nn
from tests.engines import Input, run_on

FEATURES, CHANNELS = 7, 4
STRIDES = {4: [2, 2], 6: [2, 3]}


def _expected(x: np.ndarray, params: dict[str, np.ndarray], factor: int) -> np.ndarray:
    """{time, FEATURES} -> {time', features' * CHANNELS}; padded by half a filter on each side"""
    import torch

    hidden = torch.tensor(x)[None]
    for i, stride in enumerate(STRIDES[factor]):
        filters = torch.tensor(params[f"conv_layers.{i}.filter"])  # out, in, time, features
        bias = torch.tensor(params[f"conv_layers.{i}.bias"])
        hidden = torch.nn.functional.conv2d(hidden, filters, bias, stride=stride, padding=filters.shape[-1] // 2)
        hidden = hidden.relu()
    return hidden.permute(1, 2, 0).flatten(1).numpy()


@pytest.mark.parametrize("factor", [4, 6])
def test_equals_torch(factor: int):
    """for each length from 1 to 13, in one batch with large values in the padding"""
    lengths = list(range(13, 0, -1))
    x = np.full((len(lengths), max(lengths), FEATURES), 1e3, "float32")
    for i, n in enumerate(lengths):
        x[i, :n] = np.random.default_rng(n).normal(size=(n, FEATURES))

    def func(model, x, time):
        assert model.downsample_factor == factor
        out, out_time = model(x, in_spatial_dim=time)
        return {"out": (out, [nn.batch_dim, out_time, model.out_dim])}

    result = run_on(
        "torch",
        func,
        {"x": Input(x, "batch time feat")},
        {"time": lengths, "feat": FEATURES},
        make_model=lambda feat: nn.make_conv_subsampling(feat, factor, channels=CHANNELS),
    )
    assert result.params["conv_layers.0.filter"].shape == (CHANNELS // 2, 1, 3, 3)
    for i, n in enumerate(lengths):
        expected = _expected(x[i, :n], result.params, factor)
        assert result.outputs["out"].lengths[1][i] == len(expected)
        np.testing.assert_allclose(result["out"][i, : len(expected)], expected, atol=1e-5)


def test_bad_arguments():
    features = nn.FeatureDim("features", 8)
    with pytest.raises(ValueError, match="subsampling: expected subsampling 4 or 6, got 3"):
        nn.make_conv_subsampling(features, 3)
    with pytest.raises(ValueError, match="mine: expected subsampling_channels >= 2, got 1"):
        nn.make_conv_subsampling(features, 4, channels=1, owner="mine")
