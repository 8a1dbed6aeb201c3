"""The benchmarks run as commands, with a few steps only."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"


@pytest.fixture
def one_thread():
    import torch

    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def test_search(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, one_thread: None):
    """our figures, whether ESPnet is installed or not"""
    options = ["--steps", "3", "--batch", "2", "--beam", "4", "--rounds", "1"]
    monkeypatch.setattr(sys, "argv", ["search.py", *options])
    runpy.run_path(str(BENCHMARKS / "search.py"), run_name="__main__")
    out = capsys.readouterr().out
    assert "Sizes(steps=3, batch=2, beam=4, layers=6" in out
    assert "returnn_common: 0." in out and "s CPU per utterance" in out
    assert ("ESPnet is missing, so our figures only" in out) != ("returnn_common / espnet: " in out)
