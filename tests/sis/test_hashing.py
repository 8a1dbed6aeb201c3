from __future__ import annotations

import copy
import dataclasses
import functools
import os
import pathlib
import pickle
import subprocess
import sys
import types
from unittest import mock

import numpy as np
import pytest
from returnn.frontend import run_ctx

import returnn_common
from returnn_common import nn
from returnn_common.config import NetDict, read, to_python
from returnn_common.config._address import address
from returnn_common.datasets import CharacterVocab, Librispeech, WordVocab
from returnn_common.models.ctc import make_ctc_model
from returnn_common.models.encoder.conformer import make_conformer_encoder
from returnn_common.recog import recog_step
from returnn_common.sis import Hashed, stable_hash
from tests.config import kinds
from tests.sis import examples
from tests.sis.sisyphus import Job, Path, Variable, extract_paths, sis_hash_helper

# When they may change: CONTRIBUTING, "Hashes".
FROZEN = {
    "conformer": "296146f5c958e183a907580a0521444e99500c044b18d949db9af19ffa95cf4c",
    "aed": "7015734597e2e9413f91aa7e9035bb5f8fd1d8564ad11a7b0a5e036b79189085",
    "lm": "a1ec8bfcebbf2e01fc77af3690a7db2d7d2c4a5da7b372fc60afdabdb841b6be",
    "dims": "7a288b07549c6688c16ee1dc64049ca8464e9dfe8f3ac3ac6e3893e79a0ef216",
    "librispeech": "29e94af9da58a9792b76acd5233ad9a00ad555f3af5a43149a63597ba01d3f6e",
    "characters": "c4585fe703544a59c418fdf419630f848b167976cb0ff24172dfda58d3394e8c",
    "augmentation": "7933b82d4193f235a0a91ae04a5abee6ef7a70931928563834e1f2fd64d400f0",
    "builder": "23288b54542d543840af2a14b4ec6f7b0f415466af34c0a60516b48194dad78b",
    "config": "55dfa3681428076f02c0a4716ca718ea883ac5c6d18e4c94bdcc42747cafff33",
    "net dict": "f1b25e521029c747608c5fac9100b0c074f333bec05bf7d8d6ba02ffac2374f2",
}


@pytest.fixture(autouse=True)
def _torch():
    nn.select_backend_torch()


@pytest.mark.parametrize("name", examples.EXAMPLES)
def test_frozen_hashes(name):
    assert stable_hash(examples.EXAMPLES[name]()) == FROZEN[name], "see CONTRIBUTING, section Hashes"


@pytest.mark.parametrize("name", examples.EXAMPLES)
def test_copies_and_pickles_have_the_same_hash(name):
    value = examples.EXAMPLES[name]()
    for again in (copy.copy(value), copy.deepcopy(value), pickle.loads(pickle.dumps(Hashed(value))).value):
        assert stable_hash(again) == FROZEN[name]
    assert sis_hash_helper(Hashed(value)) == sis_hash_helper(copy.deepcopy(Hashed(value)))
    assert sis_hash_helper(Hashed(value)) == f"(Hashed, {FROZEN[name]})".encode()


def test_all_are_different():
    assert len(set(FROZEN.values())) == len(FROZEN)


_SCRIPT = """
import sys, random
from tests.sis.examples import EXAMPLES
from returnn_common import nn
from returnn_common.sis import stable_hash
nn.select_backend_torch()
[nn.SpatialDim("other") for _ in range(int(sys.argv[1]))]
names = list(EXAMPLES)
random.Random(int(sys.argv[1])).shuffle(names)
made = {name: EXAMPLES[name]() for name in names}
print([stable_hash(made[name]) for name in EXAMPLES])
"""


def test_the_same_in_each_process():
    """whatever the seed of hashes, and what was made before"""
    env = {**os.environ, "PYTHONHASHSEED": "1"}
    result = subprocess.run([sys.executable, "-c", _SCRIPT, "1"], capture_output=True, text=True, env=env, check=True)
    assert result.stdout == f"{list(FROZEN.values())}\n"


def _differ(*values):
    hashes = [stable_hash(value) for value in values]
    assert len(set(hashes)) == len(hashes)


def _same(*values):
    assert len({stable_hash(value) for value in values}) == 1


def test_hash_by_first_occurrence():
    """dims are told apart by where they come first, the data's before all others, together with their kind and size"""

    def config(*, size=4, kind=None, other="second", order=1):
        a, b = nn.Dim(size, name="a", kind=kind), nn.Dim(4, name="b")
        options = {"net": [a if other == "first" else b], "extern_data": {"x": {"dims": [a, b][::order]}}}
        return dict(list(options.items())[::order])

    _differ(config(), config(other="first"), config(size=5), config(kind=nn.Dim.Types.Feature))
    _same(config(), config())
    # The numbers are those of the data: which dim has which name doesn't matter, nor the order of the options.
    renamed = {"extern_data": {"x": {"dims": [c := nn.Dim(4, name="c"), d := nn.Dim(4, name="d")]}}, "net": [d]}
    assert c != d
    _same(config(), renamed)
    # Sisyphus' own rules, with RETURNN's dims, can't tell these two apart.
    assert sis_hash_helper(config()) == sis_hash_helper(config(other="first"))
    assert sis_hash_helper(Hashed(config())) != sis_hash_helper(Hashed(config(other="first")))


def test_kinds_of_dims():
    time, feature = nn.SpatialDim("time"), nn.FeatureDim("f", 4)
    _differ(time, feature, nn.Dim(None, name="time"), nn.Dim(4, name="f"), nn.batch_dim, nn.single_step_dim, 4)
    _differ([time, 2 * feature], [time, feature + 4], [time, time.ceildiv_right(2)], [time, time // 2])
    _same([feature, 2 * feature], [g := nn.FeatureDim("g", 4), 2 * g])
    twin = nn.FeatureDim("f", 4)
    _differ([feature, twin, 2 * feature], [feature, twin, 2 * twin])


def test_sets_of_dims():
    a, b, c = nn.Dim(None, name="a"), nn.Dim(3, name="b"), nn.Dim(None, name="c")
    _same([{a, b, c}, a, c], [{c, b, a}, a, c])
    _differ([a, c, {a, b}], [a, c, {c, b}])


def test_models_by_modules_and_options():
    def model(**options):
        return make_conformer_encoder(
            80, **{"num_layers": 1, "num_heads": 2, "subsampling_channels": 4, "out_dim": 8, **options}
        )

    _differ(model(), model(num_layers=2), model(out_dim=16), model(dropout=0.2), model(num_heads=4))
    _same(model(), model(dropout=0.1))
    tied = [nn.Linear(d := nn.Dim(4, name="d"), d) for _ in range(2)]
    before = stable_hash(tied)
    tied[1].weight = tied[0].weight
    assert stable_hash(tied) != before
    frozen = nn.Linear(d, d)
    before = stable_hash(frozen)
    frozen.weight.trainable = False
    assert stable_hash(frozen) != before
    frozen.weight.trainable = None
    assert stable_hash(frozen) == before
    frozen.weight.weight_decay = 0.1
    assert stable_hash(frozen) != before


def test_faster_forms_of_modules_are_the_same():
    """which builders use without being asked"""
    with mock.patch.object(nn, "fuse", lambda model: model):
        plain = examples.EXAMPLES["conformer"]()
    assert type(plain.input_projection) is nn.Linear
    assert stable_hash(plain) == FROZEN["conformer"]


def test_the_values_of_parameters_do_not_count():
    linear = nn.Linear(d := nn.Dim(4, name="d"), d)
    before = stable_hash(linear)
    linear.weight.raw_tensor.data += 1
    assert stable_hash(linear) == before


class _Old(nn.Module):
    def __init__(self, size, *, scale=1.0):
        super().__init__()
        self.size, self._scale = size, scale


class _New(nn.Module):
    def __init__(self, size, *, scale=1.0, more=None, mode="fast", rate=0.5):
        super().__init__()
        self.size, self._scale, self.more, self._mode, self.rate = size, scale, more, mode, rate
        self.cache = None


_New.__qualname__ = "_Old"


@dataclasses.dataclass
class _OldData:
    size: int


@dataclasses.dataclass
class _NewData:
    size: int
    more: tuple = (1, 2)


_NewData.__qualname__ = "_OldData"


def _old_function(size):
    pass


def _new_function(size, more=(1,)):
    pass


_new_function.__qualname__ = "_old_function"


def test_options_with_defaults_may_be_added():
    _same(_Old(3), _New(3))
    _same(_Old(3, scale=2.0), _New(3, scale=2.0, mode="fast"))
    _differ(_New(3), _New(4), _New(3, mode="slow"), _New(3, more=1), _New(3, rate=0.0), _New(3, scale=0.5))
    _same(_OldData(1), _NewData(1))
    _differ(_NewData(1), _NewData(1, more=()))
    _same(functools.partial(_old_function, 3), functools.partial(_new_function, size=3, more=(1,)))
    _differ(functools.partial(_new_function, 3), functools.partial(_new_function, 3, more=(2,)))


def test_datasets_by_their_arguments():
    vocab = WordVocab(["A", "B"])
    dataset = Librispeech(path="/data", vocab=vocab)
    before, direct = stable_hash(dataset), sis_hash_helper(dataset)
    dataset.get_extern_data()
    assert stable_hash(dataset) == before and sis_hash_helper(dataset) == direct
    _same(dataset, Librispeech(path="/data", vocab=WordVocab(["A", "B"]), train_epoch_split=20))
    _differ(dataset, Librispeech(path="/data"), Librispeech(path="/other", vocab=vocab), Librispeech(vocab=vocab))
    _differ(CharacterVocab(), CharacterVocab("AB"), WordVocab(["A", "B"]))


def test_the_default_folder_of_data_does_not_count(monkeypatch):
    before = stable_hash(Librispeech())
    monkeypatch.setenv("RETURNN_COMMON_DATA_PATH", "/elsewhere")
    assert stable_hash(Librispeech()) == before


def test_where_the_code_lives_does_not_count():
    assert address(make_conformer_encoder) == "returnn_common.models.encoder:make_conformer_encoder"
    assert address(recog_step) == "returnn_common.recog:recog_step" and address(nn.relu) == "returnn.frontend:relu"
    assert address(make_ctc_model) == "returnn_common.models:make_ctc_model"
    assert (
        address(str.lower) == "builtins:str.lower"
        and address(np.log) == "numpy:log"
        and address(dict) == "builtins:dict"
    )
    for name in [
        "recipe.returnn_common.models.encoder.conformer_new",
        "recipe.returnn_common.returnn_common.models.encoder.conformer",
        "returnn_import.github_com.rwth_i6.returnn_common.v20261130_abcdef.models.encoder.conformer",
    ]:
        function = types.FunctionType((lambda: 1).__code__, {}, "make_conformer_encoder")
        function.__module__, function.__qualname__ = name, "make_conformer_encoder"
        assert address(function) == address(make_conformer_encoder)


def test_a_clone_in_a_recipe_folder(tmp_path):
    """has the same hashes under another name"""
    (tmp_path / "recipe").mkdir()
    (tmp_path / "recipe" / "rc").symlink_to(pathlib.Path(returnn_common.__file__).parents[1])
    code = (
        "from recipe.rc.sis import stable_hash\nfrom recipe.rc.recog import recog_step\n"
        "from recipe.rc.datasets import CharacterVocab\n"
        "print(recog_step.__module__, stable_hash([recog_step, CharacterVocab('AB')]))\n"
    )
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True).stdout
    assert output.split() == ["recipe.rc.recog.recog_step", stable_hash([recog_step, CharacterVocab("AB")])]


def test_names_within_a_part_of_the_package_are_unique():
    """since the part is all of the module that counts"""
    import ast

    root = pathlib.Path(returnn_common.__file__).parent
    found: dict[str, str] = {}
    for path in sorted(root.rglob("*.py")):
        module = ".".join(["returnn_common", *path.relative_to(root).with_suffix("").parts]).removesuffix(".__init__")
        if module.startswith("returnn_common.cli"):
            continue
        for node in ast.parse(path.read_text("utf8")).body:
            is_public = isinstance(node, ast.FunctionDef) and "._" not in module
            if (is_public or isinstance(node, ast.ClassDef)) and not node.name.startswith("_"):
                thing = types.SimpleNamespace(__module__=module, __qualname__=node.name)
                assert found.setdefault(address(thing), module) == module, f"{module}: {node.name}"


def test_functions_with_values_of_their_own():
    _differ(kinds.make_adder(1), kinds.make_adder(2), kinds.twice, functools.partial(kinds.twice))
    _same(kinds.make_adder(1), kinds.make_adder(1))
    _differ(kinds.Plain(1).warm_up, kinds.Plain(2).warm_up)


def test_numbers_of_numpy_are_numbers():
    _same({"a": np.int64(3), "b": np.float64(0.5)}, {"a": 3, "b": 0.5})
    with pytest.raises(TypeError):
        sis_hash_helper(np.int64(3))
    assert sis_hash_helper(Hashed(np.int64(3))) == sis_hash_helper(Hashed(3))
    _differ(np.zeros(2), np.zeros(3), np.ones(2), np.zeros(2, "float32"))


def test_plain_data():
    _differ(0, 0.0, False, None, "", "0", b"0", [], (), {}, set(), [0], [[0]], (0,), {0}, {"0": 0}, 1j)
    _same({"a": 1, "b": [2]}, {"b": [2], "a": 1})
    _same({"x": {"s", "t", "u"}}, {"x": {"u", "t", "s"}})
    _same({"p": pathlib.Path("/x")}, {"p": "/x"})
    _differ(kinds.Color.RED, kinds.Color.GREEN, len, dict, np, os)
    _differ(kinds.Settings(1), kinds.Settings(2), kinds.Point(1, 2), kinds.Point(1, 3), range(2), range(3))


def test_functions_of_a_config_file_by_their_source(tmp_path):
    """since all configs have some of the same names"""

    def config(factor, *, size=2, comment=""):
        path = tmp_path / "some.config"
        path.write_text(
            f"#!rnn.py\n{comment}\nfactor = {factor}\ndef f(): return g() * factor\ndef g(): return f\n"
            f"class C:\n    size = {size}\nmade = C()\n__all__ = ['f', 'made']\n"
        )
        return read(path)

    _differ(config(1), config(2), config(1, size=3))
    _same(config(1), config(1, comment="# more"))


def test_refusals():
    with pytest.raises(ValueError, match=r"train\.f: a lambda has no name .*: define a function"):
        stable_hash({"train": {"f": lambda x: x}})
    function = types.FunctionType((lambda: 1).__code__, {}, "f")
    function.__module__, function.__qualname__ = "__main__", "f"
    with pytest.raises(ValueError, match="f: f is of the script that runs, .*: define it in a module"):
        stable_hash({"f": function})
    loop: list = []
    loop.append(loop)
    with pytest.raises(ValueError, match="f: __returnn_config__.f: its source, .*no_such_file, can't be read"):
        function = types.FunctionType(compile("def f(): pass", "no_such_file", "exec").co_consts[0], {}, "f")
        function.__module__ = "__returnn_config__"
        stable_hash({"f": function})
    with pytest.raises(ValueError, match=r"list\[0\]: list contains itself, so that it has no hash"):
        stable_hash(loop)
    with pytest.raises(ValueError, match="x: <generator .* has nothing that could be hashed"):
        stable_hash({"x": (i for i in range(2))})


def test_paths_of_sisyphus_are_kept_and_found():
    path, variable = Path("data"), Variable("size")
    dataset = {"class": "OggZipDataset", "path": [path]}
    config = examples.make_config(train=functools.partial(dict, **dataset, size=variable))
    hashed = pickle.loads(pickle.dumps(copy.deepcopy(Hashed(config))))
    assert {p.path for p in extract_paths({"config": hashed})} == {"data", "size"}
    assert hashed.value["train"].keywords["path"][0].path == "data"
    _same(config, hashed.value)
    _differ(config, examples.make_config(train=functools.partial(dict, **dataset, size=Variable("other"))))
    job = _Job(config=Hashed(config))
    assert {p.path for p in job.inputs} == {"data", "size"}
    assert job is _Job(config=hashed) and job is not _Job(config=Hashed(examples.make_config()))


class _Job(Job):
    def __init__(self, config):
        self.config = config


def test_a_model_that_was_pickled_computes_the_same():
    in_dim = nn.FeatureDim("f", 20)
    model = make_conformer_encoder(in_dim, num_layers=1, out_dim=8, num_heads=2, subsampling_channels=4)
    again = pickle.loads(pickle.dumps(copy.copy(Hashed(model)))).value
    raw = np.random.default_rng(0).normal(size=(2, 9, 20)).astype("float32")
    outputs = []
    run_ctx.init_forward_step_run_ctx(step=0)
    for m in (model, again):
        batch_dim = nn.Dim(2, name="batch")
        time_dim = nn.Dim(nn.convert_to_tensor(np.array([9, 7], "int32"), dims=[batch_dim]), name="time")
        source = nn.convert_to_tensor(raw, dims=[batch_dim, time_dim, m.in_dim])
        output, out_spatial_dim = m(source, in_spatial_dim=time_dim)
        outputs.append(output.copy_transpose([batch_dim, out_spatial_dim, m.out_dim]).raw_tensor.detach().numpy())
    run_ctx.reset_run_ctx()
    assert outputs[0].shape[-1] == 8
    np.testing.assert_array_equal(*outputs)
    assert dict(again.named_parameters()).keys() == dict(model.named_parameters()).keys()


def test_net_dicts_by_the_model():
    """not by the names of layers"""
    net_dict = examples.net_dict()
    assert sis_hash_helper(net_dict) == sis_hash_helper(pickle.loads(pickle.dumps(net_dict)))
    layers = {f"new_{name}": layer for name, layer in net_dict.network.items()}
    renamed = net_dict.replaced(layers, net_dict.extern_data, dims=net_dict.dims)
    assert stable_hash(renamed) == stable_hash(net_dict) == FROZEN["net dict"]
    changed = copy.copy(net_dict)
    changed.options = {**net_dict.options, "batch_size": 7}
    assert stable_hash(changed) != stable_hash(net_dict)
    by_hand = NetDict({"output": {"class": "linear", "n_out": 3}}, net_dict.extern_data)
    other = NetDict({"output": {"class": "linear", "n_out": 4}}, net_dict.extern_data)
    _differ(by_hand, other, net_dict)
    refused = NetDict({}, {}, description=ValueError("why"))
    with pytest.raises(ValueError, match="why"):
        stable_hash(refused)


def test_a_config_that_was_pickled_has_the_same_code():
    """the seed of this: dims could be pickled, but their representation failed afterwards"""
    config = examples.make_config()
    again = pickle.loads(pickle.dumps(Hashed(config))).value
    assert to_python(again) == to_python(config)
    assert again["get_model"].keywords["vocab_dim"] is again["extern_data"]["classes"]["sparse_dim"]
    assert repr(Hashed([1])) == "Hashed([1])"
