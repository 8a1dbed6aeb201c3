"""
Every model of the zoo as a net dict: its source runs where returnn_common can't be imported, with the same outputs,
and trains.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from returnn_common.config import make_net_dict
from tests.config.net_dicts import has_parameters, make_zoo_config
from tests.zoo import ZOO, Entry
from tests.zoo_runs import evaluate, get_entry, parameter_shapes

# Built by RETURNN and trained: seconds each. Loops, constants, encoder and decoder are in these.
CHEAP = [
    "LogMel-prior",
    "make_joiner-gated",
    "make_lstm_lm",
    "make_lstm_attention_decoder",
    "make_transformer_lm-rotary",
]
SLOW = pytest.mark.slow("RETURNN takes up to half a minute to build the layers of a model")


@pytest.mark.parametrize(
    "entry",
    [
        pytest.param(
            entry, id=entry.name, marks=[pytest.mark.slow(f"the modules are those of {entry.like}")] * bool(entry.like)
        )
        for entry in ZOO
    ],
)
def test_source_is_that_of_the_model(entry: Entry):
    """it can be evaluated, is formatted, names each parameter, and is the same whenever and from whatever it's made"""
    config = make_zoo_config(entry, train=True)
    net_dict = make_net_dict(config)
    code = net_dict.code
    evaluated: dict = {}
    exec(code, evaluated)
    assert plain(evaluated["network"]) == plain(net_dict.network)
    assert plain(evaluated["extern_data"]) == plain(net_dict.extern_data)
    assert "returnn_common" not in code
    assert pickle.loads(pickle.dumps(net_dict)).code == code
    assert make_net_dict(make_zoo_config(entry, train=True)).code == code
    if entry.full is None:
        shapes = {
            n: f"{'x'.join(map(str, shape)) or 'scalar'} {dtype}" for n, (shape, dtype) in net_dict.parameters.items()
        }
        assert shapes == parameter_shapes(entry)


def plain(value):
    """:return: the same with what can be compared for dims and arrays"""
    if isinstance(value, dict):
        return {plain(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map(plain, value))
    if isinstance(value, set):
        return sorted(map(repr, map(plain, value)))
    if isinstance(value, np.ndarray):
        return value.dtype, value.shape, value.tobytes()
    if callable(value):
        return value.__name__
    if hasattr(value, "tag"):
        return type(value).__name__, plain(value.tag)
    if hasattr(value, "derived_from_op"):
        operation = value.derived_from_op
        if operation:  # its kind is that of whoever derived it first: RETURNN keeps one dim for each derivation
            return (operation.kind, *map(plain, operation.inputs)), value.dimension, value.match_priority
        return value.name, value.dimension, value.kind and value.kind.name, value.match_priority
    return value


_OTHERS = [e.name for e in ZOO if e.name not in CHEAP]


@pytest.mark.parametrize(
    "names",
    [
        CHEAP,
        *(pytest.param(_OTHERS[i : i + 7], marks=SLOW) for i in range(0, len(_OTHERS), 7)),
    ],
    ids=lambda names: f"from-{names[0]}",
)
def test_source_runs_without_us(names: list[str], tmp_path: Path):
    """same outputs as PyTorch's with the same parameters; the loss falls"""
    run_without_us(names, tmp_path)
    for name in names:
        entry = get_entry(name)
        expected = evaluate(name, "torch", entry.kind.lengths)
        found = dict(np.load(tmp_path / f"{name}.out.npz"))
        for output, reference in expected.outputs.items():
            layer = next(n for n in (f"result_{output}_output", f"result_{output}_0", f"result_{output}") if n in found)
            _assert_same(found[layer], reference, found, layer, tolerance=entry.tolerance)
        if has_parameters(entry):
            losses = json.loads((tmp_path / f"{name}.loss.json").read_text())
            assert np.isfinite(losses).all() and losses[-1] < losses[0], f"{name}: {losses}"


def run_without_us(names: Iterable[str], folder: Path):
    """in one process for all of them, see run_net_dicts.py"""
    for name in names:
        entry = get_entry(name)
        inputs, sizes = entry.kind.make_inputs(entry.kind.lengths, 0.0)
        arrays = {f"in/{n}": x.array for n, x in inputs.items()}
        arrays.update({f"size/{n}": np.array(s, "int32") for n, s in sizes.items() if not isinstance(s, int)})
        params = evaluate(name, "torch", entry.kind.lengths).params
        np.savez(folder / f"{name}.data.npz", **arrays, **{f"param/{n}": value for n, value in params.items()})
        (folder / f"{name}.forward.py").write_text(make_net_dict(make_zoo_config(entry, train=False)).code)
        if has_parameters(entry):
            (folder / f"{name}.train.py").write_text(make_net_dict(make_zoo_config(entry, train=True)).code)
    script = Path(__file__).with_name("run_net_dicts.py")
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, str(script), str(folder)]
    result = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
    assert result.returncode == 0, f"{result.stdout}\n{result.stderr[-4000:]}"


def _assert_same(array, reference, found, layer: str, *, tolerance: float):
    expected = reference.array
    array = array[tuple(slice(0, n) for n in expected.shape)]
    for axis, lengths in reference.lengths.items():
        np.testing.assert_array_equal(found[f"{layer}/{axis}"], lengths)
        if np.ndim(lengths):
            frames = np.arange(expected.shape[axis])[None, :] < np.asarray(lengths)[:, None]
            shape = [n if i in (0, axis) else 1 for i, n in enumerate(expected.shape)]
            array = np.where(frames.reshape(shape), array, 0)
    scale = max(1.0, np.abs(expected).max(initial=0.0))
    np.testing.assert_allclose(array / scale, expected / scale, rtol=0, atol=tolerance, err_msg=layer)
