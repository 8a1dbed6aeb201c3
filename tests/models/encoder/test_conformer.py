"""The Conformer encoder: batch = single, padding, lengths, positions, sizes, engines."""

from __future__ import annotations

from math import ceil

import numpy as np
import pytest

from returnn_common import nn
from returnn_common.models.encoder.conformer import conformer_l, conformer_m, conformer_s, make_conformer_encoder
from tests.engines import Input, run_on

FEATURES = 8
TINY = {"num_layers": 2, "out_dim": 8, "num_heads": 2, "conv_kernel_size": 5, "dropout": 0.0}


def _features(lengths: list[int], fill: float = 0.0) -> np.ndarray:
    x = np.full((len(lengths), max(lengths), FEATURES), fill, "float32")
    for i, n in enumerate(lengths):
        x[i, :n] = np.random.default_rng(n).normal(size=(n, FEATURES))
    return x


def _run(engine: str, x: np.ndarray, lengths: list[int], *, train: bool = False, grads: bool = False, **options):
    def func(model, x, time, feat):
        out, out_time = model(x, in_spatial_dim=time)
        out = nn.cast(out, "float32")  # NumPy has no bfloat16
        squares = nn.reduce_sum(out * nn.sin(out), axis=[out_time, model.out_dim])
        return {"out": (out, [nn.batch_dim, out_time, model.out_dim]), "loss": squares}

    return run_on(
        engine,
        func,
        {"x": Input(x, "batch time feat")},
        {"time": lengths, "feat": FEATURES},
        make_model=lambda feat: make_conformer_encoder(feat, **{**TINY, **options}),
        train=train,
        grad_of="loss" if grads else None,
    )


def _valid(result) -> list[np.ndarray]:
    return [row[:n] for row, n in zip(result["out"], result.outputs["out"].lengths[1], strict=True)]


@pytest.mark.parametrize("conv_norm", ["batch", "layer"])
@pytest.mark.parametrize("subsampling", [4, 6])
def test_batch_equals_single_and_padding_does_not_matter(subsampling: int, conv_norm: str):
    lengths = [90, 37, 5, 1]
    options = {"subsampling": subsampling, "conv_norm": conv_norm}
    batched = _valid(_run("torch", _features(lengths), lengths, **options))
    garbage = _valid(_run("torch", _features(lengths, fill=1e3), lengths, **options))
    for i, n in enumerate(lengths):
        single = _valid(_run("torch", _features([n]), [n], **options))[0]
        np.testing.assert_allclose(batched[i], single, atol=1e-5)
        np.testing.assert_allclose(garbage[i], single, atol=1e-5)


@pytest.mark.parametrize("conv_norm", ["batch", "layer"])
def test_padding_does_not_matter_in_training(conv_norm: str):
    lengths = [40, 17, 2]
    zeros = _run("torch", _features(lengths), lengths, train=True, grads=True, conv_norm=conv_norm)
    garbage = _run("torch", _features(lengths, fill=1e3), lengths, train=True, grads=True, conv_norm=conv_norm)
    for a, b in zip(_valid(zeros), _valid(garbage), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)
    for name, grad in zeros.grads.items():
        if name != "x":
            np.testing.assert_allclose(grad, garbage.grads[name], rtol=1e-3, atol=1e-4, err_msg=name)


@pytest.mark.parametrize("subsampling", [4, 6])
def test_lengths(subsampling: int):
    """each row's length depends on the row alone, and no frame is lost (FAULTS: lengths after subsampling)"""
    lengths = list(range(1, 51))
    result = _run("torch", _features(lengths), lengths, num_layers=1, subsampling=subsampling)
    assert list(result.outputs["out"].lengths[1]) == [ceil(ceil(n / 2) / (subsampling // 2)) for n in lengths]


def test_tiny_and_long_inputs():
    for n in [1, 2, 3, 4, 5, 3000]:
        assert np.isfinite(_run("torch", _features([n]), [n])["out"]).all()


def test_positions_are_relative():
    """the same input later gives the same output later: shift by whole frames, away from the edges"""
    options = {"num_layers": 1, "conv_kernel_size": 3, "conv_norm": "layer"}
    pattern = _features([400])[0]
    shifted = np.concatenate([np.zeros((40, FEATURES), "float32"), pattern])[None]
    padded = np.concatenate([pattern, np.zeros((40, FEATURES), "float32")])[None]
    a = _run("torch", padded, [440], **options)["out"][0]
    b = _run("torch", shifted, [440], **options)["out"][0]
    inner = slice(20, 80)
    moved = np.abs(b[30:90] - a[inner]).max()
    unmoved = np.abs(b[inner] - a[inner]).max()
    assert moved < 0.1 * unmoved


def test_bfloat16_with_a_masked_row():
    """as RETURNN's torch_amp does it; one row is nearly all padding (FAULTS: half precision)"""
    import torch

    lengths = [20, 1]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = _run("torch", _features(lengths, fill=1e3), lengths)
    exact = _run("torch", _features(lengths), lengths)
    for a, b in zip(_valid(out), _valid(exact), strict=True):
        assert np.isfinite(a).all()
        np.testing.assert_allclose(a, b, atol=0.15)


def test_presets_have_the_papers_sizes():
    """table 1: encoder layers, encoder dim, heads, kernel; and the parameters, which there include a small decoder"""
    nn.select_backend_torch()
    for preset, layers, dim, heads, millions in [
        (conformer_s, 16, 144, 4, 10.3),
        (conformer_m, 16, 256, 4, 30.7),
        (conformer_l, 17, 512, 8, 118.8),
    ]:
        encoder = preset(80)
        assert len(encoder.layers) == layers and encoder.out_dim.dimension == dim
        layer = encoder.layers[0]
        assert layer.self_att.num_heads.dimension == heads
        assert layer.conv_block.depthwise_conv.filter_size[0].dimension == 32
        count = sum(np.prod([d.dimension for d in p.dims]) for p in encoder.parameters() if not p.auxiliary)
        assert 0.78 * millions < count / 1e6 < 1.02 * millions


def test_dims_and_factor():
    nn.select_backend_torch()
    out_dim = nn.FeatureDim("mine", 8)
    encoder = make_conformer_encoder(nn.FeatureDim("in", 8), num_layers=1, out_dim=out_dim, num_heads=2, subsampling=6)
    assert encoder.out_dim is out_dim and encoder.downsample_factor == 6
    assert encoder.layers[0].ffn1.linear_ff.out_dim.dimension == 32
    assert encoder.layers[0].conv_block.depthwise_conv.filter_size[0].dimension == 31
    assert [conv.out_dim.dimension for conv in encoder.input_layer.conv_layers] == [32, 64]
    encoder = make_conformer_encoder(8, **TINY, subsampling_channels=10)
    assert [conv.out_dim.dimension for conv in encoder.input_layer.conv_layers] == [5, 10]


def test_dropout_acts_in_training_only():
    lengths = [20]
    x = _features(lengths)
    evaluated = [_run("torch", x, lengths, dropout=dropout)["out"] for dropout in (0.0, 0.5)]
    np.testing.assert_array_equal(*evaluated)
    trained = [_run("torch", x, lengths, train=True, dropout=dropout)["out"] for dropout in (0.0, 0.5)]
    assert np.abs(trained[0] - trained[1]).max() > 0.1


@pytest.mark.parametrize(
    "options, message",
    [
        ({"num_heads": 3}, "out_dim 8 is not a multiple of num_heads 3"),
        ({"subsampling": 5}, "expected subsampling 4 or 6, got 5"),
        ({"conv_norm": "group"}, "expected conv_norm 'batch' or 'layer', got 'group'"),
        ({"dropout": 1.0}, "expected 0 <= dropout < 1, got 1.0"),
        ({"num_layers": 0}, "expected num_layers >= 1, got 0"),
        ({"subsampling_channels": 1}, "expected subsampling_channels >= 2, got 1"),
        ({"conv_kernel_size": 0}, "expected conv_kernel_size >= 1, got 0"),
    ],
)
def test_bad_arguments(options: dict, message: str):
    with pytest.raises(ValueError, match=message):
        nn.select_backend_torch()
        make_conformer_encoder(8, **{**TINY, **options})


def test_unknown_options_are_refused():
    with pytest.raises(TypeError, match="kernel_size"):
        make_conformer_encoder(8, kernel_size=3)  # type: ignore[call-arg]
