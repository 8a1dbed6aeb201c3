"""Windows of what comes in pieces, against slices of the whole."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

from returnn_common import nn
from returnn_common.nn.causal_normalization import CausalNormalization
from returnn_common.nn.stream_buffer import StreamBuffer
from tests.engines import ENGINES, Input, run_on

PACES = [[3, 0, 4, 9, 1], [0, 0, 0, 0, 0], [0, 12, 0, 0, 1], [1, 1, 1, 1, 1]]


def _signature(names: list[str]) -> inspect.Signature:
    return inspect.Signature([inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY) for n in names])


def _pieces(x: np.ndarray, paces: list[list[int]]) -> tuple[dict[str, Input], dict[str, list[int]]]:
    """:return: inputs "x0", ... with the dims "time0", ...; what lies in the padding is not zero"""
    inputs, dims = {}, {}
    for i, pace in enumerate(zip(*paces, strict=True)):
        piece = np.full((len(paces), max(pace), *x.shape[2:]), np.nan, "float32")
        for row, n in enumerate(pace):
            begin = sum(paces[row][:i])
            piece[row, :n] = x[row, begin : begin + n]
        inputs[f"x{i}"] = Input(piece, f"batch time{i} feat")
        dims[f"time{i}"] = list(pace)
    return inputs, dims


def _run(engine: str, paces: list[list[int]], **options: int):
    x = np.random.default_rng(0).normal(size=(len(paces), 20, 2)).astype("float32")
    num = len(paces[0])
    inputs, dims = _pieces(x, paces)

    def func(feat, **xs):
        buffer = StreamBuffer(**options)
        state = buffer.initial_state(batch_dims=[nn.batch_dim], item_dims=[feat])
        outputs = {}
        for i in range(num):
            ready, time, state = buffer.push(xs[f"x{i}"], in_spatial_dim=xs[f"time{i}"], state=state)
            outputs[f"ready{i}"] = (ready, [nn.batch_dim, time, feat])
        rest, time = buffer.flush(state)
        outputs["rest"] = (rest, [nn.batch_dim, time, feat])
        return outputs

    func.__signature__ = _signature(["feat", *inputs, *dims])
    return x, run_on(engine, func, inputs, {**dims, "feat": 2})


def _check(engine: str, paces: list[list[int]], *, step: int, window: int):
    x, result = _run(engine, paces, step=step, window=window)
    for row, pace in enumerate(paces):
        begin = 0
        for i in range(len(pace)):
            total = sum(pace[: i + 1])
            num = max((total - begin - window) // step + 1, 0)
            ready = result.outputs[f"ready{i}"]
            assert ready.lengths[1][row] == num * step + window - step
            if num:
                end = begin + num * step + window - step
                np.testing.assert_array_equal(ready.array[row, : end - begin], x[row, begin:end])
            begin += num * step
        rest = result.outputs["rest"]
        np.testing.assert_array_equal(rest.array[row, : rest.lengths[1][row]], x[row, begin : sum(pace)])


@pytest.mark.parametrize("step, window", [(1, 1), (2, 2), (5, 5), (2, 5), (1, 4), (3, 4), (50, 60)])
def test_windows(step: int, window: int):
    _check("torch", PACES, step=step, window=window)


@pytest.mark.parametrize("engine", [engine for engine in ENGINES if engine != "torch"])
def test_engines(engine: str):
    _check(engine, [[4, 4], [1, 3], [4, 0]], step=2, window=3)


def _normalize(engine: str, x: np.ndarray, paces: list[list[int]], prior_frames: int):
    inputs, dims = _pieces(x, paces)
    num, lengths = len(paces[0]), [sum(pace) for pace in paces]
    inputs["x"] = Input(x[:, : max(lengths)], "batch time feat")

    def func(feat, x, time, **xs):
        norm = CausalNormalization(feat, prior_frames=prior_frames)
        out, _ = norm(x, spatial_dim=time)
        outputs = {"whole": (out, [nn.batch_dim, time, feat])}
        state = norm.initial_state(batch_dims=[nn.batch_dim])
        for i in range(num):
            out, state = norm(xs[f"x{i}"], spatial_dim=xs[f"time{i}"], state=state)
            outputs[f"out{i}"] = (out, [nn.batch_dim, xs[f"time{i}"], feat])
        return outputs

    func.__signature__ = _signature(["feat", "time", *inputs, *dims])
    result = run_on(engine, func, inputs, {**dims, "time": lengths, "feat": x.shape[-1]})
    for row, pace in enumerate(paces):
        pieces = np.concatenate([result[f"out{i}"][row, :n] for i, n in enumerate(pace)])
        for t in range(sum(pace)):
            seen, overall = x[row, : t + 1].astype("float64"), x[row, : t + 1].mean(dtype="float64")
            mean = (seen.sum(0) + prior_frames * overall) / (t + 1 + prior_frames)
            centred = seen - mean
            variance = np.mean(centred**2, axis=None if prior_frames else 0)
            expected = centred[-1] / np.sqrt(variance + 1e-5)
            for found in (result["whole"][row, t], pieces[t]):
                np.testing.assert_allclose(found, expected, atol=1e-3)


@pytest.mark.parametrize("prior_frames", [0, 5])
def test_causal_normalization(prior_frames: int):
    x = np.random.default_rng(0).normal(size=(4, 20, 3)).astype("float32") * [1, 3, 0.3] - [5, 8, 0]
    x[3] = -23.0  # silence
    _normalize("torch", x.astype("float32"), PACES, prior_frames)


@pytest.mark.parametrize("engine", [engine for engine in ENGINES if engine != "torch"])
def test_causal_normalization_on_engines(engine: str):
    x = np.random.default_rng(0).normal(size=(3, 8, 3)).astype("float32") - 5.0
    _normalize(engine, x, [[4, 4], [1, 3], [4, 0]], 3)


def test_causal_normalization_of_a_long_sequence():
    """sums of squares in float32 would not do"""
    nn.select_backend_torch()
    time, feat = nn.Dim(2000, name="time"), nn.Dim(2, name="feat")
    norm = CausalNormalization(feat, prior_frames=10)
    state = norm.initial_state(batch_dims=[])
    rng = np.random.default_rng(0)
    for _ in range(300):
        x = (rng.normal(size=(2000, 2)) - 20.0).astype("float32")
        out, state = norm(nn.convert_to_tensor(x, dims=[time, feat]), spatial_dim=time, state=state)
    np.testing.assert_allclose(out.raw_tensor.numpy(), x + 20.0, atol=0.02)
    np.testing.assert_allclose(state.mean.raw_tensor.numpy(), -20.0, atol=0.01)
