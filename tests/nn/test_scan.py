"""The loop over frames: values, state at the end of each sequence, gradients, what it refuses. (test_lstm: engines.)"""

from __future__ import annotations

import functools

import numpy as np
import pytest

from returnn_common import nn
from returnn_common.nn.scan import scan_over
from tests.engines import Input, run_on

LENGTHS = [4, 2, 0]
DECAY = 0.5


def _decay(x: dict[str, nn.Tensor], state: nn.State, *, decay: float):
    """a sum that forgets, and the product with another input"""
    total = state.total * decay + x["a"]
    return {"total": total, "product": total * x["b"]}, nn.State(total=total)


def _run(lengths: list[int], *, grads: bool = False, time_lengths: list[int] | np.ndarray | None = None):
    rng = np.random.default_rng(3)
    a, b = rng.normal(size=(2, len(lengths), max(lengths), 3)).astype("float32")

    def func(a, b, time, feat):
        template = nn.Tensor("y", dims=[nn.batch_dim, feat], dtype="float32")
        outputs, state = scan_over(
            time,
            functools.partial(_decay, decay=DECAY),
            xs={"a": a, "b": b},
            initial=nn.State(total=nn.zeros([nn.batch_dim, feat])),
            ys={"total": template, "product": template},
        )
        order = [nn.batch_dim, time, feat]
        loss = nn.reduce_sum(outputs["product"], axis=[time, feat])
        return {
            **{name: (y, order) for name, y in outputs.items()},
            "state": (state.total, [nn.batch_dim, feat]),
            "loss": loss,
        }

    inputs = {"a": Input(a, "batch time feat"), "b": Input(b, "batch time feat")}
    dims = {"time": lengths if time_lengths is None else time_lengths, "feat": 3}
    return a, b, run_on("torch", func, inputs, dims, grad_of="loss" if grads else None)


def test_values_and_last_states():
    a, b, result = _run(LENGTHS)
    for i, n in enumerate(LENGTHS):
        total = np.zeros(3)
        for t in range(n):
            total = DECAY * total + a[i, t]
            np.testing.assert_allclose(result["total"][i, t], total, rtol=1e-5)
            np.testing.assert_allclose(result["product"][i, t], total * b[i, t], rtol=1e-5)
        np.testing.assert_allclose(result["state"][i], total, rtol=1e-5)


def test_one_length_for_all():
    a, _, result = _run([3, 3], time_lengths=np.array(3))
    total = (DECAY ** np.arange(3)[::-1])[None, :, None] * a
    np.testing.assert_allclose(result["state"], total.sum(1), rtol=1e-5)


def test_gradients():
    a, b, result = _run(LENGTHS, grads=True)
    for i, n in enumerate(LENGTHS):
        weights = np.array([[DECAY ** (t - s) if s <= t < n else 0.0 for t in range(4)] for s in range(4)])
        np.testing.assert_allclose(result.grads["a"][i], weights @ b[i], rtol=1e-5)
        np.testing.assert_allclose(result.grads["b"][i, :n], result["total"][i, :n], rtol=1e-5)
        np.testing.assert_allclose(result.grads["b"][i, n:], 0.0)


def _run_body(body, *, y_dims: str = "batch feat"):
    def func(x, time, feat):
        dims = {"batch": nn.batch_dim, "feat": feat}
        template = nn.Tensor("y", dims=[dims[name] for name in y_dims.split()], dtype="float32")
        initial = nn.zeros([nn.batch_dim, feat])
        y, _ = scan_over(time, functools.partial(body, feat=feat), xs=x, initial=initial, ys=template)
        return {"y": y}

    x = np.ones((2, 3, 4), "float32")
    return run_on("torch", func, {"x": Input(x, "batch time feat")}, {"time": [3, 1], "feat": 4})


def test_other_dims_are_refused():
    with pytest.raises(ValueError, match="expected the state of the body with the dims .*feat.*, got"):
        _run_body(lambda x, state, feat: (x, nn.reduce_sum(x + state, axis=feat)))
    with pytest.raises(ValueError, match="expected the output of the body with the dims .*, got"):
        _run_body(lambda x, state, feat: (x, x + state), y_dims="batch")


class _Module(nn.Module):
    def body(self, x, state):
        return x, x + state


def test_methods_of_modules_are_refused():
    def func(x, time, feat):
        template = nn.Tensor("y", dims=[nn.batch_dim, feat], dtype="float32")
        zeros = nn.zeros([nn.batch_dim, feat])
        return {"y": scan_over(time, _Module().body, xs=x, initial=zeros, ys=template)[0]}

    with pytest.raises(TypeError, match="expected a function that is no method of a module, got .*_Module.body"):
        run_on("torch", func, {"x": Input(np.ones((1, 2, 3), "float32"), "batch time feat")}, {"time": [2], "feat": 3})
