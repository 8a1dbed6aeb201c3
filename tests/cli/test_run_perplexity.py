"""Tests of the command run with a language model, RETURNN being replaced: what it refuses, its stages, its results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from returnn_common.cli import main
from returnn_common.cli.errors import CommandError
from returnn_common.cli.run import run_recipe
from tests.cli.fake_returnn import FakeReturnn

SETTINGS = ["num_epochs=2", "num_average=2", "epoch_split=1", "hold_out_every=3"]


class _FakeReturnn(FakeReturnn):
    def forward(self, options: dict[str, str]):
        assert "recog_posteriors_file" not in options
        factor = {"dev": 1, "test": 2}[options["recog_split"]]
        counts = {"num_words": 10 * factor, "num_labels": 1234 * factor, "num_sentences": 5 * factor}
        values: dict[str, Any] = {"per_word": 123.45678 * factor, "per_label": 3.25 * factor, **counts}
        Path(options["recog_output_file"]).write_text(json.dumps(values))


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("ONE\nTWO THREE\nFOUR\n" * 3)
    return path


def _run(text: Path, out: Path, runner: FakeReturnn, **options) -> int:
    options = {"settings": SETTINGS, **options}
    return run_recipe("librispeech_lm", corpus=str(text), out=str(out), runner=runner, **options)


def test_stages_and_results(text: Path, tmp_path: Path, capsys):
    runner, out = _FakeReturnn(), tmp_path / "out"
    assert _run(text, out, runner) == 0
    assert runner.tasks == ["train", "forwarddev", "forwardtest"]
    assert {options["corpus"] for _, options in runner.calls} == {str(text)}
    assert [Path(o["recog_output_file"]).name for _, o in runner.calls[1:]] == ["dev.json", "test.json"]
    results = json.loads((out / "results.json").read_text())
    assert list(results) == [
        *("recipe", "backend", "perplexity_per_word", "perplexity_per_label", "counts"),
        *("num_parameters", "train_seconds", "recog_seconds"),
    ]
    assert results["perplexity_per_word"] == {"dev": 123.4568, "test": 246.9136}
    assert results["perplexity_per_label"] == {"dev": 3.25, "test": 6.5}
    assert results["counts"]["test"] == {"words": 20, "labels": 2468, "sentences": 10}
    page = (out / "report.html").read_text()
    assert "<h2>Perplexity</h2>" in page and "<td>123.46</td><td>3.25</td><td>10</td><td>1,234</td>" in page
    assert "Word error rate" not in page and "Worst utterances" not in page
    printed = capsys.readouterr().out
    assert "evaluating dev" in printed and "recognising" not in printed
    assert "123.46" in printed and "2,468" in printed and str(out / "results.json") in printed


def test_goes_on(text: Path, tmp_path: Path):
    out = tmp_path / "out"
    assert _run(text, out, _FakeReturnn(fail_at=3)) == 130
    runner = _FakeReturnn()
    assert _run(text, out, runner) == 0
    assert runner.tasks == ["forwardtest"]
    runner = _FakeReturnn()
    assert _run(text, out, runner) == 0 and runner.calls == []


def test_folder(text: Path, tmp_path: Path):
    (tmp_path / "corpus").mkdir()
    for name in ("books.txt", "dev.txt", "test.txt"):
        (tmp_path / "corpus" / name).write_text("A\n")
    assert _run(tmp_path / "corpus", tmp_path / "out", _FakeReturnn()) == 0


@pytest.mark.parametrize(
    "content, message",
    [
        ("", r"corpus .*text.txt: TextCorpus: split 'train': no lines in .*text.txt"),
        ("a\nB\n" * 9, r"corpus .*text.txt: 3 of 6 lines cannot be written with CharacterVocab\(.*lacks 'a' \(3 times"),
    ],
)
def test_text_that_does_not_fit(content: str, message: str, text: Path, tmp_path: Path):
    text.write_text(content)
    with pytest.raises(CommandError, match=message):
        _run(text, tmp_path / "out", _FakeReturnn())


def test_no_text(tmp_path: Path, capsys):
    (tmp_path / "empty").mkdir()
    messages = {"nowhere": "no such file or folder", "empty": "no text file (.txt, .txt.gz) in the folder"}
    for name, message in messages.items():
        assert main(["run", "librispeech_lm", "--corpus", str(tmp_path / name), "--out", str(tmp_path / "out")]) == 2
        assert message in capsys.readouterr().err


def test_damaged_output(text: Path, tmp_path: Path):
    class Runner(_FakeReturnn):
        def forward(self, options: dict[str, str]):
            Path(options["recog_output_file"]).write_text("{")

    with pytest.raises(CommandError, match="dev.json is damaged"):
        _run(text, tmp_path / "out", Runner())


def test_nothing_is_written(text: Path, tmp_path: Path):
    class Runner(_FakeReturnn):
        def forward(self, options: dict[str, str]):
            pass

    with pytest.raises(CommandError, match="recognition has not written .*dev.json"):
        _run(text, tmp_path / "out", Runner())
