"""Conversion of checkpoints: each engine's files into each other's, and trainings that go on on another engine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy
import pytest

import returnn_common
from returnn_common import nn
from returnn_common.training import convert_checkpoint
from returnn_common.training.averaging import read_scores
from returnn_common.training.checkpoints import read_checkpoint
from returnn_common.training.convert import BACKENDS, load_checkpoint, read_parameters

ROOT = Path(returnn_common.__file__).resolve().parents[1]
SUFFIXES = {
    "torch": {".pt"},
    "tensorflow": {".index", ".meta", ".data-00000-of-00001"},
    "tensorflow-net-dict": {".index", ".meta", ".data-00000-of-00001"},
    "jax": {".orbax"},
}


def _params(types=("float16", "int64", "bool")):
    rng = numpy.random.default_rng(1)
    params = {
        "encoder.layers.0.weight": rng.normal(size=(3, 4)).astype("float32"),
        "scale": rng.normal(size=()).astype("float32"),
        "_hidden._w": rng.normal(size=(2,)).astype("float64"),
    }
    return {**params, **{f"encoder.{name}": rng.normal(size=(5,)).astype(name) for name in types}}


def _net_dict_name(name):
    return {"_hidden._w": ".95.hidden/.95.w"}.get(name, name.replace(".", "/")) + "/param"


def _write(backend, base, params, *, step=70, epoch: int | None = 7):
    """As RETURNN's engines write them."""
    if backend == "torch":
        torch = pytest.importorskip("torch")
        content = {"model": {name: torch.from_numpy(numpy.array(value)) for name, value in params.items()}}
        torch.save({**content, "step": step, **({} if epoch is None else {"epoch": epoch})}, f"{base}.pt")
    elif backend == "jax":
        checkpoint = pytest.importorskip("orbax.checkpoint")
        tree = {**params, "_step": numpy.array(step), "_epoch": numpy.array(epoch)}
        checkpoint.PyTreeCheckpointer().save(os.path.abspath(base) + ".orbax", tree)
    else:
        values = {**params, "global_step": numpy.int64(step), "epoch": numpy.int64(epoch or 0)}
        if backend == "tensorflow-net-dict":
            values = {_net_dict_name(name): value for name, value in params.items()}
            values["global_step"] = numpy.int64(step)
            values["cond/random/random_generator/StateVar"] = numpy.zeros(3, "int64")
        _write_tensorflow(base, values)
    return str(base)


def _write_tensorflow(base, values):
    tf1 = pytest.importorskip("tensorflow").compat.v1
    with tf1.Graph().as_default(), tf1.Session() as session:
        variables = {name: tf1.Variable(value) for name, value in values.items()}
        session.run(tf1.global_variables_initializer())
        tf1.train.Saver(variables).save(session, str(base))


def _read(backend, base):
    """All that is in the files, independently of our own reader."""
    if backend == "torch":
        import torch

        content = torch.load(f"{base}.pt", weights_only=True)
        params = {name: value.numpy() for name, value in content.pop("model").items()}
        return {**params, **content}
    if backend == "jax":
        import orbax.checkpoint

        return orbax.checkpoint.PyTreeCheckpointer().restore(os.path.abspath(base) + ".orbax")
    import tensorflow

    reader = tensorflow.compat.v1.train.NewCheckpointReader(str(base))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


@pytest.mark.parametrize("target", BACKENDS)
@pytest.mark.parametrize("source", BACKENDS)
def test_each_to_each(source, target, tmp_path):
    params = _params()
    base = _write(source, tmp_path / "model.007", params)
    out = convert_checkpoint(base, tmp_path / "sub" / "out", backend=target)
    assert out == str(tmp_path / "sub" / "out")
    assert {name.removeprefix("out") for name in os.listdir(tmp_path / "sub")} == SUFFIXES[target]
    counters = {
        "torch": {"step": 70, "epoch": 7},
        "tensorflow": {"global_step": 70, "epoch": 7},
        "tensorflow-net-dict": {"global_step": 70},
        "jax": {"_step": 70, "_epoch": 7},
    }[target]
    content = _read(target, out)
    assert {name: int(content.pop(name)) for name in counters} == counters
    expected = {(_net_dict_name(name) if target == "tensorflow-net-dict" else name): v for name, v in params.items()}
    assert set(content) == set(expected)
    for name, value in expected.items():
        assert content[name].dtype == value.dtype and content[name].shape == value.shape, name
        numpy.testing.assert_array_equal(content[name], value, err_msg=name)


@pytest.mark.parametrize("backend", ["tensorflow", "tensorflow-net-dict", "jax"])
def test_bfloat16(backend, tmp_path):
    torch = pytest.importorskip("torch")
    pytest.importorskip("tensorflow" if backend.startswith("tensorflow") else backend)
    value = torch.tensor([1.5, -3.0, 1e30], dtype=torch.bfloat16)
    torch.save({"model": {"a.w": value}, "epoch": 1, "step": 2}, tmp_path / "m.pt")
    convert_checkpoint(tmp_path / "m", tmp_path / "other", backend=backend)
    assert read_parameters(tmp_path / "other").dtypes == {"a.w": "bfloat16"}
    convert_checkpoint(tmp_path / "other", tmp_path / "back", backend="torch")
    back = torch.load(tmp_path / "back.pt", weights_only=True)["model"]["a.w"]
    assert back.dtype == torch.bfloat16 and torch.equal(back, value)


@pytest.mark.parametrize(
    "name, epoch", [("model.012", 12), ("a.3.model", 3), ("model", None), ("model.000", None), ("model12", None)]
)
def test_epoch_from_the_name(name, epoch, tmp_path):
    _write("tensorflow-net-dict", tmp_path / name, _params())
    parameters = read_parameters(tmp_path / f"{name}.index")
    assert (parameters.backend, parameters.epoch, parameters.step) == ("tensorflow-net-dict", epoch, 70)
    out = convert_checkpoint(tmp_path / name, tmp_path / "out", backend="torch")
    assert _read("torch", out).get("epoch") == epoch
    out = convert_checkpoint(tmp_path / name, tmp_path / "low", backend="tensorflow")
    assert _read("tensorflow", out).get("epoch") == epoch


class _Tied(nn.Module):
    """Its weight has two names; one parameter may be missing in a checkpoint."""

    def __init__(self):
        super().__init__()
        dim = nn.Dim(3, name="dim")
        self.first = nn.Linear(dim, nn.Dim(2, name="out"))
        self.second = nn.Linear(dim, self.first.out_dim, with_bias=False)
        self.second.weight = self.first.weight
        self.prior = nn.Parameter([dim])
        self.prior.non_critical_for_restore = True


@pytest.fixture
def model():
    pytest.importorskip("torch")
    nn.select_backend_torch()
    return _Tied()


def test_tied_parameters(model, tmp_path):
    weight, bias = numpy.ones((3, 2), "float32"), numpy.zeros(2, "float32")
    _write("jax", tmp_path / "j", {"first.weight": weight, "first.bias": bias})
    convert_checkpoint(tmp_path / "j", tmp_path / "t", backend="torch", model=model)
    from returnn.torch.frontend.bridge import rf_module_to_pt_module

    parameters = read_parameters(tmp_path / "t")
    module = rf_module_to_pt_module(model)
    assert set(module.state_dict()) == {*parameters.values, "prior"}
    # PyTorch's has all names, the other engines the first one.
    numpy.testing.assert_array_equal(parameters.values["second.weight"], weight)
    convert_checkpoint(tmp_path / "t", tmp_path / "n", backend="tensorflow-net-dict", model=model)
    assert set(read_checkpoint(tmp_path / "n").floats) == {"first/weight/param", "first/bias/param"}
    # Without the model, the names stay as they are.
    convert_checkpoint(tmp_path / "t", tmp_path / "n2", backend="tensorflow-net-dict")
    assert "second/weight/param" in read_checkpoint(tmp_path / "n2").floats
    # Any of the names will do.
    _write("torch", tmp_path / "s", {"second.weight": weight, "first.bias": bias, "prior": numpy.zeros(3, "float32")})
    convert_checkpoint(tmp_path / "s", tmp_path / "u", backend="jax", model=model)
    assert set(read_parameters(tmp_path / "u").values) == {"first.weight", "first.bias", "prior"}


@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_into_a_model(model, backend, tmp_path):
    """tied parameters under any of their names; what may be missing keeps its value"""
    weight, bias = numpy.arange(6.0).reshape(3, 2).astype("float32"), numpy.array([7.0, 8.0], "float32")
    model.prior.initial = 5.0
    names = ["first.weight", "second.weight"] if backend == "torch" else ["second.weight"]
    _write(backend, tmp_path / "m.003", {"first.bias": bias, **dict.fromkeys(names, weight)})
    parameters = load_checkpoint(model, tmp_path / "m.003")
    assert (parameters.backend, parameters.step, sorted(parameters.values)) == (
        backend,
        70,
        ["first.bias", "first.weight"],
    )
    for param, value in [(model.first.weight, weight), (model.second.weight, weight), (model.first.bias, bias)]:
        numpy.testing.assert_array_equal(param.raw_tensor.detach().numpy(), value)
    assert (model.prior.raw_tensor == 5.0).all()


@pytest.mark.parametrize(
    "params, message",
    [
        ({"first.weight": (3, 2)}, "first.bias only in the model$"),
        ({"first.weight": (3, 2), "first.bias": (2,), "x.y": (1,)}, "x.y only in .*m$"),
        (
            {"first.weight": (2, 3), "first.bias": (2,)},
            r"first.weight is \[2, 3\] in .*m, \[3, 2\] in the model$",
        ),
        ({f"x.{i}": (1,) for i in range(9)}, r"x.7 only in [^;]*m; and 3 more$"),
    ],
    ids=["missing", "extra", "shape", "many"],
)
def test_checkpoint_of_another_model(model, params, message, tmp_path):
    _write("torch", tmp_path / "m", {name: numpy.zeros(shape, "float32") for name, shape in params.items()})
    with pytest.raises(ValueError, match=f"convert_checkpoint: parameters differ: .*{message}"):
        convert_checkpoint(tmp_path / "m", tmp_path / "out", backend="torch", model=model)
    before = model.first.weight.raw_tensor.clone()
    with pytest.raises(ValueError, match=f"load_checkpoint: parameters differ: .*{message}"):
        load_checkpoint(model, tmp_path / "m")
    assert (model.first.weight.raw_tensor == before).all()
    assert os.listdir(tmp_path) == ["m.pt"]


def test_errors(tmp_path):
    base = _write("torch", tmp_path / "m.001", _params())
    with pytest.raises(ValueError, match="backend must be one of torch, tensorflow, .*, got 'keras'"):
        convert_checkpoint(base, tmp_path / "out", backend="keras")
    with pytest.raises(FileNotFoundError, match="no checkpoint .*nothing: looked for .*nothing.pt"):
        convert_checkpoint(tmp_path / "nothing", tmp_path / "out", backend="torch")
    with pytest.raises(ValueError, match="m.001 would replace the checkpoint that is to be converted"):
        convert_checkpoint(base + ".pt", tmp_path / "m.001", backend="torch")
    (tmp_path / "half.pt").write_bytes(Path(base + ".pt").read_bytes()[:300])
    with pytest.raises(ValueError, match="checkpoint .*half cannot be read: RuntimeError: "):
        read_parameters(tmp_path / "half")
    # The two TensorFlow engines' files have the same names.
    _write("tensorflow", tmp_path / "m.002", _params())
    with pytest.raises(ValueError, match="m.002 would replace"):
        convert_checkpoint(tmp_path / "m.002", tmp_path / "m.002", backend="tensorflow-net-dict")
    _write_tensorflow(tmp_path / "layers", {"output/W": numpy.zeros(2, "float32"), "global_step": numpy.int64(1)})
    with pytest.raises(ValueError, match="layers is not a checkpoint of a frontend model: .* variable 'output/W'"):
        convert_checkpoint(tmp_path / "layers", tmp_path / "out", backend="torch")


CONFIG = """#!rnn.py
import returnn.frontend as rf
from returnn.tensor import Dim, batch_dim

time_dim = Dim(None, name="time")
in_dim = Dim(4, name="in")
extern_data = {"data": {"dims": [batch_dim, time_dim, in_dim], "dtype": "float32"}}
train = {"class": "HDFDataset", "files": ["../data.hdf"], "cache_byte_size": 0, "use_cache_manager": False}
dev = dict(train)
task = "train"
behavior_version = 38
batch_size = 1000
max_seqs = 100  # all in one step
num_epochs = 2
model = "./model"
learning_rate_file = "learning_rates"
learning_rate = 0.03
optimizer = {"class": "adam", "epsilon": 1e-8}
tf_log_dir = None


class Input(rf.Module):
    def __init__(self):
        super().__init__()
        self._linear = rf.Linear(in_dim, Dim(6, name="hidden"))
        self.out_dim = self._linear.out_dim

    def __call__(self, data):
        return self._linear(data)


class Model(rf.Module):
    def __init__(self):
        super().__init__()
        self.input = Input()
        self.layers = rf.ModuleList([rf.Linear(self.input.out_dim, self.input.out_dim) for _ in range(2)])
        self.tied = rf.Linear(self.input.out_dim, self.input.out_dim)
        self.tied.weight = self.layers[1].weight
        self.loss = rf.Linear(self.input.out_dim, in_dim)  # named as the loss


def get_model(*, epoch, step, **_):
    return Model()


def train_step(*, model, extern_data, **_):
    data = extern_data["data"]
    hidden = model.input(data)
    for layer in (*model.layers, model.tied):
        hidden = rf.tanh(layer(hidden))
    # Hardly ever drops anything, but has a random generator.
    hidden = rf.dropout(hidden, 1e-9, axis=hidden.feature_dim)
    loss = rf.reduce_mean(rf.square(model.loss(hidden) - data), axis=[time_dim, in_dim])
    rf.get_run_ctx().mark_as_loss(loss, "loss")
"""


def _train(folder: Path, backend: str, **options: object) -> tuple[list[float], list[float]]:
    """:return: loss before each epoch's only step, and loss on the same data after it"""
    folder.mkdir()
    (folder / "tiny.config").write_text(CONFIG)
    env = {**os.environ, "DISABLE_CUDA": "1", "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [env.get("PYTHONPATH")])])
    given = [part for name, value in {"backend": backend, **options}.items() for part in (f"++{name}", str(value))]
    command = [sys.executable, "-m", "returnn", "tiny.config", *given]
    result = subprocess.run(command, cwd=folder, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert result.returncode == 0, result.stdout[-5000:]
    finished = [scores for scores in read_scores(folder / "learning_rates").values() if scores]
    # Low-level TensorFlow has the sum over the batch as "train_loss" beside it.
    name = next(name for name in ("_loss:loss", "_loss_loss", "_score", "_loss") if f"train{name}" in finished[0])
    return [scores[f"train{name}"] for scores in finished], [scores[f"dev{name}"] for scores in finished]


def test_trainings_go_on_on_another_engine(tmp_path):
    """Around all engines: each begins with the loss with which the one before it has ended."""
    for name in ("torch", "tensorflow", "jax", "optax", "orbax.checkpoint"):
        pytest.importorskip(name)
    from returnn.datasets.hdf import SimpleHDFWriter

    writer = SimpleHDFWriter(str(tmp_path / "data.hdf"), dim=4, ndim=2)
    rng = numpy.random.default_rng(3)
    for i in range(8):
        writer.insert_batch(rng.normal(size=(1, 3 + i % 4, 4)).astype("float32"), [3 + i % 4], [f"seq-{i}"])
    writer.close()
    namespace: dict[str, Any] = {}
    exec(CONFIG, namespace)
    nn.select_backend_torch()
    model = namespace["get_model"](epoch=1, step=0)

    last = tmp_path / "torch"
    before, after = _train(last, "torch")
    assert before[0] > after[0] == pytest.approx(before[1], rel=1e-5)
    for backend in ("tensorflow", "tensorflow-net-dict", "jax", "torch"):
        imported = convert_checkpoint(last / "model.002", tmp_path / f"for-{backend}.002", backend=backend, model=model)
        options = {"load_ignore_missing_vars": True} if backend == "tensorflow-net-dict" else {}
        loss = after[-1]
        last = tmp_path / f"{backend}-2"
        before, after = _train(last, backend, import_model_train_epoch1=imported, **options)
        assert before[0] == pytest.approx(loss, rel=1e-4), backend
        assert loss > after[0] > after[1], backend
