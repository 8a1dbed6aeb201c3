"""
Tests of run --distributed with RETURNN: an interrupted training in two processes ends exactly as an undisturbed one.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from returnn_common.training.checkpoints import read_checkpoint
from tests.cli.test_run_for_real import Runs, logged

# Five starts of the command with two processes, each of which loads PyTorch, as do torchrun and the loading of data.
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Runs:
    pytest.importorskip("torch")
    splits = {"train": 11, "dev": 2, "test": 2}
    return Runs(tmp_path_factory.mktemp("runs"), "--distributed", "--nproc", "2", splits=splits)


def _processes(out: Path) -> list[int]:
    """:return: those that train in that folder"""
    pids = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            arguments = (folder / "cmdline").read_text().split("\0")
            if arguments[1:4] == ["-m", "returnn", str(out / "config.py")]:
                pids.append(int(folder.name))
    return pids


def _wait(process: subprocess.Popen[str], condition):
    end = time.monotonic() + 600
    while not condition():
        assert process.poll() is None and time.monotonic() < end, process.communicate()[0]
        time.sleep(0.01)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux ends a process with its parent")
def test_killed_and_interrupted(runs: Runs, tmp_path: Path):
    undisturbed, out = tmp_path / "undisturbed", tmp_path / "out"
    text = runs.finish(undisturbed)
    assert "epoch 1/2, train ctc " in text and "epoch 2/2, train ctc " in text
    log, other_log = out / "train.log", out / "train.process1.log"

    with runs.start(out) as process:  # one of the two is killed
        _wait(process, logged(other_log, "ep 1 train, step 0,"))
        processes = _processes(out)
        assert len(processes) == 2
        os.kill(processes[0], signal.SIGKILL)
        text, _ = process.communicate(timeout=600)
    assert process.returncode == 1 and "signal 9), see " in text
    assert not _processes(out)

    runs.kill(out, logged(log, "ep 2 train, step 1,"), whole_group=False)  # the command is killed
    with runs.start(out) as process:
        assert logged(log, "ep 2 train, step 1,")
        _wait(
            process, lambda: (out / "state.json").is_file() and log.read_text("utf8").count("ep 2 train, step 0,") > 1
        )
        os.killpg(process.pid, signal.SIGINT)  # as Ctrl-C does it
        text, _ = process.communicate(timeout=600)
    assert process.returncode == 130 and "Interrupted" in text
    assert not _processes(out)

    runs.finish(out)
    for name in ("epoch.002", "average.002"):
        ours, theirs = (read_checkpoint(folder / "checkpoints" / name) for folder in (out, undisturbed))
        assert ours.step == theirs.step and ours.floats.keys() == theirs.floats.keys()
        for param, value in ours.floats.items():
            np.testing.assert_array_equal(value, theirs.floats[param], err_msg=f"{name} {param}")
