from __future__ import annotations

import copy
import functools
import pathlib
import pickle
from unittest import mock

import numpy as np
import pytest

from returnn_common import nn
from returnn_common.config import NetDict, StagedNetDict, diff, make_staged_net_dict, read
from returnn_common.sis import CodeWrapper, Hashed, returnn_config, stable_hash
from tests.config import kinds
from tests.config.net_dicts import make_tiny_config
from tests.sis import examples
from tests.sis.i6_core import ReturnnConfig
from tests.sis.sisyphus import Path, Variable, extract_paths, sis_hash_helper


def _written(tmp_path, config):
    path = tmp_path / "returnn.config"
    path.write_text(config.serialize())
    return read(path)


def test_code_wrapper_is_its_own_repr():
    """the code wrapper that was asked for"""
    wrapper = CodeWrapper("f(x,\n  y)")
    assert repr(wrapper) == str(wrapper) == wrapper == "f(x,\n  y)" and repr([wrapper]) == "[f(x,\n  y)]"
    assert sis_hash_helper(wrapper) == sis_hash_helper(CodeWrapper("f(x,\n  y)")) != sis_hash_helper(CodeWrapper("f"))
    assert sis_hash_helper(CodeWrapper("a", hashed=1)) == sis_hash_helper(CodeWrapper("b", hashed=1))
    for again in (copy.copy(wrapper), copy.deepcopy(wrapper), pickle.loads(pickle.dumps(wrapper))):
        assert type(again) is CodeWrapper and repr(again) == repr(wrapper)
        assert sis_hash_helper(again) == sis_hash_helper(wrapper)


def test_a_config_through_i6_core(tmp_path):
    config = examples.make_config()
    extra = {
        "sets": {"b", "a"},
        "arrays": [np.zeros(2)],
        "infinite": [float("inf")],
        "scalar": np.int64(3),
        "functions": [len],
        "file": pathlib.Path("/x"),
        "keys": {kinds.Color.RED: 1, (1, 2): 2},
        "more": kinds.Settings(2),
        "nothing": None,
    }
    config = {**config, **extra}
    parts = returnn_config(config, post_config={"log_verbosity": 4})
    again = _written(tmp_path, pickle.loads(pickle.dumps(copy.deepcopy(ReturnnConfig(**parts)))))
    assert again.pop("log_verbosity") == 4
    assert not diff(config, {name: again[name] for name in config})
    assert again["get_model"].keywords["vocab_dim"] is again["extern_data"]["classes"]["sparse_dim"]


def test_the_nested_structure_is_kept(tmp_path):
    """jobs can look at it, and change it"""
    parts = returnn_config(examples.make_config())
    data = parts["config"]["extern_data"]["data"]
    assert type(data) is dict and data["dtype"] == "float32" and parts["config"]["batch_size"] == 10_000
    assert data["dims"] == ["batch_dim", "time_dim", "f_dim"] and repr(data["dims"]) == "[batch_dim, time_dim, f_dim]"
    data["dtype"] = "float64"
    again = _written(tmp_path, ReturnnConfig(**parts))
    assert again["extern_data"]["data"]["dtype"] == "float64"


def test_the_prolog_has_the_dims():
    prolog = returnn_config(examples.make_config())["python_prolog"]
    assert 'time_dim = Dim(None, name="time")\n' in prolog and "from returnn.tensor import Dim, batch_dim\n" in prolog
    assert isinstance(prolog, CodeWrapper)


def _hash(config, **options):
    return sis_hash_helper(ReturnnConfig(**returnn_config(config, **options)))


def test_hashes_of_i6_core():
    config = examples.make_config()
    before = _hash(config)
    assert _hash(examples.make_config()) == before == _hash(dict(reversed(config.items())))
    assert _hash(config, post_config={"log_verbosity": 4}) == before
    assert _hash(examples.make_config(num_layers=2)) == before  # the default
    changed = [
        examples.make_config(num_layers=3),
        {**config, "batch_size": 1},
        {**config, "forward_step": len},
        {name: value for name, value in config.items() if name != "forward_step"},
        {**config, "out": [config["extern_data"]["data"]["dims"][1]]},
        {**config, "out": [config["extern_data"]["classes"]["dims"][1]]},
    ]
    assert len({before, *map(_hash, changed)}) == len(changed) + 1


def test_names_of_dims_do_not_count():
    def config(name, other):
        dims = [nn.Dim(4, name=name), nn.Dim(4, name=other)]
        return {"extern_data": {"data": {"dims": dims}}, "out": dims[0]}

    assert _hash(config("a", "b")) == _hash(config("c", "c"))


def test_functions_that_are_written_out(tmp_path):
    config = {"function": kinds.make_adder(3), "lines": kinds.add, "out": [kinds.add], "add": 1}
    parts = returnn_config(config, inline=["tests.config.kinds"])
    assert str(parts["python_prolog"]).startswith("from __future__ import annotations\n")
    again = _written(tmp_path, ReturnnConfig(**parts))
    assert again["function"](1) == 4 and again["lines"](1) == 4 and again["out"][0](1) == 4 and again["add"] == 1


def test_paths_are_kept_until_the_code_is_written(tmp_path):
    path, size = Path(str(tmp_path / "data")), Variable(str(tmp_path / "size"))
    model = kinds.Plain(1, path=path)
    more = {"method": model.warm_up, "options": functools.partial(dict, **{"no name": path})}
    config = {"train": {"path": [path], "size": size}, "model": model, "sizes": [{size, 1}], **more}
    with mock.patch.object(Path, "get_path", side_effect=RuntimeError("not yet")):
        parts = returnn_config(config)
    assert parts["config"]["train"] == {"path": [path], "size": size}  # as they are
    job_config = pickle.loads(pickle.dumps(copy.deepcopy(ReturnnConfig(**parts))))
    assert extract_paths(vars(job_config)) == {path, size}
    size.set(7)
    again = _written(tmp_path, job_config)
    assert again["train"] == {"path": [str(tmp_path / "data")], "size": 7} and again["sizes"] == [{1, 7}]
    assert again["model"].more == again["method"].__self__.more == {"path": str(tmp_path / "data")}
    assert again["options"]() == {"no name": str(tmp_path / "data")}


def test_a_network(tmp_path):
    """network, extern_data, and the prolog of the dims, for i6_core"""
    net_dict = examples.net_dict()
    parts = returnn_config(net_dict, post_config={"num_epochs": 3})
    again = _written(tmp_path, ReturnnConfig(**parts))
    evaluated: dict = {}
    exec(net_dict.code, evaluated)
    network = {"network": evaluated["network"], "extern_data": evaluated["extern_data"]}
    assert not diff(network, {name: again[name] for name in network})
    assert again["backend"] == "tensorflow-net-dict" and again["batch_size"] == 10_000 and again["num_epochs"] == 3
    assert repr(parts["config"]["extern_data"]["data"]["dims"]) == "[batch_dim, time_dim, f_dim]"
    renamed = net_dict.replaced(
        {f"new_{name}": layer for name, layer in net_dict.network.items()}, net_dict.extern_data, dims=net_dict.dims
    )
    assert _hash(renamed) == _hash(net_dict)
    edited = copy.copy(net_dict)
    edited.network = renamed.network  # by a person: anything may be in there
    assert _hash(edited) != _hash(net_dict)
    changed = NetDict(net_dict.network, net_dict.extern_data, options=net_dict.options, description="another model")
    assert _hash(changed) != _hash(net_dict)


def test_several_networks(tmp_path):
    """dims prolog for dynamic stages, through python_prolog: one dim for all networks, and ``get_network``"""
    options = {"learning_rate": 0.5}
    stages = {1: {**make_tiny_config(num_layers=1), **options}, 5: make_tiny_config(num_layers=2)}
    staged = make_staged_net_dict(stages)
    parts = pickle.loads(pickle.dumps(copy.deepcopy(returnn_config(staged))))
    again = _written(tmp_path, ReturnnConfig(**parts))
    for epoch in (1, 5):
        network = again["get_network"](epoch=epoch)
        assert not diff({"network": staged.get_network(epoch)}, {"network": network})
        assert network["time_default_dyn_size_ext"]["axis"] is again["extern_data"]["data"]["dims"][1]
    assert "network" not in again and again["learning_rate"] == 0.5 and again["backend"] == "tensorflow-net-dict"
    assert str(parts["python_prolog"]).count('time_dim = Dim(None, name="time"') == 1

    same = [make_staged_net_dict(stages), pickle.loads(pickle.dumps(staged)), copy.deepcopy(staged)]
    assert {_hash(x) for x in same} == {_hash(staged)}
    assert {sis_hash_helper(Hashed(x)) for x in same} == {sis_hash_helper(Hashed(staged))}
    others = [
        make_staged_net_dict({1: stages[1]}),
        make_staged_net_dict({1: stages[1], 6: stages[5]}),
        make_staged_net_dict({1: {**stages[1], "learning_rate": 0.1}, 5: stages[5]}),
    ]
    assert len({_hash(x) for x in [staged, *others]}) == len({stable_hash(x) for x in [staged, *others]}) == 4


def test_a_network_by_hand(tmp_path):
    """legacy layers, and one with a path of Sisyphus"""
    out_dim, path = nn.FeatureDim("out", 3), Path("/vocab")
    data = {"dims": [nn.batch_dim, nn.FeatureDim("f", 4)], "vocab": {"vocab_file": path}}
    net_dict = NetDict({"output": {"class": "linear", "from": "data", "out_dim": out_dim}}, {"data": data})
    parts = returnn_config(net_dict)
    assert parts["config"]["extern_data"]["data"]["vocab"]["vocab_file"] is path
    again = _written(tmp_path, ReturnnConfig(**parts))
    assert again["extern_data"]["data"]["vocab"] == {"vocab_file": "/vocab"}
    assert again["network"]["output"]["out_dim"].dimension == 3
    assert extract_paths(Hashed(net_dict)) == {path}
    assert '"/vocab"' in net_dict.extern_data_code


def test_prologs_that_are_joined():
    """as ReturnnConfig.update does: names of dims still don't count"""

    def config(name):
        mine = ReturnnConfig(**returnn_config({"x": nn.Dim(3, name=name)}))
        mine.update(ReturnnConfig({}, python_prolog="import sys"))
        mine.update(ReturnnConfig({}, python_prolog="import os" if name else "import re"))
        return mine

    code = config("a").serialize()
    assert code.index("a_dim = Dim(3") < code.index("import sys") < code.index("import os")
    assert sis_hash_helper(config("a")) == sis_hash_helper(config("b")) != sis_hash_helper(config(""))
    assert repr("a" + CodeWrapper("b") + "c") == "abc"


class _LaterPath(Path):
    def get_path(self):
        assert self.path == "/ready", "not before the job runs"
        return "/there"


@pytest.mark.parametrize("several", [False, True])
def test_paths_in_layers(several, tmp_path):
    path = _LaterPath("/not-ready")
    net_dict = NetDict({"a": {"class": "load", "file": path, "f": len}}, {"data": {"dims": [nn.batch_dim]}})
    network = StagedNetDict({1: net_dict, 3: net_dict}) if several else net_dict
    job_config = pickle.loads(pickle.dumps(copy.deepcopy(ReturnnConfig(**returnn_config(network)))))
    paths = extract_paths(vars(job_config))
    assert paths == {path}
    for each in paths:
        each.path = "/ready"
    again = _written(tmp_path, job_config)
    found = again["get_network"](epoch=4) if several else again["network"]
    assert found == {"a": {"class": "load", "file": "/there", "f": len}}
    with pytest.raises(AssertionError, match="not before the job runs"):
        _ = net_dict.code


def test_errors():
    with pytest.raises(ValueError, match="returnn_config: expected each option once, got a in config and post_config"):
        returnn_config({"a": 1, "b": 2}, post_config={"a": 1})
    with pytest.raises(TypeError, match="returnn_config: expected a dict of options or a network, got Hashed"):
        returnn_config(Hashed({"a": 1}))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="f: a lambda has no name that could be hashed"):
        returnn_config({"f": lambda x: x})
