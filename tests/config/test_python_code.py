from __future__ import annotations

import collections
import datetime
import decimal
import functools
import hashlib
import math
import os
import pathlib
import re
import subprocess
import sys
import types

import numpy as np
import pytest
import torch
from returnn.tensor.marked_dim import ImplicitSparseDim

from returnn_common import nn
from returnn_common.config import diff, read, to_python
from returnn_common.datasets import CharacterVocab, Librispeech, TrainOptions, WordVocab
from returnn_common.datasets.augment import Chain, Noise, SpeedPerturbation
from returnn_common.models.ctc import make_ctc_model
from returnn_common.recog import recog_step
from returnn_common.training import train_step
from tests.config import kinds

HERE = ["tests.config.kinds"]


class SisyphusPath:
    """like ``tk.Path``: known only later"""

    def __init__(self, path: str):
        self.path = path

    def get_path(self) -> str:
        return f"/disk/{self.path}"

    def __fspath__(self) -> str:
        return f"/cached/{self.path}"


class DelayedBase:
    """like Sisyphus'"""

    def get(self):
        return np.int64(7)


def _back(tmp_path, config, **options):
    """:return: text, and what is read back from it, which gives the same text"""
    text = to_python(config, **options)
    path = tmp_path / "config.py"
    path.write_text(text)
    again = read(path)
    if "inline" not in options and "python_path" not in options:
        assert to_python(again) == text
        assert not diff(config, again), diff(config, again)
    return text, again


PLAIN = {
    "numbers": [0, -1, 1.5, 1e300, True, None, 2 + 3j, b"bytes", ..., 10**30],
    "not_finite": [math.inf, -math.inf, complex(0, math.inf)],
    "texts": ["", "it's", 'say "it"', "lines\nand\ttabs", "back\\slash", "ä→€", "\u2028", "{braces} %s"],
    "nested": {"a": {"b": [(), (1,), [[]], {}]}, (1, 2): "tuple", 3: None, None: 1, 0.5: 2},
    "sets": [set(), {1, 2}, {"b", "a", "c"}, frozenset({3, 1}), frozenset(), {("a", 1), ("a", 0)}],
    "empty": {},
    "long": {f"key_{i}": [{"x": i, "y": "text " * i}] for i in range(12)},
    "ordered": collections.OrderedDict([("b", 1), ("a", 2)]),
    "counts": collections.Counter("hello"),
    "default": collections.defaultdict(list, {"a": [1]}),
    "queue": collections.deque([1, 2], maxlen=3),
    "ranges": [range(3), slice(1, None, 2)],
    "pattern": re.compile("a+", re.IGNORECASE),
    "decimal": decimal.Decimal("1.10"),
    "day": datetime.date(2026, 1, 2),
    "enums": [kinds.Color.RED, {kinds.Color.GREEN: 1}],
    "flags": [kinds.Permission.READ, kinds.Permission.READ | kinds.Permission.WRITE],
    "named": [torch.float32, torch.nn.ReLU, np.random.default_rng],
    "point": kinds.Point(1, "y"),
    "settings": [kinds.Settings(1), kinds.Settings(2, names=("b",), point=kinds.Point(3, 4))],
    "objects": [kinds.Plain(1.0), kinds.Plain(1.0, 2, 3, high=4.0, x=5), kinds.Plain(0.5).warm_up()],
    "classes": [dict, int, kinds.Plain, np.ndarray, kinds.Child.Inner],
    "functions": [len, math.sqrt, np.log, os.path.join, recog_step, str.upper, kinds.Child.double],
    "methods": [kinds.Plain(1.0).warm_up, dict.fromkeys],
    "partials": [
        functools.partial(make_ctc_model, 80, num_layers=2),
        functools.partial(functools.partial(int, base=2), "11"),
        functools.partial(dict, **{"not a name": 1}),
    ],
    "dtype": np.dtype("float32"),
    "proxy": types.MappingProxyType({"a": 1}),
}


@pytest.mark.parametrize("name", list(PLAIN))
def test_values_come_back(name, tmp_path):
    text, again = _back(tmp_path, {name: PLAIN[name]})
    # Some are equal, some only look the same; of the others, it is diff that knows.
    assert again[name] == PLAIN[name] or repr(again[name]) == repr(PLAIN[name]) or "<" in repr(PLAIN[name])
    assert type(again[name]) is type(PLAIN[name])
    assert all(len(line) <= 120 for line in text.splitlines()) or name in ("long", "texts")


def test_nan_comes_back(tmp_path):
    _, again = _back(tmp_path, {"x": math.nan})
    assert math.isnan(again["x"])


def test_sets_of_dims_of_one_name():
    """as these come elsewhere; else the text would depend on their addresses"""
    texts = set()
    for i in range(8):
        dims = {j: nn.Dim(3, name="same") for j in (range(4) if i % 2 else reversed(range(4)))}
        texts.add(to_python({"a": set(dims.values()), "b": [dims[j] for j in range(4)], "c": [dims[2]]}))
    (text,) = texts
    assert "a = {same_dim, same_2_dim, same_3_dim, same_4_dim}\n" in text and "c = [same_3_dim]" in text


def test_a_large_array(tmp_path):
    """has lines of its own, and is still an array that can be changed"""
    statistics = np.linspace(0, 1, 1000, dtype="float32").reshape(10, 100)
    text, again = _back(tmp_path, {"mean": [statistics, statistics[:1]], "same": statistics})
    assert text.count("base64.b64decode") == 1 and "mean_array" in text
    np.testing.assert_array_equal(again["same"], statistics)
    assert again["same"].dtype == np.float32 and again["same"].flags.writeable and again["mean"][0] is again["same"]


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype="float32").reshape(2, 3),
        np.array([math.nan, math.inf, 1 / 3]),
        np.zeros((0, 3), "int8"),
        np.array(5),
        np.array(["a", "bcd"]),
        np.array([True, False]),
        np.array([1 + 2j]),
        np.array(["2026-01-01"], "datetime64[D]"),
        np.array([[1, 2], [3, 4]], order="F")[:, ::-1],
    ],
    ids=lambda a: f"{a.dtype}{a.shape}",
)
def test_arrays(array, tmp_path):
    _, again = _back(tmp_path, {"array": array})
    assert again["array"].dtype == array.dtype and again["array"].shape == array.shape
    assert again["array"].tobytes() == array.tobytes()


def test_numpy_scalars_are_numbers(tmp_path):
    config = {"a": np.float32(0.5), "b": np.int64(3), "c": np.bool_(True), "d": np.str_("x"), "e": {np.int64(1): 2}}
    _, again = _back(tmp_path, config)
    assert again == {"a": 0.5, "b": 3, "c": True, "d": "x", "e": {1: 2}}
    assert {type(value) for value in again.values()} == {float, int, bool, str, dict}


def test_paths_are_resolved_when_the_code_is_written(tmp_path):
    config = {"a": pathlib.Path("/x/y"), "b": [SisyphusPath("z")], "c": DelayedBase()}
    _, again = _back(tmp_path, config)
    assert again == {"a": "/x/y", "b": ["/disk/z"], "c": 7}


def test_dims_are_shared(tmp_path):
    time_dim, feature_dim, words_dim = nn.SpatialDim("time"), nn.FeatureDim("features", 80), nn.Dim(5, name="words")
    config = {
        "out": {"dims": [nn.batch_dim, time_dim.ceildiv_right(4), 2 * feature_dim, ImplicitSparseDim(words_dim)]},
        "extern_data": {
            "data": {"dims": [nn.batch_dim, time_dim, feature_dim], "dtype": "float32"},
            "classes": nn.Tensor("classes", dims=[nn.batch_dim, time_dim], dtype="int32", sparse_dim=words_dim),
        },
        "dim": words_dim,
        "dim_set": {time_dim, feature_dim, nn.batch_dim, words_dim},
    }
    text, again = _back(tmp_path, config)
    data, classes = again["extern_data"]["data"]["dims"], again["extern_data"]["classes"]
    assert data[0] is nn.batch_dim and classes.dims == (nn.batch_dim, data[1])
    assert again["out"]["dims"][1] == data[1].ceildiv_right(4) and again["out"]["dims"][2] == 2 * data[2]
    assert classes.sparse_dim is again["dim"] and again["dim_set"] == {*data, again["dim"]}
    assert 'time_dim = Dim(None, name="time"' in text and "time_dim.ceildiv_right(4)" in text
    assert again["out"]["dims"][3] == ImplicitSparseDim(again["dim"])


def test_tensor_with_feature_dim(tmp_path):
    dims = [nn.batch_dim, nn.SpatialDim("time"), nn.FeatureDim("f", 3)]
    _, again = _back(tmp_path, {"x": nn.Tensor("x", dims=dims, dtype="float32", feature_dim_axis=2)})
    assert again["x"].feature_dim.dimension == 3


def test_a_corpus(tmp_path):
    vocab = WordVocab(["YES", "NO"])
    augment = Chain(SpeedPerturbation(0.9, 1.1), Noise(10, 40))
    dataset = Librispeech(path="/data", vocab=vocab, training=TrainOptions(augment=augment))
    config = {**dataset.get_config_opts(), "dataset": dataset, "vocab": CharacterVocab(), "other": [vocab]}
    text, again = _back(tmp_path, config)
    assert not diff(again["dataset"].get_config_opts(), dataset.get_config_opts())
    assert not diff({"train": again["train"]}, {"train": dataset.get_train_dataset()})
    assert "Noise(low_db=10, high_db=40)" in text
    assert "CharacterVocab()" in text and "train_splits" not in text  # defaults are left out


def test_functions_are_imported_under_the_name_of_the_option(tmp_path):
    text, again = _back(tmp_path, {"forward_step": recog_step, "train_step": train_step, "steps": [train_step]})
    assert "from returnn_common.recog import recog_step as forward_step\n" in text
    assert "from returnn_common.training import train_step\n" in text and "step = " not in text
    assert again["steps"] == [train_step] and again["forward_step"] is recog_step


@pytest.mark.parametrize(
    "function, args, expected",
    [
        (kinds.add, (1,), 4),
        (kinds.add_twice, (1,), 7),
        (kinds.even, (10,), True),
        (kinds.make_adder(5), (1,), 6),
        (kinds.make_shadow(), (2,), 20),
        (kinds.uses_dim, (), 7),
        (kinds.lambdas[0], (1,), 1),
        (kinds.lambdas[1], (1,), 4),
        (lambda x: x + kinds.FACTOR, (1,), 4),
        (functools.partial(kinds.add, factor=2), (1,), 3),
        (kinds.Child.double, (2,), 4),
    ],
    ids=kinds.without_addresses,
)
def test_functions_are_written_out(function, args, expected, tmp_path):
    config = {"function": function, "same": [function], "FACTOR": "an option with the name of a global"}
    text, again = _back(tmp_path, config, inline=HERE)
    assert again["function"](*args) == again["same"][0](*args) == expected
    assert "import kinds" not in text and "from tests" not in text and again["FACTOR"] == config["FACTOR"]
    (tmp_path / "again.py").write_text(to_python(again))
    assert not diff(again, read(tmp_path / "again.py"))
    assert to_python(read(tmp_path / "again.py")) == to_python(again)


def test_classes_are_written_out(tmp_path):
    config = {"child": kinds.Child, "inner": kinds.Child.Inner, "color": kinds.Color.RED, "settings": kinds.Settings(3)}
    text, again = _back(tmp_path, config, inline=HERE)
    assert again["child"]().scale(1) == kinds.Child().scale(1) and again["inner"].value == 3
    assert again["color"].name == "RED" and again["settings"].size == 3
    assert text.index("class Base") < text.index("class Child") and "tests.config.kinds" not in text
    assert to_python(again) == text


def test_what_functions_use_comes_along(tmp_path):
    text, _ = _back(tmp_path, {"f": kinds.makes_array, "g": kinds.Child}, inline=HERE)
    assert "import numpy as np\n" in text and "import math as mathematics\n" in text
    assert "FACTOR = 3\n" in text and 'LABELS = {"a": 1, "b": [2, 3]}\n' in text
    assert "pathlib" not in text  # only in an annotation that nobody evaluates


def test_an_option_that_a_function_uses_is_that_option(tmp_path):
    path = tmp_path / "a.py"
    path.write_text("size = [3]\nother = 2\ndef get_model(): return size, other\n")
    text, again = _back(tmp_path, read(path))
    assert again["get_model"]()[0] is again["size"] and text.count("[3]") == 1


def test_modules(tmp_path):
    text, again = _back(tmp_path, {"np": np, "tools": [os.path]})
    assert again["np"] is np and again["tools"] == [os.path] and "import numpy as np" in text


def test_names_do_not_collide(tmp_path):
    """neither helpers with options, nor dims with functions"""
    config = {
        "partial": functools.partial(int),
        "labels_dim": 5,
        "numpy": np.zeros(1),
        "extern_data": {"data": {"dims": [nn.FeatureDim("labels", 3), nn.FeatureDim("uses", 2)]}},
        "f": [kinds.uses_dim, datetime.date(2026, 1, 1)],
        "datetime": 3,
    }
    text, again = _back(tmp_path, config, inline=HERE)
    assert again["labels_dim"] == 5 and again["f"][0]() == 7 and again["partial"]("3") == 3
    assert again["f"][1] == datetime.date(2026, 1, 1) and again["datetime"] == 3
    assert to_python(again) == text


def test_python_path_and_doc(tmp_path):
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "far_away_module.py").write_text("def f(): return 4\n")
    path = tmp_path / "config.py"
    path.write_text(to_python({"x": 1}, python_path=[SisyphusPath("a"), tmp_path / "modules"], doc="What it is."))
    before = list(sys.path)
    try:
        assert read(path) == {"x": 1}
        assert sys.path[:2] == ["/disk/a", str(tmp_path / "modules")]
    finally:
        sys.path[:] = before
    assert path.read_text().startswith('#!rnn.py\n"""\nWhat it is.\n"""\n')


def test_what_a_config_brings_by_itself_is_left_out():
    from returnn.config import Config

    assert to_python({"config": Config(), "__file__": "x", "a": 1}) == to_python({"a": 1})


def _made_by_exec():
    namespace: dict = {"__name__": "__main__"}
    exec("f = lambda x: x\ndef g(): pass\nclass C: pass\n", namespace)
    return namespace


def _mutual():
    def a(n):
        return n == 0 or b(n - 1)

    def b(n):
        return n > 0 and a(n - 1)

    return a


def test_functions_within_functions_that_need_each_other(tmp_path):
    _, again = _back(tmp_path, {"even": _mutual()})
    assert again["even"](4) and not again["even"](5)
    with pytest.raises(ValueError, match="even: a: b: b: a: both need each other when they are defined"):
        to_python({"even": _mutual(), "a": 1, "b": 2})


@pytest.mark.parametrize(
    "value, error, message",
    [
        (_made_by_exec()["f"], ValueError, "x: __main__.<lambda>: its source, <string>, can't be read"),
        (_made_by_exec()["g"], ValueError, "x: __main__.g: its source, <string>, can't be read"),
        (_made_by_exec()["C"], ValueError, "x: __main__.C: its source"),
        (kinds.Hidden(1), TypeError, "x: no code can be written for tests.config.kinds.Hidden"),
        ((i for i in []), TypeError, "x: no code can be written for builtins.generator"),
        (kinds.Loop(), ValueError, r"x: Loop\(inner\): Loop contains itself"),
        (np.array([None, "a"]), TypeError, "x: expected an array of numbers or texts, got dtype object"),
        (nn.Tensor("t", dims=[], dtype="int32", raw_tensor=np.array(1, "int32")), TypeError, "x: .* has values"),
        (nn.Module(), TypeError, "x: Module is a model, .*: give the function that makes it"),
        (nn.any_feature_dim, ValueError, "x: .* only stands for other dims"),
        ({"a": [1, {"b": kinds.Hidden(1)}]}, TypeError, r"x\.a\[1\]\.b: no code"),
        (functools.partial(dict, a=kinds.Hidden(1)), TypeError, r"x: dict\(a\): no code"),
    ],
    ids=kinds.without_addresses,
)
def test_errors_name_the_option(value, error, message):
    with pytest.raises(error, match=message):
        to_python({"x": value})


def test_a_loop_of_references_is_refused():
    loop: list = [1]
    loop.append({"again": loop})
    with pytest.raises(ValueError, match=r"x\[1\]\.again: list contains itself"):
        to_python({"x": loop})


def test_bad_names():
    with pytest.raises(ValueError, match="expected names of options, as Python has them, got 'a b'"):
        to_python({"a b": 1})
    with pytest.raises(ValueError, match="got 'class'"):
        to_python({"class": 1})
    with pytest.raises(TypeError, match="expected names of options, got 3"):
        to_python({3: 1})  # type: ignore[dict-item]
    with pytest.raises(TypeError, match="config: expected options by name, got str 'a.config'"):
        to_python("a.config")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="inline: expected names of modules, got the str 'a'"):
        to_python({}, inline="a")


def test_source_that_has_changed_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "some_module_that_changes.py"
    path.write_text("def f(x):\n    return x\n\n\nclass C:\n    def f(self): pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    import some_module_that_changes as module  # type: ignore[import-not-found]

    path.write_text("# more\n\n\ndef other(): pass\n")
    for name in ("f", "C"):
        with pytest.raises(ValueError, match=f"x: some_module_that_changes.{name}: its source in .* has changed"):
            to_python({"x": getattr(module, name)}, inline=["some_module_that_changes"])


_SCRIPT = """
import sys
from tests.config import kinds
from tests.config.test_python_code import PLAIN
from returnn_common import nn
from returnn_common.config import to_python
dims = {nn.Dim(None, name="b"), nn.Dim(None, name="a"), nn.Dim(3, name="c")}
config = {**PLAIN, "dims": dims, "f": kinds.Child, "names": {kinds.add, kinds.odd, len}}
sys.stdout.write(to_python(config, inline=["tests.config.kinds"]))
"""


def test_the_same_in_each_process():
    hashes = set()
    for seed in "0", "1":
        env = {**os.environ, "PYTHONHASHSEED": seed}
        result = subprocess.run([sys.executable, "-c", _SCRIPT], capture_output=True, env=env)
        assert result.returncode == 0, result.stderr.decode()
        hashes.add(hashlib.sha256(result.stdout).hexdigest())
    assert len(hashes) == 1
