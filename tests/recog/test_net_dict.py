"""RETURNN's task "forward" on the TensorFlow layers engine: a tiny model, against NumPy and the PyTorch engine."""

from __future__ import annotations

import pickle

import numpy
import pytest

from returnn_common.recog.net_dict import forward_net_dict
from returnn_common.training.averaging import average_checkpoints
from returnn_common.training.checkpoints import read_checkpoint
from tests.engines.server import run_module

CONFIG = """#!rnn.py
import pickle

import returnn.frontend as rf
from returnn.forward_iface import ForwardCallbackIface
from returnn.tensor import Dim, batch_dim

time_dim = Dim(None, name="time")
in_dim = Dim(4, name="in")
out_dim = Dim(3, name="out")
extern_data = {
    "data": {"dims": [batch_dim, time_dim, in_dim], "dtype": "float32"},
    "classes": {"dims": [batch_dim, Dim(None, name="classes-time")], "sparse_dim": out_dim, "dtype": "int32"},
}
task = "train"  # the layers engine has no default
train = {"class": "HDFDataset", "files": ["data.hdf"], "cache_byte_size": 0, "use_cache_manager": False}
forward_data = dict(train)
behavior_version = 38
batch_size = 12
max_seqs = 3
num_epochs = 2
model = "model"
learning_rate = 0.1
optimizer = {"class": "adam", "epsilon": 1e-8}
torch_dataloader_opts = {"num_workers": 0}
tf_log_dir = None
forward_output = "forward"


class Model(rf.Module):
    def __init__(self):
        super().__init__()
        self.linear = rf.Linear(in_dim, out_dim)


def get_model(*, epoch, step, **_):
    return Model()


def train_step(*, model, extern_data, **_):
    logits = model.linear(extern_data["data"])
    rf.get_run_ctx().mark_as_loss(rf.reduce_mean(rf.square(logits), axis=[time_dim, out_dim]), "square")


def forward_step(*, model, extern_data, **_):
    logits = model.linear(extern_data["data"])
    scores, labels, beam_dim = rf.top_k(logits, axis=out_dim, k_dim=Dim(2, name="beam"))
    lengths = rf.reduce_sum(rf.cast(scores > 0.0, "int32"), axis=time_dim)
    hyps_dim = Dim(lengths, name="hyps")
    hyps = rf.gather(labels, indices=rf.range_over_dim(hyps_dim), axis=time_dim)
    ctx = rf.get_run_ctx()
    ctx.mark_as_output(logits, "output", dims=[time_dim, batch_dim, out_dim])
    ctx.mark_as_output(rf.reduce_mean(logits, axis=time_dim), "linear", dims=[batch_dim, out_dim])  # the module's name
    ctx.mark_as_output(rf.reduce_max(rf.reduce_max(logits, axis=out_dim), axis=time_dim), "max", dims=[batch_dim])
    ctx.mark_as_output(hyps, "hyps", dims=[batch_dim, beam_dim, hyps_dim])
    ctx.mark_as_output(lengths, "lengths", dims=[batch_dim, beam_dim])


class forward_callback(ForwardCallbackIface):
    def init(self, *, model):
        self.names = [name for name, _ in model.named_parameters()]
        self.seqs = {}

    def process_seq(self, *, seq_tag, outputs):
        def _entry(tensor):
            dims = [(int(d.get_dim_value()), None if d.dyn_size_ext is None else d.dyn_size_ext.raw_tensor)
                    for d in tensor.dims]
            sparse = tensor.sparse_dim.dimension if tensor.sparse_dim else None
            return {"value": tensor.raw_tensor, "dims": dims, "sparse": sparse,
                    "name": tensor.name}

        assert seq_tag not in self.seqs
        self.seqs[seq_tag] = {name: _entry(tensor) for name, tensor in outputs.data.items()}

    def finish(self):
        from returnn.config import get_global_config

        with open(get_global_config().value("forward_output", None), "wb") as file:
            pickle.dump((self.names, self.seqs), file)
"""

LENGTHS = [3, 7, 2, 5, 1, 6, 4]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Two epochs on the layers engine, their average, and the outputs with it."""
    pytest.importorskip("tensorflow")
    from returnn.datasets.hdf import SimpleHDFWriter

    folder = tmp_path_factory.mktemp("net_dict")
    rng = numpy.random.default_rng(1)
    data = {f"seq-{i}": rng.normal(size=(n, 4)).astype("float32") for i, n in enumerate(LENGTHS)}
    writer = SimpleHDFWriter(str(folder / "data.hdf"), dim=4, ndim=2, extra_type={"classes": (3, 1, "int32")})
    for tag, value in data.items():
        writer.insert_batch(value[None], [len(value)], [tag], extra={"classes": numpy.zeros((1, 2), "int32")})
    writer.close()
    (folder / "tiny.config").write_text(CONFIG)
    engine = "tensorflow-net-dict"
    run_module(engine, ["returnn", "tiny.config", "++backend", engine], cwd=folder)
    average_checkpoints([folder / "model.001", folder / "model.002"], folder / "average.002")
    run_module(engine, ["returnn_common.recog.net_dict", "tiny.config", "++load", "average.002"], cwd=folder)
    return folder, data


def test_against_numpy(trained):
    folder, data = trained
    params = read_checkpoint(folder / "average.002").floats
    weight, bias = params["linear/weight/param"], params["linear/bias/param"]
    assert not numpy.allclose(weight, read_checkpoint(folder / "model.002").floats["linear/weight/param"])
    names, seqs = pickle.loads((folder / "forward").read_bytes())
    assert names == ["linear.weight", "linear.bias"]
    assert set(seqs) == set(data)
    for tag, value in data.items():
        logits = value @ weight + bias
        order = numpy.argsort(-logits, axis=-1)[:, :2].T  # [beam, time]
        lengths = (numpy.take_along_axis(logits, order.T, axis=-1) > 0).sum(axis=0)
        outputs = {name: entry["value"] for name, entry in seqs[tag].items()}
        numpy.testing.assert_allclose(outputs["output"], logits, rtol=1e-4, atol=1e-5)
        numpy.testing.assert_allclose(outputs["linear"], logits.mean(axis=0), rtol=1e-4, atol=1e-5)
        numpy.testing.assert_allclose(outputs["max"], logits.max(), rtol=1e-4, atol=1e-5)
        assert outputs["max"].shape == ()
        numpy.testing.assert_array_equal(outputs["lengths"], lengths)
        assert outputs["hyps"].shape == (2, lengths.max())
        for beam, length in enumerate(lengths):
            numpy.testing.assert_array_equal(outputs["hyps"][beam, :length], order[beam, :length])
        _, (size, sizes) = seqs[tag]["hyps"]["dims"]
        assert size == lengths.max()
        numpy.testing.assert_array_equal(sizes, lengths)
        assert seqs[tag]["hyps"]["sparse"] == 3 and seqs[tag]["output"]["sparse"] is None


def test_same_as_the_pytorch_engine(trained):
    torch = pytest.importorskip("torch")
    folder, _ = trained
    params = read_checkpoint(folder / "average.002").floats
    params = {name.removesuffix("/param").replace("/", "."): torch.tensor(v).float() for name, v in params.items()}
    torch.save({"model": params, "epoch": 2, "step": 6}, folder / "converted.002.pt")
    options = ["++backend", "torch", "++task", "forward", "++load", "converted.002.pt", "++forward_output", "expected"]
    run_module("torch", ["returnn", "tiny.config", *options], cwd=folder)
    actual = pickle.loads((folder / "forward").read_bytes())
    expected = pickle.loads((folder / "expected").read_bytes())
    assert actual[0] == expected[0]
    assert list(actual[1]) == list(expected[1])  # in the same order, longest first
    for tag, outputs in expected[1].items():
        assert list(actual[1][tag]) == list(outputs)
        for name, entry in outputs.items():
            other = actual[1][tag][name]
            numpy.testing.assert_allclose(other["value"], entry["value"], rtol=1e-4, atol=1e-5, err_msg=name)
            assert isinstance(other["value"], numpy.ndarray)
            for key in ("name", "sparse"):
                assert other[key] == entry[key]
            numpy.testing.assert_equal(other["dims"], entry["dims"])


def test_no_config():
    with pytest.raises(ValueError, match=r"expected CONFIG \[\+\+key value ...\], got \['\+\+task', 'forward'\]"):
        forward_net_dict(["++task", "forward"])
