"""The recipe that makes its data itself: its form, its options, and a short run from nothing to the accuracy."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import returnn_common
from returnn_common.cli import main
from returnn_common.cli.recipes import list_recipes
from returnn_common.cli.run.recipe import load_recipe

ROOT = Path(returnn_common.__file__).resolve().parents[1]
RECIPE = list_recipes()["copy_task"]


def test_test_is_longer_than_training():
    recipe = load_recipe(RECIPE)
    assert not recipe.needs_corpus and recipe.eval_splits == ["dev", "test"]
    lengths = {
        split: {len(text.split()) for text in recipe.dataset.get_references(split).values()} for split in recipe.splits
    }
    assert max(lengths["train"]) == max(lengths["dev"]) < min(lengths["test"])


@pytest.mark.parametrize("task", ["reverse", "sort", "copy"])
def test_task(task: str):
    dataset = load_recipe(RECIPE, options={"order": task}).dataset
    targets = [list(map(int, text.split())) for text in dataset.get_references("dev").values()]
    assert all(target == sorted(target) for target in targets) == (task == "sort")


def test_options():
    options = load_recipe(RECIPE).options
    assert {"backend", "recog_split", "num_epochs", "num_average", "random_seed"} <= set(options)
    assert "corpus" not in options
    assert RECIPE.read_text("utf8").startswith("#!rnn.py\n")


def test_from_nothing_to_the_accuracy(tmp_path: Path, monkeypatch, capsys):
    """one layer on single symbols of one short epoch: the numbers mean nothing yet"""
    pytest.importorskip("torch")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])))
    text = RECIPE.read_text("utf8").replace("num_train=8_000", "num_train=64").replace("num_test=500", "num_test=8")
    path = tmp_path / "short_task.py"
    path.write_text(text, "utf8")
    settings = ["num_epochs=1", "num_average=1", "num_layers=1", "model_dim=8"]
    options = [part for setting in settings for part in ("--set", setting)]
    assert main(["run", str(path), "--out", str(tmp_path / "out"), *options]) == 0
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert "audio_seconds" not in results
    assert set(results["sequence_accuracy"]) == set(results["wer"]) == {"dev", "test"}
    for split, errors in results["errors"].items():
        assert (errors["utterances"], errors["missing"], errors["extra"]) == (8, 0, 0)
        wrong = errors["substitutions"] + errors["deletions"] + errors["insertions"]
        assert results["wer"][split] == pytest.approx(100 * wrong / errors["reference_words"], abs=1e-3)
        assert 0 <= results["sequence_accuracy"][split] <= 100
    out = capsys.readouterr().out
    assert "sequence accuracy" in out.replace("\n", " ") or "accuracy" in out
    assert (tmp_path / "out" / "report.html").is_file()


def test_with_a_corpus(tmp_path: Path, capsys):
    (tmp_path / "corpus").mkdir()
    assert main(["run", "copy_task", "--corpus", str(tmp_path / "corpus"), "--out", str(tmp_path / "out")]) == 2
    assert "the recipe copy_task makes its data itself" in capsys.readouterr().err


def test_another_recipe_without_a_corpus(tmp_path: Path, capsys):
    assert main(["run", "digits_ctc", "--out", str(tmp_path / "out")]) == 2
    assert "the recipe digits_ctc needs --corpus" in capsys.readouterr().err
