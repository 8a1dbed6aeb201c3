"""
A config that was written runs in RETURNN, on each engine.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from returnn_common import nn
from returnn_common.config import to_python
from returnn_common.datasets.synthetic import SequenceTask

WIDTH = 4


class Tagger(nn.Module):
    """one label for each symbol"""

    def __init__(self, in_dim: nn.Dim, out_dim: nn.Dim, *, width: int):
        super().__init__()
        model_dim = nn.FeatureDim("model", width)
        self.embedding = nn.Embedding(in_dim, model_dim)
        self.output = nn.Linear(model_dim, out_dim)

    def __call__(self, source: nn.Tensor) -> nn.Tensor:
        return self.output(self.embedding(source))


def make_model(*, epoch: int, in_dim: nn.Dim, out_dim: nn.Dim, width: int = WIDTH, **_other: Any) -> Tagger:
    """called by RETURNN"""
    return Tagger(in_dim, out_dim, width=width)


def tag_step(*, model: Tagger, extern_data: nn.TensorDict, **_other: Any):
    """called by RETURNN"""
    logits = model(extern_data["data"])
    labels = extern_data["data"]  # it learns to say what it hears
    log_probs = nn.log_softmax(logits, axis=model.output.out_dim)
    scores = nn.gather(log_probs, indices=labels, axis=model.output.out_dim)
    nn.reduce_sum(-scores, axis=nn.get_spatial_dim(labels)).mark_as_loss("ce")


def write_config(folder: Path) -> Path:
    """:return: config that trains for a few steps"""
    dataset = SequenceTask("reverse", num_symbols=5, train_lengths=(2, 3), test_lengths=(4, 5), num_train=8, num_test=4)
    vocab_dim = dataset.get_extern_data()["data"]["sparse_dim"]
    config = {
        **dataset.get_config_opts(),
        "task": "train",
        "behavior_version": 38,
        "get_model": functools.partial(make_model, in_dim=vocab_dim, out_dim=vocab_dim),
        "train_step": tag_step,
        "model": folder / "model" / "epoch",
        "learning_rate_file": folder / "learning_rates",
        "num_epochs": 1,
        "batch_size": 100,
        "max_seqs": 4,
        "optimizer": {"class": "adam"},
        "log": None,
        "log_verbosity": 3,
    }
    # This test is no package that RETURNN could import.
    path = folder / "some.config"
    path.write_text(to_python(config, inline=[__name__], python_path=[Path(__file__).parents[2]]))
    return path


# Each starts a RETURNN of its own. What is written doesn't depend on the engine, so the default run has two of them.
_SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "backend",
    ["torch", "tensorflow-net-dict", pytest.param("tensorflow", marks=_SLOW), pytest.param("jax", marks=_SLOW)],
)
def test_it_trains(backend, tmp_path):
    path = write_config(tmp_path)
    env = {**os.environ, "DISABLE_CUDA": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": ""}
    command = [sys.executable, "-m", "returnn", str(path), "++backend", backend, "++jax_jit", "False"]
    result = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    assert "train_" in (tmp_path / "learning_rates").read_text()
    assert any(path.name.startswith("epoch.001") for path in (tmp_path / "model").iterdir())
