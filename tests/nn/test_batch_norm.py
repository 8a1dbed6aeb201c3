"""Batch normalisation over valid frames, on every engine, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import returnn.frontend as rf

from returnn_common import nn
from tests.engines import ENGINES, Input, run_on

LENGTHS = [5, 2, 1]


def _source(fill: float = 0.0) -> np.ndarray:
    x = np.random.default_rng(5).normal(loc=3.0, size=(3, 5, 4)).astype("float32")
    for row, length in zip(x, LENGTHS, strict=True):
        row[length:] = fill
    return x


def _func(model, x, time, feat):
    y = model(x)
    return {
        "y": (y, [nn.batch_dim, time, feat]),
        "loss": nn.reduce_sum(y * y * y, axis=[time, feat]),
    }


def _run(engine: str, *, train: bool, fill: float = 0.0, make=nn.BatchNorm, params=None):
    return run_on(
        engine,
        _func,
        {"x": Input(_source(fill), "batch time feat")},
        {"time": LENGTHS, "feat": 4},
        make_model=lambda feat: make(feat),
        params=params or {},
        train=train,
        grad_of="loss",
    )


def _valid() -> np.ndarray:
    return np.concatenate([row[:n] for row, n in zip(_source(), LENGTHS, strict=True)])


@pytest.mark.parametrize("engine", ENGINES)
def test_training(engine: str):
    params = {"gamma": np.array([1, 2, 3, 4], "float32"), "beta": np.array([0, 1, 0, -1], "float32")}
    result = _run(engine, train=True, fill=1e3, params=params)
    valid = _valid()
    for row, source, n in zip(result["y"], _source(), LENGTHS, strict=True):
        expected = (source[:n] - valid.mean(0)) / np.sqrt(valid.var(0) + 1e-3) * params["gamma"] + params["beta"]
        np.testing.assert_allclose(row[:n], expected, atol=1e-4)


@pytest.mark.parametrize("engine", ENGINES)
def test_evaluation(engine: str):
    statistics = {"running_mean": np.full(4, 2.0, "float32"), "running_variance": np.full(4, 9.0, "float32")}
    params = {"gamma": np.ones(4, "float32"), "beta": np.zeros(4, "float32"), **statistics}
    result = _run(engine, train=False, params=params)
    for row, source, n in zip(result["y"], _source(), LENGTHS, strict=True):
        np.testing.assert_allclose(row[:n], (source[:n] - 2.0) / np.sqrt(9.001), atol=1e-5)


def test_equals_returnns_own_with_mask():
    ours = _run("torch", train=True, fill=1e3)
    theirs = _run("torch", train=True, fill=1e3, make=lambda feat: rf.BatchNorm(feat, use_mask=True))
    assert set(ours.params) == set(theirs.params)
    np.testing.assert_allclose(ours["y"], theirs["y"], atol=1e-5)
    for name, grad in theirs.grads.items():
        np.testing.assert_allclose(ours.grads[name], grad, rtol=1e-4, atol=1e-3, err_msg=name)


def test_running_statistics_and_momentum():
    def func(model, x, time, feat):
        model(x)
        return {"mean": model.running_mean * 1.0, "variance": model.running_variance * 1.0}

    result = run_on(
        "torch",
        func,
        {"x": Input(_source(1e3), "batch time feat")},
        {"time": LENGTHS, "feat": 4},
        make_model=lambda feat: nn.BatchNorm(feat, momentum=0.25, eps=0.5),
        train=True,
    )
    np.testing.assert_allclose(result["mean"], 0.25 * _valid().mean(0), rtol=1e-5)
    np.testing.assert_allclose(result["variance"], 0.75 + 0.25 * _valid().var(0), rtol=1e-5)


def test_wrong_dim():
    with pytest.raises(ValueError, match="BatchNorm: expected the dim .*other"):
        _run("torch", train=True, make=lambda feat: nn.BatchNorm(nn.FeatureDim("other", 7)))
