"""The Transformer encoder, against torch.nn's layers, RETURNN's encoder and NumPy."""

from __future__ import annotations

from math import ceil
from typing import Any

import numpy as np
import pytest
from returnn.frontend.encoder.transformer import TransformerEncoder as ReturnnTransformerEncoder

from returnn_common import nn
from returnn_common.models.encoder.transformer import (
    TransformerEncoder,
    make_transformer_encoder,
    make_transformer_text_encoder,
)
from tests.engines import Input, run_on

FEATURES, DIM, HEADS, LAYERS = 6, 8, 2, 2
TINY: dict[str, Any] = {"num_layers": LAYERS, "out_dim": DIM, "num_heads": HEADS, "dropout": 0.0}
POSITIONS = ["absolute", "relative", "rotary"]


def _features(lengths: list[int], size: int = FEATURES) -> np.ndarray:
    x = np.full((len(lengths), max(lengths), size), 100.0, "float32")  # what is in the padding must not matter
    for i, n in enumerate(lengths):
        x[i, :n] = np.random.default_rng(n).normal(size=(n, size))
    return x


def _run(lengths: list[int], *, x: np.ndarray | None = None, train: bool = False, layers: bool = False, **options):
    x = _features(lengths) if x is None else x

    def func(model, x, time):
        collected = {} if layers else None
        out, out_time = model(x, in_spatial_dim=time, collected_outputs=collected)
        dims = [nn.batch_dim, out_time, model.out_dim]
        return {"out": (out, dims)} | {name: (value, dims) for name, value in (collected or {}).items()}

    return run_on(
        "torch",
        func,
        {"x": Input(x, "batch time feat")},
        {"time": lengths, "feat": x.shape[-1]},
        make_model=lambda feat: make_transformer_encoder(feat, **{**TINY, **options}),
        train=train,
    )


def _torch_layers(params: dict[str, np.ndarray]):
    """torch.nn's layers with the same parameters. Queries, keys and values of each head are together in ours."""
    import torch

    def parameter(name: str) -> torch.Tensor:
        return torch.tensor(params[name])

    def qkv(name: str) -> torch.Tensor:
        heads = parameter(name).reshape(-1, HEADS, 3, DIM // HEADS)  # in, head, q/k/v, dim
        return heads.permute(2, 1, 3, 0).reshape(3 * DIM, -1)

    layers = []
    for i in range(LAYERS):
        layer = torch.nn.TransformerEncoderLayer(
            DIM, HEADS, 4 * DIM, dropout=0.0, norm_first=True, batch_first=True, layer_norm_eps=1e-6
        )
        layer.eval()
        ours = {
            "self_attn.in_proj_weight": qkv(f"layers.{i}.self_att.qkv.weight"),
            "self_attn.in_proj_bias": qkv(f"layers.{i}.self_att.qkv.bias")[:, 0],
            "self_attn.out_proj.weight": parameter(f"layers.{i}.self_att.proj.weight").T,
            "self_attn.out_proj.bias": parameter(f"layers.{i}.self_att.proj.bias"),
            "norm1.weight": parameter(f"layers.{i}.self_att_layer_norm.scale"),
            "norm1.bias": parameter(f"layers.{i}.self_att_layer_norm.bias"),
            "norm2.weight": parameter(f"layers.{i}.ff_layer_norm.scale"),
            "norm2.bias": parameter(f"layers.{i}.ff_layer_norm.bias"),
            "linear1.weight": parameter(f"layers.{i}.ff.linear_ff.weight").T,
            "linear1.bias": parameter(f"layers.{i}.ff.linear_ff.bias"),
            "linear2.weight": parameter(f"layers.{i}.ff.linear_out.weight").T,
            "linear2.bias": parameter(f"layers.{i}.ff.linear_out.bias"),
        }
        layer.load_state_dict(ours)
        layers.append(layer)
    return layers


def test_equals_torch():
    """absolute positions, a batch with padding"""
    import torch

    lengths = [9, 4, 1]
    x = _features(lengths)
    result = _run(lengths, positions="absolute", subsampling=1, layers=True)
    # Sinusoids as in tensor2tensor: sines, then cosines, with wavelengths from 2 pi to 10000 * 2 pi.
    angles = np.arange(max(lengths))[:, None] * 10_000.0 ** -(np.arange(DIM // 2) / (DIM // 2 - 1))
    encoding = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
    hidden = torch.tensor(x @ result.params["input_projection.weight"] * DIM**0.5 + encoding, dtype=torch.float32)
    padding = torch.arange(max(lengths)) >= torch.tensor(lengths)[:, None]

    def compare(name: str, expected: np.ndarray):
        for i, n in enumerate(lengths):
            np.testing.assert_allclose(result[name][i, :n], expected[i, :n], atol=1e-5, err_msg=name)

    with torch.no_grad():
        for i, layer in enumerate(_torch_layers(result.params)):
            hidden = layer(hidden, src_key_padding_mask=padding)
            compare(str(i), hidden.numpy())
        scale, bias = (torch.tensor(result.params[f"final_layer_norm.{name}"]) for name in ("scale", "bias"))
        compare("out", torch.nn.functional.layer_norm(hidden, [DIM], scale, bias, eps=1e-6).numpy())


def _attend(x: np.ndarray, params: dict[str, np.ndarray]) -> np.ndarray:
    """{time, DIM} -> {time, DIM}; Dai et al. 2019, section 3.3, for one pair of positions after the other"""
    size = DIM // HEADS
    qkv = (x @ params["qkv.weight"] + params["qkv.bias"]).reshape(len(x), HEADS, 3 * size)
    query, key, value = np.split(qkv, 3, axis=-1)
    scores = np.zeros((HEADS, len(x), len(x)))
    for i in range(len(x)):
        for j in range(len(x)):
            angles = (j - i) / 10_000.0 ** (2 * np.arange(DIM // 2) / DIM)
            position = np.concatenate([np.sin(angles), np.cos(angles)]) @ params["linear_pos.weight"]
            position = position.reshape(HEADS, size)
            for h in range(HEADS):
                scores[h, i, j] = (query[i, h] + params["pos_bias_u"][h]) @ key[j, h]
                scores[h, i, j] += (query[i, h] + params["pos_bias_v"][h]) @ position[h]
    weights = np.exp((scores - scores.max(-1, keepdims=True)) / np.sqrt(size))
    context = np.einsum("hij,jhd->ihd", weights / weights.sum(-1, keepdims=True), value)
    return context.reshape(len(x), DIM) @ params["proj.weight"] + params["proj.bias"]


def test_relative_positions_equal_explicit_indexing():
    lengths = [7, 3, 1]
    result = _run(lengths, positions="relative", subsampling=1, num_layers=1, layers=True)

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
        return x * result.params[f"{name}.scale"] + result.params[f"{name}.bias"]

    def parameters(prefix: str) -> dict[str, np.ndarray]:
        return {name.removeprefix(prefix): p for name, p in result.params.items() if name.startswith(prefix)}

    ff = parameters("layers.0.ff.")
    for i, n in enumerate(lengths):
        x = _features(lengths)[i, :n] @ result.params["input_projection.weight"]
        x = x + _attend(norm(x, "layers.0.self_att_layer_norm"), parameters("layers.0.self_att."))
        inner = np.maximum(norm(x, "layers.0.ff_layer_norm") @ ff["linear_ff.weight"] + ff["linear_ff.bias"], 0.0)
        x = x + inner @ ff["linear_out.weight"] + ff["linear_out.bias"]
        np.testing.assert_allclose(result["0"][i, :n], x, atol=2e-5)
        np.testing.assert_allclose(result["out"][i, :n], norm(x, "final_layer_norm"), atol=2e-5)


@pytest.mark.parametrize("positions", POSITIONS)
def test_positions(positions: str):
    """each way knows the order; only absolute positions know where it begins"""
    lengths = [6]
    x = _features(lengths)
    options: dict[str, Any] = {"positions": positions, "subsampling": 1, "num_layers": 1}
    forward = _run(lengths, x=x, **options)["out"]
    backward = _run(lengths, x=x[:, ::-1].copy(), **options)["out"][:, ::-1]
    assert np.abs(forward - backward).max() > 1e-2
    # Two equal frames far apart from the rest of a long, constant input: moved by some frames, the output moves along.
    constant = np.ones((1, 600, FEATURES), "float32")
    outputs = []
    for start in (250, 253):
        x = constant.copy()
        x[0, start : start + 2] = 3.0
        outputs.append(_run([600], x=x, **options)["out"][0, start - 5 : start + 5])
    moved = np.abs(outputs[0] - outputs[1]).max()
    assert moved > 1e-2 if positions == "absolute" else moved < 1e-2


@pytest.mark.parametrize("positions", ["absolute", "rotary"])
def test_text_equals_the_encoder_of_returnn(positions: str):
    """with the same parameter names: a checkpoint of either fits the other"""
    lengths = [5, 2]
    labels = np.random.default_rng(2).integers(0, 9, (2, 5)).astype("int32")

    def run(make_model, call):
        return run_on(
            "torch",
            lambda model, y, time: {"out": (call(model, y, time), [nn.batch_dim, time, model.out_dim])},
            {"y": Input(labels, "batch time", sparse="labels")},
            {"time": lengths, "labels": 9},
            make_model=make_model,
        )

    ours = run(
        lambda labels: make_transformer_text_encoder(labels, **TINY, positions=positions),
        lambda model, y, time: model(y, in_spatial_dim=time)[0],
    )
    theirs = run(
        lambda labels: ReturnnTransformerEncoder(
            labels,
            nn.FeatureDim("model", DIM),
            num_layers=LAYERS,
            num_heads=HEADS,
            pos_enc=nn.sinusoidal_positional_encoding if positions == "absolute" else None,
            layer_opts={"self_att": nn.RotaryPosSelfAttention if positions == "rotary" else nn.SelfAttention},
        ),
        lambda model, y, time: model(y, spatial_dim=time),
    )
    assert ours.params.keys() == theirs.params.keys()
    np.testing.assert_allclose(ours["out"], theirs["out"], atol=1e-5)


@pytest.mark.parametrize("subsampling", [1, 4, 6])
def test_lengths(subsampling: int):
    """each row's length depends on the row alone, and no frame is lost (FAULTS: lengths after subsampling)"""
    lengths = list(range(1, 51))
    result = _run(lengths, subsampling=subsampling, num_layers=1)
    strides = {1: (1, 1), 4: (2, 2), 6: (2, 3)}[subsampling]
    expected = [ceil(ceil(n / strides[0]) / strides[1]) for n in lengths]
    assert list(result.outputs["out"].lengths[1]) == expected


def test_layer_drop_in_training_only():
    lengths = [20, 7]
    evaluated = [_run(lengths, layer_drop=p)["out"] for p in (0.0, 0.999)]
    np.testing.assert_array_equal(*evaluated)
    dropped, kept = (_run(lengths, train=True, layer_drop=p, layers=True) for p in (0.999999, 0.0))
    np.testing.assert_array_equal(dropped["1"], dropped["0"])  # nothing between input and final norm
    assert np.abs(kept["1"] - kept["0"]).max() > 1e-2


def test_sizes_and_names():
    nn.select_backend_torch()
    out_dim = nn.FeatureDim("mine", 8)
    encoder = make_transformer_encoder(8, num_layers=3, out_dim=out_dim, num_heads=4, subsampling=6)
    assert encoder.out_dim is out_dim and encoder.in_dim.dimension == 8 and encoder.downsample_factor == 6
    assert len(encoder.layers) == 3
    layer = encoder.layers[0]
    assert layer.self_att.num_heads.dimension == 4 and layer.ff.linear_ff.out_dim.dimension == 32
    assert isinstance(layer.self_att, nn.RelPosSelfAttention)
    assert encoder.input_layer is not None
    assert [conv.out_dim.dimension for conv in encoder.input_layer.conv_layers] == [32, 64]
    narrow = make_transformer_encoder(8, **TINY, subsampling_channels=10)
    assert [conv.out_dim.dimension for conv in narrow.input_layer.conv_layers] == [5, 10]
    same = make_transformer_encoder(8, **TINY, subsampling=1)
    assert same.downsample_factor == 1 and same.input_projection is not None
    assert make_transformer_encoder(out_dim, **{**TINY, "out_dim": out_dim}, subsampling=1).input_projection is None
    defaults = make_transformer_text_encoder(5)
    assert len(defaults.layers) == 6 and defaults.out_dim.dimension == 512 and defaults.absolute_positions
    assert defaults.layers[0].ff.linear_ff.out_dim.dimension == 2048


@pytest.mark.parametrize(
    "options, message",
    [
        ({"num_heads": 3}, "transformer: out_dim 8 is not a multiple of num_heads 3"),
        ({"num_heads": 4, "out_dim": 12, "positions": "rotary"}, "expected an even key dim per head"),
        ({"num_heads": 1, "out_dim": 7}, "transformer: expected an even out_dim of at least 4, got 7"),
        ({"positions": "learned"}, "expected positions 'relative', 'absolute' or 'rotary', got 'learned'"),
        ({"subsampling": 5}, "transformer: expected subsampling 1, 4 or 6, got 5"),
        ({"subsampling_channels": 1}, "transformer: expected subsampling_channels >= 2, got 1"),
        ({"dropout": 1.0}, "transformer: expected 0 <= dropout < 1, got 1.0"),
        ({"layer_drop": -0.5}, "transformer: expected 0 <= layer_drop < 1, got -0.5"),
        ({"num_layers": 0}, "transformer: expected num_layers >= 1, got 0"),
    ],
)
def test_bad_arguments(options: dict, message: str):
    nn.select_backend_torch()
    with pytest.raises(ValueError, match=message):
        make_transformer_encoder(8, **{**TINY, **options})


def test_wrong_source():
    def func(x, time, feat):
        other = nn.FeatureDim("other", 4)
        with pytest.raises(ValueError, match=r"TransformerEncoder: expected features with .*other.*, got Tensor"):
            make_transformer_encoder(other, **TINY)(x, in_spatial_dim=time)
        with pytest.raises(ValueError, match=r"TransformerEncoder: expected labels over .*other.*, got Tensor"):
            make_transformer_text_encoder(other, **TINY)(x, in_spatial_dim=time)
        return {"x": x}

    run_on("torch", func, {"x": Input(_features([3]), "batch time feat")}, {"time": [3], "feat": FEATURES})


def test_own_input_layer():
    """whoever has another front end wires it"""

    class _Half(nn.Module):
        downsample_factor = 2

        def __init__(self, in_dim: nn.Dim):
            super().__init__()
            self.in_dim = self.out_dim = in_dim

        def __call__(self, source: nn.Tensor, *, in_spatial_dim: nn.Dim) -> tuple[nn.Tensor, nn.Dim]:
            return nn.pool1d(source, mode="avg", pool_size=2, strides=2, padding="same", in_spatial_dim=in_spatial_dim)

    def make(feat):
        layers = make_transformer_encoder(8, **TINY).layers
        return TransformerEncoder(feat, input_layer=_Half(feat), layers=layers, out_dim=layers[0].out_dim)

    def func(model, x, time):
        assert model.downsample_factor == 2
        out, out_time = model(x, in_spatial_dim=time)
        return {"out": (out, [nn.batch_dim, out_time, model.out_dim])}

    lengths = [5, 2]
    inputs = {"x": Input(_features(lengths), "batch time feat")}
    result = run_on("torch", func, inputs, {"time": lengths, "feat": FEATURES}, make_model=make)
    assert list(result.outputs["out"].lengths[1]) == [3, 1]
