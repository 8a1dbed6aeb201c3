"""Fixtures of the tests of the command transcribe."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.run_folders import make_run_folder
from tests.cli.transcribe.helpers import RECIPE
from tests.recog.tones import set_parameters


@pytest.fixture(scope="session")
def model(tmp_path_factory) -> str:
    """:return: folder of a run, whose model recognises tones, see :mod:`tests.recog.tones`"""
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("model")
    (folder / "tones.py").write_text(RECIPE)
    make_run_folder(folder / "run", str(folder / "tones.py"), options={}, change=set_parameters)
    return str(folder / "run")


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """:return: an empty one, in which the command runs"""
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    return tmp_path
