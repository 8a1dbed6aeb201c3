"""Tests of the command demo."""

from __future__ import annotations

import functools
import json

import pytest

from returnn_common.cli import demo, main
from returnn_common.cli.run import run_recipe
from returnn_common.datasets.prepare import spoken_digits
from tests.cli.fake_returnn import FakeReturnn
from tests.cli.tiny import SMALL, make_corpus


@pytest.fixture
def runner(monkeypatch, tmp_path) -> FakeReturnn:
    """RETURNN is left out, and the corpus is small."""
    runner = FakeReturnn()
    monkeypatch.setattr(demo, "run_recipe", functools.partial(run_recipe, runner=runner))
    small = functools.partial(spoken_digits.make_spoken_digits, num_train=3, num_dev=2, num_test=2)
    monkeypatch.setattr(spoken_digits, "make_spoken_digits", small)
    monkeypatch.chdir(tmp_path)
    return runner


def test_makes_its_corpus(runner, tmp_path, capsys):
    pytest.importorskip("espeakng_loader", reason="it speaks the digits")
    assert main(["demo", *SMALL]) == 0
    out = tmp_path / "returnn-common-demo"
    results = json.loads((out / "results.json").read_text())
    assert results["recipe"] == "digits_ctc"
    assert {split: errors["utterances"] for split, errors in results["errors"].items()} == {"dev": 2, "test": 2}
    assert len(list((out / "corpus" / "train").rglob("*.flac"))) == 3
    assert json.loads((out / "run.json").read_text())["corpus"] is None
    text = capsys.readouterr().out
    assert "making a corpus of spoken digits" in text and "WER" in text
    runner.calls.clear()
    assert main(["demo", *SMALL]) == 0
    assert runner.calls == []


def test_takes_recordings(runner, tmp_path):
    corpus = make_corpus(tmp_path / "mine")
    assert main(["demo", "--corpus", str(corpus), "--out", "here", "--backend", "tensorflow", *SMALL]) == 0
    assert (tmp_path / "here" / "report.html").is_file()
    assert not (tmp_path / "here" / "corpus").exists()
    assert {options["backend"] for _, options in runner.calls} == {"tensorflow"}
    assert {options["model_dim"] for _, options in runner.calls} == {"8"}


def test_other_corpus_in_the_same_folder(runner, tmp_path, capsys):
    corpus = make_corpus(tmp_path / "mine")
    assert main(["demo", "--corpus", str(corpus), *SMALL]) == 0
    assert main(["demo", *SMALL]) == 2
    assert f"corpus was '{corpus}', is None" in capsys.readouterr().err


def test_corpus_that_cannot_be_made(runner, monkeypatch, tmp_path, capsys):
    def _fail(*_args, **_options):
        raise ModuleNotFoundError("espeakng-loader is not installed")

    monkeypatch.setattr(spoken_digits, "make_spoken_digits", _fail)
    assert main(["demo", *SMALL]) == 2
    assert "espeakng-loader is not installed (or give recordings: --corpus DIR)" in capsys.readouterr().err
    assert runner.calls == []
