"""Language models that runs have trained, beside the model of a config."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from returnn.config import Config, global_config_ctx

from returnn_common import nn
from returnn_common.training.checkpoints import find_last_checkpoint, list_epochs, read_checkpoint
from returnn_common.training.language_model import TrainedLanguageModel, with_language_model, with_language_models

torch = pytest.importorskip("torch")

RECIPE = """
from types import SimpleNamespace
from returnn_common import nn
from returnn_common.config import Options

options = Options(size=1, num_epochs=3, backend="torch", corpus="none")
num_epochs = options.num_epochs
dataset = SimpleNamespace(evaluation="perplexity")

def get_model(*, epoch, step, **_):
    model = nn.Module()
    model.weight = nn.Parameter([nn.Dim(options.size, name="dim")])
    model.corpus = options.corpus
    return model
"""


@pytest.fixture(autouse=True)
def _torch_backend():
    nn.select_backend_torch()


def _make_run(folder: Path, **asked: Any) -> Path:
    """as ``returnn-common run`` leaves it"""
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "config.py").write_text(RECIPE)
    content = {"recipe": "small_lm", "backend": "torch", "corpus": "text.txt", "options": {"size": 2}, **asked}
    (folder / "run.json").write_text(json.dumps(content))
    for name, value in (("epoch.001", 1.0), ("epoch.002", 2.0)):
        path = folder / "checkpoints" / f"{name}.pt"
        torch.save({"model": {"weight": torch.full([2], value)}, "epoch": 1, "step": 1}, path)
    return folder


def _get_model(*, epoch: int, step: int, **_: Any) -> nn.Module:
    return nn.Module()


def _config(run: Path, **values: Any) -> Config:
    return Config({"task": "forward", "search_options": {"lm": str(run), "lm_scale": 0.5}, **values})


def test_submodule_and_its_checkpoint(tmp_path: Path):
    run = _make_run(tmp_path / "lm")
    other = {"filename": "x", "prefix": "x."}
    config = _config(run, preload_from_files={"x": other})
    with global_config_ctx(config):
        model = with_language_models(_get_model)(epoch=1, step=2)
    assert [(name, param.dims[0].dimension) for name, param in model.named_parameters()] == [("recog_lm.weight", 2)]
    assert model.recog_lm.corpus == "text.txt"
    checkpoint = str(run / "checkpoints" / "epoch.002.pt")
    expected = {"x": other, "recog_lm": {"filename": checkpoint, "prefix": "recog_lm."}}
    assert config.typed_value("preload_from_files") == expected


@pytest.mark.parametrize(
    "values",
    [
        {"task": "train"},
        {"search_options": {}},
        {"search_options": {"lm": __file__, "lm_scale": 1.0}},  # a file has no parameters
        {"search_options": {"lm": "LM", "lm_scale": 0.0}},
    ],
)
def test_where_there_is_nothing_to_add(values: dict[str, Any], tmp_path: Path):
    config = _config(_make_run(tmp_path / "lm"), **values)
    with global_config_ctx(config):
        model = with_language_models(_get_model)(epoch=1, step=0)
    assert not hasattr(model, "recog_lm") and not config.typed_value("preload_from_files")


def test_only_scored(tmp_path: Path):
    """a scale is not needed for that"""
    run = _make_run(tmp_path / "lm")
    config = _config(run, search_options={"lm": str(run)}, recog_components_file="x")
    with global_config_ctx(config):
        assert hasattr(with_language_models(_get_model)(epoch=1, step=0), "recog_lm")


def test_twice():
    once = with_language_models(_get_model)
    assert with_language_models(once) is once
    assert (once.__name__, once.__wrapped__) == ("_get_model", _get_model)


def test_a_model_that_has_one_already(tmp_path: Path):
    get_model = with_language_model(_get_model, lambda model, **_: "a language model")
    with global_config_ctx(_config(_make_run(tmp_path / "lm"))):
        with pytest.raises(ValueError, match="with_language_models: Module has an attribute recog_lm already"):
            with_language_models(get_model)(epoch=1, step=0)


def test_config_with_it_can_be_pickled(tmp_path: Path):
    """as RETURNN does it for the processes that load data"""
    (tmp_path / "config.py").write_text(
        "#!rnn.py\nfrom returnn_common.training.language_model import with_language_model, with_language_models\n"
        "size = 3\n@with_language_models\ndef get_model(**_):\n    return size\n"
        "def make_lm(model, **_):\n    return size\n"
        "other = with_language_model(get_model, make_lm)\n"
    )
    config = Config()
    with global_config_ctx(config):
        config.load_file(str(tmp_path / "config.py"))
        read = pickle.loads(pickle.dumps(config))
        assert read.typed_value("get_model")(epoch=1, step=0) == 3
    assert read.typed_value("other").make_lm("model") == 3


def test_checkpoint_of_another_engine(tmp_path: Path):
    """is converted for this process"""
    lm = TrainedLanguageModel(str(_make_run(tmp_path / "lm", backend="tensorflow")))
    model = lm.make_model("torch", labels=None)
    path = lm.find_checkpoint("torch", model=model)
    assert not path.startswith(str(tmp_path)) and Path(f"{path}.pt").is_file()
    np.testing.assert_array_equal(read_checkpoint(path).floats["weight"], [2.0, 2.0])
    assert lm.find_checkpoint("tensorflow", model=model) == str(tmp_path / "lm" / "checkpoints" / "epoch.002")


def test_last_checkpoint(tmp_path: Path):
    folder = _make_run(tmp_path / "lm") / "checkpoints"
    (folder / "epoch.003.opt.pt").touch()  # the optimizer's
    assert list_epochs(folder) == [1, 2] and list_epochs(tmp_path / "none") == []
    assert find_last_checkpoint(folder, num_epochs=3) == str(folder / "epoch.002")
    (folder / "average.003.pt").write_bytes((folder / "epoch.001.pt").read_bytes())
    assert find_last_checkpoint(folder, num_epochs=4) == str(folder / "epoch.002")
    assert TrainedLanguageModel(str(tmp_path / "lm")).last_checkpoint() == str(folder / "average.003")
    for path in folder.iterdir():
        path.unlink()
    with pytest.raises(FileNotFoundError, match=f"no checkpoint in {folder}"):
        find_last_checkpoint(folder, num_epochs=3)
    with pytest.raises(ValueError, match=r"lm .*lm: there is no checkpoint, its training has not finished an epoch"):
        TrainedLanguageModel(str(tmp_path / "lm")).last_checkpoint()


@pytest.mark.parametrize(
    "change, message",
    [
        (
            lambda run: (run / "run.json").unlink(),
            "lm RUN: expected a folder that 'returnn-common run' has written, or",
        ),
        (lambda run: (run / "run.json").write_text("{}"), "RUN/run.json is damaged: expected recipe, backend, corpus"),
        (lambda run: (run / "config.py").write_text("x = 1"), "lm RUN: expected a function get_model"),
    ],
)
def test_folders_that_are_none(change: Any, message: str, tmp_path: Path):
    run = _make_run(tmp_path / "lm")
    change(run)
    with pytest.raises(ValueError, match=message.replace("RUN", str(run))):
        TrainedLanguageModel(str(run)).make_model("torch", labels=None)
