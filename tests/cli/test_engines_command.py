"""Tests of the command engines."""

from __future__ import annotations

import json
from importlib.metadata import version

import pytest

from returnn_common.cli import main
from returnn_common.cli.engines import ENGINES, find_version
from returnn_common.cli.run.recipe import BACKENDS
from tests.zoo import ZOO


def test_tables(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["engines"]) == 0
    lines = capsys.readouterr().out.splitlines()
    row = next(line for line in lines if "tensorflow-net-dict" in line)
    assert "tensorflow" in row.split("net-dict")[1]
    for entry in ZOO:
        assert any(f".{entry.builder.__name__} " in line for line in lines), entry.name
    assert any(f"RETURNN {version('returnn')}" in line for line in lines)


def test_json(capsys):
    assert main(["engines", "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert set(content["engines"]) == set(ENGINES) == set(BACKENDS)
    assert content["returnn"] == version("returnn")
    torch = content["engines"]["torch"]
    assert torch["packages"] == {"torch": find_version(["torch"])}
    assert torch["installed"] == (find_version(["torch"]) is not None)
    builders = content["tested"]["builders"]
    assert set(builders["returnn_common.models.ctc.make_ctc_model"]) == set(ENGINES)


def test_what_is_missing(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr("returnn_common.cli.engines.find_version", lambda names: None if "jax" in names else "1.0")
    main(["engines"])
    (row,) = [line for line in capsys.readouterr().out.splitlines() if "orbax" in line]
    assert "no" in row and "jax (missing)" in row and "optax 1.0" in row


@pytest.mark.parametrize(
    "names, expected", [(["returnn"], True), (["no-such-package", "numpy"], True), (["no-such-package"], False)]
)
def test_find_version(names: list[str], expected: bool):
    assert (find_version(names) is not None) == expected
