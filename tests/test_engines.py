"""The harness itself: Linear and a masked reduction on all engines, against NumPy, with gradients."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
import returnn.frontend as rf
from returnn.tensor import Dim, batch_dim

from tests.engines import ENGINES, Input, run_on

RNG = numpy.random.default_rng(3)
X = RNG.standard_normal((2, 5, 4)).astype("float32")
X[1, 3:] = 1e6  # padding must not matter
LABELS = RNG.integers(0, 6, (2, 5)).astype("int32")
WEIGHT = RNG.standard_normal((4, 3)).astype("float32")
BIAS = RNG.standard_normal((3,)).astype("float32")
VALID = numpy.arange(5)[None, :] < numpy.array([5, 3])[:, None]
DIMS = {"time": [5, 3], "feat": 4}


def _make_linear(feat):
    return rf.Linear(feat, Dim(3, name="out"))


def _linear(model, x, time):
    y = model(x)
    return {
        "y": (y, [time, batch_dim, model.out_dim]),
        "mean": (rf.reduce_mean(y, axis=time), [batch_dim, model.out_dim]),
        "loss": rf.reduce_sum(y * y, axis=model.out_dim) * 0.5,
    }


@pytest.mark.parametrize("engine", ENGINES)
def test_linear_and_gradients(engine):
    res = run_on(
        engine,
        _linear,
        {"x": Input(X, "batch time feat")},
        DIMS,
        make_model=_make_linear,
        params={"weight": WEIGHT, "bias": BIAS},
        grad_of="loss",
    )
    y = numpy.where(VALID[:, :, None], X @ WEIGHT + BIAS, 0)
    numpy.testing.assert_allclose(res["y"], y.transpose(1, 0, 2), rtol=1e-4, atol=1e-5)
    numpy.testing.assert_allclose(res["mean"], y.sum(1) / numpy.array([[5], [3]]), rtol=1e-4, atol=1e-5)
    numpy.testing.assert_array_equal(res.outputs["y"].lengths[0], [5, 3])
    numpy.testing.assert_allclose(res.params["weight"], WEIGHT)
    assert set(res.grads) == {"weight", "bias", "x"}
    masked_x = numpy.where(VALID[:, :, None], X, 0)
    numpy.testing.assert_allclose(res.grads["bias"], y.sum((0, 1)), rtol=1e-4, atol=1e-4)
    numpy.testing.assert_allclose(res.grads["weight"], numpy.einsum("bti,bto->io", masked_x, y), rtol=1e-4, atol=1e-4)
    numpy.testing.assert_allclose(res.grads["x"], y @ WEIGHT.T, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("engine", ENGINES)
def test_labels_step_and_train_flag(engine):
    def func(model, labels, time):
        flag = rf.get_run_ctx().train_flag
        flag = rf.cast(rf.convert_to_tensor(flag), "int32")
        step = rf.cast(rf.get_run_ctx_step(), "int32")
        return {"emb": (model(labels), [batch_dim, time, model.out_dim]), "step": step, "train": flag}

    kwargs: dict[str, Any] = dict(
        inputs={"labels": Input(LABELS, "batch time", sparse="vocab")},
        dims={"time": [5, 3], "vocab": 6},
        make_model=lambda vocab: rf.Embedding(vocab, Dim(3, name="out")),
    )
    res = run_on(engine, func, train=True, step=17, **kwargs)
    table = res.params["weight"]
    assert table.std() > 0.1
    numpy.testing.assert_allclose(res["emb"], numpy.where(VALID[:, :, None], table[LABELS], 0), rtol=1e-5)
    assert (int(res["step"]), int(res["train"])) == (17, 1)
    res2 = run_on(engine, func, **kwargs)
    assert (int(res2["step"]), int(res2["train"])) == (0, 0)
    numpy.testing.assert_array_equal(res2.params["weight"], table)  # seeded by the name


@pytest.mark.parametrize("engine", ENGINES)
def test_parameters_are_equal_on_all_engines(engine):
    args = (_linear, {"x": Input(X, "batch time feat")}, DIMS)
    res, ref = (run_on(e, *args, make_model=_make_linear) for e in (engine, "torch"))
    for name in ("weight", "bias"):
        numpy.testing.assert_array_equal(res.params[name], ref.params[name])
    numpy.testing.assert_allclose(res["y"], ref["y"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("engine", ENGINES)
def test_new_lengths(engine):
    def func(x, time, feat):
        y, half = rf.pool1d(x, mode="avg", pool_size=2, strides=2, padding="valid", in_spatial_dim=time)
        return {"y": (y, [batch_dim, half, feat])}

    res = run_on(engine, func, {"x": Input(X, "batch time feat")}, DIMS, grad_of="y")
    pooled = (X[:, 0:4:2] + X[:, 1:4:2]) / 2
    pooled[1, 1:] = 0
    numpy.testing.assert_array_equal(res.outputs["y"].lengths[1], [2, 1])
    numpy.testing.assert_allclose(res["y"], pooled, rtol=1e-5)
    grad = numpy.full_like(X, 0.5)
    grad[0, 4:] = grad[1, 2:] = 0
    numpy.testing.assert_allclose(res.grads["x"], grad)


def test_errors():
    with pytest.raises(ValueError, match="unknown engine 'theano'"):
        run_on("theano", _linear, {})
    with pytest.raises(TypeError, match=r"wants \['time'\]"):
        run_on("torch", lambda time: {}, {})
    with pytest.raises(ValueError, match=r"no parameters \['nothing'\]"):
        run_on("torch", lambda: {}, {}, {"feat": 4}, make_model=_make_linear, params={"nothing": BIAS})
