"""Rotary positions, against complex numbers in NumPy and against RETURNN's module."""

from __future__ import annotations

import numpy as np
import pytest

from returnn_common import nn
from returnn_common.nn.rotary import RotarySelfAttention, rotate
from tests.engines import ENGINES, Input, run_on

HEADS, SIZE, TIME = 3, 4, 7  # SIZE per head
DIM = HEADS * SIZE
X = np.random.default_rng(4).normal(size=(3, TIME, DIM)).astype("float32")
LENGTHS = [TIME, 3, 1]


def _rotated(x: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """{..., time, d} with d / 2 complex numbers, each of them turned by position * theta_i (equation 15)"""
    pairs = x[..., 0::2] + 1j * x[..., 1::2]
    theta = 10_000.0 ** (-2.0 * np.arange(pairs.shape[-1]) / x.shape[-1])
    pairs = pairs * np.exp(1j * positions[:, None] * theta)
    return np.stack([pairs.real, pairs.imag], axis=-1).reshape(x.shape)


def _attend(x: np.ndarray, params: dict[str, np.ndarray]) -> np.ndarray:
    """{time, DIM} -> {time, DIM}: equation 16, with the score as the real part of a complex product"""
    qkv = (x @ params["qkv.weight"] + params["qkv.bias"]).reshape(len(x), HEADS, 3 * SIZE).transpose(1, 0, 2)
    query, key, value = np.split(qkv, 3, axis=-1)
    distance = np.arange(len(x))[:, None] - np.arange(len(x))
    theta = 10_000.0 ** (-2.0 * np.arange(SIZE // 2) / SIZE)
    query, key = query[..., 0::2] + 1j * query[..., 1::2], key[..., 0::2] + 1j * key[..., 1::2]
    turn = np.exp(1j * distance[:, :, None] * theta)
    scores = np.einsum("him,hjm,ijm->hij", query, key.conj(), turn).real / np.sqrt(SIZE)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    context = weights / weights.sum(-1, keepdims=True) @ value
    return context.transpose(1, 0, 2).reshape(len(x), DIM) @ params["proj.weight"] + params["proj.bias"]


def _run(engine: str, attention: type):
    def func(model, x, time, feat):
        y = model(x, axis=time)
        return {"y": (y, [nn.batch_dim, time, feat]), "loss": nn.reduce_sum(y * nn.sin(y), axis=[time, feat])}

    def make(feat):
        return attention(feat, feat, key_dim_total=feat, value_dim_total=feat, num_heads=HEADS, att_dropout=0.0)

    inputs = {"x": Input(X, "batch time feat")}
    return run_on(engine, func, inputs, {"time": LENGTHS, "feat": DIM}, make_model=make, grad_of="loss")


@pytest.mark.parametrize("engine", ENGINES)
def test_equals_complex_numbers(engine: str):
    result = _run(engine, RotarySelfAttention)
    for row, source, n in zip(result["y"], X, LENGTHS, strict=True):
        np.testing.assert_allclose(row[:n], _attend(source[:n], result.params), atol=2e-5)


def test_equals_the_module_of_returnn():
    """in values and gradients, with the same parameters: checkpoints fit both"""
    ours, theirs = (_run("torch", attention) for attention in (RotarySelfAttention, nn.RotaryPosSelfAttention))
    np.testing.assert_allclose(ours["y"], theirs["y"], atol=1e-5)
    assert ours.grads.keys() == theirs.grads.keys()
    for name in ours.grads:
        np.testing.assert_allclose(ours.grads[name], theirs.grads[name], atol=5e-5, err_msg=name)


def test_rotation():
    """positions need not begin at 0; a single step has one position; far away ones stay exact"""
    x = X[0]
    for start in (0, 5, 20_000):

        def func(x, time, feat, start=start):
            positions = nn.range_over_dim(time) + start
            last = nn.gather(x, indices=nn.convert_to_tensor(TIME - 1, sparse_dim=time), axis=time)
            return {
                "all": (rotate(x, positions=positions, feature_dim=feat), [time, feat]),
                "last": rotate(last, positions=nn.convert_to_tensor(start + TIME - 1), feature_dim=feat),
            }

        result = run_on("torch", func, {"x": Input(x, "time feat")}, {"time": np.array(TIME), "feat": DIM})
        expected = _rotated(x, start + np.arange(TIME))
        # An angle of 20000 has an error of 1e-3 in single precision.
        np.testing.assert_allclose(result["all"], expected, atol=1e-5 if start < 100 else 1e-2)
        np.testing.assert_allclose(result["last"], expected[-1], atol=1e-5 if start < 100 else 1e-2)


def test_half_precision_stays_and_positions_are_not_rounded():
    """in bfloat16, 256 and 257 are the same number"""

    def func(x, time, feat):
        x = nn.cast(x, "bfloat16")
        y = rotate(x, positions=nn.range_over_dim(time) + 256, feature_dim=feat)
        assert y.dtype == "bfloat16"
        return {"y": (nn.cast(y, "float32"), [nn.batch_dim, time, feat])}

    x = np.ones((1, 2, 4), "float32")
    y = run_on("torch", func, {"x": Input(x, "batch time feat")}, {"time": [2], "feat": 4})["y"]
    np.testing.assert_allclose(y[0], _rotated(x[0], np.array([256, 257])), atol=2e-2)


def test_errors():
    nn.select_backend_torch()
    feat = nn.FeatureDim("feat", 6)
    options = {"key_dim_total": feat, "value_dim_total": feat}
    with pytest.raises(ValueError, match=r"expected an even key dim per head, got .*feat.*\(6\).* for 2 heads"):
        RotarySelfAttention(feat, feat, num_heads=2, **options)
    odd = nn.FeatureDim("odd", 3)
    with pytest.raises(ValueError, match=r"rotate: expected a feature dim of even size, got .*odd.*\(3\)"):
        rotate(nn.zeros([odd]), positions=nn.convert_to_tensor(0), feature_dim=odd)
