"""From the folder of a run to its model: parameters, checkpoints of all engines, each error."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from returnn_common import nn
from returnn_common.cli.errors import CommandError
from returnn_common.cli.run_model import RunModel, choose_device, load_run_model
from returnn_common.training.convert import convert_checkpoint
from tests.cli.run_folders import SMALL, make_run_folder

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> tuple[Path, RunModel]:
    path = tmp_path_factory.mktemp("trained") / "run"
    return path, make_run_folder(path, options={**SMALL, "encoder": "transformer"})


def _parameters(model) -> dict[str, np.ndarray]:
    return {name: param.raw_tensor.detach().numpy() for name, param in model.named_parameters()}


def _assert_same(model, expected):
    ours, theirs = _parameters(model), _parameters(expected)
    assert ours.keys() == theirs.keys() and ours
    for name, value in ours.items():
        np.testing.assert_array_equal(value, theirs[name], err_msg=name)


def test_loaded(trained):
    """with the recipe's options, not its defaults; in the state of recognition"""
    path, made = trained
    run = load_run_model(path)
    assert run.checkpoint == path / "checkpoints" / "average.002"
    assert run.run is not None and run.run.name == "digits_ctc"
    assert run.recipe.options["encoder"] == "transformer" and run.recipe.dataset.vocab.get_num_classes() == 10
    assert run.config.int("behavior_version", 0) == 38 and "config" not in run.config.typed_dict
    _assert_same(run.model, made.model)
    with run.forward():
        assert nn.get_run_ctx().stage == "forward_step" and not nn.get_run_ctx().train_flag
        assert not torch.is_grad_enabled()
    assert torch.is_grad_enabled()


def test_choice_of_the_checkpoint(trained, tmp_path):
    path, made = trained
    folder = tmp_path / "run"
    shutil.copytree(path, folder)
    other = make_run_folder(tmp_path / "other", options={**SMALL, "encoder": "transformer"}, seed=2)
    average = folder / "checkpoints" / "average.002.pt"
    shutil.copy(tmp_path / "other" / "checkpoints" / "average.002.pt", average.with_name("epoch.001.pt"))
    _assert_same(load_run_model(folder).model, made.model)
    for name in ("1", str(tmp_path / "other" / "checkpoints" / "average.002.pt")):
        _assert_same(load_run_model(folder, checkpoint=name).model, other.model)
    average.unlink()
    _assert_same(load_run_model(folder).model, other.model)
    with pytest.raises(CommandError, match="--checkpoint 3: .*run/checkpoints has epochs 1$"):
        load_run_model(folder, checkpoint="3")


@pytest.mark.parametrize("backend", ["tensorflow", "tensorflow-net-dict", "jax"])
def test_trained_by_another_engine(trained, backend, tmp_path):
    pytest.importorskip("tensorflow" if backend != "jax" else "orbax")
    path, made = trained
    folder = tmp_path / "run"
    shutil.copytree(path, folder, ignore=shutil.ignore_patterns("*.pt"))
    convert_checkpoint(path / "checkpoints" / "average.002", folder / "checkpoints" / "average.002", backend=backend)
    _assert_same(load_run_model(folder).model, made.model)


def test_recipes_that_fail(trained, tmp_path):
    path, _ = trained
    folder = tmp_path / "run"
    shutil.copytree(path, folder)
    settings = json.loads((folder / "run.json").read_text())
    settings["options"]["model_dim"] = 16
    (folder / "run.json").write_text(json.dumps(settings))
    with pytest.raises(CommandError, match=r"parameters differ: .*norm.bias is \[8\] in .*002, \[16\] in the model"):
        load_run_model(folder)
    text = (folder / "config.py").read_text()
    (folder / "config.py").write_text(text.replace("def get_model", "def make_it"))
    with pytest.raises(CommandError, match="config.py: expected a function get_model"):
        load_run_model(folder)
    (folder / "config.py").write_text(text.replace("features = LogMel(40", "features = LogMel(-40"))
    with pytest.raises(CommandError, match=r"config.py: ValueError: log-mel: expected a size of at least 1"):
        load_run_model(folder)
    (folder / "checkpoints" / "average.002.pt").write_bytes(b"no checkpoint")
    (folder / "config.py").write_text(text)
    with pytest.raises(CommandError, match=r"average.002 cannot be read"):
        load_run_model(folder)


def test_without_the_engine(trained, monkeypatch, tmp_path):
    path, _ = trained
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(CommandError, match=r"needs torch, not installed: pip install 'returnn_common\[torch\]'"):
        load_run_model(path)
    with pytest.raises(CommandError, match="needs torch, not installed"):
        choose_device(None)


def test_engine_of_the_checkpoint_is_missing(trained, monkeypatch):
    path, _ = trained

    def fail(*_args):
        raise ImportError("No module named 'orbax'")

    monkeypatch.setattr("returnn_common.training.convert.load_checkpoint", fail)
    with pytest.raises(CommandError, match=r"average.002: No module named 'orbax': its engine is not installed"):
        load_run_model(path)


def test_device():
    assert choose_device("cpu") == "cpu"
    assert choose_device(None) in ("cpu", "cuda")
    with pytest.raises(CommandError, match="--device gpu: Expected one of cpu, cuda"):
        choose_device("gpu")
