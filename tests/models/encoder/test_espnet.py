"""Encoders as in ESPnet: lengths, sizes, arguments. (That they compute the same: tests of the imported weights.)"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from returnn_common import nn
from returnn_common.models.encoder.espnet import (
    EspnetSubsampling,
    make_espnet_conformer_encoder,
    make_espnet_e_branchformer_encoder,
)
from tests.engines import Input, run_on

FEATURES = 10
SIZES: dict[str, Any] = {"num_layers": 1, "out_dim": 8, "num_heads": 2, "ff_dim": 12, "conv_kernel_size": 3}
BUILDERS = [make_espnet_conformer_encoder, make_espnet_e_branchformer_encoder]
each_builder = pytest.mark.parametrize("builder", BUILDERS)


def _run(make, lengths: list[int], *, train: bool = False, fill: float = 100.0):
    x = np.full((len(lengths), max(lengths), FEATURES), fill, "float32")
    for i, n in enumerate(lengths):
        x[i, :n] = np.random.default_rng(n).normal(size=(n, FEATURES))

    def func(model, x, time):
        out, out_time = model(x, in_spatial_dim=time)
        return {"out": (out, [nn.batch_dim, out_time, model.out_dim])}

    dims = {"time": lengths, "features": FEATURES}
    return run_on("torch", func, {"x": Input(x, "batch time features")}, dims, make_model=make, train=train)


def _make_subsampling(features):
    return EspnetSubsampling(features, nn.FeatureDim("out", 4))


def test_lengths():
    """as ESPnet's, and one where it has none; whatever is in the padding"""
    lengths = list(range(1, 41))
    result, other = (_run(_make_subsampling, lengths, fill=fill) for fill in (0.0, 100.0))
    assert list(result.outputs["out"].lengths[1]) == [max(((n - 1) // 2 - 1) // 2, 1) for n in lengths]
    np.testing.assert_allclose(result["out"], other["out"], atol=1e-6)
    for i in (0, 5, 6, 39):
        alone = _run(_make_subsampling, [lengths[i]])["out"][0]
        np.testing.assert_allclose(result["out"][i, : len(alone)], alone, atol=1e-5)


def test_short_sequences_are_continued_by_zeros():
    row = np.random.default_rng(3).normal(size=(3, FEATURES)).astype("float32")
    outputs = []
    for n in (3, 7):
        x = np.zeros((1, n, FEATURES), "float32")
        x[0, :3] = row
        outputs.append(_run_array(x)["out"])
    np.testing.assert_allclose(outputs[0], outputs[1], atol=1e-6)


def _run_array(x: np.ndarray):
    def func(model, x, time):
        out, out_time = model(x, in_spatial_dim=time)
        return {"out": (out, [nn.batch_dim, out_time, model.out_dim])}

    dims = {"time": [x.shape[1]], "features": FEATURES}
    return run_on("torch", func, {"x": Input(x, "batch time features")}, dims, make_model=_make_subsampling)


@each_builder
def test_sizes(builder):
    nn.select_backend_torch()
    out_dim = nn.FeatureDim("mine", 8)
    encoder = builder(FEATURES, **{**SIZES, "num_layers": 2, "out_dim": out_dim, "conv_kernel_size": 5})
    assert encoder.out_dim is out_dim and encoder.in_dim.dimension == FEATURES and encoder.downsample_factor == 4
    assert len(encoder.layers) == 2
    layer = encoder.layers[0]
    assert layer.self_att.num_heads.dimension == 2 and layer.ffn1.linear_ff.out_dim.dimension == 12
    conv = layer.conv_block.depthwise_conv if builder is make_espnet_conformer_encoder else layer.cgmlp.conv
    assert conv.filter_size[0].dimension == 5
    assert [conv.out_dim.dimension for conv in encoder.input_layer.conv.conv_layers] == [8, 8]


def test_sizes_of_the_e_branchformer():
    nn.select_backend_torch()
    layer = make_espnet_e_branchformer_encoder(FEATURES, **SIZES, cgmlp_dim=20, merge_kernel_size=7).layers[0]
    assert layer.cgmlp.linear_ff.out_dim.dimension == 20 and layer.cgmlp.linear_out.in_dim.dimension == 10
    assert layer.merge.depthwise_conv_fusion.filter_size[0].dimension == 7


def _count(builder) -> int:
    nn.select_backend_torch()
    with nn.set_default_device_ctx("meta"):
        encoder = builder(80)
    return sum(int(np.prod([d.dimension for d in p.dims])) for p in encoder.parameters() if not p.auxiliary)


def test_defaults():
    """ESPnet's own modules with the sizes of its LibriSpeech recipes have as many (their state dicts were counted)"""
    assert [_count(builder) for builder in BUILDERS] == [83_231_744, 116_007_936]


@each_builder
def test_dropout_acts_in_training_only(builder):
    outputs = [
        [
            _run(lambda features, p=p: builder(features, **SIZES, dropout=p), [30], train=train)["out"]
            for p in (0.0, 0.5)
        ]
        for train in (False, True)
    ]
    np.testing.assert_array_equal(*outputs[0])
    assert np.abs(outputs[1][0] - outputs[1][1]).max() > 0.1


@each_builder
@pytest.mark.parametrize(
    "options, message",
    [
        ({"num_layers": 0}, "expected num_layers >= 1, got 0"),
        ({"num_heads": 3}, "out_dim 8 is not a multiple of num_heads 3"),
        ({"num_heads": 1, "out_dim": 9}, "expected an even out_dim, got 9"),
        ({"conv_kernel_size": 4}, "expected an odd conv_kernel_size, got 4"),
        ({"conv_kernel_size": 0}, "expected conv_kernel_size >= 1, got 0"),
        ({"dropout": 1.0}, "expected 0 <= dropout < 1, got 1.0"),
        ({"in_dim": 6}, "expected in_dim >= 7, got 6"),
    ],
)
def test_bad_arguments(builder, options: dict, message: str):
    nn.select_backend_torch()
    name = builder.__name__.removeprefix("make_").removesuffix("_encoder")
    with pytest.raises(ValueError, match=f"^{name}: {message}"):
        builder(**{"in_dim": FEATURES, **SIZES, **options})


@pytest.mark.parametrize(
    "options, message",
    [
        ({"cgmlp_dim": 13}, "expected an even cgmlp_dim, got 13"),
        ({"merge_kernel_size": 2}, "expected an odd merge_kernel_size, got 2"),
    ],
)
def test_bad_arguments_of_the_e_branchformer(options: dict, message: str):
    nn.select_backend_torch()
    with pytest.raises(ValueError, match=f"espnet_e_branchformer: {message}"):
        make_espnet_e_branchformer_encoder(FEATURES, **SIZES, **options)
