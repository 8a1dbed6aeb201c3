"""The Conformer with rotary positions: compared with RETURNN's own module in the same layers; arguments."""

from __future__ import annotations

import numpy as np
import pytest
import returnn.frontend as rf
from returnn.frontend.encoder.conformer import ConformerEncoder

from returnn_common import nn
from returnn_common.models.encoder.conformer import make_conformer_encoder
from returnn_common.models.encoder.conformer_rotary import make_rotary_conformer_encoder
from tests.engines import Input, run_on

FEATURES = 8
TINY = {"num_layers": 2, "out_dim": 8, "num_heads": 2, "conv_kernel_size": 3, "conv_norm": "layer", "dropout": 0.0}
LENGTHS = [61, 30, 7]
X = np.random.default_rng(3).normal(size=(3, 61, FEATURES)).astype("float32")


def _run(make_model, x: np.ndarray = X, lengths: list[int] = LENGTHS):
    def func(model, x, time):
        out, out_time = model(x, in_spatial_dim=time)
        loss = nn.reduce_sum(out * nn.sin(out), axis=[out_time, model.out_dim])
        return {"out": (out, [nn.batch_dim, out_time, model.out_dim]), "loss": loss}

    inputs, dims = {"x": Input(x, "batch time feat")}, {"time": lengths, "feat": FEATURES}
    return run_on("torch", func, inputs, dims, make_model=make_model, grad_of="loss")


def _make(feat, **options):
    return make_rotary_conformer_encoder(feat, **{**TINY, **options})


def test_equals_layers_with_the_attention_of_returnn(monkeypatch):
    from returnn.frontend.attention import _apply_rope_real
    from returnn.torch.frontend import TorchBackend

    # The same rotation, without compiling it for a minute.
    monkeypatch.setattr(TorchBackend, "apply_rope", staticmethod(_apply_rope_real))

    def make_reference(feat):
        out_dim = nn.FeatureDim("conformer", 8)
        opts = {
            "self_att": rf.RotaryPosSelfAttention,
            "ff_dim": nn.FeatureDim("ff", 32),
            "conv_kernel_size": 3,
            "conv_norm": nn.LayerNorm(out_dim),
            "num_heads": 2,
            "dropout": 0.0,
            "att_dropout": 0.0,
        }
        subsampling = nn.make_conv_subsampling(feat, 4)
        return ConformerEncoder(
            feat, out_dim, num_layers=2, input_layer=subsampling, input_dropout=0.0, encoder_layer_opts=opts
        )

    ours, expected = _run(lambda feat: _make(feat)), _run(make_reference)
    np.testing.assert_allclose(ours["out"], expected["out"], atol=1e-5)
    assert ours.grads.keys() == expected.grads.keys()
    for name, grad in expected.grads.items():
        np.testing.assert_allclose(ours.grads[name], grad, rtol=1e-3, atol=1e-4, err_msg=name)


def test_differs_from_the_conformer_in_the_parameters_of_positions_only():
    ours, conformer = _run(lambda feat: _make(feat)), _run(lambda feat: make_conformer_encoder(feat, **TINY))
    dropped = {
        f"layers.{i}.self_att.{name}" for i in range(2) for name in ("linear_pos.weight", "pos_bias_u", "pos_bias_v")
    }
    assert {n: p.shape for n, p in ours.params.items()} == {
        n: p.shape for n, p in conformer.params.items() if n not in dropped
    }
    assert dropped <= set(conformer.params)


def test_positions_are_relative():
    """the same input later gives the same output later; another order of the input gives another output"""
    rng = np.random.default_rng(5)
    pattern = rng.normal(size=(400, FEATURES)).astype("float32")
    silence = np.zeros((40, FEATURES), "float32")
    early, late = (np.concatenate(parts)[None] for parts in ([pattern, silence], [silence, pattern]))
    options = {"num_layers": 1}
    a, b = (_run(lambda feat: _make(feat, **options), x, [440])["out"][0] for x in (early, late))
    moved, unmoved = np.abs(b[30:90] - a[20:80]).max(), np.abs(b[20:80] - a[20:80]).max()
    assert moved < 0.1 * unmoved


def test_dims_and_factor():
    nn.select_backend_torch()
    out_dim = nn.FeatureDim("mine", 8)
    encoder = make_rotary_conformer_encoder(
        nn.FeatureDim("in", 8), num_layers=1, out_dim=out_dim, num_heads=2, subsampling=6, subsampling_channels=10
    )
    assert encoder.out_dim is out_dim and encoder.downsample_factor == 6 and len(encoder.layers) == 1
    assert encoder.layers[0].ffn1.linear_ff.out_dim.dimension == 32
    assert encoder.layers[0].conv_block.depthwise_conv.filter_size[0].dimension == 31
    assert isinstance(encoder.layers[0].conv_block.norm, nn.BatchNorm)
    assert encoder.layers[0].self_att.num_heads.dimension == 2
    assert [conv.out_dim.dimension for conv in encoder.input_layer.conv_layers] == [5, 10]


@pytest.mark.parametrize(
    "options, message",
    [
        ({"num_heads": 8}, r"out_dim 8 is not a multiple of 2 \* num_heads 8"),
        ({"num_heads": 0}, "expected num_heads >= 1, got 0"),
        ({"subsampling": 5}, "expected subsampling 4 or 6, got 5"),
        ({"subsampling_channels": 1}, "expected subsampling_channels >= 2, got 1"),
        ({"conv_norm": "group"}, "expected conv_norm 'batch' or 'layer', got 'group'"),
        ({"dropout": -0.1}, "expected 0 <= dropout < 1, got -0.1"),
        ({"num_layers": 0}, "expected num_layers >= 1, got 0"),
        ({"conv_kernel_size": 0}, "expected conv_kernel_size >= 1, got 0"),
    ],
)
def test_bad_arguments(options: dict, message: str):
    nn.select_backend_torch()
    with pytest.raises(ValueError, match=f"conformer: {message}"):
        _make(8, **options)
