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


class _Nested(nn.Module):
    """another module around it, as in an encoder's layer"""

    def __init__(self, feat: nn.Dim, *, num_calls: int = 1, **options):
        super().__init__()
        self.norm = nn.BatchNorm(feat, **options)
        self.scale = nn.Parameter([feat])
        self.num_calls = num_calls

    def __call__(self, source: nn.Tensor) -> nn.Tensor:
        for _ in range(self.num_calls):
            source = self.norm(source * self.scale)
        return source


class _Outer(nn.Module):
    def __init__(self, feat: nn.Dim, **options):
        super().__init__()
        self.inner = nn.ModuleList([_Nested(feat, **options), _Nested(feat, **options)])

    def __call__(self, source: nn.Tensor) -> nn.Tensor:
        for inner in self.inner:
            source = inner(source)
        return source


@pytest.mark.parametrize("engine", ENGINES)
def test_running_statistics_and_momentum(engine: str):
    """inside other modules, each called once: against NumPy"""

    def func(model, x, time, feat):
        model(x)
        norms = [inner.norm for inner in model.inner]
        return {
            **{f"mean{i}": norm.running_mean * 1.0 for i, norm in enumerate(norms)},
            **{f"variance{i}": norm.running_variance * 1.0 for i, norm in enumerate(norms)},
        }

    scale = np.array([1, 2, 3, 4], "float32")
    gamma, beta = np.array([1, 0.5, 2, 1], "float32"), np.array([0, 1, 2, 3], "float32")
    result = run_on(
        engine,
        func,
        {"x": Input(_source(1e3), "batch time feat")},
        {"time": LENGTHS, "feat": 4},
        make_model=lambda feat: _Outer(feat, momentum=0.25, eps=0.5),
        params={
            **{f"inner.{i}.scale": scale for i in range(2)},
            **{f"inner.{i}.norm.gamma": gamma for i in range(2)},
            **{f"inner.{i}.norm.beta": beta for i in range(2)},
        },
        train=True,
    )
    valid = _valid()
    for i in range(2):
        valid = valid * scale
        np.testing.assert_allclose(result[f"mean{i}"], 0.25 * valid.mean(0), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(result[f"variance{i}"], 0.75 + 0.25 * valid.var(0), rtol=1e-4)
        valid = (valid - valid.mean(0)) / np.sqrt(valid.var(0) + 0.5) * gamma + beta


@pytest.mark.parametrize("engine", ENGINES)
def test_a_shared_norm_is_updated_by_each_call(engine: str):
    def func(model, x, time, feat):
        y = model(x)
        return {"y": (y, [nn.batch_dim, time, feat]), "mean": model.inner[0].norm.running_mean * 1.0}

    x = Input(_source(1e3), "batch time feat")
    dims = {"time": LENGTHS, "feat": 4}
    results = [
        run_on(e, func, {"x": x}, dims, make_model=lambda feat: _Outer(feat, num_calls=2), train=True)
        for e in ("torch", engine)
    ]
    np.testing.assert_allclose(results[1]["y"], results[0]["y"], atol=1e-4)
    np.testing.assert_allclose(results[1]["mean"], results[0]["mean"], rtol=1e-4)


def test_wrong_dim():
    with pytest.raises(ValueError, match="BatchNorm: expected the dim .*other"):
        _run("torch", train=True, make=lambda feat: nn.BatchNorm(nn.FeatureDim("other", 7)))
