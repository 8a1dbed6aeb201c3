"""Fast Conformer: subsampling against torch.nn, lengths, sizes of the paper, arguments."""

from __future__ import annotations

from math import ceil

import numpy as np
import pytest

from returnn_common import nn
from returnn_common.models.encoder.conformer_fast import (
    DepthwiseSeparableSubsample,
    fast_conformer_l,
    make_fast_conformer_encoder,
)
from tests.engines import Input, run_on

TINY = {
    "num_layers": 1,
    "out_dim": 8,
    "num_heads": 2,
    "subsampling_channels": 4,
    "conv_kernel_size": 3,
    "conv_norm": "layer",
    "dropout": 0.0,
}


def _run(make_model, lengths: list[int], features: int = 8):
    """the padding is not zero"""
    x = np.random.default_rng(3).normal(size=(len(lengths), max(lengths), features)).astype("float32")

    def func(model, x, time):
        out, out_time = model(x, in_spatial_dim=time)
        return {"out": (out, [nn.batch_dim, out_time, model.out_dim])}

    inputs, dims = {"x": Input(x, "batch time feat")}, {"time": lengths, "feat": features}
    return run_on("torch", func, inputs, dims, make_model=make_model), x


@pytest.mark.parametrize("features", [1, 7, 8, 20])
def test_subsampling_is_that_of_torch(features: int):
    """with torch.nn.Conv2d, one sequence after the other; 1x1 convolutions mix the channels"""
    import torch

    lengths, size = [40, 17, 8, 1], 3
    channels = nn.FeatureDim("channels", size)
    result, x = _run(lambda feat: DepthwiseSeparableSubsample(feat, channels=channels), lengths, features)
    params = {name: torch.tensor(value) for name, value in result.params.items()}
    layers = []
    for i in range(3):
        groups = 1 if i == 0 else size
        conv = torch.nn.Conv2d(1 if i == 0 else size, size, 3, stride=2, padding=1, groups=groups)
        conv.load_state_dict({"weight": params[f"conv_layers.{i}.filter"], "bias": params[f"conv_layers.{i}.bias"]})
        layers.append(conv)
        if i > 0:
            mix = torch.nn.Conv2d(size, size, 1)
            weight, bias = (params[f"pointwise_layers.{i - 1}.{name}"] for name in ("weight", "bias"))
            mix.load_state_dict({"weight": weight.T[:, :, None, None], "bias": bias})
            layers.append(mix)
        layers.append(torch.nn.ReLU())
    reference = torch.nn.Sequential(*layers)
    for row, source, n, out_length in zip(result["out"], x, lengths, result.outputs["out"].lengths[1], strict=True):
        with torch.no_grad():
            expected = reference(torch.tensor(source[:n])[None, None])[0].permute(1, 2, 0).flatten(1).numpy()
        assert expected.shape == (out_length, ceil(features / 8) * size)
        np.testing.assert_allclose(row[:out_length], expected, atol=1e-5)


def test_lengths():
    """each step of stride 2 rounds up, and each row's length depends on the row alone"""
    lengths = list(range(1, 51))
    result, _ = _run(lambda feat: make_fast_conformer_encoder(feat, **TINY), lengths)
    assert list(result.outputs["out"].lengths[1]) == [ceil(ceil(ceil(n / 2) / 2) / 2) for n in lengths]


def test_large_model_has_the_papers_size():
    """114 M with the transducer's predictor and joiner of 640 over 1024 subwords and blank, which are counted here"""
    nn.select_backend_torch()
    with nn.set_default_device_ctx("meta"):
        encoder = fast_conformer_l(80)
    assert len(encoder.layers) == 17 and encoder.out_dim.dimension == 512
    assert encoder.layers[0].self_att.num_heads.dimension == 8
    assert encoder.layers[0].conv_block.depthwise_conv.filter_size[0].dimension == 9
    assert isinstance(encoder.layers[0].conv_block.norm, nn.BatchNorm)
    assert {conv.out_dim.dimension for conv in encoder.input_layer.conv_layers} == {256}
    count = sum(np.prod([d.dimension for d in p.dims]) for p in encoder.parameters() if not p.auxiliary)
    assert round(count / 1e6, 1) == 108.8
    embedding, lstm = 1025 * 640, 4 * 640 * (640 + 640 + 2)
    joiner = (512 + 1) * 640 + (640 + 1) * 640 + (640 + 1) * 1025
    assert round((count + embedding + lstm + joiner) / 1e6) == 114


def test_dims_and_factor():
    nn.select_backend_torch()
    out_dim = nn.FeatureDim("mine", 12)
    options = {"num_layers": 2, "out_dim": out_dim, "num_heads": 3, "conv_kernel_size": 5, "conv_norm": "layer"}
    encoder = make_fast_conformer_encoder(nn.FeatureDim("in", 10), **options, subsampling_channels=6, dropout=0.25)
    assert encoder.out_dim is out_dim and encoder.downsample_factor == 8 and len(encoder.layers) == 2
    layer = encoder.layers[0]
    assert layer.ffn1.linear_ff.out_dim.dimension == 48 and layer.self_att.num_heads.dimension == 3
    assert layer.conv_block.depthwise_conv.filter_size[0].dimension == 5
    assert isinstance(layer.conv_block.norm, nn.LayerNorm)
    assert layer.dropout == layer.self_att.att_dropout == layer.ffn1.dropout == encoder.input_dropout == 0.25
    assert encoder.input_layer.out_dim.dimension == 2 * 6


@pytest.mark.parametrize(
    "options, message",
    [
        ({"num_heads": 3}, "out_dim 8 is not a multiple of num_heads 3"),
        ({"num_layers": 0}, "expected num_layers >= 1, got 0"),
        ({"conv_kernel_size": 0}, "expected conv_kernel_size >= 1, got 0"),
        ({"subsampling_channels": 0}, "expected subsampling_channels >= 1, got 0"),
        ({"conv_norm": "group"}, "expected conv_norm 'batch' or 'layer', got 'group'"),
        ({"dropout": 1.0}, "expected 0 <= dropout < 1, got 1.0"),
    ],
)
def test_bad_arguments(options: dict, message: str):
    nn.select_backend_torch()
    with pytest.raises(ValueError, match=f"conformer: {message}"):
        make_fast_conformer_encoder(8, **{**TINY, **options})
