"""Tests of the command run: what it refuses, and which stages it does when."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from returnn_common.cli import main
from returnn_common.cli.errors import CommandError
from returnn_common.cli.run import command as command_module
from returnn_common.cli.run import run_recipe
from returnn_common.training.checkpoints import read_checkpoint
from tests.cli.fake_returnn import FakeReturnn
from tests.cli.tiny import SMALL, SPLITS, make_corpus

SETTINGS = SMALL[1::2]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    return make_corpus(tmp_path_factory.mktemp("corpus") / "digits")


def _error(capsys, *arguments: str) -> str:
    assert main(["run", *arguments]) == 2
    stderr = capsys.readouterr().err
    assert stderr.startswith("returnn-common run: ") and stderr.count("\n") == 1
    return stderr


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["nothing", "--corpus", "CORPUS"], "unknown recipe 'nothing': there are copy_task, "),
        (["digits_ctc", "--corpus", "nowhere"], "--corpus nowhere: no such folder"),
        (["digits_ctc", "--corpus", __file__], "test_run.py: expected a folder, but it is a file"),
        (["digits_ctc", "--corpus", os.path.dirname(__file__)], "no recordings (.flac, .wav, .ogg) in it"),
        (["digits_ctc", "--corpus", "CORPUS", "--set", "num_layers"], "--set num_layers: expected OPTION=VALUE"),
        (["digits_ctc", "--corpus", "CORPUS", "--set", "=2"], "--set =2: expected OPTION=VALUE"),
        (
            ["digits_ctc", "--corpus", "CORPUS", "--set", "layers=2"],
            "--set layers=2: unknown option 'layers', there are num_epochs, ",
        ),
        (
            ["digits_ctc", "--corpus", "CORPUS", "--set", "num_layers=two"],
            "--set num_layers=two: option num_layers: expected a value of type int, got 'two'",
        ),
        (
            ["digits_ctc", "--corpus", "CORPUS", "--set", "dropout=0", "--set", "dropout=0.1"],
            "--set dropout=0.1: 'dropout' is given twice",
        ),
        (["digits_ctc", "--corpus", "CORPUS", "--set", "corpus=x"], "--set corpus=x: use --corpus"),
        (
            ["digits_ctc", "--corpus", "CORPUS", "--set", "recog_split=x"],
            "--set recog_split=x: the command sets recog_split by itself",
        ),
        (["digits_ctc", "--corpus", "CORPUS", "--set", "num_epochs=0"], "ValueError: "),
        (
            ["digits_ctc", "--corpus", "CORPUS", "--set", "search_options=max"],
            "digits_ctc.py: search_options: expected a dict such as {'lm_scale': 0.3}, got 'max'",
        ),
        (
            ["digits_ctc", "--corpus", "CORPUS", "--set", "search_options={'ctc_scale': 1}"],
            "digits_ctc.py: search option 'ctc_scale': CtcModel.search has no such option, it has bos, ",
        ),
        (
            ["digits_ctc", "--corpus", "CORPUS", "--set", "search_options={'lm_scale': 1.0}"],
            "digits_ctc.py: search_options: lm_scale 1.0 needs lm, there is no language model",
        ),
        (["digits_ctc", "--corpus", "CORPUS", "--set", "num_average=0"], "expected num_average of at least 1, got 0"),
    ],
)
def test_what_cannot_work(arguments, message, corpus, tmp_path, capsys):
    arguments = [str(corpus) if argument == "CORPUS" else argument for argument in arguments]
    assert message in _error(capsys, *arguments, "--out", str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_file_system_that_fails(corpus, tmp_path, capsys):
    (tmp_path / "state.json").mkdir()
    (tmp_path / "run.json").write_text("{}")
    assert main(["run", "digits_ctc", "--corpus", str(corpus), "--out", str(tmp_path)]) == 1
    assert "Is a directory: " in capsys.readouterr().err


def test_backend_that_is_not_installed(corpus, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(command_module.importlib.util, "find_spec", lambda name: None)
    stderr = _error(capsys, "digits_ctc", "--corpus", str(corpus), "--out", str(tmp_path / "x"), "--backend", "jax")
    assert "--backend jax needs jax and torch, not installed: pip install 'returnn_common[jax]'" in stderr


@pytest.mark.parametrize(
    "text, message",
    [
        ("1 / 0", "mine.py: ZeroDivisionError: division by zero"),
        ("import sys; sys.exit(3)", "mine.py: SystemExit: 3"),
        ("x = ", "mine.py: SyntaxError: invalid syntax"),
        ("num_epochs = 1", "mine.py: expected a global 'options' of type Options"),
        (
            "from returnn_common.config import Options\noptions = Options(num_layers=1)\nnum_epochs = 1",
            "mine.py: expected a global 'dataset'",
        ),
        (
            "from returnn_common.config import Options\noptions = Options()\nnum_epochs = '1'\ndataset = {}",
            "mine.py: expected a global 'num_epochs' of type int",
        ),
        (
            "from returnn_common.config import Options\noptions = Options()\nnum_epochs = 1\ndataset = {}",
            "as returnn_common.datasets.Librispeech, got dict without train_splits, dev_splits, test_splits, check",
        ),
    ],
)
def test_recipe_that_cannot_be_read(text, message, corpus, tmp_path, capsys):
    (tmp_path / "mine.py").write_text(text)
    assert message in _error(capsys, str(tmp_path / "mine.py"), "--corpus", str(corpus), "--out", str(tmp_path / "x"))


@pytest.mark.parametrize(
    "splits, words, message",
    [
        ({"train": 2, "dev": 1}, None, "the recipe needs the split test, there are dev, train"),
        (SPLITS, ["ONE", "HUNDRED"], "transcripts of train cannot be written with WordVocab("),
    ],
)
def test_corpus_that_does_not_fit(splits, words, message, tmp_path, capsys):
    folder = make_corpus(tmp_path / "corpus", splits=splits, **({"words": words} if words else {}))
    stderr = _error(capsys, "digits_ctc", "--corpus", str(folder), "--out", str(tmp_path / "out"))
    assert f"corpus {folder}: " in stderr and message in stderr
    assert not (tmp_path / "out" / "train.log").exists()


def test_corpus_of_empty_transcripts(tmp_path, capsys):
    folder = make_corpus(tmp_path / "corpus")
    for path in (folder / "dev").rglob("*.trans.txt"):
        path.write_text("".join(f"{line.split()[0]}\n" for line in path.read_text().splitlines()))
    stderr = _error(capsys, "digits_ctc", "--corpus", str(folder), "--out", str(tmp_path / "out"))
    assert "split 'dev' has no recording with a transcript (2 problems, first: dev/dev-1-0000: " in stderr


def _run(corpus: Path, out: Path, runner: FakeReturnn, **options) -> int:
    options = {"settings": SETTINGS, **options}
    return run_recipe("digits_ctc", corpus=str(corpus), out=str(out), runner=runner, **options)


def test_stages(corpus, tmp_path, capsys):
    runner = FakeReturnn()
    assert _run(corpus, tmp_path, runner) == 0
    assert runner.tasks == ["train", "forwarddev", "forwardtest"]
    for module, options in runner.calls:
        assert module == "returnn"
        assert options["corpus"] == str(tmp_path / "data")
        assert {name: options[name] for name in ("backend", "model_dim", "num_layers")} == {
            "backend": "torch",
            "model_dim": "8",
            "num_layers": "1",
        }
    assert runner.calls[0][1]["model"] == str(tmp_path / "checkpoints" / "epoch")
    for _, options in runner.calls[1:]:
        np.testing.assert_array_equal(read_checkpoint(options["load"]).floats["weight"], [1.5, 1.5])
    assert ["recog_posteriors_file" in options for _, options in runner.calls] == [False, True, False]
    results = json.loads((tmp_path / "results.json").read_text())
    assert list(results) == [
        *("recipe", "backend", "wer", "errors", "num_parameters", "train_seconds", "recog_seconds", "audio_seconds")
    ]
    assert (results["recipe"], results["backend"], results["num_parameters"]) == ("digits_ctc", "torch", 1234)
    assert list(results["wer"]) == ["dev", "test"]
    for split, errors in results["errors"].items():
        assert (errors["utterances"], errors["missing"], errors["extra"]) == (SPLITS[split], 1, 0)
        wrong = errors["substitutions"] + errors["deletions"] + errors["insertions"]
        assert results["wer"][split] == pytest.approx(100 * wrong / errors["reference_words"], abs=1e-3)
    page = (tmp_path / "report.html").read_text()
    assert "digits_ctc" in page and "dev-1-0000" in page
    assert page.count("<svg") == 3  # losses, learning rates, an utterance
    out = capsys.readouterr().out
    assert f"{results['wer']['test']:.2f}" in out and str(tmp_path / "report.html") in out
    assert "1 of 2 references have no hypothesis" in out


def test_a_complete_run_does_nothing_again(corpus, tmp_path):
    _run(corpus, tmp_path, FakeReturnn())
    before = (tmp_path / "results.json").read_text()
    runner = FakeReturnn()
    assert _run(corpus, tmp_path, runner) == 0
    assert runner.calls == []
    assert (tmp_path / "results.json").read_text() == before


@pytest.mark.parametrize("fail_at, again", [(1, ["train", "forwarddev", "forwardtest"]), (3, ["forwardtest"])])
def test_interrupted(fail_at, again, corpus, tmp_path, capsys):
    assert _run(corpus, tmp_path, FakeReturnn(fail_at)) == 130
    assert "Interrupted; run the same command again to go on." in capsys.readouterr().err
    assert not (tmp_path / "results.json").exists()
    runner = FakeReturnn()
    assert _run(corpus, tmp_path, runner) == 0
    assert runner.tasks == again


def test_what_is_missing_is_made_again(corpus, tmp_path):
    _run(corpus, tmp_path, FakeReturnn())
    (tmp_path / "checkpoints" / "average.002.pt").unlink()
    (tmp_path / "recog" / "test.py.gz").unlink()
    runner = FakeReturnn()
    _run(corpus, tmp_path, runner)
    assert runner.tasks == ["forwardtest"]
    assert (tmp_path / "checkpoints" / "average.002.pt").is_file()


def test_train_seconds_add_up(corpus, tmp_path):
    with pytest.raises(ZeroDivisionError):
        _run(corpus, tmp_path, lambda *_, **__: 1 / 0)  # type: ignore[arg-type]
    state = json.loads((tmp_path / "state.json").read_text())
    (tmp_path / "state.json").write_text(json.dumps({**state, "train_seconds": 1000.0}))
    _run(corpus, tmp_path, FakeReturnn())
    assert 1000 <= json.loads((tmp_path / "results.json").read_text())["train_seconds"] < 1100


def test_other_settings(corpus, tmp_path, capsys):
    _run(corpus, tmp_path, FakeReturnn())
    with pytest.raises(CommandError, match=r"begun with other settings \(model_dim was 8, is 16\)"):
        _run(corpus, tmp_path, FakeReturnn(), settings=[*SETTINGS[1:], "model_dim=16"])


def test_a_setting_equal_to_the_default_is_no_other(corpus, tmp_path):
    _run(corpus, tmp_path, FakeReturnn())
    runner = FakeReturnn()
    _run(corpus, tmp_path, runner, settings=[*SETTINGS, "dropout=0.0"])
    assert runner.calls == []


def test_checkpoint_of_another_model(corpus, tmp_path):
    import torch

    class Runner(FakeReturnn):
        def train(self, options: dict[str, str]):
            super().train(options)
            torch.save({"model": {"weight": torch.zeros(3)}, "epoch": 1, "step": 1}, f"{options['model']}.001.pt")

    with pytest.raises(CommandError, match="parameters differ: weight is torch.float32"):
        _run(corpus, tmp_path, Runner())


def test_prepared_corpus(corpus, tmp_path):
    _run(corpus, tmp_path / "first", FakeReturnn())
    runner = FakeReturnn()
    assert _run(tmp_path / "first" / "data", tmp_path / "second", runner) == 0
    assert {options["corpus"] for _, options in runner.calls} == {str(tmp_path / "first" / "data")}
    assert not (tmp_path / "second" / "data").exists()


def test_net_dict(corpus, tmp_path):
    runner = FakeReturnn()
    _run(corpus, tmp_path, runner, backend="tensorflow-net-dict")
    assert [module for module, _ in runner.calls] == ["returnn", *["returnn_common.recog.net_dict"] * 2]
    # Counted in the checkpoint: what the engine logs is too much.
    assert json.loads((tmp_path / "results.json").read_text())["num_parameters"] == 2


def test_broken_recording_is_skipped(corpus, tmp_path, capsys):
    shutil.copytree(corpus, tmp_path / "corpus")
    next((tmp_path / "corpus" / "train").rglob("*-0001.flac")).write_bytes(b"x")
    assert _run(tmp_path / "corpus", tmp_path / "out", FakeReturnn()) == 0
    assert "skipped: train/train-1-0001: " in capsys.readouterr().out


def test_returnn_fails(corpus, tmp_path, capsys):
    def _runner(arguments, *, log, **_options) -> int:
        log.write_text("some line\nValueError: no such thing\nQuitting\n")
        return 1

    message = r"RETURNN failed \(exit status 1\), see .*train.log:\n  some line\n  ValueError: no such thing$"
    with pytest.raises(CommandError, match=message) as error:
        _run(corpus, tmp_path, _runner)  # type: ignore[arg-type]
    assert error.value.exit_status == 1


def test_returnn_writes_nothing(corpus, tmp_path):
    class Runner(FakeReturnn):
        def forward(self, options: dict[str, str]):
            pass

    with pytest.raises(CommandError, match="recognition has not written .*dev.py.gz"):
        _run(corpus, tmp_path, Runner())
