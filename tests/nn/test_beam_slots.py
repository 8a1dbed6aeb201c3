"""Causal self-attention in a beam search, whose hypotheses share slots: as if each had its own history."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from returnn_common import nn
from returnn_common.nn.causal_attention import CausalSelfAttention
from tests.engines import Input, run_on

DIM, BEAM, STEPS = 4, 3, 40
RNG = np.random.default_rng(1)


def _steps(batch: tuple[int, ...], *, rotary: bool = False, options: dict[str, Any] | None = None, **kwargs) -> Any:
    """
    :param batch: shape of the utterances
    :param options: of default_initial_state, besides the batch dims; None: beam_dim
    :return: the outputs {steps, *batch, beam, dim}, and the number of slots after each step
    """
    rng = np.random.default_rng(1)
    x = rng.normal(size=(STEPS, *batch, BEAM, DIM)).astype("float32")
    sources = rng.integers(0, BEAM, size=(STEPS, *batch, BEAM)).astype("int32")
    collected, slots = [], []

    def _func(model):
        beam, features = nn.Dim(BEAM, name="beam"), model.in_dim
        dims = [*(nn.Dim(size, name=f"batch{i}") for i, size in enumerate(batch)), beam]
        given = {"beam_dim": beam} if options is None else options
        state = model.default_initial_state(batch_dims=dims, **given)
        for t in range(STEPS):
            source = nn.convert_to_tensor(x[t], dims=[*dims, features])
            out, state = model(source, axis=nn.single_step_dim, state=state)
            collected.append(out.copy_compatible_to_dims_raw([*dims, features]).detach().numpy())
            slots.append((state.slots if "slots" in state else state.accum_axis).dimension)
            selected = nn.convert_to_tensor(sources[t], dims=dims, sparse_dim=beam)
            state = nn.nested.gather_nested(state, indices=selected)
        assert int(state.pos.raw_tensor) == STEPS
        return {}

    run_on("torch", _func, {}, {"features": DIM}, make_model=lambda features: _make(features, rotary=rotary), **kwargs)
    return np.stack(collected), slots


def _make(features: nn.Dim, *, rotary: bool = False) -> CausalSelfAttention:
    return CausalSelfAttention(
        features, features, key_dim_total=features, value_dim_total=features, num_heads=2, rotary=rotary
    )


@pytest.mark.parametrize("rotary", [False, True])
@pytest.mark.parametrize("batch", [(), (2,), (2, 3)], ids=str)
def test_as_if_each_hypothesis_had_its_own(batch: tuple[int, ...], rotary: bool):
    expected, own_slots = _steps(batch, rotary=rotary, options={})
    found, slots = _steps(batch, rotary=rotary)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert own_slots == [2 + t for t in range(STEPS)]
    # Two thirds of what was added is not needed any more: the hypotheses have most in common.
    assert slots[15] == 2 + 16 * BEAM and slots[16] < slots[15] and slots[-1] < STEPS * BEAM / 1.5


def test_dropout_of_the_attention_weights():
    (found, _), (expected, _) = _steps((2,), train=True), _steps((2,))
    assert np.abs(found - expected).max() > 0.05


def test_a_capacity_has_precedence():
    def _func(model):
        beam = nn.Dim(BEAM, name="beam")
        state = model.default_initial_state(batch_dims=[beam], beam_dim=beam, capacity=7)
        assert "slots" not in state and state.valid.dims[0].dimension == 7
        return {}

    run_on("torch", _func, {}, {"features": DIM}, make_model=_make)


def test_another_beam():
    def _func(model):
        other = nn.Dim(BEAM, name="other")
        with pytest.raises(ValueError, match=r"expected beam_dim among batch_dims \[\], got .*other"):
            model.default_initial_state(batch_dims=[], beam_dim=other)
        return {}

    run_on("torch", _func, {}, {"features": DIM}, make_model=_make)


def test_a_sequence_comes_first_or_not_at_all():
    def _func(model, x, time, features):
        dims = [nn.batch_dim]
        state = model.default_initial_state(batch_dims=dims, beam_dim=nn.batch_dim)
        out, after = model(x, axis=time, state=state)
        expected, _ = model(x, axis=time, state=model.default_initial_state(batch_dims=dims))
        frame = nn.gather(x, indices=0, axis=time)
        model(frame, axis=nn.single_step_dim, state=after)
        return {"out": (out, [*dims, time, features]), "expected": (expected, [*dims, time, features])}

    def _wrong(model, x, time, features):
        beam = nn.Dim(3, name="beam")
        x, _ = nn.replace_dim(x, in_dim=nn.batch_dim, out_dim=beam)
        state = model.default_initial_state(batch_dims=[beam], beam_dim=beam)
        _, state = model(nn.gather(x, indices=0, axis=time), axis=nn.single_step_dim, state=state)
        return {"out": model(x, axis=time, state=state)[0]}

    x = Input(RNG.normal(size=(3, 5, DIM)).astype("float32"), "batch time features")
    result = run_on("torch", _func, {"x": x}, {"time": [5, 2, 3], "features": DIM}, make_model=_make)
    np.testing.assert_allclose(result["out"], result["expected"], atol=1e-5)
    with pytest.raises(ValueError, match="CausalSelfAttention: a sequence can't follow on other frames, got the state"):
        run_on("torch", _wrong, {"x": x}, {"time": 5, "features": DIM}, make_model=_make)
