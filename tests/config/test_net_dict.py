"""Net dicts of a tiny model: what they hold, how they are written, and that nothing else has any influence."""

from __future__ import annotations

import copy
import functools
import hashlib
import os
import pickle
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import returnn.frontend as rf
from returnn.tensor import Dim, Tensor, batch_dim

from returnn_common import nn
from returnn_common.config import NetDict, make_net_dict
from returnn_common.config._deep import call_deep
from returnn_common.datasets.speech_dataset import SpeechDataset
from returnn_common.sis import stable_hash
from returnn_common.training import train_step
from tests.config.net_dicts import make_tiny_config, make_zoo_config
from tests.config.test_net_dict_zoo import plain
from tests.zoo_runs import get_entry

CHILD = """
import hashlib, pickle, sys
loaded = pickle.load(open(sys.argv[1], "rb"))
net_dict, network, extern_data = loaded["net_dict"], loaded["network"], loaded["extern_data"]
assert net_dict.network["time_default_dyn_size_ext"]["axis"] is net_dict.extern_data["data"]["dims"][1]
assert network["time_default_dyn_size_ext"]["axis"] is extern_data["data"]["dims"][1]
assert net_dict.extern_data["data"]["dims"] == extern_data["data"]["dims"]
assert loaded["config"]["extern_data"]["data"]["dims"] == extern_data["data"]["dims"]
from returnn_common.config import make_net_dict
from tests.config.net_dicts import make_tiny_config
for code in (net_dict.code, make_net_dict(make_tiny_config()).code):
    print(hashlib.sha256(code.encode()).hexdigest())
"""


@pytest.fixture(scope="module")
def config() -> dict[str, Any]:
    return make_tiny_config()


@pytest.fixture(scope="module")
def net_dict(config: dict[str, Any]) -> NetDict:
    return make_net_dict(config)


def test_nested_structure_is_kept(net_dict: NetDict):
    """asked for in the discussion: dicts in dicts, with Dim objects, that can be changed and combined"""
    inner = net_dict.network["ctc_model_0"]["subnetwork"]["output_0"]["subnetwork"]["matmul"]
    assert inner["class"] == "dot" and inner["reduce"].dimension == 4
    assert isinstance(inner["out_shape"], set)


def test_dims_are_shared_with_extern_data_and_the_config(net_dict: NetDict, config: dict[str, Any]):
    assert net_dict.network["time_default_dyn_size_ext"]["axis"] is net_dict.extern_data["data"]["dims"][1]
    assert net_dict.extern_data["data"]["dims"][1] is config["extern_data"]["data"]["dims"][1]
    assert net_dict.dims["time_ceildiv_2_dim"].derived_from_op.inputs[0] is config["extern_data"]["data"]["dims"][1]


def test_parts_in_fine_grain(net_dict: NetDict):
    """asked for in the discussion: not the directly finished config, but its components; together they are the same"""
    namespace: dict[str, Any] = {}
    for part in (net_dict.dims_code, net_dict.extern_data_code, net_dict.network_code):
        exec(part, namespace)
    assert plain(namespace["network"]) == plain(net_dict.network)
    assert plain(namespace["extern_data"]) == plain(net_dict.extern_data)
    assert namespace["network"]["time_default_dyn_size_ext"]["axis"] is namespace["extern_data"]["data"]["dims"][1]
    exec(net_dict.options_code, namespace)
    assert (namespace["backend"], namespace["task"], namespace["batch_size"]) == ("tensorflow-net-dict", "train", 1000)
    for line in net_dict.dims_code.splitlines():
        assert line in net_dict.code
    assert "network" not in net_dict.dims_code and "extern_data" not in net_dict.network_code


def test_names_of_dims(net_dict: NetDict):
    """those of their descriptions; derived ones are expressions of others"""
    lines = net_dict.dims_code.splitlines()
    assert 'time_dim = Dim(None, name="time", kind=Dim.Types.Spatial)' in lines
    assert "time_ceildiv_2_dim = time_dim.ceildiv_right(2)" in lines
    assert list(net_dict.dims) == [line.partition(" = ")[0] for line in lines if "_dim = " in line]
    assert 'encoder_dim = Dim(4, name="encoder", kind=Dim.Types.Feature)' in lines


def test_repeated_blocks_look_alike(net_dict: NetDict):
    blocks = net_dict.network["encoder"]["subnetwork"]
    assert {"0", "1"} <= set(blocks)
    assert plain(blocks["0"]["subnetwork"]["weight"]) == plain(blocks["1"]["subnetwork"]["weight"])


@pytest.mark.parametrize("width", [88, 120])
def test_formatted(net_dict: NetDict, width: int, tmp_path: Path):
    """as ruff and black do it"""
    path = tmp_path / "net.py"
    path.write_text(net_dict.code)
    ruff = [sys.executable, "-m", "ruff", "format", "--isolated", "--diff", f"--line-length={width}", str(path)]
    result = subprocess.run(ruff, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


def test_deterministic_after_other_models(net_dict: NetDict, config: dict[str, Any]):
    others = [make_tiny_config(num_layers=1 + i % 2, out_dim=2 + i, features=3 + i) for i in range(10)]
    codes = {make_net_dict(other).code for other in others}
    assert len(codes) == 10 and net_dict.code not in codes
    assert make_net_dict(config).code == make_net_dict(make_tiny_config()).code == net_dict.code


def _run_child(net_dict: NetDict, config: dict[str, Any], tmp_path: Path, seed: int) -> list[str]:
    path = tmp_path / "pickled"
    data = {"extern_data": config["extern_data"], "batch_size": 1000}
    together = {
        **{"config": data, "net_dict": net_dict},
        **{"network": net_dict.network, "extern_data": net_dict.extern_data},
    }
    path.write_bytes(pickle.dumps(together))
    env = {**os.environ, "PYTHONHASHSEED": str(seed), "TF_CPP_MIN_LOG_LEVEL": "3"}
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH")]))
    result = subprocess.run([sys.executable, "-c", CHILD, str(path)], env=env, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout.split()


@pytest.mark.parametrize("num", [2, pytest.param(100, marks=pytest.mark.slow("each imports TensorFlow"))])
def test_same_bytes_in_any_process_also_when_pickled(
    net_dict: NetDict, config: dict[str, Any], tmp_path: Path, num: int
):
    """the seed's failure: pickled and unpickled, the dims could not be written any more"""
    expected = hashlib.sha256(net_dict.code.encode()).hexdigest()
    for seed in range(1, num + 1):
        assert _run_child(net_dict, config, tmp_path, seed) == [expected, expected]


def _build(network: dict[str, Any], extern_data: dict[str, Any], version: int) -> int:
    """:return: number of trainable parameters, once RETURNN has made the layers"""
    from returnn.config import Config, global_config_ctx
    from returnn.tf import compat as tf_compat
    from returnn.tf.network import TFNetwork
    from returnn.util.basic import BehaviorVersion

    options = Config({"extern_data": extern_data, "task": "train"})

    def build() -> int:
        with tf_compat.v1.Graph().as_default(), global_config_ctx(options):
            made = TFNetwork(config=options, train_flag=True)
            made.construct_from_dict(network)
            return len(made.get_trainable_params())

    before = BehaviorVersion._get_state()
    BehaviorVersion._reset((version, 0))
    try:
        return call_deep(build)
    finally:
        BehaviorVersion._reset(before)


@pytest.mark.slow("RETURNN takes a while to build the layers")
@pytest.mark.parametrize("wrapped", [True, False], ids=["NetDict", "its parts"])
def test_unpickled_network_can_be_built(wrapped: bool):
    """as RETURNN pickles dims, it could not: it forgets what is derived from them, as the dims of a grouped filter"""
    net_dict = make_net_dict(make_zoo_config(get_entry("make_fast_conformer_encoder"), train=True))
    if wrapped:
        loaded = pickle.loads(pickle.dumps(net_dict))
        assert loaded.code == net_dict.code
    else:
        loaded = NetDict(*pickle.loads(pickle.dumps((net_dict.network, net_dict.extern_data))))
    version = net_dict.options["behavior_version"]
    assert _build(loaded.network, loaded.extern_data, version) == len(net_dict.parameters)


def test_parts_that_were_pickled_together(net_dict: NetDict):
    """without a NetDict around them: RETURNN forgets what is derived from dims, and NetDict gives it back"""
    parts = net_dict.network, net_dict.extern_data, net_dict.dims
    network, extern_data, dims = pickle.loads(pickle.dumps(parts))
    assert extern_data["data"]["dims"][1].ceildiv_right(2) is not dims["time_ceildiv_2_dim"]
    assert NetDict(network, extern_data).code == NetDict(*parts[:2]).code
    assert NetDict(network, extern_data, dims=dims).network_code == net_dict.network_code
    assert extern_data["data"]["dims"][1].ceildiv_right(2) is dims["time_ceildiv_2_dim"]


def test_sets_of_dims_of_one_name():
    codes = set()
    for i in range(8):
        dims = {j: nn.Dim(3, name="same") for j in (range(3) if i % 2 else reversed(range(3)))}
        codes.add(NetDict({"a": {"set": set(dims.values())}, "b": {"list": list(map(dims.get, range(3)))}}, {}).code)
    assert len(codes) == 1 and "{same_dim, same_2_dim, same_3_dim}" in codes.pop()


def test_copies(net_dict: NetDict):
    for copied in (copy.copy(net_dict), copy.deepcopy(net_dict), pickle.loads(pickle.dumps(net_dict))):
        assert copied.code == net_dict.code
        assert copied.network["time_default_dyn_size_ext"]["axis"] is copied.extern_data["data"]["dims"][1]
    deep = copy.deepcopy(net_dict)
    deep.network["ctc_model_0"]["class"] = "other"
    assert net_dict.network["ctc_model_0"]["class"] == "subnetwork"


def test_leaves_no_trace(config: dict[str, Any]):
    """of RETURNN's state, nothing is changed, and nothing that was there before counts"""
    expected = make_net_dict(make_tiny_config()).code
    nn.select_backend_torch()
    rf.init_forward_step_run_ctx(step=3)
    time_dim = config["extern_data"]["data"]["dims"][1]
    import torch

    sizes = Tensor("sizes", [batch_dim], "int32", raw_tensor=torch.tensor([3, 2], dtype=torch.int32))
    time_dim.dyn_size_ext = sizes
    (time_dim // 2).declare_same_as(nn.SpatialDim("half"))
    before = rf.get_run_ctx(), batch_dim.dyn_size_ext, sys.getrecursionlimit()
    with nn.set_default_device_ctx("meta"):
        assert make_net_dict(config).code.splitlines() == expected.splitlines()
    assert (rf.get_run_ctx(), batch_dim.dyn_size_ext, sys.getrecursionlimit()) == before
    assert rf.get_selected_backend() == "torch" and time_dim.dyn_size_ext is sizes
    time_dim.dyn_size_ext = None


def test_config_as_module_and_as_file(net_dict: NetDict, tmp_path: Path):
    module = types.ModuleType("config")
    vars(module).update(make_tiny_config())
    assert make_net_dict(module).code == net_dict.code
    path = tmp_path / "tiny.config"
    path.write_text("from tests.config.net_dicts import make_tiny_config\nglobals().update(make_tiny_config())\n")
    assert make_net_dict(path).code == make_net_dict(str(path)).code == net_dict.code


def test_epoch_and_step(config: dict[str, Any]):
    epochs = []

    def get_model(*, epoch, step):
        epochs.append((epoch, step))
        return config["get_model"]()

    make_net_dict({**config, "get_model": get_model}, epoch=7)
    assert epochs == [(7, 0)]


def test_forward_step(config: dict[str, Any]):
    def forward_step(model, extern_data):
        encoded, time_dim = model.encoder(extern_data["data"], in_spatial_dim=nn.get_spatial_dim(extern_data["data"]))
        nn.get_run_ctx().mark_as_output(encoded, "encoded", dims=[nn.batch_dim, time_dim, model.encoder.out_dim])

    for task in ({}, {"task": "forward"}):
        made = {k: v for k, v in config.items() if k not in ("task", "train_step")}
        net_dict = make_net_dict({**made, **task, "forward_step": forward_step})
        assert any(layer.get("is_output_layer") for layer in net_dict.network.values())
        assert not any("loss" in layer for layer in net_dict.network.values())


def test_extern_data_in_other_forms(config: dict[str, Any]):
    """as tensors, and as they were written before there were dims"""
    tensors = {
        name: Tensor(name, entry["dims"], entry["dtype"], sparse_dim=entry.get("sparse_dim"))
        for name, entry in config["extern_data"].items()
    }
    assert plain(make_net_dict({**config, "extern_data": tensors}).extern_data) == plain(config["extern_data"])

    def get_model(**_):
        return nn.Module()

    def train_step(model, extern_data):
        nn.get_run_ctx().mark_as_loss(nn.reduce_sum(extern_data["data"], axis=extern_data["data"].feature_dim), "sum")

    old = {
        "data": {"dim": 3, "shape": (None, 3)},
        "classes": {"dim": 5, "sparse": True, "available_for_inference": False},
    }
    made = make_net_dict({"get_model": get_model, "train_step": train_step, "extern_data": old})
    assert [d.dimension for d in made.extern_data["data"]["dims"]] == [None, None, 3]
    assert made.extern_data["classes"]["sparse_dim"].dimension == 5
    assert made.extern_data["classes"]["available_for_inference"] is False


def test_behavior_version(config: dict[str, Any]):
    """that of the config, or else of the process; afterwards the process has its own again"""
    from returnn.util.basic import BehaviorVersion

    seen = []

    def get_model(**_):
        seen.append(BehaviorVersion.get())
        return config["get_model"]()

    before = BehaviorVersion._get_state()
    try:
        for version, expected in ((0, 16), (31, 31)):
            BehaviorVersion._reset((None, version))
            made = make_net_dict(
                {**{k: v for k, v in config.items() if k != "behavior_version"}, "get_model": get_model}
            )
            assert f"behavior_version = {expected}\n" in made.code and BehaviorVersion.get() == version
            make_net_dict({**config, "get_model": get_model})
    finally:
        BehaviorVersion._reset(before)
    assert seen == [16, 29, 31, 29]


def _scale(self, source, factor=2.0, **_):
    return source(0) * factor * np.pi


def test_generated_part_in_a_net_dict_by_hand(net_dict: NetDict, config: dict[str, Any]):
    """with its dims, and with layers that we don't know: a class by its name, functions, arrays"""
    time_dim, features_dim = config["extern_data"]["data"]["dims"][1:]
    network = {
        "before": {"class": "eval", "eval": _scale, "from": "data"},
        "after": {
            "class": "eval",
            "eval": functools.partial(_scale, factor=3.0),
            "from": "before",
            "out_dim": features_dim,
        },
        "lambda": {"class": "eval", "eval": lambda source, **_: source(0) + 1, "from": "after"},
        "mine": {"class": "my_layer", "axis": time_dim, "table": np.arange(6, dtype="float32").reshape(2, 3)},
        "large": {"class": "constant", "value": np.linspace(0, 1, 100, dtype="float32").reshape(10, 10)},
        **net_dict.network,
        "twice": {"class": "my_layer", "out_dim": 2 * net_dict.dims["encoder_dim"]},
    }
    combined = NetDict(network, net_dict.extern_data, dims=net_dict.dims)
    namespace: dict[str, Any] = {}
    exec(combined.code, namespace)
    assert list(namespace["network"]) == list(network)
    made = namespace["network"]
    assert made["before"]["eval"](None, lambda i: 1.0) == pytest.approx(2 * np.pi)
    assert made["after"]["eval"](None, lambda i: 1.0) == pytest.approx(3 * np.pi)
    assert made["lambda"]["eval"](lambda i: 1.0) == 2.0
    assert made["mine"]["axis"] is namespace["extern_data"]["data"]["dims"][1]
    for name, key in (("mine", "table"), ("large", "value")):
        np.testing.assert_array_equal(made[name][key], network[name][key])
        assert made[name][key].dtype == np.float32 and made[name][key].flags.writeable
    assert "encoder_times_2_dim = 2 * encoder_dim" in combined.dims_code
    assert "returnn_common" not in combined.code and "tests." not in combined.code
    assert list(combined.dims)[: len(net_dict.dims)] == list(net_dict.dims)


def test_a_changed_network_is_written_and_hashed_anew(config: dict[str, Any]):
    net_dict = make_net_dict(config)
    before, hashed = net_dict.code, stable_hash(net_dict)
    assert stable_hash(pickle.loads(pickle.dumps(net_dict))) == stable_hash(copy.deepcopy(net_dict)) == hashed
    inner = net_dict.network["ctc_model_0"]["subnetwork"]["output_0"]
    inner["trainable"] = False
    assert net_dict.code != before and '"trainable": False' in net_dict.network_code
    assert stable_hash(net_dict) != hashed
    del inner["trainable"]
    assert net_dict.code == before and stable_hash(net_dict) == hashed
    net_dict.options["learning_rate"] = 0.25
    net_dict.extern_data["classes"]["available_for_inference"] = False
    assert "learning_rate = 0.25" in net_dict.code and "available_for_inference" in net_dict.extern_data_code


def _make_scale(factor: float):
    def _scale(source, **_):
        return source(0) * factor

    return _scale


def test_functions_of_one_name_in_several_parts():
    functions = [_scale, _make_scale(5.0), _make_scale(7.0)]
    layers = [{"class": "eval", "eval": function} for function in functions]
    net_dict = NetDict({"a": layers[0], "b": layers[1]}, {"data": {"first": layers[0], "made": layers[2]}})
    namespace: dict[str, Any] = {}
    exec(net_dict.code, namespace)
    made = [*namespace["network"].values(), *namespace["extern_data"]["data"].values()]
    assert [made[i]["eval"](source=lambda i: 1.0) for i in (1, 3)] == [5.0, 7.0]
    assert made[0]["eval"](None, lambda i: 1.0) == made[2]["eval"](None, lambda i: 1.0) == pytest.approx(2 * np.pi)
    assert net_dict.code.count("def _scale(self") == 1


def test_numbers_and_texts():
    values = {
        **{"nan": float("nan"), "inf": -float("inf"), "scalar": np.float32(0.5), "flag": np.bool_(True), "none": None},
        **{"text": "it's", "quoted": 'say "so"', "bytes": b"\x00a", "tuple": (1,), "set": {3, 1}, "nothing": set()},
        **{"short": np.array([0.1, np.inf], "float32"), "empty": np.zeros((0, 3), "int64"), "path": Path("a/b")},
        **{"frozen": frozenset([2]), "complex": 1j, "backslash": "\\n\n"},
    }
    net_dict = NetDict({"layer": values}, {})
    namespace: dict[str, Any] = {}
    exec(net_dict.code, namespace)
    made = namespace["network"]["layer"]
    assert np.isnan(made.pop("nan")) and "nan" in values
    assert made.pop("path") == "a/b"
    np.testing.assert_array_equal(made.pop("short"), values["short"])
    assert made.pop("empty").shape == (0, 3)
    assert made == {name: values[name] for name in made}


def test_options_which_are_plain_data_come_along(config: dict[str, Any]):
    options = {
        "learning_rate": 0.5,
        "torch_amp": True,
        "callback": print,
        "train": {"class": "HDFDataset", "files": ["a"]},
    }
    made = make_net_dict({**config, **options})
    assert made.options == {
        **{"behavior_version": 29, "task": "train", "batch_size": 1000},
        **{"learning_rate": 0.5, "train": options["train"]},
    }
    assert "learning_rate = 0.5" in made.options_code and "torch_amp" not in made.code


def _louder(seq, *, factor: float = 2.0, **_):
    return _make_scale(factor)(lambda i: seq)


def test_options_with_functions_and_dims(config: dict[str, Any]):
    """as far as they can be had without us; a comment names the rest"""
    time_dim = config["extern_data"]["data"]["dims"][1]
    options = {
        "train": {
            "class": "PostprocessingDataset",
            "dataset": {"class": "HDFDataset", "files": ["a.hdf"]},
            "map_seq": functools.partial(_louder, factor=3.0),
            "map_outputs": {"data": {"dims": [time_dim]}},
        },
        "dynamic_learning_rate": _louder,
        "dev": {"class": SpeechDataset, "sources": []},
        "eval_datasets": {"a": {"map_seq": train_step}},
    }
    made = make_net_dict({**config, **options, "helper": _louder})
    namespace: dict[str, Any] = {}
    exec(made.code, namespace)
    train = namespace["train"]
    assert train["map_seq"](1.0) == 3.0 and namespace["dynamic_learning_rate"](1.0) == 2.0
    assert train["map_outputs"]["data"]["dims"][0] is namespace["extern_data"]["data"]["dims"][1]
    assert (
        "# Left out, since it needs more than RETURNN, as datasets of returnn_common do: dev, eval_datasets\n"
        in made.code
    )
    assert made.left_out == ["dev", "eval_datasets"] and "helper" not in namespace
    assert "import returnn_common" not in made.code and "from returnn_common" not in made.code
    assert pickle.loads(pickle.dumps(made)).code == made.code
    parts = made.dims_code + made.options_code
    exec(parts, namespace)
    assert namespace["train"]["map_outputs"]["data"]["dims"][0] is namespace["time_dim"]


def test_parameters(net_dict: NetDict):
    assert net_dict.parameters["encoder.layers.1.weight"] == ((4, 4), "float32")
    assert len(net_dict.parameters) == 8


def test_repr(net_dict: NetDict):
    assert repr(net_dict).startswith("<NetDict data, classes -> ") and "encoder" in repr(net_dict)


@pytest.mark.parametrize(
    "change, error, message",
    [
        ({"get_model": None}, ValueError, "expected a function get_model for task 'train', got None"),
        ({"train_step": 3}, ValueError, "expected a function train_step for task 'train', got 3"),
        ({"task": "forward"}, ValueError, "expected a function forward_step for task 'forward', got None"),
        ({"task": "dance"}, ValueError, "expected a task of train, eval, forward, search, got 'dance'"),
        ({"extern_data": []}, TypeError, r"expected extern_data as a dict, got \[\]"),
        ({"extern_data": {"data": 3}}, TypeError, "extern_data 'data': expected a dict or a Tensor, got int 3"),
        ({"behavior_version": 15}, ValueError, "expected a behavior_version of at least 16, got 15"),
        ({"behavior_version": "new"}, TypeError, "expected behavior_version as an int, got 'new'"),
    ],
)
def test_errors(config: dict[str, Any], change: dict[str, Any], error: type[Exception], message: str):
    with pytest.raises(error, match=message):
        make_net_dict({**config, **change})


def test_other_errors(config: dict[str, Any], tmp_path: Path):
    with pytest.raises(ValueError, match="expected extern_data, got only get_model"):
        make_net_dict({"get_model": config["get_model"]})
    with pytest.raises(TypeError, match="expected a dict, a module or the path of a file, got int 3"):
        make_net_dict(3)
    with pytest.raises(FileNotFoundError, match="no file '.*missing.config'"):
        make_net_dict(tmp_path / "missing.config")
    with pytest.raises(TypeError, match="expected network as a dict, got list"):
        NetDict([], {})
    with pytest.raises(TypeError, match="network.a: no code can be written for builtins.generator .*: expected plain"):
        _ = NetDict({"a": (x for x in ())}, {}).code
    with pytest.raises(TypeError, match="expected what can be written as code: .* can.t be read"):
        _ = NetDict({"a": eval("lambda: 1")}, {}).code
    with pytest.raises(TypeError, match="expected extern_data as a dict, got Dim"):
        NetDict({}, Dim(3, name="a"))

    def broken(**_):
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        make_net_dict({**config, "get_model": broken})
