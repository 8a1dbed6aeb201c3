"""Resuming: an interrupted training ends as if undisturbed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy
import pytest

from returnn_common.training.checkpoints import Checkpoint, read_checkpoint, write_checkpoint
from returnn_common.training.convert import convert_checkpoint
from returnn_common.training.resume import _extend_jax_engine, _random_by_step, _restore, _startup, exact_resume
from tests.engines.server import run_module

CONFIG = """#!rnn.py
import returnn.frontend as rf
from returnn.tensor import Dim, batch_dim

from returnn_common.training.learning_rates import one_cycle
from returnn_common.training.resume import exact_resume

globals().update(one_cycle(num_steps=12, peak=0.05, warmup_steps=4))
globals().update(exact_resume())
time_dim = Dim(None, name="time")
in_dim = Dim(4, name="in")
out_dim = Dim(3, name="out")
extern_data = {"data": {"dims": [batch_dim, time_dim, in_dim], "dtype": "float32"}}
train = {
    "class": "HDFDataset", "files": ["data.hdf"], "cache_byte_size": 0, "use_cache_manager": False,
    "seq_ordering": "random", "partition_epoch": 2,
}
dev = {**train, "seq_ordering": "default", "partition_epoch": 1}
task = "train"
behavior_version = 38
batch_size = 10
num_epochs = 3
model = "./model"
learning_rate_file = "learning_rates"
optimizer = {"class": "adam", "epsilon": 1e-8}
tf_log_dir = None


class Model(rf.Module):
    def __init__(self):
        super().__init__()
        self.linear = rf.Linear(in_dim, out_dim)


def get_model(*, epoch, step, **_):
    return Model()


def train_step(*, model, extern_data, **_):
    logits = model.linear(rf.dropout(extern_data["data"], 0.3, axis=in_dim))
    loss = rf.reduce_mean(rf.square(logits - 1.0), axis=[time_dim, out_dim])
    rf.get_run_ctx().mark_as_loss(loss, "square")
"""


# Not for the other engines; no process of its own, which would import everything.
TORCH_OPTIONS = 'torch_dataloader_opts = {"num_workers": 0}\n'


def _config(backend: str) -> str:
    return CONFIG + (TORCH_OPTIONS if backend == "torch" else "")


def _train(folder: Path, backend: str, *options: str) -> str:
    return run_module(backend, ["returnn", "tiny.config", "++backend", backend, *options], cwd=folder)


def _train_again(folder: Path, backend: str, *options: str) -> str:
    """in a process of its own, which has nothing in common with the one before"""
    env = {**os.environ, "DISABLE_CUDA": "1", "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    root = Path(__file__).parents[2]
    env["PYTHONPATH"] = os.pathsep.join([str(root), *filter(None, [env.get("PYTHONPATH")])])
    result = subprocess.run(
        [sys.executable, "-m", "returnn", "tiny.config", "++backend", backend, *options],
        cwd=folder,
        env=env,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert result.returncode == 0, result.stdout[-5000:]
    return result.stdout


SUFFIXES = {"torch": ["pt"], "jax": ["orbax"]}  # else TensorFlow's


@pytest.mark.parametrize("backend", ["torch", "tensorflow", "tensorflow-net-dict", "jax"])
def test_interrupted_is_undisturbed(backend, tmp_path):
    pytest.importorskip(backend.partition("-")[0])
    from returnn.datasets.hdf import SimpleHDFWriter

    undisturbed, interrupted = tmp_path / "undisturbed", tmp_path / "interrupted"
    undisturbed.mkdir()
    (undisturbed / "tiny.config").write_text(_config(backend))
    writer = SimpleHDFWriter(str(undisturbed / "data.hdf"), dim=4, ndim=2)
    rng = numpy.random.default_rng(3)
    for i in range(12):
        writer.insert_batch(rng.normal(size=(1, 3 + i % 4, 4)).astype("float32"), [3 + i % 4], [f"seq-{i}"])
    writer.close()
    _train(undisturbed, backend)
    optimizer_states = {file.name for file in undisturbed.iterdir() if ".opt." in file.name}
    suffixes = SUFFIXES.get(backend, ["index", "data-00000-of-00001"])
    kept = (1, 2, 3) if backend == "jax" else (2, 3)
    assert optimizer_states == {f"model.00{epoch}.opt.{suffix}" for epoch in kept for suffix in suffixes}

    # What kill -9 leaves while model.003 is being written: the optimizer's state, and parts of the model under another
    # name; TensorFlow renames only the .index into place last.
    shutil.copytree(undisturbed, interrupted)
    if backend == "torch":
        (interrupted / "model.003.pt").rename(interrupted / "model.003.pt.tmp_write")
    elif backend == "jax":
        (interrupted / "model.003.orbax").rename(interrupted / "model.003.orbax.orbax-checkpoint-tmp-1")
    else:
        (interrupted / "model.003.index").unlink()
        (interrupted / "model.003.meta").unlink()
        (interrupted / "model.003.data-00000-of-00001").write_bytes(b"half")
    log = _train_again(interrupted, backend)
    assert re.search("(start|train) epoch 3", log) and not re.search("(start|train) epoch 2", log)
    assert backend == "torch" or re.search("Load(ed)? optimizer", log)

    expected, actual = (read_checkpoint(folder / "model.003") for folder in (undisturbed, interrupted))
    assert expected.step == actual.step > 6
    assert set(expected.floats) == set(actual.floats) and len(expected.floats) == 2
    for name, value in expected.floats.items():
        numpy.testing.assert_array_equal(value, actual.floats[name], err_msg=name)
        before = read_checkpoint(undisturbed / "model.002").floats[name]
        assert (value != before).any()
    for name, value in expected.others.items():
        numpy.testing.assert_array_equal(value, actual.others[name], err_msg=name)


@pytest.mark.parametrize("backend", ["torch", "tensorflow", "tensorflow-net-dict", "jax"])
def test_goes_on_from_elsewhere(backend, tmp_path):
    """With a new optimizer, at the epoch after that of the checkpoint; after an interruption, with its own."""
    pytest.importorskip(backend.partition("-")[0])
    torch = pytest.importorskip("torch")
    from returnn.datasets.hdf import SimpleHDFWriter

    (tmp_path / "tiny.config").write_text(_config(backend))
    writer = SimpleHDFWriter(str(tmp_path / "data.hdf"), dim=4, ndim=2)
    writer.insert_batch(numpy.ones((1, 3, 4), "float32"), [3], ["seq-0"])
    writer.insert_batch(numpy.zeros((1, 5, 4), "float32"), [5], ["seq-1"])
    writer.close()
    weight, bias = numpy.ones((4, 3), "float32"), numpy.zeros(3, "float32")
    checkpoint = Checkpoint(
        engine="torch",
        step=7,
        floats={"linear.weight": weight, "linear.bias": bias},
        others={},
        dtypes={"linear.weight": torch.float32, "linear.bias": torch.float32},
        extra={"epoch": 2, "step": 7},
    )
    write_checkpoint(checkpoint, tmp_path / "other.002")
    convert_checkpoint(tmp_path / "other.002", tmp_path / "import" / "other.002", backend=backend)
    options = ["++load", "import/other.002", "++load_ignore_missing_vars", "True"]
    if backend != "tensorflow-net-dict":
        options = options[:2]
    log = _train(tmp_path, backend, *options)
    assert re.search("(start|train) epoch 3", log) and not re.search("(start|train) epoch 2", log)
    assert re.search("New optimizer, since .*other.002 is from elsewhere", log)
    assert not re.search("Load(ed)? optimizer", log)
    assert read_checkpoint(tmp_path / "model.003").step == 8
    log = _train_again(tmp_path, backend, *options, "++num_epochs", "4")
    assert re.search("(start|train) epoch 4", log) and not re.search("(start|train) epoch 3", log)
    assert "New optimizer" not in log and (backend == "torch" or re.search("Load(ed)? optimizer", log))


def test_no_optimizer_state(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no optimizer state .*model.001.opt.index to go on with"):
        _restore(None, None, str(tmp_path / "model.001"))


def test_no_optimizer_state_on_jax(tmp_path):
    pytest.importorskip("jax")
    from returnn.config import Config
    from returnn.engine.base import EngineBase

    class Engine:
        epoch = 2
        config = Config({"model": str(tmp_path / "model")})
        get_epoch_model = staticmethod(lambda config: (1, str(tmp_path / "model.001")))
        epoch_model_filename = EngineBase.epoch_model_filename

        def _save_model(self):
            raise NotImplementedError

        _load_model = _save_model

    _extend_jax_engine(Engine)
    with pytest.raises(FileNotFoundError, match=r"no optimizer state .*model.001.opt.orbax to go on with"):
        Engine()._load_model(filename=str(tmp_path / "model.001"))


@pytest.mark.parametrize("task, engine", [("forward", "Jax"), ("forward", "Torch"), ("forward", "TensorFlow")])
def test_elsewhere_it_changes_nothing(task, engine, monkeypatch):
    pytest.importorskip("tensorflow")
    pytest.importorskip("torch")
    import returnn.tf.engine
    import returnn.tf.engine_rf
    import returnn.torch.engine
    from returnn.config import Config
    from returnn.util.basic import BackendEngine

    classes = [returnn.tf.engine.Engine, returnn.tf.engine_rf.Engine, returnn.torch.engine.Engine]
    before = [dict(vars(cls)) for cls in classes]
    monkeypatch.setattr(BackendEngine, "get_selected_engine", lambda: getattr(BackendEngine, engine))
    assert exact_resume() == {"startup_callback": _startup}
    _startup(config=Config({"task": task}))
    assert [dict(vars(cls)) for cls in classes] == before


class _FakeEngine:
    def __init__(self, step):
        self._step_placeholder = step


def test_random_numbers_depend_on_step_and_seed_only():
    tf = pytest.importorskip("tensorflow")
    original = tf.random.uniform

    def _draws(seed, steps):
        """In a new graph and session, as after a restart."""
        tf1 = tf.compat.v1
        with tf1.Graph().as_default(), tf1.Session() as session:
            step = tf1.placeholder("int64", ())
            with _random_by_step(_FakeEngine(step), seed=seed):
                draws = [
                    tf.random.uniform([1000]),
                    tf.random.uniform([1000], 2, 7, dtype=tf.int32),
                    tf.random.normal([1000], mean=3.0, stddev=0.5),
                    tf.random.truncated_normal([1000]),
                    tf.random.uniform([1000]),
                ]
            return [session.run(draws, {step: value}) for value in steps]

    (first, second), (again,) = _draws(1, [5, 6]), _draws(1, [6])
    numpy.testing.assert_equal(second, again)
    assert all((a != b).any() for a, b in zip(first, second, strict=True))
    assert all((a != b).any() for a, b in zip(second, _draws(2, [6])[0], strict=True))
    uniform, integers, normal, truncated, other = second
    assert (uniform != other).any()
    assert 0 <= uniform.min() and uniform.max() < 1 and abs(uniform.mean() - 0.5) < 0.05
    assert set(integers) == {2, 3, 4, 5, 6}
    assert abs(normal.mean() - 3.0) < 0.1 and abs(normal.std() - 0.5) < 0.1
    assert abs(truncated).max() <= 2.0
    assert tf.random.uniform is original


def test_iterations_of_a_loop_draw_anew():
    tf = pytest.importorskip("tensorflow")
    tf1 = tf.compat.v1
    with tf1.Graph().as_default(), tf1.Session() as session:
        with _random_by_step(_FakeEngine(tf.constant(3, "int64")), seed=1):
            _, values = tf.while_loop(
                lambda i, _: i < 4,
                lambda i, values: (i + 1, tf.concat([values, tf.random.uniform([1])], 0)),
                (0, tf.zeros([0])),
                shape_invariants=(tf.TensorShape([]), tf.TensorShape([None])),
            )
        assert len(set(session.run(values).tolist())) == 4
