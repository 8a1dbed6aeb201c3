"""Causal self-attention: RETURNN's numbers; a sequence at once, step by step and continued, on every engine."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pytest
from returnn import frontend as rf

from returnn_common import nn
from returnn_common.nn.causal_attention import CausalSelfAttention
from tests.engines import ENGINES, Input, Result, run_on

DIM, STEPS = 8, 5
LENGTHS = [5, 2, 3]
X = np.random.default_rng(1).normal(size=(3, STEPS, DIM)).astype("float32")


def _make(in_dim: nn.Dim, *, rotary: bool, module=CausalSelfAttention) -> nn.Module:
    options = {"rotary": rotary} if module is CausalSelfAttention else {}
    return module(in_dim, in_dim, key_dim_total=in_dim, value_dim_total=in_dim, num_heads=2, **options)


def _run(engine: str, func, *, rotary: bool, module=CausalSelfAttention) -> Result:
    return run_on(
        engine,
        func,
        {"x": Input(X, "batch time features")},
        {"time": LENGTHS, "features": DIM},
        make_model=lambda features: _make(features, rotary=rotary, module=module),
    )


def _whole(model, x, time, features):
    out, _ = model(x, axis=time, state=model.default_initial_state(batch_dims=[nn.batch_dim]))
    return {"out": (out, [nn.batch_dim, time, features])}


def _frame(x: nn.Tensor, t: int, time: nn.Dim) -> nn.Tensor:
    return nn.gather(x, indices=nn.constant(t, dims=(), sparse_dim=time), axis=time)


@lru_cache
def whole(engine: str, rotary: bool) -> np.ndarray:
    return _run(engine, _whole, rotary=rotary)["out"]


@pytest.mark.parametrize("rotary, module", [(False, rf.CausalSelfAttention), (True, rf.RotaryPosCausalSelfAttention)])
def test_numbers_and_parameter_names_are_those_of_returnn(rotary: bool, module):
    result = _run("torch", _whole, rotary=rotary, module=module)
    ours = _run("torch", _whole, rotary=rotary)
    np.testing.assert_allclose(ours["out"], result["out"], atol=1e-5)
    assert {k: v.shape for k, v in ours.params.items()} == {k: v.shape for k, v in result.params.items()}


@pytest.mark.parametrize("rotary", [False, True])
@pytest.mark.parametrize("engine", ENGINES)
def test_step_by_step(engine: str, rotary: bool):
    """growing, and with a capacity"""

    def _steps(model, x, time, features):
        outputs = {}
        for name, options in [("growing", {}), ("capacity", {"capacity": STEPS + 1})]:
            state = model.default_initial_state(batch_dims=[nn.batch_dim], **options)
            shapes = {k: v.dims for k, v in state.items() if isinstance(v, nn.Tensor)}
            for t in range(3):
                out, state = model(_frame(x, t, time), axis=nn.single_step_dim, state=state)
                outputs[f"{name}-{t}"] = (out, [nn.batch_dim, features])
            unchanged = {k: v.dims_set == set(shapes[k]) for k, v in state.items() if isinstance(v, nn.Tensor)}
            assert unchanged["pos"] and unchanged["k_accum"] == unchanged["valid"] == (name == "capacity")
        return outputs

    result = _run(engine, _steps, rotary=rotary)
    for name, output in result.outputs.items():
        t = int(name.partition("-")[2])
        rows = [i for i, length in enumerate(LENGTHS) if t < length]
        np.testing.assert_allclose(output.array[rows], whole("torch", rotary)[rows, t], atol=1e-5, err_msg=name)


@pytest.mark.parametrize("rotary", [False, True])
@pytest.mark.parametrize("engine", ENGINES)
def test_steps_after_sequences_of_several_lengths(engine: str, rotary: bool):
    """what is in the padding doesn't count, and each sequence goes on at its own position"""

    def _continued(model, x, time, features):
        _, state = model(x, axis=time, state=model.default_initial_state(batch_dims=[nn.batch_dim]))
        outputs = {}
        for t in range(2):
            out, state = model(_frame(x, t, time), axis=nn.single_step_dim, state=state)
            outputs[f"{t}"] = (out, [nn.batch_dim, features])
        return outputs

    result = _run(engine, _continued, rotary=rotary)
    for i, length in enumerate(LENGTHS):
        row = np.concatenate([X[i, :length], X[i, :2]])[None]
        expected = run_on(
            "torch",
            _whole,
            {"x": Input(row, "batch time features")},
            {"time": [length + 2], "features": DIM},
            make_model=lambda features: _make(features, rotary=rotary),
        )["out"]
        for t in range(2):
            np.testing.assert_allclose(result[f"{t}"][i], expected[0, length + t], atol=1e-5)


@pytest.mark.parametrize("engine", ["torch", "tensorflow"])
def test_inside_a_loop_of_the_frontend(engine: str):
    """the state grows there, in a graph as well"""

    def _loop(model, x, time, features):
        def _body(s):
            out, state = model(s["out"], axis=nn.single_step_dim, state=s["state"])
            out.feature_dim = None
            return {"i": s["i"] + 1, "out": out, "state": state}

        state = model.default_initial_state(batch_dims=[nn.batch_dim])
        first, state = model(_frame(x, 0, time), axis=nn.single_step_dim, state=state)
        first.feature_dim = None
        initial = {"i": nn.zeros((), dtype="int32"), "out": first, "state": state}
        final = nn.while_loop(lambda s: s["i"] < 3, _body, initial)
        return {"out": (final["out"], [nn.batch_dim, features])}

    def _unrolled(model, x, time, features):
        out, state = _frame(x, 0, time), model.default_initial_state(batch_dims=[nn.batch_dim])
        for _ in range(4):
            out, state = model(out, axis=nn.single_step_dim, state=state)
        return {"out": (out, [nn.batch_dim, features])}

    expected = _run("torch", _unrolled, rotary=True)["out"]
    np.testing.assert_allclose(_run(engine, _loop, rotary=True)["out"], expected, atol=1e-5)


def test_dropout_of_the_attention_weights():
    def _train(att_dropout: float) -> np.ndarray:
        return run_on(
            "torch",
            _whole,
            {"x": Input(X, "batch time features")},
            {"time": LENGTHS, "features": DIM},
            make_model=lambda features: CausalSelfAttention(
                features, None, key_dim_total=features, value_dim_total=features, num_heads=2, att_dropout=att_dropout
            ),
            train=True,
        )["out"]

    assert np.abs(_train(0.0) - _train(0.5)).max() > 0.1


@pytest.mark.parametrize("first", ["sequence", "step"])
def test_a_sequence_after_other_frames(first: str):
    def _twice(model, x, time, features):
        state = model.default_initial_state(batch_dims=[nn.batch_dim])
        if first == "sequence":
            _, state = model(x, axis=time, state=state)
        else:
            _, state = model(_frame(x, 0, time), axis=nn.single_step_dim, state=state)
        return {"out": model(x, axis=time, state=state)[0]}

    with pytest.raises(ValueError, match="CausalSelfAttention: a sequence can't follow on other frames, got the state"):
        _run("torch", _twice, rotary=False)
