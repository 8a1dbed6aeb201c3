"""Tests of the folder of a run."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import returnn_common
from returnn_common.cli.errors import CommandError
from returnn_common.cli.run import folder as folder_module
from returnn_common.cli.run.folder import RunFolder

ROOT = Path(returnn_common.__file__).resolve().parents[1]
SETTINGS = {"recipe": "digits_ctc", "backend": "torch", "corpus": "/a", "options": {"num_layers": 3, "dropout": 0.1}}


def _open(path: Path, *, config: str = "text", **changes) -> RunFolder:
    folder = RunFolder(path)
    with folder.open({**SETTINGS, **changes}, config=config):
        pass
    return folder


def _begin_training(folder: RunFolder):
    folder.checkpoints.mkdir()
    (folder.checkpoints / "epoch.001.pt").write_text("")


def test_new(tmp_path):
    folder = _open(tmp_path / "a" / "b")
    assert json.loads((folder.path / "run.json").read_text()) == SETTINGS
    assert folder.config.read_text() == "text"
    assert folder.state == {}


def test_state_is_kept(tmp_path):
    folder = _open(tmp_path)
    folder.update(prepared=True)
    folder.update(train_seconds=1.5)
    assert _open(tmp_path).state == {"prepared": True, "train_seconds": 1.5}


def test_what_a_killed_call_leaves_at_first_is_no_obstacle(tmp_path):
    (tmp_path / "lock").write_text("1\n")
    (tmp_path / ".run.json.part").write_text("{")
    _open(tmp_path)


def test_something_else(tmp_path):
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(CommandError, match=r"holds something else already \(thesis.tex\); choose another folder"):
        _open(tmp_path)
    assert os.listdir(tmp_path) == ["thesis.tex"]


def test_a_file(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CommandError, match="file: expected a folder, but it is a file"):
        _open(tmp_path / "file")
    with pytest.raises(CommandError, match="file/x cannot be made: Not a directory"):
        _open(tmp_path / "file" / "x")


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"recipe": "other"}, "recipe was 'digits_ctc', is 'other'"),
        ({"backend": "jax"}, "backend was 'torch', is 'jax'"),
        ({"corpus": "/b"}, "corpus was '/a', is '/b'"),
        ({"options": {"num_layers": 2, "dropout": 0.1}}, "num_layers was 3, is 2"),
        ({"options": {"num_layers": 3}}, "dropout was 0.1, is None"),
        ({"config": "changed"}, "the recipe's file has changed"),
    ],
)
def test_other_settings(tmp_path, changes, message):
    _begin_training(_open(tmp_path))
    with pytest.raises(CommandError, match=re.escape(f"({message}); choose another folder")):
        _open(tmp_path, **changes)
    assert json.loads((tmp_path / "run.json").read_text()) == SETTINGS
    _open(tmp_path)


def test_other_settings_before_training_begins(tmp_path):
    folder = _open(tmp_path)
    folder.update(prepared=True)
    folder.data.mkdir()
    assert _open(tmp_path, backend="jax", config="changed").state == {}
    assert folder.data.is_dir()
    assert folder.config.read_text() == "changed"
    _open(tmp_path, backend="jax", config="changed", corpus="/b")
    assert not folder.data.exists()


@pytest.mark.parametrize("content, message", [("{", "is damaged: Expecting"), ("[]", r"expected a dict, got \[\]")])
def test_damaged(tmp_path, content, message):
    _open(tmp_path)
    (tmp_path / "state.json").write_text(content)
    with pytest.raises(CommandError, match=message):
        _open(tmp_path)


def test_only_one_at_a_time(tmp_path):
    folder = RunFolder(tmp_path)
    with folder.open(SETTINGS, config=""):
        with pytest.raises(CommandError, match=f"is in use by process {os.getpid()}; wait for it"):
            _open(tmp_path, config="")
    _open(tmp_path, config="")


def test_a_process_that_a_killed_run_has_left(tmp_path, monkeypatch):
    """The lock is also held by what a run has started: the next one waits for its end, but not for ever."""
    script = (
        "import os, pathlib, subprocess, sys, time\nfrom returnn_common.cli.run.folder import RunFolder\n"
        "folder = RunFolder(pathlib.Path(sys.argv[1]))\n"
        "with folder.open({}, config=''):\n"
        "    child = subprocess.Popen(['sleep', '60'], pass_fds=[folder.lock_file])\n"
        "    print(child.pid, flush=True)\n"
        "    time.sleep(60)\n"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", script, str(tmp_path)]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        child = int(process.stdout.readline())
        process.kill()
    monkeypatch.setattr(folder_module, "_SECONDS_FOR_LEFTOVERS", 0.3)
    try:
        with pytest.raises(CommandError, match="is in use by the rest of a run that was killed; wait for it"):
            _open(tmp_path)
    finally:
        os.kill(child, signal.SIGKILL)
    monkeypatch.setattr(folder_module, "_SECONDS_FOR_LEFTOVERS", 10.0)
    _open(tmp_path)
