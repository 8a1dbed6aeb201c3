"""`nn.while_loop` in a module that calls modules in it."""

from __future__ import annotations

import numpy as np
import pytest

from returnn_common import nn
from tests.engines import ENGINES, Input, run_on

X = np.random.default_rng(2).normal(size=(2, 3)).astype("float32")


class _Recurrent(nn.Module):
    """Has all that makes trouble on the net dict: a parameter used in the loop alone, a state that nobody reads."""

    def __init__(self, feat: nn.Dim):
        super().__init__()
        self.first = nn.Linear(feat, feat)
        self.steps = nn.ModuleList([nn.Linear(feat, feat), nn.Linear(feat, feat)])

    def __call__(self, source: nn.Tensor, *, num_steps: float) -> nn.Tensor:
        state = {"i": nn.constant(0.0, dims=()), "x": self.first(source), "unread": self.first(source) * 2.0}
        return nn.while_loop(lambda s: s["i"] < num_steps, self.step, state)["x"]

    def step(self, state):
        x = state["x"]
        for linear in self.steps:
            x = nn.tanh(linear(x))
        return {"i": state["i"] + 1.0, "x": x, "unread": state["unread"] + x}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("num_steps", [0, 1, 3])
def test_modules_in_the_body(num_steps: int, engine: str):
    result = run_on(
        engine,
        lambda model, x, feat: {"y": (model(x, num_steps=float(num_steps)), [nn.batch_dim, feat])},
        {"x": Input(X, "batch feat")},
        {"feat": 3},
        make_model=_Recurrent,
    )
    params = result.params
    expected = X @ params["first.weight"] + params["first.bias"]
    for _ in range(num_steps):
        for i in range(2):
            expected = np.tanh(expected @ params[f"steps.{i}.weight"] + params[f"steps.{i}.bias"])
    np.testing.assert_allclose(result["y"], expected, atol=1e-5)


@pytest.mark.parametrize("engine", ENGINES)
def test_parts_of_the_state_need_each_other(engine: str):
    """and have different dims, as a decoder's keys and the scores of a search"""

    def func(x, feat):
        slots = nn.Dim(4, name="slots")

        def body(state):
            here = nn.compare_bc(nn.range_over_dim(slots), "equal", state["i"])
            kept = nn.where(here, state["x"], state["kept"])
            return {"i": state["i"] + 1, "x": nn.reduce_max(kept, axis=slots) + 0.5, "kept": kept * 0.5}

        initial = {"i": nn.constant(0, dims=()), "x": x, "kept": nn.zeros([nn.batch_dim, slots, feat])}
        last = nn.while_loop(lambda state: state["i"] < 3, body, initial)
        return {"x": (last["x"], [nn.batch_dim, feat]), "kept": (last["kept"], [nn.batch_dim, slots, feat])}

    result = run_on(engine, func, {"x": Input(X, "batch feat")}, {"feat": 3})
    x, kept = X, np.zeros([2, 4, 3])
    for i in range(3):
        kept[:, i] = x
        x, kept = kept.max(1) + 0.5, kept * 0.5
    np.testing.assert_allclose(result["x"], x, atol=1e-5)
    np.testing.assert_allclose(result["kept"], kept, atol=1e-5)
