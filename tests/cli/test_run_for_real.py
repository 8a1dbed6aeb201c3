"""
Tests of the command run with RETURNN's PyTorch engine: an interrupted run ends exactly as an undisturbed one.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

import returnn_common
from returnn_common.training.checkpoints import read_checkpoint
from tests.cli.tiny import SMALL, SPLITS, make_corpus, make_recipe

ROOT = Path(returnn_common.__file__).resolve().parents[1]


class Runs:
    """
    Starts the command in processes of its own.

    :param folder: for the corpus and the recipe
    :param arguments: of the command, besides
    :param splits: utterances of each
    :param load_in_process: see :func:`make_recipe`
    """

    def __init__(
        self, folder: Path, *arguments: str, splits: Mapping[str, int] = SPLITS, load_in_process: bool = False
    ):
        self.corpus = make_corpus(folder / "corpus", splits=splits)
        self.recipe = make_recipe(folder / "tiny_digits.py", load_in_process=load_in_process)
        self.arguments = arguments

    def start(self, out: Path) -> subprocess.Popen[str]:
        arguments = ["run", str(self.recipe), "--corpus", str(self.corpus), "--out", str(out), *SMALL, *self.arguments]
        env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        return subprocess.Popen(
            [sys.executable, "-m", "returnn_common.cli", *arguments],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def finish(self, out: Path) -> str:
        """:return: what the command prints"""
        with self.start(out) as process:
            text, _ = process.communicate(timeout=300)
        assert process.returncode == 0, text
        return text

    def kill(self, out: Path, when: Callable[[], bool], *, whole_group: bool):
        """
        :param out: folder of the run
        :param when: says at which moment
        :param whole_group: kill all processes, or only the command's own
        """
        with self.start(out) as process:
            end = time.monotonic() + 300
            while not when():
                assert process.poll() is None, f"it has ended before it could be killed: {process.communicate()[0]}"
                assert time.monotonic() < end
                time.sleep(0.01)
            (os.killpg if whole_group else os.kill)(process.pid, signal.SIGKILL)
        assert process.returncode == -signal.SIGKILL


def logged(path: Path, text: str) -> Callable[[], bool]:
    """:return: whether a text is in a file"""
    return lambda: path.is_file() and text in path.read_text("utf8", errors="replace")


def assert_same_result(out: Path, expected: Path):
    for name in ("epoch.002", "average.002"):
        ours, theirs = (read_checkpoint(folder / "checkpoints" / name) for folder in (out, expected))
        assert ours.step == theirs.step == 9
        assert ours.floats.keys() == theirs.floats.keys()
        for param, value in ours.floats.items():
            np.testing.assert_array_equal(value, theirs.floats[param], err_msg=f"{name} {param}")
    ours, theirs = (json.loads((folder / "results.json").read_text()) for folder in (out, expected))
    for name in ("recipe", "backend", "wer", "errors", "num_parameters", "audio_seconds"):
        assert ours[name] == theirs[name], name
    for split in ("dev", "test"):
        ours, theirs = ((folder / "recog" / f"{split}.py.gz").read_bytes() for folder in (out, expected))
        assert ours == theirs


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Runs:
    return Runs(tmp_path_factory.mktemp("runs"), load_in_process=True)


@pytest.fixture(scope="module")
def undisturbed(runs, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("undisturbed") / "out"
    text = runs.finish(out)
    assert "epoch 1/2, train ctc " in text and "epoch 2/2, train ctc " in text
    return out


def test_undisturbed(undisturbed):
    results = json.loads((undisturbed / "results.json").read_text())
    assert (results["recipe"], results["backend"]) == ("tiny_digits", "torch")
    assert results["errors"]["test"]["utterances"] == 2
    assert results["errors"]["test"]["missing"] == 0
    num_words = sum(results["errors"][split]["reference_words"] for split in ("dev", "test"))
    assert results["audio_seconds"] == pytest.approx(num_words * 6000 / 16_000, abs=0.01)
    assert results["num_parameters"] > 1000
    # It has trained: from the average of the two epochs it differs by what half of an epoch has changed.
    last, average = (read_checkpoint(undisturbed / "checkpoints" / name) for name in ("epoch.002", "average.002"))
    assert any((value != average.floats[name]).any() for name, value in last.floats.items())
    assert "<svg" in (undisturbed / "report.html").read_text()


def test_killed_in_the_second_epoch(runs, undisturbed, tmp_path):
    out = tmp_path / "out"
    runs.kill(out, logged(out / "train.log", "ep 2 train, step 0,"), whole_group=True)
    assert not (out / "checkpoints" / "epoch.002.pt").exists()
    runs.finish(out)
    assert "Starting training at epoch 2" in (out / "train.log").read_text()
    assert_same_result(out, undisturbed)


# Six starts of the command, of up to three starts of RETURNN each, and of the processes that load its data.
@pytest.mark.slow
def test_killed_at_five_moments(undisturbed, tmp_path):
    """and whether the data are loaded by other processes, or not, as in the undisturbed run, makes no difference"""
    runs = Runs(tmp_path)
    out = tmp_path / "out"
    log = out / "train.log"
    moments = [
        (out / "data" / "dev.zip").is_file,
        logged(log, "ep 1 train, step 1,"),
        (out / "checkpoints" / "epoch.001.pt").is_file,  # before the state of the optimizer is written
        logged(log, "ep 2 train, step 2,"),
        (out / "recog" / "dev.log").is_file,
    ]
    for index, moment in enumerate(moments):
        runs.kill(out, moment, whole_group=index % 2 == 0)
        assert not (out / "results.json").exists()
    runs.finish(out)
    assert_same_result(out, undisturbed)
