"""
The way models are written, as people know it from their configs: the sources below have to run as they stand.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from returnn_common import nn
from tests.engines import ENGINES, Input, run_on

BLOCK = """
from returnn_common import nn

class MyModelBlock(nn.Module):
  def __init__(self, dim: nn.Dim, *,
               hidden: nn.Dim = nn.FeatureDim("hidden", 2048),
               dropout: float = 0.1):
    super().__init__()
    self.layer_norm = nn.LayerNorm(dim)
    self.linear_hidden = nn.Linear(dim, hidden)
    self.linear_out = nn.Linear(hidden, dim)
    self.dropout = dropout

  def __call__(self, x: nn.Tensor) -> nn.Tensor:
    y = self.layer_norm(x)
    y = self.linear_hidden(y)
    y = nn.sigmoid(y)
    y = self.linear_out(y)
    y = nn.dropout(y, dropout=self.dropout, axis=nn.any_feature_dim)
    return x + y
"""

SEPARATE = """
class MyModel(nn.Module):
  def __init__(self, dim: nn.Dim):
    super().__init__()
    self.block1 = MyModelBlock(dim)
    self.block2 = MyModelBlock(dim)
    self.block3 = MyModelBlock(dim)

  def __call__(self, x: nn.Tensor) -> nn.Tensor:
    x = self.block1(x)
    x = self.block2(x)
    x = self.block3(x)
    return x
"""

SHARED = """
class MyModel(nn.Module):
  def __init__(self, dim: nn.Dim):
    super().__init__()
    self.block = MyModelBlock(dim)

  def __call__(self, x: nn.Tensor) -> nn.Tensor:
    x = self.block(x)
    x = self.block(x)
    x = self.block(x)
    return x
"""

# example -> (its sources, class, the blocks that it runs, in order)
EXAMPLES = {
    "block": (BLOCK, "MyModelBlock", [""]),
    "separate": (BLOCK + SEPARATE, "MyModel", ["block1.", "block2.", "block3."]),
    "shared": (BLOCK + SHARED, "MyModel", ["block.", "block.", "block."]),
}
DIM, HIDDEN = 6, 2048
BLOCK_PARAMS = 2 * DIM + (DIM + 1) * HIDDEN + (HIDDEN + 1) * DIM
LENGTHS = [4, 7]


def _model_class(example: str) -> type[nn.Module]:
    source, class_name, _ = EXAMPLES[example]
    namespace: dict[str, Any] = {"__name__": "example"}
    exec(compile(source, "<example>", "exec"), namespace)
    return namespace[class_name]


def _random(*shape: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def _random_params(prefixes: list[str]) -> dict[str, np.ndarray]:
    params = {}
    for seed, prefix in enumerate(sorted(set(prefixes))):
        params[prefix + "layer_norm.scale"] = 1 + 0.3 * _random(DIM, seed=seed)
        params[prefix + "layer_norm.bias"] = _random(DIM, seed=10 + seed)
        params[prefix + "linear_hidden.weight"] = _random(DIM, HIDDEN, seed=20 + seed)
        params[prefix + "linear_hidden.bias"] = _random(HIDDEN, seed=30 + seed)
        params[prefix + "linear_out.weight"] = 0.05 * _random(HIDDEN, DIM, seed=40 + seed)
        params[prefix + "linear_out.bias"] = _random(DIM, seed=50 + seed)
    return params


def _numpy_block(x: np.ndarray, params: dict[str, np.ndarray], prefix: str) -> np.ndarray:
    p = {name[len(prefix) :]: value.astype("float64") for name, value in params.items() if name.startswith(prefix)}
    y = (x - x.mean(axis=-1, keepdims=True)) / np.sqrt(x.var(axis=-1, keepdims=True) + 1e-6)
    y = y * p["layer_norm.scale"] + p["layer_norm.bias"]
    y = 1 / (1 + np.exp(-(y @ p["linear_hidden.weight"] + p["linear_hidden.bias"])))
    return x + y @ p["linear_out.weight"] + p["linear_out.bias"]


def _run(example: str, *, engine: str, dim: int = DIM, params=None, train: bool = False, **model_args):
    x = _random(len(LENGTHS), max(LENGTHS), dim, seed=60)
    return x, run_on(
        engine,
        lambda model, x, time, feat: {"y": (model(x), [nn.batch_dim, time, feat])},
        {"x": Input(x, "batch time feat")},
        {"time": LENGTHS, "feat": dim},
        make_model=lambda feat: _model_class(example)(feat, **model_args),
        params=params,
        train=train,
    )


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("example", EXAMPLES)
def test_computes_what_numpy_computes(example, engine):
    prefixes = EXAMPLES[example][2]
    params = _random_params(prefixes)
    x, result = _run(example, engine=engine, params=params)
    expected = x.astype("float64")
    for prefix in prefixes:
        expected = _numpy_block(expected, params, prefix)
    for i, length in enumerate(LENGTHS):
        np.testing.assert_allclose(result["y"][i, :length], expected[i, :length], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("example, num_blocks", [("block", 1), ("separate", 3), ("shared", 1)])
def test_number_of_parameters(example, num_blocks):
    nn.select_backend_torch()
    model = _model_class(example)(nn.FeatureDim("feat", DIM))
    assert sum(param.num_elements() for param in model.parameters()) == num_blocks * BLOCK_PARAMS


@pytest.mark.parametrize("engine", ENGINES)
def test_drops_whole_features_in_training(engine):
    x, trained = _run("block", engine=engine, dim=40, dropout=0.5, train=True)
    _, evaluated = _run("block", engine=engine, dim=40, dropout=0.5)
    added = np.concatenate([(trained["y"] - x)[i, :length] for i, length in enumerate(LENGTHS)])
    full = np.concatenate([(evaluated["y"] - x)[i, :length] for i, length in enumerate(LENGTHS)])
    dropped = np.abs(added) < 1e-6
    assert (dropped == dropped[:1]).all(), "a feature is dropped in all frames or in none"
    assert 5 < dropped[0].sum() < 35
    np.testing.assert_allclose(added, np.where(dropped, 0, full / 0.5), rtol=1e-3, atol=1e-4)
