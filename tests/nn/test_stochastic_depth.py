"""Stochastic depth: nothing in evaluation, the right share of layers in training, scaled where asked for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from returnn_common import nn
from tests.engines import ENGINES, Input, run_on

BATCH, TIME, FEAT = 200, 2, 3
X = np.random.default_rng(0).normal(size=(BATCH, TIME, FEAT)).astype("float32")


class _Double(nn.Module):
    """adds the source to itself"""

    def __call__(self, source: nn.Tensor, *, factor: float) -> nn.Tensor:
        return source * factor


def _factors(engine: str, *, train: bool, drop_probs: list[float], **options: Any) -> np.ndarray:
    """:return: by what each sequence was multiplied, by as many doublings as there are chances; {batch}"""

    def func(model, x, time, feat):
        y = model(x, factor=2.0)
        return {"y": (y, [nn.batch_dim, time, feat])}

    result = run_on(
        engine,
        func,
        {"x": Input(X, "batch time feat")},
        {"time": [TIME] * BATCH, "feat": FEAT},
        make_model=lambda: nn.StochasticDepth([_Double() for _ in drop_probs], drop_probs=drop_probs, **options),
        train=train,
        grad_of="y",
    )
    factors = result["y"] / X
    np.testing.assert_allclose(factors, np.broadcast_to(factors[:, :1, :1], factors.shape), rtol=1e-4)
    np.testing.assert_allclose(result.grads["x"], factors, rtol=1e-4)  # of the layers that count
    return factors[:, 0, 0]


@pytest.mark.parametrize("engine", ENGINES)
def test_share_of_the_layers(engine: str):
    np.testing.assert_allclose(_factors(engine, train=False, drop_probs=[0.3, 0.8], per_sequence=True), 4.0, rtol=1e-5)
    factors = _factors(engine, train=True, drop_probs=[0.3], per_sequence=True)
    kept = np.isclose(factors, 2.0)
    assert np.all(kept | np.isclose(factors, 1.0))
    assert abs(kept.mean() - 0.7) < 4 * np.sqrt(0.3 * 0.7 / BATCH)
    factors = _factors(engine, train=True, drop_probs=[0.3], per_sequence=True, rescale=True)
    assert np.all(np.isclose(factors, 1.0) | np.isclose(factors, 1.0 + 1.0 / 0.7))
    factors = _factors(engine, train=True, drop_probs=[0.3, 0.5, 0.0])
    assert np.ptp(factors) < 1e-4 and np.isclose(factors[0], [2.0, 4.0, 8.0]).any()  # one draw for the whole batch


def test_layers_are_drawn_on_their_own():
    factors = _factors("torch", train=True, drop_probs=[0.0, 0.5, 0.5], per_sequence=True)
    shares = [np.isclose(factors, 2.0**n).mean() for n in range(4)]
    assert shares[0] == 0
    np.testing.assert_allclose(shares[1:], [0.25, 0.5, 0.25], atol=4 * np.sqrt(0.25 / BATCH))


def test_one_draw_for_a_batch_has_the_right_chance():
    """40 layers of which each doubles: the factor tells how many were kept"""
    factors = _factors("torch", train=True, drop_probs=[0.3] * 40)
    assert np.ptp(np.log2(factors)) < 1e-4
    assert abs(np.log2(factors[0]) - 28) < 4 * np.sqrt(40 * 0.3 * 0.7)


def test_expectation_with_rescale():
    """(Pham et al. 2019) what a residual adds is the same on average as in evaluation"""
    factors = _factors("torch", train=True, drop_probs=[0.4], per_sequence=True, rescale=True)
    assert abs(factors.mean() - 2.0) < 4 * np.sqrt(0.4 / 0.6 / BATCH)


def test_names_and_collected_outputs():
    """the same as those of RETURNN's Sequential"""

    def func(model, x, time, feat):
        collected = {}
        y = model(x, collected_outputs=collected)
        return {"y": (y, [nn.batch_dim, time, feat])} | {
            name: (value, [nn.batch_dim, time, feat]) for name, value in collected.items()
        }

    def run(make_layers, train):
        return run_on(
            "torch",
            func,
            {"x": Input(X[:2], "batch time feat")},
            {"time": [TIME] * 2, "feat": FEAT},
            make_model=lambda feat: make_layers([nn.Linear(feat, feat), nn.Linear(feat, feat)]),
            train=train,
        )

    reference = run(nn.Sequential, train=False)
    result = run(lambda layers: nn.StochasticDepth(layers, drop_probs=[0.5, 0.5]), train=False)
    assert result.params.keys() == reference.params.keys() == {"0.weight", "0.bias", "1.weight", "1.bias"}
    for name in ("0", "1", "y"):
        np.testing.assert_array_equal(result[name], reference[name])
    # What a dropped layer gives to the next is what is collected.
    dropped = run(lambda layers: nn.StochasticDepth(layers, drop_probs=[0.999999, 0.999999]), train=True)
    np.testing.assert_array_equal(dropped["0"], X[:2])
    np.testing.assert_array_equal(dropped["y"], X[:2])


def test_linear_chances():
    """(Huang et al. 2016, equation 4) the last layer has the chance that is asked for"""
    np.testing.assert_allclose(nn.linear_drop_probs(3, 0.3), [0.1, 0.2, 0.3])
    assert nn.linear_drop_probs(48, 0.5)[-1] == 0.5


def test_errors():
    with pytest.raises(ValueError, match=r"expected a chance for each of 2 layers, got \[0.5\]"):
        nn.StochasticDepth([_Double(), _Double()], drop_probs=[0.5])
    with pytest.raises(ValueError, match="StochasticDepth: expected 0 <= drop_prob < 1, got 1.5"):
        nn.StochasticDepth([_Double()], drop_probs=[1.5])
    nn.select_backend_torch()
    x = nn.zeros([])
    with pytest.raises(ValueError, match="stochastic_depth: expected 0 <= drop_prob < 1, got -0.1"):
        nn.stochastic_depth(x, x, drop_prob=-0.1)
