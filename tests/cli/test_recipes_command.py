"""Tests of the command recipes."""

from __future__ import annotations

import pytest

from returnn_common.cli import main
from returnn_common.cli.recipes import find_recipe, first_doc_line, list_recipes


def test_list(capsys):
    assert main(["recipes"]) == 0
    out = capsys.readouterr().out
    assert "digits_ctc" in out and "__init__" not in out
    for path in list_recipes().values():
        assert " ".join(first_doc_line(path).split()[:3]) in out


def test_options(capsys):
    assert main(["recipes", "digits_ctc"]) == 0
    out = capsys.readouterr().out
    lines = [line for line in out.splitlines() if "num_layers" in line]
    assert len(lines) == 1 and lines[0].split()[3] == "2"
    assert "recog_split" not in out  # for the command itself


def test_copy(tmp_path, capsys):
    dest = tmp_path / "mine.py"
    assert main(["recipes", "digits_ctc", "--copy", str(dest)]) == 0
    assert dest.read_bytes() == find_recipe("digits_ctc").read_bytes()
    assert capsys.readouterr().out.strip() == str(dest)
    dest.write_text("changed")
    assert main(["recipes", "digits_ctc", "--copy", str(dest)]) == 2
    assert "is there already; choose another name" in capsys.readouterr().err
    assert dest.read_text() == "changed"


def test_copy_into_a_folder(tmp_path):
    assert main(["recipes", "digits_ctc", "--copy", str(tmp_path)]) == 0
    assert find_recipe(str(tmp_path / "digits_ctc.py")) == tmp_path / "digits_ctc.py"


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["nothing"], "unknown recipe 'nothing': there are copy_task, "),
        (["nothing.py"], "recipe nothing.py: no such file"),
        (["--copy", "x.py"], "--copy needs the name of a recipe"),
        (["digits_ctc", "--copy", "no/such/folder/x.py"], "cannot be written: No such file or directory"),
    ],
)
def test_errors(arguments, message, capsys):
    assert main(["recipes", *arguments]) == 2
    stderr = capsys.readouterr().err
    assert stderr.startswith("returnn-common recipes: ") and message in stderr and stderr.count("\n") == 1
