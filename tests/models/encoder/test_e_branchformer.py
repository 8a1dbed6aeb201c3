"""The E-Branchformer encoder, against the paper's equations in plain NumPy, and against its parameter counts."""

from __future__ import annotations

from math import ceil, erf
from typing import Any

import numpy as np
import pytest

from returnn_common import nn
from returnn_common.models.encoder.e_branchformer import (
    e_branchformer_b,
    e_branchformer_l,
    make_e_branchformer_encoder,
)
from tests.engines import Input, run_on

FEATURES, DIM, HEADS, KERNEL = 8, 4, 2, 3
TINY: dict[str, Any] = {
    "num_layers": 2,
    "out_dim": DIM,
    "num_heads": HEADS,
    "subsampling_channels": 4,
    "conv_kernel_size": KERNEL,
    "dropout": 0.0,
    "layer_drop": 0.0,
}


def _features(lengths: list[int]) -> np.ndarray:
    x = np.full((len(lengths), max(lengths), FEATURES), 100.0, "float32")  # what is in the padding must not matter
    for i, n in enumerate(lengths):
        x[i, :n] = np.random.default_rng(n).normal(size=(n, FEATURES))
    return x


def _run(lengths: list[int], *, train: bool = False, **options):
    def func(model, x, time):
        collected = {}
        out, out_time = model(x, in_spatial_dim=time, collected_outputs=collected)
        dims = [nn.batch_dim, out_time, model.out_dim]
        return {"out": (out, dims)} | {name: (value, dims) for name, value in collected.items()}

    return run_on(
        "torch",
        func,
        {"x": Input(_features(lengths), "batch time feat")},
        {"time": lengths, "feat": FEATURES},
        make_model=lambda feat: make_e_branchformer_encoder(feat, **{**TINY, **options}),
        train=train,
    )


class _Layer:
    """One layer in NumPy, for one sequence ``{time, DIM}``: section 3 and figure 1 of the paper."""

    def __init__(self, params: dict[str, np.ndarray], index: int):
        prefix = f"layers.{index}."
        self.params = {name.removeprefix(prefix): p for name, p in params.items() if name.startswith(prefix)}

    def __call__(self, x: np.ndarray) -> np.ndarray:
        x = x + 0.5 * self._feed_forward(self._norm(x, "ffn1_layer_norm"), "ffn1")
        glob = self._attention(self._norm(x, "self_att_layer_norm"))
        local = self._cgmlp(self._norm(x, "cgmlp_layer_norm"))
        both = np.concatenate([glob, local], axis=1)
        x = x + self._linear(both + self._depthwise(both, "merge.depthwise_conv_fusion"), "merge.merge_proj")
        x = x + 0.5 * self._feed_forward(self._norm(x, "ffn2_layer_norm"), "ffn2")
        return self._norm(x, "final_layer_norm")

    def _linear(self, x: np.ndarray, name: str) -> np.ndarray:
        return x @ self.params[f"{name}.weight"] + self.params[f"{name}.bias"]

    def _norm(self, x: np.ndarray, name: str) -> np.ndarray:
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
        return x * self.params[f"{name}.scale"] + self.params[f"{name}.bias"]

    def _depthwise(self, x: np.ndarray, name: str) -> np.ndarray:
        filters = self.params[f"{name}.filter"][:, 0]  # channel, time
        padded = np.pad(x, [(KERNEL // 2, KERNEL // 2), (0, 0)])
        windows = [(padded[t : t + KERNEL] * filters.T).sum(0) for t in range(len(x))]
        return np.stack(windows) + self.params[f"{name}.bias"]

    def _feed_forward(self, x: np.ndarray, name: str) -> np.ndarray:
        x = self._linear(x, f"{name}.linear_ff")
        return self._linear(x / (1.0 + np.exp(-x)), f"{name}.linear_out")

    def _cgmlp(self, x: np.ndarray) -> np.ndarray:
        x = self._linear(x, "cgmlp.linear_ff")
        x = x * 0.5 * (1.0 + np.vectorize(erf)(x / np.sqrt(2.0)))
        gate, content = np.split(x, 2, axis=1)
        gate = self._depthwise(self._norm(gate, "cgmlp.norm"), "cgmlp.conv")
        return self._linear(gate * content, "cgmlp.linear_out")

    def _attention(self, x: np.ndarray) -> np.ndarray:
        p, size = {n.removeprefix("self_att."): v for n, v in self.params.items()}, DIM // HEADS
        qkv = self._linear(x, "self_att.qkv").reshape(len(x), HEADS, 3 * size)
        query, key, value = np.split(qkv, 3, axis=-1)
        distance = np.arange(len(x)) - np.arange(len(x))[:, None]  # j - i
        angles = distance[..., None] / 10_000.0 ** (2 * np.arange(DIM // 2) / DIM)
        position = np.concatenate([np.sin(angles), np.cos(angles)], axis=-1) @ p["linear_pos.weight"]
        position = position.reshape(len(x), len(x), HEADS, size)
        scores = np.einsum("ihd,jhd->hij", query + p["pos_bias_u"], key)
        scores = (scores + np.einsum("ihd,ijhd->hij", query + p["pos_bias_v"], position)) / np.sqrt(size)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        context = np.einsum("hij,jhd->ihd", weights / weights.sum(-1, keepdims=True), value)
        return self._linear(context.reshape(len(x), DIM), "self_att.proj")


def test_layers_equal_the_papers_equations():
    """each sequence of a batch with padding; the second layer on what the first gave"""
    lengths = [37, 14, 1]
    result = _run(lengths)
    for i, n in enumerate(result.outputs["out"].lengths[1]):
        expected = _Layer(result.params, 1)(result["0"][i, :n].astype("float64"))
        np.testing.assert_allclose(result["1"][i, :n], expected, atol=2e-5)
    np.testing.assert_array_equal(result["1"], result["out"])


@pytest.mark.parametrize("subsampling", [4, 6])
def test_lengths(subsampling: int):
    """each row's length depends on the row alone, and no frame is lost (FAULTS: lengths after subsampling)"""
    lengths = list(range(1, 51))
    result = _run(lengths, num_layers=1, subsampling=subsampling)
    assert list(result.outputs["out"].lengths[1]) == [ceil(ceil(n / 2) / (subsampling // 2)) for n in lengths]


def test_layer_drop_in_training_only():
    lengths = [20, 7]
    evaluated = [_run(lengths, layer_drop=p)["out"] for p in (0.0, 0.999)]
    np.testing.assert_array_equal(*evaluated)
    dropped, kept = (_run(lengths, train=True, layer_drop=p) for p in (0.999999, 0.0))
    np.testing.assert_array_equal(dropped["1"], dropped["0"])
    assert np.abs(kept["1"] - kept["0"]).max() > 1e-2


def test_the_gate_begins_open():
    """before training, the cgMLP is a plain MLP; the layers are initialised on their own"""
    nn.select_backend_torch()
    encoder = make_e_branchformer_encoder(8, **TINY)
    for layer in encoder.layers:
        assert np.abs(layer.cgmlp.conv.filter.raw_tensor.detach().numpy()).max() < 1e-4
        assert (layer.cgmlp.conv.bias.raw_tensor.detach().numpy() == 1.0).all()
    first, second = (layer.merge.merge_proj.weight.raw_tensor.detach().numpy() for layer in encoder.layers)
    assert np.abs(first - second).max() > 1e-2


def _linear(in_dim: int, out_dim: int) -> int:
    return in_dim * out_dim + out_dim


def _rest_of_the_paper(dim: int) -> int:
    """parameters of all but the layers in ESPnet's recipe for LibriSpeech, which the paper's numbers contain"""
    vocab, norm = 5000, 2 * dim
    front_end = _linear(9, dim) + _linear(9 * dim, dim) + _linear(19 * dim, dim)  # 80 log-mels, no padding: 19 remain
    attention = 4 * _linear(dim, dim)
    decoder_layer = 2 * attention + _linear(dim, 2048) + _linear(2048, dim) + 3 * norm
    decoder = vocab * dim + 6 * decoder_layer + norm + _linear(dim, vocab)
    ctc = _linear(dim, vocab)
    return front_end + norm + decoder + ctc


@pytest.mark.parametrize(
    "preset, layers, dim, heads, millions, ours",
    [(e_branchformer_b, 16, 256, 4, 41.12, 26.3), (e_branchformer_l, 17, 512, 8, 148.92, 109.3)],
)
def test_presets_have_the_papers_sizes(preset, layers: int, dim: int, heads: int, millions: float, ours: float):
    nn.select_backend_torch()
    with nn.set_default_device_ctx("meta"):
        encoder = preset(80)
    assert len(encoder.layers) == layers and encoder.out_dim.dimension == dim
    assert encoder.layers[0].self_att.num_heads.dimension == heads
    count = {
        name: int(np.prod([d.dimension for d in p.dims])) for name, p in encoder.named_parameters() if not p.auxiliary
    }
    assert abs(sum(count.values()) / 1e6 - ours) < 0.06
    in_layers = sum(n for name, n in count.items() if name.startswith("layers."))
    assert abs((in_layers + _rest_of_the_paper(dim)) / 1e6 - millions) < 0.012


def test_sizes():
    nn.select_backend_torch()
    out_dim = nn.FeatureDim("mine", 8)
    encoder = make_e_branchformer_encoder(
        nn.FeatureDim("in", 8), num_layers=1, out_dim=out_dim, num_heads=4, subsampling=6, conv_kernel_size=5
    )
    assert encoder.out_dim is out_dim and encoder.in_dim.dimension == 8 and encoder.downsample_factor == 6
    layer = encoder.layers[0]
    assert layer.self_att.num_heads.dimension == 4
    assert layer.ffn1.linear_ff.out_dim.dimension == layer.ffn2.linear_ff.out_dim.dimension == 16
    assert layer.cgmlp.linear_ff.out_dim.dimension == 48 and layer.cgmlp.linear_out.in_dim.dimension == 24
    for conv in (layer.cgmlp.conv, layer.merge.depthwise_conv_fusion):
        assert conv.filter_size[0].dimension == 5
    assert [conv.out_dim.dimension for conv in encoder.input_layer.conv_layers] == [32, 64]
    encoder = make_e_branchformer_encoder(8, **{**TINY, "subsampling_channels": 10})
    assert [conv.out_dim.dimension for conv in encoder.input_layer.conv_layers] == [5, 10]
    assert encoder.downsample_factor == 4


def test_dropout_acts_in_training_only():
    evaluated = [_run([20], dropout=dropout)["out"] for dropout in (0.0, 0.5)]
    np.testing.assert_array_equal(*evaluated)
    trained = [_run([20], train=True, dropout=dropout)["out"] for dropout in (0.0, 0.5)]
    assert np.abs(trained[0] - trained[1]).max() > 0.1


@pytest.mark.parametrize(
    "options, message",
    [
        ({"num_heads": 3}, "e_branchformer: out_dim 4 is not a multiple of num_heads 3"),
        ({"num_heads": 1, "out_dim": 5}, "e_branchformer: expected an even out_dim, got 5"),
        ({"subsampling": 5}, "e_branchformer: expected subsampling 4 or 6, got 5"),
        ({"subsampling_channels": 1}, "e_branchformer: expected subsampling_channels >= 2, got 1"),
        ({"conv_kernel_size": 0}, "e_branchformer: expected conv_kernel_size >= 1, got 0"),
        ({"num_layers": 0}, "e_branchformer: expected num_layers >= 1, got 0"),
        ({"dropout": 1.0}, "e_branchformer: expected 0 <= dropout < 1, got 1.0"),
        ({"layer_drop": 1.0}, "e_branchformer: expected 0 <= layer_drop < 1, got 1.0"),
    ],
)
def test_bad_arguments(options: dict, message: str):
    nn.select_backend_torch()
    with pytest.raises(ValueError, match=message):
        make_e_branchformer_encoder(8, **{**TINY, **options})
