"""Tests of ``returnn-common checkpoint``: what it prints and writes, exit statuses."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

from returnn_common.cli import main
from returnn_common.cli.recipes import find_recipe
from returnn_common.training.convert import read_parameters

torch = pytest.importorskip("torch")

SHAPES = {"encoder.layers.0.weight": (3, 400), "encoder.bias": (7,), "output.weight": (2, 2), "scale": ()}


def _write(path: Path, *, value: float = 1.0, step: int = 12, **changes: tuple[int, ...]) -> str:
    params = {name: torch.full(shape, value) for name, shape in {**SHAPES, **changes}.items()}
    params["encoder.bias"] = params["encoder.bias"].to(torch.bfloat16)
    torch.save({"model": params, "epoch": 3, "step": step}, f"{path}.pt")
    return str(path)


def test_show(tmp_path, capsys):
    assert main(["checkpoint", "show", _write(tmp_path / "m")]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "backend\ttorch",
        "epoch\t3",
        "step\t12",
        "encoder.bias\t7\tbfloat16\t7",
        "encoder.layers.0.weight\t3x400\tfloat32\t1,200",
        "output.weight\t2x2\tfloat32\t4",
        "scale\tscalar\tfloat32\t1",
        "encoder\t1,207",
        "output\t4",
        "scale\t1",
        "total\t1,212",
    ]


def test_show_json(tmp_path, capsys):
    assert main(["checkpoint", "show", "--json", _write(tmp_path / "m")]) == 0
    content = json.loads(capsys.readouterr().out)
    dtypes = {name: "bfloat16" if name == "encoder.bias" else "float32" for name in SHAPES}
    assert content == {
        "backend": "torch",
        "epoch": 3,
        "step": 12,
        "parameters": {name: {"shape": list(shape), "dtype": dtypes[name]} for name, shape in SHAPES.items()},
        "modules": {"encoder": 1207, "output": 4, "scale": 1},
        "total": 1212,
    }


def test_show_on_a_terminal(tmp_path, capsys, monkeypatch):
    # By these, rich takes anything for a terminal, without colours.
    for name, value in {"FORCE_COLOR": "1", "NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "100"}.items():
        monkeypatch.setenv(name, value)
    assert main(["checkpoint", "show", _write(tmp_path / "m")]) == 0
    rows = [line.replace("│", " ").split() for line in capsys.readouterr().out.splitlines()]
    assert rows[0] == ["backend", "torch,", "epoch", "3,", "step", "12"]
    assert ["encoder.layers.0.weight", "3x400", "float32", "1,200"] in rows
    assert ["total", "1,212"] in rows
    torch.save({"model": {"w": torch.zeros(2)}}, tmp_path / "unknown.pt")
    assert main(["checkpoint", "show", str(tmp_path / "unknown")]) == 0
    assert capsys.readouterr().out.startswith("backend torch, epoch unknown, step 0")


def test_average(tmp_path, capsys):
    paths = [_write(tmp_path / f"m.{i}", value=i, step=i) for i in (1, 4)]
    assert main(["checkpoint", "average", *paths, "--out", str(tmp_path / "average.pt")]) == 0
    assert capsys.readouterr().out == f"{tmp_path}/average\n"
    parameters = read_parameters(tmp_path / "average")
    assert parameters.step == 4 and (parameters.values["encoder.bias"] == 2.5).all()


@pytest.mark.parametrize("backend", ["tensorflow-net-dict", "jax"])
def test_convert(backend, tmp_path, capfd):
    if importlib.util.find_spec("tensorflow" if backend != "jax" else "orbax") is None:  # its import prints
        pytest.skip("not installed")
    out = tmp_path / "sub" / "m.003"
    assert main(["checkpoint", "convert", _write(tmp_path / "m") + ".pt", "--to", backend, str(out)]) == 0
    captured = capfd.readouterr()
    assert captured.out == f"{out}\n" and captured.err == ""
    parameters = read_parameters(out)
    assert (parameters.backend, parameters.epoch, parameters.step) == (backend, 3, 12)
    assert {name: value.shape for name, value in parameters.values.items()} == SHAPES


def test_existing_files_are_kept(tmp_path, capsys):
    path, other = _write(tmp_path / "m"), _write(tmp_path / "other", value=2.0)
    for arguments in (["convert", path, "--to", "torch", other], ["average", path, "--out", other + ".pt"]):
        assert main(["checkpoint", *arguments]) == 2
        assert f"{other}.pt is there already; choose another name, or --force\n" in capsys.readouterr().err
        assert (read_parameters(other).values["scale"]) == 2.0
    for arguments in (["convert", path, "--to", "torch", other], ["average", path, "--out", other]):
        _write(tmp_path / "other", value=2.0)
        assert main(["checkpoint", *arguments, "--force"]) == 0
        assert (read_parameters(other).values["scale"]) == 1.0


def test_recipe(tmp_path, capsys):
    """The checkpoint of a model is accepted for its recipe, with its options only."""
    recipe = tmp_path / "tied.py"
    recipe.write_text(RECIPE)
    params = {"first.weight": torch.zeros(4, 3), "first.bias": torch.zeros(3)}
    torch.save({"model": params, "epoch": 1, "step": 2}, tmp_path / "m.pt")
    arguments = ["checkpoint", "convert", str(tmp_path / "m"), "--to", "torch", str(tmp_path / "out")]
    assert main([*arguments, "--recipe", str(recipe)]) == 2
    message = f"parameters differ: first.weight is [4, 3] in {tmp_path}/m, [2, 3] in the model\n"
    assert message in capsys.readouterr().err
    assert main([*arguments, "--recipe", str(recipe), "--set", "dim=4"]) == 0
    assert set(read_parameters(tmp_path / "out").values) == {"first.weight", "first.bias", "second.weight"}
    arguments += ["--force", "--recipe", str(recipe), "--set"]
    assert main([*arguments, "din=4"]) == 2
    assert "unknown option 'din'" in capsys.readouterr().err
    assert main([*arguments, "dim=0"]) == 2
    assert f"recipe {recipe}: ValueError: a dim of 0\n" in capsys.readouterr().err
    recipe.write_text(RECIPE.replace("def get_model", "def make_model"))
    assert main([*arguments, "dim=4"]) == 2
    assert f"recipe {recipe}: expected a function get_model\n" in capsys.readouterr().err


RECIPE = """
from returnn_common import nn
from returnn_common.config import Options
from returnn_common.datasets import Librispeech, WordVocab

options = Options(dim=2, corpus="data", backend="torch")
dataset = Librispeech(path=options.corpus, vocab=WordVocab(["A"]), train_splits=["train"])
num_epochs = 1
behavior_version = 24


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        if not options.dim:
            raise ValueError("a dim of 0")
        in_dim = nn.Dim(options.dim, name="in")
        self.first = nn.Linear(in_dim, nn.Dim(3, name="out"))
        self.second = nn.Linear(in_dim, self.first.out_dim, with_bias=False)
        self.second.weight = self.first.weight


def get_model(*, epoch, step, **_):
    return Model()
"""


def test_another_checkpoint_is_refused_for_a_recipe_of_ours(tmp_path, capsys):
    arguments = ["checkpoint", "convert", _write(tmp_path / "m"), "--to", "torch", str(tmp_path / "out")]
    assert main([*arguments, "--recipe", "digits_ctc", "--set", "num_layers=1"]) == 2
    error = capsys.readouterr().err
    assert f"encoder.bias only in {tmp_path}/m; " in error and "only in the model; and" in error
    assert find_recipe("digits_ctc").is_file() and not (tmp_path / "out.pt").exists()


def test_errors(tmp_path, capsys, monkeypatch):
    path = _write(tmp_path / "m")
    out = ["--to", "jax", str(tmp_path / "out")]
    (tmp_path / "half.pt").write_bytes(Path(path + ".pt").read_bytes()[:300])
    _write(tmp_path / "other", scale=(3,))
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *args: None if name == "orbax" else find_spec(name))
    for arguments, message in [
        (["show", "nothing"], "no checkpoint nothing: looked for nothing.pt, nothing.index, nothing.orbax"),
        (["show", str(tmp_path / "half.pt")], f"checkpoint {tmp_path}/half.pt cannot be read: "),
        (["average", path, path, "--out", "x"], f"average_checkpoints: given twice: {path}"),
        (["average", path, str(tmp_path / "other"), "--out", "x"], "parameters differ: scale is torch.float32 [] in"),
        (["average", path, "nothing", "--out", "x"], "no checkpoint nothing"),
        (["convert", path, "--set", "a=1", *out], "--set needs --recipe"),
        (["convert", path, *out], "--to jax needs orbax, not installed: pip install 'returnn_common[jax]'"),
        (["convert", path, "--to", "torch", path, "--force"], "m would replace the checkpoint that is to be converted"),
        (["convert", path, "--to", "torch", "x", "--recipe", "nothing"], "unknown recipe 'nothing'"),
    ]:
        assert main(["checkpoint", *arguments]) == 2, arguments
        captured = capsys.readouterr()
        assert captured.out == "" and captured.err.count("\n") == 1
        assert captured.err.startswith("returnn-common checkpoint: ") and message in captured.err
    with pytest.raises(SystemExit) as error:
        main(["checkpoint", "convert", path, "--to", "keras", "x"])
    assert error.value.code == 2 and "argument --to: invalid choice: 'keras'" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["checkpoint"])
    assert "the following arguments are required: ACTION" in capsys.readouterr().err


def test_package_for_reading_is_missing(tmp_path, capsys, monkeypatch):
    (tmp_path / "m.index").touch()
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    assert main(["checkpoint", "show", str(tmp_path / "m")]) == 2
    assert "import of tensorflow halted" in (error := capsys.readouterr().err) and "engine is not installed" in error
