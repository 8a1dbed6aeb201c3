"""The Conformer's self-attention, with explicit i - j indexing in NumPy: wrong shifts and signs would show."""

from __future__ import annotations

import numpy as np
import pytest
from returnn.frontend.attention import RelPosSelfAttention

from returnn_common import nn
from tests.engines import ENGINES, Input, run_on

HEADS, SIZE, TIME = 2, 6, 7  # SIZE per head
DIM = HEADS * SIZE


def _encoding(distance: int) -> np.ndarray:
    """Dai et al. 2019 (https://arxiv.org/abs/1901.02860), appendix B: sines, then cosines"""
    angles = distance / 10_000 ** (2 * np.arange(DIM // 2) / DIM)
    return np.concatenate([np.sin(angles), np.cos(angles)])


def _attend(x: np.ndarray, params: dict[str, np.ndarray]) -> np.ndarray:
    """{time, DIM} -> {time, DIM}; equation in section 3.3 of the paper, one pair of positions after the other"""
    qkv = (x @ params["qkv.weight"] + params["qkv.bias"]).reshape(len(x), HEADS, 3 * SIZE)
    query, key, value = np.split(qkv, 3, axis=-1)
    result = np.zeros((len(x), HEADS, SIZE))
    for head in range(HEADS):
        for i in range(len(x)):
            scores = np.zeros(len(x))
            for j in range(len(x)):
                position = (_encoding(j - i) @ params["linear_pos.weight"]).reshape(HEADS, SIZE)[head]
                scores[j] = (query[i, head] + params["pos_bias_u"][head]) @ key[j, head]
                scores[j] += (query[i, head] + params["pos_bias_v"][head]) @ position
            weights = np.exp((scores - scores.max()) / np.sqrt(SIZE))
            result[i, head] = weights / weights.sum() @ value[:, head]
    return result.reshape(len(x), DIM) @ params["proj.weight"] + params["proj.bias"]


@pytest.mark.parametrize("engine", ENGINES)
def test_equals_explicit_indexing(engine: str):
    lengths = [TIME, 3, 1]
    x = np.random.default_rng(4).normal(size=(3, TIME, DIM)).astype("float32")

    def func(model, x, time, feat):
        return {"y": (model(x, axis=time), [nn.batch_dim, time, feat])}

    def make(feat):
        return RelPosSelfAttention(
            feat, feat, key_dim_total=feat, value_dim_total=feat, num_heads=HEADS, att_dropout=0.0
        )

    result = run_on(engine, func, {"x": Input(x, "batch time feat")}, {"time": lengths, "feat": DIM}, make_model=make)
    for row, source, n in zip(result["y"], x, lengths, strict=True):
        np.testing.assert_allclose(row[:n], _attend(source[:n], result.params), atol=2e-5)
