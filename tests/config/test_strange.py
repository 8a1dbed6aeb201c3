"""Models and data as others write them: as net dicts, without us, and as configs."""

from __future__ import annotations

import copy
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import returnn.frontend as rf
from returnn.tensor import Tensor, batch_dim
from returnn.util.basic import BehaviorVersion

from benchmarks.config import make_config
from returnn_common import nn
from returnn_common.config import diff, make_net_dict, make_staged_net_dict, read, to_python
from returnn_common.sis import stable_hash
from tests.config.strange import FORWARD, TRAIN, of_the_epoch
from tests.config.test_net_dict_zoo import plain

CONFIGS = {**TRAIN, **FORWARD}


@pytest.mark.parametrize("make", CONFIGS.values(), ids=CONFIGS)
def test_net_dict_and_config(make: Callable[[], dict[str, Any]], tmp_path: Path):
    config = make()
    net_dict = make_net_dict(config)
    code, hashed = net_dict.code, stable_hash(net_dict)
    evaluated: dict[str, Any] = {}
    exec(code, evaluated)
    if make is not TRAIN["unnamed_dims"]:  # which have names in the code
        assert plain(evaluated["network"]) == plain(net_dict.network)
        assert plain(evaluated["extern_data"]) == plain(net_dict.extern_data)
    for again in (
        make_net_dict(config),
        make_net_dict(make()),
        copy.copy(net_dict),
        copy.deepcopy(net_dict),
        pickle.loads(pickle.dumps(net_dict)),
    ):
        assert again.code == code and stable_hash(again) == hashed
    path = tmp_path / "a.config"
    path.write_text(text := to_python(config))
    assert not diff(config, read(path)) and to_python(read(path)) == text
    assert make_net_dict(path).code == code


def test_layers_of_the_epoch():
    config = of_the_epoch()
    numbers = [sum(name.startswith("layers.") for name in make_net_dict(config, epoch=i).parameters) for i in (1, 2, 7)]
    assert numbers == [2, 4, 6]
    staged = make_staged_net_dict({1: config, 2: config})
    assert len(staged.stages[2].parameters) == len(staged.stages[1].parameters) + 2
    assert staged.dims_code == make_net_dict(config, epoch=2).dims_code


def _arrays(config: dict[str, Any]) -> dict[str, np.ndarray]:
    """:return: of the batch's entries, and of lengths"""
    rng = np.random.default_rng(3)
    arrays: dict[str, np.ndarray] = {}
    for name, entry in config["extern_data"].items():
        is_tensor = isinstance(entry, Tensor)
        dims, sparse = (entry.dims, entry.sparse_dim) if is_tensor else (entry["dims"], entry.get("sparse_dim"))
        shape = [2 if d.is_batch_dim() else d.dimension or 9 for d in dims]
        values = rng.integers(0, sparse.dimension, shape) if sparse else rng.normal(size=shape)
        arrays[f"in/{name}"] = values.astype("int32" if sparse else "float32")
        lengths = [d.name or "unnamed" for d in dims if d.dimension is None and not d.is_batch_dim()]
        arrays.update({f"size/{name}": np.array([9, 6], "int32") for name in lengths})
    return arrays


def _on_pytorch(config: dict[str, Any], arrays: dict[str, np.ndarray]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """:return: output, parameters"""
    import torch

    nn.select_backend_torch()
    BehaviorVersion._reset()
    BehaviorVersion.set(config["behavior_version"])
    rf.init_forward_step_run_ctx(step=0)
    model = config["get_model"]()
    entry = config["extern_data"]["data"]
    sizes = Tensor("sizes", [batch_dim], "int32", raw_tensor=torch.tensor(arrays["size/time"]))
    entry["dims"][1].dyn_size_ext = sizes
    batch_dim.dyn_size_ext = Tensor("batch", [], "int32", raw_tensor=torch.tensor(2, dtype=torch.int32))
    data = Tensor("data", entry["dims"], "float32", raw_tensor=torch.tensor(arrays["in/data"]))
    config["forward_step"](model, {"data": data})
    (output,) = rf.get_run_ctx().outputs.data.values()
    batch_dim.dyn_size_ext = None
    BehaviorVersion._reset()
    parameters = {f"param/{name}": p.raw_tensor.detach().numpy() for name, p in model.named_parameters()}
    return output.raw_tensor.detach().numpy(), parameters


def _run_without_us(folder: Path):
    """see run_net_dicts.py"""
    script = Path(__file__).with_name("run_net_dicts.py")
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, str(script), str(folder)]
    result = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
    assert result.returncode == 0, f"{result.stdout}\n{result.stderr[-4000:]}"


def _assert_losses_fall(folder: Path, name: str):
    losses = json.loads((folder / f"{name}.loss.json").read_text())
    assert np.isfinite(losses).all() and losses[-1] < losses[0], f"{name}: {losses}"


def test_without_us(tmp_path: Path):
    """RETURNN alone makes the layers; same outputs as PyTorch's, and the loss falls"""
    expected = {}
    for name, make in CONFIGS.items():
        config = make()
        arrays = _arrays(config)
        code = make_net_dict(config).code
        if name in FORWARD:
            expected[name], parameters = _on_pytorch(config, arrays)
            arrays.update(parameters)
        (tmp_path / f"{name}.{'forward' if name in FORWARD else 'train'}.py").write_text(code)
        np.savez(tmp_path / f"{name}.data.npz", **arrays)
    _run_without_us(tmp_path)
    for name in TRAIN:
        _assert_losses_fall(tmp_path, name)
    for name, array in expected.items():
        found = dict(np.load(tmp_path / f"{name}.out.npz"))
        (key,) = (key for key in found if "/" not in key)
        np.testing.assert_array_equal(found[f"{key}/1"], [4, 3])
        np.testing.assert_allclose(found[key][0], array[0], rtol=0, atol=1e-5)
        np.testing.assert_allclose(found[key][1, :3], array[1, :3], rtol=0, atol=1e-5)


@pytest.mark.slow("RETURNN takes minutes to make the layers")
@pytest.mark.parametrize("num_layers", [12])
def test_a_large_model_without_us(num_layers: int, tmp_path: Path):
    """Conformer with an attention decoder: no recursion limit to be set, the outputs of PyTorch, and the loss falls"""
    config = make_config(num_layers)

    def forward_step(model, extern_data):
        data = extern_data["data"]
        encoded, time_dim = model.encoder(data, in_spatial_dim=data.dims[1])
        rf.get_run_ctx().mark_as_output(encoded, "encoded", dims=[batch_dim, time_dim, model.encoder.out_dim])

    forward = {**config, "forward_step": forward_step, "task": "forward"}
    rng = np.random.default_rng(1)
    arrays = {
        "in/data": rng.normal(size=(2, 40, 80)).astype("float32"),
        "in/classes": rng.integers(0, 1000, (2, 4)).astype("int32"),
        "size/time": np.array([40, 33], "int32"),
        "size/labels-time": np.array([4, 3], "int32"),
    }
    for name, made in (("train", make_net_dict(config)), ("forward", make_net_dict(forward))):
        (tmp_path / f"aed.{name}.py").write_text(made.code)
    expected, parameters = _on_pytorch(forward, arrays)
    arrays.update({name: value for name, value in parameters.items() if name.startswith("param/encoder.")})
    np.savez(tmp_path / "aed.data.npz", **arrays)
    _run_without_us(tmp_path)
    _assert_losses_fall(tmp_path, "aed")
    found = dict(np.load(tmp_path / "aed.out.npz"))
    (key,) = (key for key in found if "/" not in key)
    np.testing.assert_array_equal(found[f"{key}/1"], [10, 9])
    np.testing.assert_allclose(found[key][0], expected[0], rtol=0, atol=1e-4)
    np.testing.assert_allclose(found[key][1, :9], expected[1, :9], rtol=0, atol=1e-4)
