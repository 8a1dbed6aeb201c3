"""Arguments that cannot work, interruptions, what is seen on a terminal."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import returnn_common
from tests.cli.transcribe.helpers import record, run_command

ROOT = Path(returnn_common.__file__).resolve().parents[1]


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--beam", "0", "a.wav"], "--beam 0: expected at least 1"),
        (["--max-seconds", "0.5", "a.wav"], "--max-seconds 0.5: expected at least 1"),
        (["--batch-seconds", "0", "a.wav"], "--batch-seconds 0: expected more than 0"),
        (["--lm", "x", "a.wav"], "--lm x needs --lm-scale"),
        (["--lm-scale", "0.5", "a.wav"], "--lm-scale 0.5 needs --lm"),
        (["--no-times", "--format", "srt", "a.wav"], "--no-times: --format srt is made of times"),
        (["--format", "srt", "a.wav", "b.wav"], "--format srt: a file for each recording, give a folder for them"),
        (["--output", "a.wav", "a.wav"], "--output a.wav: that is a recording to be transcribed"),
        (["--output", "sub/t.txt", "a.wav"], "--output sub/t.txt: there is no folder sub"),
        (["--output", "a.wav/", "b.wav"], "--output a.wav/: expected a folder, but it is a file"),
        (["--output", "o/", "in"], "--output o/: in/a.flac and in/a.wav would both be written to o/a.txt"),
        (["--device", "gpu", "a.wav"], "--device gpu: Expected one of cpu, cuda"),
        (["--checkpoint", "best", "a.wav"], "--checkpoint best: expected average, last, the number of an epoch, or"),
    ],
)
def test_bad_arguments(model, folder, capsys, arguments, message):
    for name in ("a.wav", "b.wav", "in/a.wav", "in/a.flac"):
        record(folder / name, "two")
    before = sorted(folder.rglob("*"))
    status, out, err = run_command(capsys, model, *arguments)
    assert (status, out) == (2, "") and err.startswith(f"returnn-common transcribe: {message}"), err
    assert sorted(folder.rglob("*")) == before


def test_folders_that_are_no_model(model, folder, capsys):
    record(folder / "a.wav", "two")
    assert run_command(capsys, "nowhere", "a.wav") == (2, "", "returnn-common transcribe: nowhere: no such folder\n")
    (folder / "run").mkdir()
    assert "run: expected a folder that 'returnn-common run' has written" in run_command(capsys, "run", "a.wav")[2]


def test_not_enough_memory(model, folder, capsys, monkeypatch):
    record(folder / "a.wav", "two")

    def fail(*_args, **_kwargs):
        raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes")

    monkeypatch.setattr("returnn_common.models.ctc.CtcModel.search", fail)
    status, out, err = run_command(capsys, model, "a.wav")
    assert (status, out) == (1, "")
    assert err == "returnn-common transcribe: not enough memory: try a smaller --batch-seconds, or --max-seconds\n"
    monkeypatch.setattr("returnn_common.models.ctc.CtcModel.search", lambda *_args, **_kwargs: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run_command(capsys, model, "a.wav")


def test_interrupted(model, folder):
    """what is done is written; a list is closed"""
    for i in range(3):
        record(folder / "in" / f"{i}.wav", "two one")
    os.mkfifo(folder / "in" / "3.wav")  # which nobody writes: reading it waits
    command = [sys.executable, "-m", "returnn_common.cli", "transcribe", model, "in", "--format", "json"]
    command += ["--batch-seconds", "0.01", "--output", "out.json"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True) as process:
        end = time.monotonic() + 120
        while not ((folder / "out.json").is_file() and (folder / "out.json").read_text().count("two one") >= 6):
            assert process.poll() is None and time.monotonic() < end
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "Interrupted.\n")
    entries = json.loads((folder / "out.json").read_text())
    assert [entry["text"] for entry in entries] == ["two one"] * 3


def test_progress_on_a_terminal(model, folder, capsys, monkeypatch):
    for name, value in {"FORCE_COLOR": "1", "NO_COLOR": "1", "TERM": "xterm", "COLUMNS": "100"}.items():
        monkeypatch.setenv(name, value)
    record(folder / "a.wav", "two")
    (folder / "b.wav").touch()
    status, out, err = run_command(capsys, model, "a.wav", "b.wav")
    assert (status, out) == (1, "a.wav\ttwo\n")
    assert "transcribing" in err and "b.wav: the file is empty" in err
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)  # the transcripts tell enough
    assert "transcribing" not in run_command(capsys, model, "a.wav", "b.wav")[2]
