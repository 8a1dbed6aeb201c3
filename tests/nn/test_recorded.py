"""The loop over frames whose operations PyTorch repeats: same results as a plain loop, and when it must not repeat."""

from __future__ import annotations

from typing import Any

import numpy
import pytest

from returnn_common import nn
from tests.engines import ENGINES, Input, run_on


def _reference(x, state):
    """two states, of which one has its dims in another order after the first frame"""
    a, b = state
    for t in range(x.shape[1]):
        total = a + numpy.abs(b).sum(axis=1, keepdims=True)
        a = numpy.where(x[:, t] > 0, total, a) * 0.5
        b = b - a * x[:, t]
    return a, b


def _body(x, state):
    total = state["a"] + nn.reduce_sum(nn.abs(state["b"]), axis=x.dims[-1])
    a = nn.where(x > 0.0, total, state["a"]) * 0.5
    return {"a": a, "b": state["b"] - a * x}


def _run(engine, func, num_frames=6):
    rng = numpy.random.default_rng(0)
    x = rng.standard_normal((2, num_frames, 3)).astype("float32")
    start = rng.standard_normal((2, 3)).astype("float32")
    inputs = {"x": Input(x, "batch time feat"), "start": Input(start, "batch feat")}
    result = run_on(engine, func, inputs, {"time": numpy.array(num_frames), "feat": 3})
    return result, _reference(x, (start, start))


@pytest.mark.parametrize("engine", ENGINES)
def test_engines(engine):
    def func(x, start, time, feat):
        initial = {"a": start + 0.0, "b": start * 1.0}
        last = nn.fold_over(time, _body, xs=x, initial=initial)
        return {name: (last[name], [nn.batch_dim, feat]) for name in "ab"}

    result, (a, b) = _run(engine, func)
    numpy.testing.assert_allclose(result["a"], a, rtol=1e-5)
    numpy.testing.assert_allclose(result["b"], b, rtol=1e-5)


@pytest.mark.parametrize("num_frames", [0, 1, 2, 3, 5, 30])
def test_repeated_after_the_first_frames(num_frames):
    calls: list[Any] = []

    def func(x, start, time, feat):
        def body(x, state):
            calls.append(x)
            return _body(x, state)

        last = nn.fold_over(time, body, xs=x, initial={"a": start, "b": start})
        return {name: (last[name], [nn.batch_dim, feat]) for name in "ab"}

    result, (a, b) = _run("torch", func, num_frames)
    numpy.testing.assert_allclose(result["a"], a, rtol=1e-5)
    numpy.testing.assert_allclose(result["b"], b, rtol=1e-5)
    assert len(calls) == (num_frames if num_frames < 4 else 1)


def _num_calls(make_body, *, num_frames=20, may_repeat=True, grad=False):
    """:return: how often the body was called"""
    calls: list[Any] = []

    def func(x, start, time, feat):
        body = make_body()
        if grad:
            start.raw_tensor.requires_grad_(True)

        def counted(x, state):
            calls.append(x)
            return body(x, state)

        last = nn.fold_over(time, counted, xs=x, initial={"a": start * 1.0, "b": start * 2.0}, may_repeat=may_repeat)
        return {name: (last[name], [nn.batch_dim, feat]) for name in "ab"}

    if grad:
        rng = numpy.random.default_rng(0)
        inputs = {
            "x": Input(rng.standard_normal((2, num_frames, 3)).astype("float32"), "batch time feat"),
            "start": Input(rng.standard_normal((2, 3)).astype("float32"), "batch feat"),
        }
        result = run_on("torch", func, inputs, {"time": numpy.array(num_frames), "feat": 3}, grad_of="a")
        assert numpy.abs(result.grads["start"]).max() > 0
    else:
        _run("torch", func, num_frames)
    return len(calls)


def test_what_is_not_repeated():
    def with_value():
        def body(x, state):
            scale = float(nn.reduce_max(state["a"], axis=state["a"].dims).raw_tensor)
            return {"a": state["a"] + scale, "b": state["b"]}

        return body

    def with_random():
        def body(x, state):
            noise = nn.random_uniform(state["a"].dims)
            return {"a": state["a"] + noise, "b": state["b"]}

        return body

    def with_shape_from_values():
        def body(x, state):
            positive = state["a"].raw_tensor[state["a"].raw_tensor > 0]
            return {"a": state["a"] + float(positive.numel()), "b": state["b"]}

        return body

    assert _num_calls(with_shape_from_values) == 20
    assert _num_calls(lambda: _body) == 1
    assert _num_calls(lambda: _body, may_repeat=False) == 20
    assert _num_calls(lambda: _body, grad=True) == 20
    assert _num_calls(with_value) == 20
    assert _num_calls(with_random) == 20


def test_initial_state_that_the_body_knows_from_outside():
    def func(x, start, time, feat):
        last = nn.fold_over(time, lambda x, s: s + start, xs=x, initial=start)
        return {"last": (last, [nn.batch_dim, feat]), "start": (start, [nn.batch_dim, feat])}

    result, _ = _run("torch", func, 9)
    numpy.testing.assert_allclose(result["last"], result["start"] * 10.0, rtol=1e-6)


def test_one_tensor_in_two_places():
    """at first the same tensor, later two that differ"""

    def body(x, state):
        return {"a": state["b"], "b": state["a"] + 1.0}

    def func(x, start, time, feat):
        last = nn.fold_over(time, body, xs=x, initial={"a": start, "b": start})
        return {"a": (last["a"], [nn.batch_dim, feat]), "start": (start, [nn.batch_dim, feat])}

    result, _ = _run("torch", func, 9)
    numpy.testing.assert_allclose(result["a"], result["start"] + 4.0, rtol=1e-6)


@pytest.mark.parametrize("may_repeat", [False, True])
def test_scan(may_repeat):
    """outputs of each frame, and the state at each sequence's own end"""
    rng = numpy.random.default_rng(3)
    x = rng.standard_normal((3, 12, 2)).astype("float32")
    lengths = [12, 5, 0]
    calls: list[Any] = []

    def func(x, time, feat):
        def body(x, state):
            calls.append(x)
            new = state * 0.5 + x
            return new - 1.0, new

        initial = nn.zeros([nn.batch_dim, feat])
        template = nn.Tensor("y", dims=[feat, nn.batch_dim], dtype="float32")
        ys, last = nn.scan_over(time, body, xs=x, initial=initial, ys=template, may_repeat=may_repeat)
        return {"ys": (ys, [nn.batch_dim, time, feat]), "last": (last, [nn.batch_dim, feat])}

    result = run_on("torch", func, {"x": Input(x, "batch time feat")}, {"time": lengths, "feat": 2})
    for i, length in enumerate(lengths):
        state = numpy.zeros(2)
        for t in range(length):
            state = state * 0.5 + x[i, t]
            numpy.testing.assert_allclose(result["ys"][i, t], state - 1.0, rtol=1e-5, atol=1e-6)
        numpy.testing.assert_allclose(result["last"][i], state, rtol=1e-5, atol=1e-6)
    assert len(calls) == (1 if may_repeat else 12)
