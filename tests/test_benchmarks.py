"""The benchmarks run as commands, with a few steps only."""

from __future__ import annotations

import json
import re
import runpy
import sys
from pathlib import Path

import pytest

from benchmarks._common import Comparison, report

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
    assert "Beam search, 3 steps, 2 at once, per utterance\n  returnn_common " in out
    assert ("espnet is not there" in out) != ("returnn_common / espnet: " in out)


def _run_prepare(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, *options: str) -> str:
    monkeypatch.setattr(sys, "argv", ["prepare.py", *options])
    runpy.run_path(str(BENCHMARKS / "prepare.py"), run_name="__main__")
    out = capsys.readouterr().out
    assert "DIFFERENT" not in out and "folders and archive: the same zip" in out
    return out


def test_prepare(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    out = _run_prepare(monkeypatch, capsys, "--utterances", "60", "--broken", "0.05", "--kills", "0")
    assert out.count(" ms CPU per utterance; ") == out.count("broken: 3 of 3 named") == 2


@pytest.mark.slow  # thousands of recordings, and a dozen starts of the command: two minutes
@pytest.mark.parametrize("audio_format", ["flac", "ogg"])
def test_prepare_killed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, audio_format: str):
    """whatever was written by then, the end is the same; and memory does not grow with the corpus"""
    options = ["--utterances", "3000", "--kills", "5", "--audio-format", audio_format]
    out = _run_prepare(monkeypatch, capsys, *options)
    assert out.count("the same files") == 2 and out.count("broken: 30 of 30 named") == 2
    assert max(int(number) for number in re.findall(r"(\d+) MB", out)) < 400


@pytest.mark.parametrize("model", ["Conformer", "E-Branchformer"])
def test_encoders(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, one_thread: None, tmp_path: Path
):
    """ours, and RETURNN's own modules"""
    figures = tmp_path / "figures.jsonl"
    script = model.lower().replace("-", "_") + ".py"
    options = ["--seconds", "0.2", "--batch", "2", "--rounds", "1", "--only", "ours", "returnn", "--json", str(figures)]
    monkeypatch.setattr(sys, "argv", [script, *options])
    runpy.run_path(str(BENCHMARKS / script), run_name="__main__")
    out = capsys.readouterr().out
    assert f"{model}, inference, 2 x 0.2 s, cpu" in out and f"{model}, training step" in out and "GFLOP/s" in out
    inference, training = (json.loads(line) for line in figures.read_text().splitlines())
    assert inference["medians"].keys() == training["medians"].keys() == {"ours", "returnn"}
    assert all(value > 0.0 for value in training["medians"].values()) and inference["ratio"] is None


def test_graph_capture(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    """what there is of it without a GPU; that the encoder can be captured: tests/nn/test_graph_capture.py"""
    options = ["--steps", "2", "--seconds", "0.5", "--batch", "2", "--layers", "1", "--rounds", "1"]
    monkeypatch.setattr(sys, "argv", ["graph_capture.py", *options])
    runpy.run_path(str(BENCHMARKS / "graph_capture.py"), run_name="__main__")
    out = capsys.readouterr().out
    assert "A graph wants --device cuda." in out and "training step, 2 x 0.5 s, cpu\n  eager " in out


@pytest.mark.parametrize("script", ["conformer.py", "graph_capture.py"])
def test_no_gpu(script: str, monkeypatch: pytest.MonkeyPatch, one_thread: None):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", [script, "--device", "cuda"])
    monkeypatch.setenv("DISABLE_CUDA", "1")  # what the script changes is put back
    with pytest.raises(SystemExit, match="--device cuda: PyTorch .* finds no GPU here"):
        runpy.run_path(str(BENCHMARKS / script), run_name="__main__")


def test_log_mel(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, one_thread: None):
    monkeypatch.setattr(sys, "argv", ["log_mel.py", "--seconds", "0.2", "--batch", "2", "--rounds", "1"])
    runpy.run_path(str(BENCHMARKS / "log_mel.py"), run_name="__main__")
    assert "Log-mel, 2 x 0.2 s\n  ours" in capsys.readouterr().out


def test_lstm(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, one_thread: None):
    monkeypatch.setattr(sys, "argv", ["lstm.py", "--rounds", "1", "--only", "ours"])
    runpy.run_path(str(BENCHMARKS / "lstm.py"), run_name="__main__")
    out = capsys.readouterr().out
    assert "LSTM, inference, 8 x 200 to 250 frames\n  ours" in out and "LSTM, training" in out


def test_only_what_is_not_there(monkeypatch: pytest.MonkeyPatch, one_thread: None):
    monkeypatch.setattr(sys, "argv", ["log_mel.py", "--seconds", "0.2", "--rounds", "1", "--only", "nobody"])
    with pytest.raises(SystemExit, match=r"Log-mel, 8 x 0.2 s: nothing of that is there \(see --only\)"):
        runpy.run_path(str(BENCHMARKS / "log_mel.py"), run_name="__main__")


def test_only_peers(capsys: pytest.CaptureFixture, tmp_path: Path):
    """without ours, there is no ratio, but the figures"""
    comparison = Comparison("Work", {"slow": [0.3, 0.2, 0.4], "fast": [0.1]}, "ours", ["slow", "fast"], {})
    report(comparison, json_file=tmp_path / "figures.jsonl")
    assert "slow        300 ms    3.00" in capsys.readouterr().out
    figures = json.loads((tmp_path / "figures.jsonl").read_text())
    assert figures["ratio"] is None and figures["medians"] == {"slow": 0.3, "fast": 0.1} and figures["gflops"] > 0.0


def test_config(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    monkeypatch.setattr(sys, "argv", ["config.py", "--layers", "1", "--rounds", "1"])
    runpy.run_path(str(BENCHMARKS / "config.py"), run_name="__main__")
    out = capsys.readouterr().out
    assert out.startswith("1 Conformer layers: ") and out.count(" s on the clock (limit for 12 layers: ") == 2


def test_all(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture, tmp_path: Path):
    """a table and a picture of one of them"""
    monkeypatch.setattr(sys, "argv", ["all.py", "--quick", "--only", "startup", "--out", str(tmp_path / "results")])
    with pytest.raises(SystemExit, match="0"):
        runpy.run_path(str(BENCHMARKS / "all.py"), run_name="__main__")
    lines = (tmp_path / "results" / "table.md").read_text().splitlines()
    assert lines[0] == "| work | ours | fastest peer | ratio | GFLOP/s |" and lines[2].startswith("| Start | ")
    assert re.search(r"\| [1-9]\d* \|$", lines[2]) and lines[-1].startswith("torch ") and ", returnn " in lines[-1]
    assert (tmp_path / "results" / "table.png").stat().st_size > 1000
    assert "== startup" in capfd.readouterr().out


def test_tokenizers(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    """ours give the same as theirs, or it ends"""
    monkeypatch.setattr(sys, "argv", ["tokenizers.py", "--lines", "20", "--rounds", "1"])
    runpy.run_path(str(BENCHMARKS / "tokenizers.py"), run_name="__main__")
    out = capsys.readouterr().out
    assert all(f"Tokenizer, {name}, 20 lines\n  ours" in out for name in ("chars", "spm1k", "spm5k", "bpe1k"))


def test_data(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, one_thread: None):
    """all samples arrive with both, which the benchmark checks itself"""
    options = ["--workers", "0", "--utterances", "17", "--rounds", "1"]
    monkeypatch.setattr(sys, "argv", ["data.py", *options])
    runpy.run_path(str(BENCHMARKS / "data.py"), run_name="__main__")
    out = capsys.readouterr().out
    assert "0 workers:" in out and "returnn_common / plain DataLoader: " in out and " ms CPU each" in out
