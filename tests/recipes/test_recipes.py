"""Every recipe: its form, loading without a backend, its model; LibriSpeech from recordings to word error rates."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from returnn.config import Config, global_config_ctx
from returnn.tensor import Dim, Tensor, TensorDict

import returnn_common
from returnn_common import nn
from returnn_common.cli import main
from returnn_common.cli.recipes import list_recipes
from returnn_common.cli.run.recipe import BACKENDS, load_recipe
from returnn_common.recog import read_nbest
from returnn_common.recog.nbest import best_texts
from returnn_common.recog.scoring import score_wer

ROOT = Path(returnn_common.__file__).resolve().parents[1]
RECIPES = list_recipes()
TINY = {"num_layers": "1", "model_dim": "16"}
# Those without a corpus, and what is particular about text, have tests of their own.
WITH_CORPUS = {name: path for name, path in RECIPES.items() if name != "copy_task"}
SPEECH = {name: path for name, path in WITH_CORPUS.items() if name != "librispeech_lm"}
every_recipe = pytest.mark.parametrize("path", WITH_CORPUS.values(), ids=list(WITH_CORPUS))
every_speech_recipe = pytest.mark.parametrize("path", SPEECH.values(), ids=list(SPEECH))


def _load(path: Path, options: dict[str, str]) -> dict:
    """as RETURNN does it. :return: the globals"""
    config = Config()
    config.dict = {name: [value] for name, value in options.items()}
    namespace = {"config": config, "__file__": str(path), "__name__": "__returnn_config__"}
    with global_config_ctx(config):
        exec(compile(path.read_text("utf8"), str(path), "exec"), namespace)
    return namespace


def test_there_are_recipes():
    assert {"digits_ctc", "librispeech_ctc"} <= set(RECIPES)


@every_recipe
def test_form(path: Path):
    """as RETURNN needs it, and as one may copy it anywhere"""
    text = path.read_text("utf8")
    assert text.startswith("#!rnn.py\n")
    tree = ast.parse(text)
    doc = ast.get_docstring(tree) or ""
    assert len(doc.partition("\n")[0]) > 20 and "++corpus CORPUS" in doc
    modules = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            modules.append(node.module or "")
        elif isinstance(node, ast.Import):
            modules += [name.name for name in node.names]
    assert {name.partition(".")[0] for name in modules} <= {"returnn_common", "returnn", "sys", "functools"}
    assert any(name.startswith("returnn_common.models") for name in modules)


def test_splits_of_ones_own():
    """the one that is recognised is among them"""
    for name in ("librispeech_aed", "librispeech_ctc", "librispeech_transducer"):
        recipe = load_recipe(RECIPES[name], options={"dev_splits": "mine,other", "test_splits": "test"})
        assert recipe.eval_splits == ["mine", "other", "test"]


@every_recipe
def test_contents(path: Path):
    recipe = _load(path, {})
    for name in ("get_model", "train_step", "forward_step", "forward_callback"):
        assert callable(recipe[name]), name
    assert recipe["dataset"].train_splits and recipe["dataset"].dev_splits and recipe["dataset"].test_splits
    options = recipe["options"].as_dict()
    assert {"corpus", "backend", "recog_split", "num_epochs", "num_average", "random_seed"} <= set(options)
    assert recipe["num_epochs"] == options["num_epochs"] >= options["num_average"] >= 1
    assert recipe["task"] == "train" and recipe["backend"] == "torch" and recipe["behavior_version"] >= 29
    assert len(recipe["learning_rates"]) == recipe["num_epochs"]
    assert set(recipe["extern_data"]) == ({"data"} if recipe["target"] is None else {"data", recipe["target"]})


@every_recipe
@pytest.mark.parametrize("backend", BACKENDS)
def test_options_change_the_config(path: Path, backend: str):
    recipe = _load(path, {"num_epochs": "3", "random_seed": "5", "backend": backend, "corpus": "elsewhere"})
    assert (recipe["num_epochs"], recipe["random_seed"], recipe["backend"]) == (3, 5, backend)
    assert len(recipe["learning_rates"]) == 3
    assert "elsewhere" in str(recipe["train"]) and "elsewhere" in str(recipe["forward_data"])
    if backend == "tensorflow-net-dict":
        assert recipe["optimizer"]["class"] == "adam"
    if path.stem.endswith("_ctc"):  # JAX compiles few shapes
        assert ("jax_jit" in recipe) == (backend == "jax")
    for epochs in ("1", "2"):
        assert len(_load(path, {"num_epochs": epochs})["learning_rates"]) == int(epochs)


@pytest.mark.parametrize("name", WITH_CORPUS)
def test_several_processes(name: str):
    recipe = _load(RECIPES[name], {"distributed": "param"})
    assert recipe["torch_distributed"]["reduce_type"] == "param"
    assert recipe["startup_callback"].__module__ == "returnn_common.training.distributed"
    assert "torch_distributed" not in _load(RECIPES[name], {})
    with pytest.raises(ValueError, match="with backend torch only, got 'jax'"):
        _load(RECIPES[name], {"distributed": "grad", "backend": "jax"})


@pytest.mark.parametrize("name", WITH_CORPUS)
def test_precision(name: str):
    for backend, option in {"torch": "torch_amp", "tensorflow": "tf_amp", "jax": "jax_amp"}.items():
        assert "bfloat16" in str(_load(RECIPES[name], {"precision": "bfloat16", "backend": backend})[option])
        assert option not in _load(RECIPES[name], {"backend": backend})
    with pytest.raises(ValueError, match="got 'tensorflow-net-dict'"):
        _load(RECIPES[name], {"precision": "bfloat16", "backend": "tensorflow-net-dict"})


def test_loading_imports_no_backend():
    """in a fresh process, all of them"""
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from returnn_common.cli.run.recipe import load_recipe\n"
        "for path in sys.argv[1:]: load_recipe(Path(path))\n"
        "print(sorted({'torch', 'tensorflow', 'jax'} & set(sys.modules)))\n"
    )
    paths = list(map(str, RECIPES.values()))
    result = subprocess.run([sys.executable, "-c", code, *paths], cwd=ROOT, text=True, capture_output=True)
    assert result.stdout.strip() == "[]", result.stderr


@every_speech_recipe
def test_model(path: Path):
    """it takes the dataset's audio and labels, trains and recognises; the options of its size count"""
    torch = pytest.importorskip("torch")
    sizes = []
    for options in (TINY, {**TINY, "num_layers": "2"}, {**TINY, "model_dim": "32"}):
        recipe = _load(path, options)
        nn.select_backend_torch()
        model = recipe["get_model"](epoch=1, step=0)
        sizes.append(sum(p.raw_tensor.numel() for p in model.parameters()))
    assert sizes[0] < sizes[1] < sizes[2]
    model = _load(path, TINY)["get_model"](epoch=1, step=0)
    batch = Dim(2, name="batch")
    time, labels = (
        nn.SpatialDim(name, Tensor(name, dims=[batch], dtype="int32", raw_tensor=torch.tensor(size).int()))
        for name, size in [("time", [8000, 3000]), ("labels", [2, 1])]
    )
    audio = torch.randn(2, 8000, generator=torch.Generator().manual_seed(1)) * 0.1
    data = TensorDict()
    data.data["data"] = Tensor("data", dims=[batch, time], dtype="float32", raw_tensor=audio)
    raw = torch.tensor([[1, 2], [3, 0]], dtype=torch.int32)
    data.data["classes"] = Tensor(
        "classes", dims=[batch, labels], dtype="int32", sparse_dim=model.vocab_dim, raw_tensor=raw
    )
    nn.init_train_step_run_ctx(train_flag=True, step=0)
    with global_config_ctx(Config({})):
        recipe["train_step"](model=model, extern_data=data)
    total = nn.get_run_ctx().total_loss().raw_tensor
    total.backward()
    assert np.isfinite(total.item())
    assert all(p.raw_tensor.grad is not None for p in model.parameters() if p.raw_tensor.requires_grad)
    nn.init_forward_step_run_ctx(step=0)
    with global_config_ctx(Config({})):
        recipe["forward_step"](model=model, extern_data=data)
    assert set(nn.get_run_ctx().outputs.data) == {"labels", "lengths", "scores"}


SETTINGS = {
    "num_layers": "1",
    "model_dim": "16",
    "num_epochs": "1",
    "epoch_split": "1",
    "train_splits": "train-clean-100",
    "dev_splits": "dev-clean",
    "test_splits": "test-clean,test-other",
}


def test_librispeech_from_recordings_to_word_error_rates(shared_data: Path, tmp_path: Path, monkeypatch):
    """the numbers mean nothing after one step; every utterance has to be recognised and scored"""
    pytest.importorskip("torch")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])))
    out = tmp_path / "out"
    settings = [part for name, value in SETTINGS.items() for part in ("--set", f"{name}={value}")]
    corpus = shared_data / "LibriSpeech"
    assert main(["run", "librispeech_ctc", "--corpus", str(corpus), "--out", str(out), *settings]) == 0
    results = json.loads((out / "results.json").read_text())
    dataset = load_recipe(RECIPES["librispeech_ctc"], options={**SETTINGS, "corpus": str(out / "data")}).dataset
    assert (results["recipe"], results["backend"]) == ("librispeech_ctc", "torch")
    assert set(results["wer"]) == set(results["errors"]) == {"dev-clean", "test-clean", "test-other"}
    for split, errors in results["errors"].items():
        recordings = {file.stem for file in (corpus / split).rglob("*.flac")}
        nbest = read_nbest(out / "recog" / f"{split}.py.gz")
        assert len(nbest) == len(recordings) == errors["utterances"]
        assert all(entries for entries in nbest.values())
        references = dataset.get_references(split)
        assert set(nbest) == set(references)
        score = score_wer(best_texts(nbest), references)
        counts = [score.substitutions, score.deletions, score.insertions]
        assert [errors[name] for name in ("substitutions", "deletions", "insertions")] == counts
        words = sum(len(text.split()) for text in references.values())
        assert errors["reference_words"] == words and errors["missing"] == errors["extra"] == 0
        assert results["wer"][split] == pytest.approx(100 * sum(counts) / words, abs=1e-3)
    transcripts = [line for path in corpus.rglob("*.trans.txt") for line in path.read_text().splitlines()]
    assert sum(errors["utterances"] for errors in results["errors"].values()) == len(transcripts) - 1  # 1 to train
    assert results["audio_seconds"] > 20 and results["num_parameters"] > 1000
    assert "<svg" in (out / "report.html").read_text()
