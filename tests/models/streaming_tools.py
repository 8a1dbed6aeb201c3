"""Feeds a model piece by piece, in an eager engine, and compares with the whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from returnn_common import nn

NBest = list[list[tuple[float, list[int]]]]


def batch_dim_of(num: int) -> nn.Dim:
    return nn.Dim(num, name="batch", kind=nn.Dim.Types.Batch)


def as_source(sequences: Sequence[np.ndarray], batch: nn.Dim, feature_dim: nn.Dim | None) -> tuple[nn.Tensor, nn.Dim]:
    """:return: with something else than zeros in the padding, and the time"""
    lengths = np.array([len(x) for x in sequences], "int32")
    time = nn.Dim(nn.convert_to_tensor(lengths, dims=[batch], device="cpu"), name="time")
    padded = np.full((len(sequences), max(lengths), *sequences[0].shape[1:]), 9.0, "float32")
    for row, x in zip(padded, sequences, strict=True):
        row[: len(x)] = x
    dims = [batch, time, *([feature_dim] if feature_dim is not None else [])]
    return nn.convert_to_tensor(padded, dims=dims), time


def search_whole(model: Any, sequences: Sequence[np.ndarray], **options: Any) -> NBest:
    batch = batch_dim_of(len(sequences))
    source, time = as_source(sequences, batch, None if model.features is not None else model.encoder.in_dim)
    hyps = model.search(source, in_spatial_dim=time, **options)
    return [hyps.nbest(i) for i in range(len(sequences))]


def search_pieces(
    model: Any, sequences: Sequence[np.ndarray], paces: Sequence[Sequence[int]], **options: Any
) -> tuple[list[NBest], NBest]:
    """
    :param paces: of each sequence, how much of it comes in each piece
    :return: after each piece; at the end
    """
    batch = batch_dim_of(len(sequences))
    feature_dim = None if model.features is not None else model.encoder.in_dim
    stream = model.stream(batch_dims=[batch], **options)
    state, partial, done = stream.initial_state(), [], [0] * len(sequences)
    for sizes in zip(*paces, strict=True):
        pieces = [x[n : n + size] for x, n, size in zip(sequences, done, sizes, strict=True)]
        done = [n + size for n, size in zip(done, sizes, strict=True)]
        source, time = as_source(pieces, batch, feature_dim)
        state = stream.step(source, in_spatial_dim=time, state=state)
        hyps = stream.hypotheses(state)
        partial.append([hyps.nbest(i) for i in range(len(sequences))])
    hyps = stream.hypotheses(stream.finish(state))
    return partial, [hyps.nbest(i) for i in range(len(sequences))]


def same_pace(lengths: Sequence[int], size: int) -> list[list[int]]:
    """:return: pieces of one size, as long as there is something"""
    num = max(-(-max(lengths) // size), 1)
    return [[min(max(n - i * size, 0), size) for i in range(num)] for n in lengths]


def assert_same(found: NBest, expected: NBest, *, atol: float = 1e-3):
    assert [[labels for _, labels in entry] for entry in found] == [[y for _, y in entry] for entry in expected]
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose([score for score, _ in a], [score for score, _ in b], atol=atol, rtol=1e-5)
