"""
Training in two processes on the CPU, against the same computed by hand in one: the data is split, uneven ends do not
hang, and each step is that of one process with all batches.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import returnn_common
from returnn_common.training import distributed
from returnn_common.training.distributed import distributed_training, normalize_over_processes

torch = pytest.importorskip("torch")

ROOT = Path(returnn_common.__file__).resolve().parents[1]
NUM_EPOCHS, LEARNING_RATE = 2, 0.05

# Frames of each sequence. A batch takes 6 (with padding), so that the first process has three batches, the other two.
LENGTHS = [6, 5, 3, 2, 3, 3, 1, 3]
NUM_LABELS = [1, 4, 2, 3, 1, 1, 5, 2]
BATCHES = [[[0], [1], [2, 3]], [[4, 5], [6, 7]]]  # of each process

# What each process sees, and its parameters after each step, go to a file of its own.
CONFIG = """#!rnn.py
import json
import os

from returnn.tensor import Dim, batch_dim

from returnn_common import nn
from returnn_common.training import train_step as common_train_step
from returnn_common.training.distributed import distributed_training

time_dim = Dim(None, name="time")
in_dim = Dim(3, name="in")
labels_dim = Dim(None, name="labels-time")
extern_data = {
    "data": {"dims": [batch_dim, time_dim, in_dim], "dtype": "float32"},
    "classes": {"dims": [batch_dim, labels_dim], "sparse_dim": Dim(7, name="labels"), "dtype": "int32"},
    "seq_tag": {"dims": [batch_dim], "dtype": "string"},
}
train = {
    "class": "HDFDataset", "files": ["data.hdf"], "cache_byte_size": 0, "use_cache_manager": False,
    "seq_ordering": "default",
}
dev = {**train}
backend = "torch"
task = "train"
behavior_version = 38
batch_size = {"data": 6}
num_epochs = NUM_EPOCHS
model = "./model"
learning_rate_file = "learning_rates"
learning_rate = LEARNING_RATE
optimizer = {"class": "sgd"}
torch_dataloader_opts = {"num_workers": 0}
distributed = "grad"
globals().update(distributed_training(config.value("mode", ""), sync_steps=1))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter([in_dim])
        self.weight.initial = 0.5
        self.norm = nn.BatchNorm(in_dim)  # it has buffers

    def losses(self, source, *, in_spatial_dim, targets, targets_spatial_dim):
        frames = nn.reduce_sum(source * self.weight, axis=in_dim) - 1.0
        value = nn.reduce_sum(frames * frames, axis=in_spatial_dim)
        normed = nn.reduce_mean(self.norm(source), axis=[in_spatial_dim, in_dim])
        return {
            "square": nn.Loss(value, inv_norm_factor=targets_spatial_dim.get_size_tensor()),
            "per_sequence": nn.Loss(value, scale=0.5),
            "normed": nn.Loss(normed),  # which doesn't depend on the weight
            "count": nn.Loss(value, as_error=True),
        }


def get_model(*, epoch, step, **_):
    return Model()


def train_step(*, model, extern_data, **_):
    if nn.get_run_ctx().train_flag:
        weight = model.weight.raw_tensor.tolist()
        with open(f"seen.{os.environ.get('RANK', 0)}", "a") as file:
            print(json.dumps([[str(tag) for tag in extern_data["seq_tag"].raw_tensor], weight]), file=file)
    common_train_step(model=model, extern_data=extern_data)
"""


@pytest.fixture(scope="module")
def features() -> list[np.ndarray]:
    return [np.random.default_rng(i).normal(size=(n, 3)).astype("float32") for i, n in enumerate(LENGTHS)]


def _write_data(folder: Path, features: list[np.ndarray]):
    from returnn.datasets.hdf import SimpleHDFWriter

    writer = SimpleHDFWriter(str(folder / "data.hdf"), dim=3, ndim=2, extra_type={"classes": (7, 1, "int32")})
    for i, (rows, num) in enumerate(zip(features, NUM_LABELS, strict=True)):
        labels = np.zeros([1, num], "int32")
        writer.insert_batch(rows[None], [len(rows)], [f"seq-{i}"], extra={"classes": labels})
    writer.close()


def _train(folder: Path, features: list[np.ndarray], *, mode: str, num_processes: int = 2) -> str:
    """:return: what RETURNN prints"""
    _write_data(folder, features)
    (folder / "tiny.config").write_text(
        CONFIG.replace("NUM_EPOCHS", str(NUM_EPOCHS)).replace("LEARNING_RATE", str(LEARNING_RATE))
    )
    env = {**os.environ, "DISABLE_CUDA": "1", "OMP_NUM_THREADS": "1"}
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [env.get("PYTHONPATH")])])
    launcher = ["torch.distributed.run", "--standalone", "--nproc_per_node", str(num_processes), "-m"]
    result = subprocess.run(
        [sys.executable, "-m", *launcher, "returnn", "tiny.config", "++mode", mode],
        cwd=folder,
        env=env,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=900,
    )
    assert result.returncode == 0, result.stdout[-5000:]
    return result.stdout


def _seen(folder: Path, rank: int) -> tuple[list[list[int]], list[np.ndarray]]:
    """:return: indices of the sequences in each step of that process, and the weight before that step"""
    lines = [json.loads(line) for line in (folder / f"seen.{rank}").read_text().splitlines()]
    return [[int(tag.removeprefix("seq-")) for tag in tags] for tags, _ in lines], [np.array(w) for _, w in lines]


def _gradient(features: list[np.ndarray], rows: list[int], weight: np.ndarray) -> np.ndarray:
    """of the sum of both losses in a batch, each divided by its norm factor, in float64"""
    total = np.zeros(3)
    for i in rows:
        x = features[i].astype("float64")
        total += 2.0 * (x @ weight - 1.0) @ x
    return total / sum(NUM_LABELS[i] for i in rows) + 0.5 * total / len(rows)


def _final_weight(folder: Path) -> np.ndarray:
    return torch.load(folder / f"model.{NUM_EPOCHS:03}.pt", weights_only=True)["model"]["weight"].numpy()


@pytest.mark.parametrize("mode", ["grad", "grad_explicit"])
def test_steps_are_those_of_one_process_with_all_batches(mode: str, features, tmp_path: Path):
    log = _train(tmp_path, features, mode=mode)
    (batches, weights), (others_batches, others_weights) = _seen(tmp_path, 0), _seen(tmp_path, 1)
    repeated = [*BATCHES[1], BATCHES[1][-1]]  # the process without data goes on with its last batch, without weight
    assert (batches, others_batches) == (BATCHES[0] * NUM_EPOCHS, repeated * NUM_EPOCHS)
    expected = np.full(3, 0.5)
    for step, weight in enumerate(weights):
        np.testing.assert_allclose(weight, expected, rtol=1e-5, err_msg=f"step {step}")
        np.testing.assert_array_equal(weight, others_weights[step])
        index = step % len(BATCHES[0])
        all_rows = [i for process in BATCHES for i in (process[index] if index < len(process) else [])]
        expected = expected - LEARNING_RATE * _gradient(features, all_rows, expected)
    np.testing.assert_allclose(_final_weight(tmp_path), expected, rtol=1e-5)
    assert np.abs(expected - 0.5).max() > 0.05
    assert log.count("Epoch 1 evaluation: dev: ") == 1  # by one process; with batch norm


def test_parameters_are_averaged(features, tmp_path: Path):
    """each process takes its own step, then both have the mean; whoever has no more data ends the epoch for both"""
    _train(tmp_path, features, mode="param")
    (batches, weights), (others_batches, others_weights) = _seen(tmp_path, 0), _seen(tmp_path, 1)
    num_steps = len(BATCHES[1])
    assert (batches, others_batches) == (BATCHES[0][:num_steps] * NUM_EPOCHS, BATCHES[1] * NUM_EPOCHS)
    expected = np.full(3, 0.5)
    for step, weight in enumerate(weights):
        np.testing.assert_allclose(weight, expected, rtol=1e-5, err_msg=f"step {step}")
        np.testing.assert_array_equal(weight, others_weights[step])
        gradients = [_gradient(features, process[step % num_steps], expected) for process in BATCHES]
        expected = expected - LEARNING_RATE * np.mean(gradients, axis=0)
    np.testing.assert_allclose(_final_weight(tmp_path), expected, rtol=1e-5)


def test_options(monkeypatch):
    assert distributed_training("") == distributed_training("", backend="jax") == {}
    monkeypatch.setattr(distributed, "_has_gpu", lambda: False)
    options = distributed_training("grad")
    expected = {"reduce_type": "grad", "dataset_distribution": "shard", "backend": "gloo"}
    assert options.pop("startup_callback") is distributed._startup
    assert options == {"torch_distributed": expected, "device": "cpu"}
    monkeypatch.setattr(distributed, "_has_gpu", lambda: True)
    options = distributed_training("param", sync_steps=7)
    expected = {"reduce_type": "param", "param_sync_step": 7, "dataset_distribution": "shard"}
    assert options["torch_distributed"] == expected and "device" not in options


@pytest.mark.parametrize(
    "mode, options, message",
    [
        ("ddp", {}, "distributed_training: expected a mode of grad, grad_explicit, param, got 'ddp'"),
        ("grad", {"backend": "tensorflow"}, "in several processes with backend torch only, got 'tensorflow'"),
        ("param", {"sync_steps": 0}, "distributed_training: expected sync_steps >= 1, got 0"),
    ],
)
def test_what_it_refuses(mode: str, options: dict, message: str):
    with pytest.raises(ValueError, match=message):
        distributed_training(mode, **options)


def test_gpu(monkeypatch):
    monkeypatch.setattr("glob.glob", lambda pattern: ["/dev/nvidia3"] if pattern.startswith("/dev/nvidia") else [])
    monkeypatch.delenv("DISABLE_CUDA", raising=False)
    assert distributed._has_gpu()
    monkeypatch.setenv("DISABLE_CUDA", "1")
    assert not distributed._has_gpu()
    monkeypatch.delenv("DISABLE_CUDA")
    monkeypatch.setattr("glob.glob", lambda pattern: [])
    monkeypatch.setattr("os.path.exists", lambda path: False)
    assert not distributed._has_gpu()


@pytest.mark.parametrize("task, reduce_type", [("forward", "grad"), ("train", None)])
def test_elsewhere_it_changes_nothing(task: str, reduce_type: str | None, monkeypatch):
    from returnn.config import Config
    from returnn.torch.engine import Engine

    monkeypatch.setattr(distributed, "exact_resume", lambda: {"startup_callback": lambda **_kwargs: None})
    before = dict(vars(Engine))
    options = None if reduce_type is None else {"reduce_type": reduce_type}
    distributed._startup(config=Config({"task": task, "torch_distributed": options}))
    assert dict(vars(Engine)) == before and options in (None, {"reduce_type": "grad"})


def _others(monkeypatch, *values):
    """Each sum over the processes gets the next of the values from the other one."""
    remaining = list(values)

    def _all_reduce(tensor):
        tensor += torch.tensor(remaining.pop(0))

    monkeypatch.setattr(torch.distributed, "all_reduce", _all_reduce)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    monkeypatch.setattr(distributed, "_repeats", False)


def test_last_batch_is_repeated(monkeypatch):
    _others(monkeypatch, 1, 1, 1, 0)
    batches = [(batch, distributed._repeats) for batch in distributed._even_batches(iter("ab"))]
    assert batches == [("a", False), ("b", False), ("b", True)]


@pytest.mark.parametrize("batches, other, num", [("", 1, 1), ("a", 0, 1)])
def test_process_without_data(batches: str, other: int, num: int, monkeypatch):
    _others(monkeypatch, other)
    with pytest.raises(ValueError, match=f"each of the 2 processes, but in this epoch there is some for {num} only"):
        next(distributed._even_batches(iter(batches)))


def test_epoch_without_data(monkeypatch):
    _others(monkeypatch, 0)
    assert list(distributed._even_batches(iter(""))) == []


class _Loss(SimpleNamespace):
    as_error = False
    scale = 0.5

    def get_inv_norm_factor(self):
        return self.norm


@pytest.mark.parametrize("repeats, factor", [(False, 2 * 3.0 / (3.0 + 1.0)), (True, 1e-30)])
@pytest.mark.parametrize("reduce_type", ["grad", "grad_explicit", "param"])
def test_norm_over_processes(repeats: bool, factor: float, reduce_type: str, monkeypatch):
    from returnn.tensor import Tensor

    context = SimpleNamespace(reduce_type=lambda: reduce_type, size=lambda: 2)
    monkeypatch.setattr("returnn.torch.distributed.get_ctx", lambda: context)
    _others(monkeypatch, [1.0, 7.0])
    monkeypatch.setattr(distributed, "_repeats", repeats)
    tensor = Tensor("norm", dims=[], dtype="int32", raw_tensor=torch.tensor(3, dtype=torch.int32))
    losses = {"a": _Loss(norm=tensor), "count": _Loss(norm=5, as_error=True), "b": _Loss(norm=7)}
    normalize_over_processes(losses)
    if reduce_type == "param":
        factor, factor_b = 1.0, 1.0
    else:
        factor_b = 1e-30 if repeats else 1.0
    scales = [loss.scale for loss in losses.values()]
    assert scales == pytest.approx([0.5 * factor, 0.5, 0.5 * factor_b], rel=1e-6)


def test_sequences_are_split():
    """what the test above relies on: the batches are all sequences, each once"""
    assert Counter(i for process in BATCHES for batch in process for i in batch) == Counter(range(len(LENGTHS)))
