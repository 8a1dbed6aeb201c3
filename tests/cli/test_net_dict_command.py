"""returnn-common net-dict, and returnn-common params."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from unittest import mock

import pytest

from returnn_common.cli import main
from returnn_common.config import make_net_dict
from tests.config.net_dicts import make_tiny_config

CONFIG = """
from returnn.config import get_global_config
from tests.config.net_dicts import make_tiny_config

config = get_global_config()
made = make_tiny_config(num_layers=config.int("num_layers", 2))
model_of = made.pop("get_model")
globals().update(made)
batch_size = 1000
epochs = {"later": 3}


def get_model(*, epoch, step):
    assert config.value("backend", None) in ("torch", "tensorflow-net-dict")
    if epoch > 4:
        raise RuntimeError("too late")
    return model_of()
"""


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "tiny.config"
    path.write_text(CONFIG)
    return str(path)


def test_net_dict(config: str, tmp_path: Path, capfd):
    output = tmp_path / "net.config"
    assert main(["net-dict", config, "-o", str(output)]) == 0
    assert capfd.readouterr().out == ""
    code = output.read_text()
    tiny = make_net_dict(make_tiny_config())
    assert tiny.network_code.splitlines()[5:] == code.splitlines()[-len(tiny.network_code.splitlines()) + 5 :]
    assert main(["net-dict", config, "--epoch", "4"]) == 0
    later = capfd.readouterr().out  # other random numbers at first
    assert later != code and len(later.splitlines()) == len(code.splitlines())
    assert main(["net-dict", config, "--set", "num_layers=1", "--set", "batch_size=5"]) == 0
    smaller = capfd.readouterr().out
    assert len(smaller) < len(code) and "\nbatch_size = 5\n" in smaller and "\nnum_layers = 1\n" in smaller


def test_net_dict_errors(config: str, tmp_path: Path, capfd):
    def message(*arguments: str) -> str:
        assert main(["net-dict", *arguments]) == 2
        return capfd.readouterr().err

    assert "--epoch: expected at least 1, got 0" in message(config, "--epoch", "0")
    assert "--set num_layers: expected OPTION=VALUE" in message(config, "--set", "num_layers")
    assert "unknown recipe 'nothing'" in message("nothing")
    assert "tiny.config: RuntimeError: too late" in message(config, "--epoch", "5")
    broken = tmp_path / "broken.py"
    broken.write_text("1 / 0\n")
    assert "broken.py: ZeroDivisionError: division by zero" in message(str(broken))
    broken.write_text("task = 'train'\n")
    assert "ValueError: config: expected get_model, got only backend, task" in message(str(broken))
    broken.write_text("def get_network(epoch): return {}\n")
    assert "expected get_model, but it has layers already (get_network)" in message(str(broken))
    broken.write_text("raise SystemExit('no')\n")
    assert "broken.py: SystemExit: no" in message(str(broken))
    assert "missing.config: no such file" in message(str(tmp_path / "missing.config"))
    with mock.patch.object(importlib.util, "find_spec", lambda name: None):
        assert "needs tensorflow, not installed" in message(config)


def test_params(config: str, capfd):
    assert main(["params", config]) == 0
    lines = [" ".join(line.split()) for line in capfd.readouterr().out.splitlines()]
    output = ["output 30", "weight 4 x 6 24", "bias 6 6"]
    layer = ["20", "weight 4 x 4 16", "bias 4 4"]
    first = ["first 16", "weight 3 x 4 12", "bias 4 4"]
    assert lines == [
        "model 86",
        *output,
        "encoder 56",
        *first,
        "layers 40",
        "0 " + layer[0],
        *layer[1:],
        *["1 20", *layer[1:]],
    ]
    assert main(["params", config, "--depth", "1"]) == 0
    shallow = capfd.readouterr().out.splitlines()
    assert [" ".join(line.split()) for line in shallow] == ["model 86", *output, "encoder 56"]
    assert main(["params", config, "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert found["encoder.first.weight"] == {"shape": [3, 4], "dtype": "float32", "trainable": True}
    assert len(found) == 8


def test_params_which_are_not_trained(tmp_path: Path, capfd):
    path = tmp_path / "norm.config"
    path.write_text(
        "from returnn_common import nn\n\n\ndef get_model(**_):\n    return nn.BatchNorm(nn.FeatureDim('f', 3))\n"
    )
    assert main(["params", str(path)]) == 0
    out = capfd.readouterr().out
    assert "running_mean" in out and "not trained" in out and "not trained: 6" in out


def test_params_of_other_models(tmp_path: Path, capfd):
    """one parameter in two places, and a model of PyTorch's"""
    path = tmp_path / "tied.config"
    path.write_text(
        "import torch\nfrom returnn_common import nn\n\n\ndef get_model(**_):\n    if tied is None:\n"
        "        return torch.nn.Linear(3, 2)\n    model = nn.Module()\n    dim = nn.FeatureDim('f', 3)\n"
        "    model.a, model.b = nn.Linear(dim, dim), nn.Linear(dim, dim)\n    model.b.weight = model.a.weight\n"
        "    return model\n\ntied = True\n"
    )
    assert main(["params", str(path)]) == 0
    lines = [" ".join(line.split()) for line in capfd.readouterr().out.splitlines()]
    assert lines == ["model 15", "a 12", "weight 3 x 3 9", "bias 3 3", "b 3", "weight 3 x 3, is a.weight 0", "bias 3 3"]
    assert main(["params", str(path), "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["b.weight"]["same_as"] == "a.weight"
    path.write_text(path.read_text().replace("tied = True", "tied = None"))
    assert main(["params", str(path)]) == 0
    lines = [" ".join(line.split()) for line in capfd.readouterr().out.splitlines()]
    assert lines == ["model 8", "weight 2 x 3 6", "bias 2 2"]


def test_params_errors(config: str, tmp_path: Path, capfd):
    assert main(["params", config, "--depth", "-1"]) == 2
    assert "--depth: expected at least 0, got -1" in capfd.readouterr().err
    empty = tmp_path / "empty.py"
    empty.write_text("")
    assert main(["params", str(empty)]) == 2
    assert "expected a function get_model" in capfd.readouterr().err
    empty.write_text("def get_model(**_):\n    raise RuntimeError('no model')\n")
    assert main(["params", str(empty)]) == 2
    assert "RuntimeError: no model" in capfd.readouterr().err
    empty.write_text("def get_model(**_):\n    return None\n")
    assert main(["params", str(empty)]) == 2
    assert "expected get_model to return a module, got None" in capfd.readouterr().err
