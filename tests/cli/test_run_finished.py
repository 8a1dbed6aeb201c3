"""Tests of how other commands read the folder of a run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from returnn_common.cli.errors import CommandError
from returnn_common.cli.run import run_recipe
from returnn_common.cli.run.finished import choose_checkpoint, find_data, load_run
from returnn_common.training.checkpoints import list_epochs
from tests.cli.fake_returnn import FakeReturnn
from tests.cli.tiny import SMALL, make_corpus


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    make_corpus(folder / "corpus")
    out = folder / "out"
    status = run_recipe(
        "digits_ctc", corpus=str(folder / "corpus"), out=str(out), settings=SMALL[1::2], runner=FakeReturnn()
    )
    assert status == 0
    return out


def test_what_is_read(finished: Path):
    run = load_run(finished)
    assert (run.name, run.backend, run.corpus) == ("digits_ctc", "torch", finished.parent / "corpus")
    assert run.settings["model_dim"] == "8" and not {"corpus", "backend", "recog_split"} & run.settings.keys()
    assert run.recipe.options["model_dim"] == 8 and run.recipe.options["backend"] == "torch"
    assert load_run(finished, backend="jax").recipe.options["backend"] == "jax"
    assert find_data(run) == finished / "data"
    assert list_epochs(run.folder.checkpoints) == [1, 2]


@pytest.mark.parametrize(
    "which, name", [(None, "average.002"), ("average", "average.002"), ("last", "epoch.002"), ("1", "epoch.001")]
)
def test_checkpoints(which: str | None, name: str, finished: Path):
    assert choose_checkpoint(load_run(finished), which) == finished / "checkpoints" / name


def test_path_of_a_checkpoint(finished: Path):
    run, path = load_run(finished), finished / "checkpoints" / "epoch.001"
    assert choose_checkpoint(run, str(path)) == path
    (path.with_suffix(".001.orbax")).mkdir()
    with pytest.raises(CommandError, match=r"--checkpoint .*epoch.001: .* is ambiguous, there is one of each of torch"):
        choose_checkpoint(run, str(path))
    assert str(choose_checkpoint(run, f"{path}.pt")) == f"{path}.pt"
    (path.with_suffix(".001.orbax")).rmdir()


def test_a_training_that_goes_on(finished: Path, tmp_path: Path):
    out = tmp_path / "out"
    shutil.copytree(finished, out)
    (out / "checkpoints" / "average.002.pt").unlink()
    run = load_run(out)
    assert choose_checkpoint(run).name == "epoch.002"
    for which, message in [
        ("average", r"--checkpoint average: the run .*out has not come so far"),
        ("3", r"--checkpoint 3: .*checkpoints has epochs 1, 2"),
        ("best", "--checkpoint best: expected average, last, the number of an epoch, or the path of a checkpoint"),
    ]:
        with pytest.raises(CommandError, match=message):
            choose_checkpoint(run, which)
    shutil.rmtree(out / "checkpoints")
    with pytest.raises(CommandError, match="out: there is no checkpoint, its training has not finished an epoch"):
        choose_checkpoint(run)


def test_data_where_it_was_prepared_before(finished: Path, tmp_path: Path):
    out = tmp_path / "out"
    shutil.copytree(finished, out, ignore=shutil.ignore_patterns("data"))
    shutil.copytree(finished / "data", tmp_path / "data")
    asked = json.loads((out / "run.json").read_text())
    (out / "run.json").write_text(json.dumps({**asked, "corpus": str(tmp_path / "data")}))
    assert find_data(load_run(out)) == tmp_path / "data"
    shutil.rmtree(tmp_path / "data")
    with pytest.raises(CommandError, match="its prepared corpus is in none of .*out/data, .*/data"):
        find_data(load_run(out))


def test_no_run(finished: Path, tmp_path: Path):
    with pytest.raises(CommandError, match="nowhere: no such folder"):
        load_run("nowhere")
    for path in (tmp_path, finished / "train.log"):
        with pytest.raises(CommandError, match="expected a folder that 'returnn-common run' has written"):
            load_run(path)
    shutil.copy(finished / "config.py", tmp_path)
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(CommandError, match="run.json is damaged: expected recipe, backend, corpus and options"):
        load_run(tmp_path)
