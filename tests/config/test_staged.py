"""Several networks for one training."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from returnn.config import Config, global_config_ctx
from returnn.tensor import Dim, batch_dim

from returnn_common.config import NetDict, StagedNetDict, make_net_dict, make_staged_net_dict
from returnn_common.config import staged as staged_module
from returnn_common.training.averaging import read_scores
from tests.config.net_dicts import make_hdf_training_options, make_tiny_config
from tests.config.test_net_dict_zoo import plain


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory) -> StagedNetDict:
    """grows, and then shrinks again; with RETURNN's own datasets, of which all is written"""
    options = {**make_hdf_training_options(tmp_path_factory.mktemp("data")), "learning_rates": [0.01, 0.0, 0.0]}
    layers = {1: 1, 2: 2, 3: 1}
    return make_staged_net_dict({epoch: {**make_tiny_config(num_layers=n), **options} for epoch, n in layers.items()})


def _layers(network: dict[str, Any]) -> set[str]:
    return {name for name in network["encoder"]["subnetwork"] if name.isdigit()}


def test_network_of_each_epoch(staged: StagedNetDict):
    assert [_layers(staged.get_network(epoch)) for epoch in (1, 2, 3, 9)] == [{"0"}, {"0", "1"}, {"0"}, {"0"}]
    namespace: dict[str, Any] = {}
    exec(staged.code, namespace)
    for epoch in (1, 2, 3, 9):
        assert plain(namespace["get_network"](epoch, anything=True)) == plain(staged.get_network(epoch))
    assert plain(namespace["extern_data"]) == plain(staged.extern_data)
    assert list(staged.networks) == list(staged.stages) == [1, 2, 3]
    parts: dict[str, Any] = {}
    exec(staged.dims_code + staged.extern_data_code + staged.networks_code, parts)
    assert plain(parts["networks"]) == plain(staged.networks)
    assert repr(staged).startswith("<StagedNetDict {1: <NetDict ")


def test_shared_dims_are_declared_once(staged: StagedNetDict):
    """though each stage's config has made its own"""
    one = make_net_dict(make_tiny_config(num_layers=2))
    assert staged.dims_code == one.dims_code
    time_dims = {id(network["time_default_dyn_size_ext"]["axis"]) for network in staged.networks.values()}
    assert time_dims == {id(staged.extern_data["data"]["dims"][1])}
    wide = make_staged_net_dict({1: make_tiny_config(num_layers=0), 4: make_tiny_config(num_layers=0, labels=5)})
    assert wide.dims_code.count("encoder") == 2  # its name, twice in its line


def test_dims_prolog_for_dynamic_stages(staged: StagedNetDict):
    """asked for in the discussion: each network's file with the dims that only this one needs"""
    main: dict[str, Any] = {}
    first = staged.stages[1]
    exec(first.dims_code + first.extern_data_code, main)
    with global_config_ctx(Config(main)):
        for epoch in (1, 2, 3):
            code = staged.stage_code(epoch)
            stage: dict[str, Any] = {}
            exec(code, stage)
            assert plain(stage["network"]) == plain(staged.get_network(epoch))
            assert " = Dim(" not in code
            assert stage["network"]["time_default_dyn_size_ext"]["axis"] is main["time_dim"]
    time_dim, new_dim = Dim(None, name="time"), Dim(7, name="new")
    extern_data = {"data": {"dims": [batch_dim, time_dim]}}
    stages = [{"a": {"axis": time_dim}}, {"a": {"axis": time_dim, "dims": [new_dim, 2 * new_dim, time_dim]}}]
    code = StagedNetDict({i + 1: NetDict(stage, extern_data) for i, stage in enumerate(stages)}).stage_code(5)
    assert code.partition("network = ")[0].splitlines()[-5:-1] == [
        'time_dim = get_global_config().typed_dict["time_dim"]',
        "",
        'new_dim = Dim(7, name="new")',
        "new_times_2_dim = 2 * new_dim",
    ]


def test_pickled_and_evaluated(staged: StagedNetDict):
    loaded = pickle.loads(pickle.dumps(staged))
    assert loaded.code == staged.code
    assert loaded.get_network(2)["time_default_dyn_size_ext"]["axis"] is loaded.extern_data["data"]["dims"][1]


def test_trains_without_us(staged: StagedNetDict, tmp_path: Path):
    """``python -m returnn``; in the later stages the learning rate is 0, so that their parameters are the first's"""
    package = tmp_path / "blocked" / "returnn_common"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('not to be imported')")
    (tmp_path / "staged.config").write_text(staged.code)
    env = {**os.environ, "PYTHONPATH": str(package.parent), "DISABLE_CUDA": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, "-m", "returnn", "staged.config"]
    result = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    scores = read_scores(tmp_path / "learning_rates")
    assert len(scores) == 3 and all(np.isfinite(scores[epoch]["train_score"]) for epoch in scores)
    first, second, third = (_read_checkpoint(tmp_path / f"model.{epoch:03}") for epoch in (1, 2, 3))
    assert set(second) - set(first) == {"encoder/layers/1/weight/param", "encoder/layers/1/bias/param"}
    assert set(third) == set(first)
    for name, value in first.items():
        if name != "global_step":
            np.testing.assert_array_equal(value, second[name], err_msg=name)
            np.testing.assert_array_equal(value, third[name], err_msg=name)


def _read_checkpoint(path: Path) -> dict[str, np.ndarray]:
    import tensorflow as tf

    reader = tf.train.load_checkpoint(str(path))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def test_errors(staged: StagedNetDict):
    config = make_tiny_config(num_layers=0)
    with pytest.raises(TypeError, match="expected epochs as int, got '1'"):
        make_staged_net_dict({"1": config})
    with pytest.raises(ValueError, match=r"expected a first stage from epoch 1 on, got \[2\]"):
        make_staged_net_dict({2: config})
    with pytest.raises(ValueError, match=r"expected a first stage from epoch 1 on, got \[\]"):
        make_staged_net_dict({})
    with pytest.raises(ValueError, match="epoch: expected at least 1, got 0"):
        staged.get_network(0)
    with pytest.raises(
        ValueError,
        match="stages 1 and 5: parameter output.weight is 4 x 6 float32 in the one and 6 x 6 float32 in the other",
    ):
        make_staged_net_dict({1: config, 5: make_tiny_config(num_layers=0, out_dim=6)})
    other = make_tiny_config(num_layers=0)
    other["extern_data"]["more"] = {"dims": [batch_dim], "dtype": "float32"}
    with pytest.raises(
        ValueError, match="stages 1 and 2: expected the same extern_data, but 'more' is missing in the one and {.*} in"
    ):
        make_staged_net_dict({1: config, 2: other})


def test_parameter_in_another_layer():
    """where RETURNN would not find its old values"""
    variable = {"class": "variable", "name_scope": "/encoder/weight"}
    known = {"parameters": {"encoder.weight": ((2, 3), "float32")}}
    stages = {
        1: NetDict({"a": variable}, {}, **known),
        4: NetDict({"b": {"class": "subnetwork", "subnetwork": {"a": variable}}}, {}, **known),
    }
    with pytest.raises(
        ValueError, match="stages 1 and 4: parameter encoder.weight is the layer a in the one and b/a in"
    ):
        staged_module._check_parameters(stages)
