"""Attention in chunks, against loops over frames in NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from returnn_common import nn
from returnn_common.nn.chunked_attention import ChunkedSelfAttention, ChunkView
from tests.engines import Input, run_on

HEADS, SIZE, TIME = 2, 4, 11  # SIZE per head
DIM = HEADS * SIZE
LENGTHS = [TIME, 4, 1]
X = np.random.default_rng(4).normal(size=(3, TIME, DIM)).astype("float32")


def _attend(x: np.ndarray, params: dict[str, np.ndarray], *, chunk_size: int, left_chunks: int) -> np.ndarray:
    """{time, DIM} -> {time, DIM}, one frame after the other"""
    qkv = (x @ params["qkv.weight"] + params["qkv.bias"]).reshape(len(x), HEADS, 3 * SIZE)
    query, key, value = np.split(qkv, 3, axis=-1)
    query, key = query[..., 0::2] + 1j * query[..., 1::2], key[..., 0::2] + 1j * key[..., 1::2]
    theta = 10_000.0 ** (-2.0 * np.arange(SIZE // 2) / SIZE)
    result = np.zeros((len(x), HEADS, SIZE))
    for i in range(len(x)):
        visible = [j for j in range(len(x)) if i // chunk_size - left_chunks <= j // chunk_size <= i // chunk_size]
        for head in range(HEADS):
            turned = [np.exp(1j * (i - j) * theta) * query[i, head] * key[j, head].conj() for j in visible]
            scores = np.array([t.sum().real for t in turned]) / np.sqrt(SIZE)
            weights = np.exp(scores - scores.max())
            result[i, head] = weights / weights.sum() @ value[visible, head]
    return result.reshape(len(x), DIM) @ params["proj.weight"] + params["proj.bias"]


def _make(feat, *, left: int):
    left_dim = nn.SpatialDim("left", left) if left else None
    dims = {"key_dim_total": feat, "value_dim_total": feat}
    return ChunkedSelfAttention(feat, feat, **dims, num_heads=HEADS, left_dim=left_dim, att_dropout=0.0)


@pytest.mark.parametrize("chunk_size, left_chunks", [(1, 2), (3, 1), (4, 0), (20, 1)])
def test_whole_sequence(chunk_size: int, left_chunks: int):
    def func(model, x, time, feat):
        view = ChunkView.of_sequence(time, chunk_size=chunk_size, left_chunks=left_chunks)
        out, state = model(x, view=view)
        assert state is None
        return {"y": (out, [nn.batch_dim, time, feat])}

    make = lambda feat: _make(feat, left=chunk_size * left_chunks)  # noqa: E731
    inputs, dims = {"x": Input(X, "batch time feat")}, {"time": LENGTHS, "feat": DIM}
    result = run_on("torch", func, inputs, dims, make_model=make)
    for row, source, n in zip(result["y"], X, LENGTHS, strict=True):
        expected = _attend(source[:n], result.params, chunk_size=chunk_size, left_chunks=left_chunks)
        np.testing.assert_allclose(row[:n], expected, atol=1e-5)


def test_next_frames():
    """two pieces, the second of which ends within a chunk"""
    options = {"chunk_size": 2, "left_chunks": 2}

    def func(model, a, b, time_a, time_b, feat):
        state, valid = model.initial_state(batch_dims=[nn.batch_dim]), nn.zeros([nn.batch_dim, model.left_dim])
        outputs = {}
        for name, x, time in [("a", a, time_a), ("b", b, time_b)]:
            view, valid = ChunkView.of_next_frames(time, valid, left=model.left_dim, **options)
            out, state = model(x, view=view, state=state)
            outputs[name] = (out, [nn.batch_dim, time, feat])
        outputs["valid"] = (valid, [nn.batch_dim, model.left_dim])
        return outputs

    inputs = {"a": Input(X[:, :8], "batch time_a feat"), "b": Input(X[:, 8:], "batch time_b feat")}
    dims = {"time_a": [8, 4, 1], "time_b": [3, 0, 0], "feat": DIM}
    result = run_on("torch", func, inputs, dims, make_model=lambda feat: _make(feat, left=4))
    whole = _attend(X[0], result.params, **options)
    np.testing.assert_allclose(np.concatenate([result["a"][0], result["b"][0]]), whole, atol=1e-5)
    for i, n in [(1, 4), (2, 1)]:
        np.testing.assert_allclose(result["a"][i, :n], _attend(X[i, :n], result.params, **options), atol=1e-5)
    np.testing.assert_array_equal(result["valid"], [[1, 1, 1, 1], [1, 1, 1, 1], [0, 0, 0, 1]])


def test_half_precision_has_no_nan():
    """padding sees itself, and nothing is masked by a number that a small type can't hold"""

    def func(model, x, time, feat):
        x = nn.cast(x, "bfloat16")
        for parameter in model.parameters():
            parameter.raw_tensor.data = parameter.raw_tensor.data.bfloat16()
            parameter.dtype = "bfloat16"
        out, _ = model(x, view=ChunkView.of_sequence(time, chunk_size=2, left_chunks=1))
        assert out.raw_tensor.isfinite().all()  # the padding included
        return {"y": (nn.cast(out, "float32"), [nn.batch_dim, time, feat])}

    inputs, dims = {"x": Input(X, "batch time feat")}, {"time": LENGTHS, "feat": DIM}
    result = run_on("torch", func, inputs, dims, make_model=lambda feat: _make(feat, left=2))
    assert np.abs(result["y"]).max() > 0.1
