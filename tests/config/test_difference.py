from __future__ import annotations

import functools
import math
import pathlib
import sys
import types

import numpy as np
import pytest

from returnn_common import nn
from returnn_common.config import NetDict, StagedNetDict, diff, read
from returnn_common.datasets.augment import Chain, Gain, Noise
from tests.config import kinds


def _lines(a, b):
    assert not diff(a, a) and not diff(b, b)
    changes = diff(a, b)
    assert len(changes) == len(list(changes))
    return [line.strip() for line in str(changes).splitlines()]


@pytest.mark.parametrize(
    "old, new, expected",
    [
        (1, 2, ["x: 1 -> 2"]),
        (1, 1.0, ["x: 1 -> 1.0"]),
        (True, 1, ["x: True -> 1"]),
        ("a", None, ['x: "a" -> None']),
        ({"a": {"b": 1}}, {"a": {"b": 2}, "c d": 3}, ["x.a.b: 1 -> 2", "+ x['c d']: 3"]),
        ({"a": 1, "b": 2}, {"b": 2}, ["- x.a: 1"]),
        ([1, [2, 3]], [1, [2, 4]], ["x[1][1]: 3 -> 4"]),
        (["a", "b", "c"], ["a", "c"], ["- x[1]: \"b\""]),
        (["a", "c"], ["a", "b", "c", "d"], ['+ x[1]: "b"', '+ x[3]: "d"']),
        ([1], (1,), ["x: [1] -> (1,)"]),
        ({1, 2}, {2, 3}, ["- x: 1", "+ x: 3"]),
        ([0.1] * 5, [0.2] * 4 + [0.1], ["x: 5 numbers -> 4 of them differ: [0] 0.1 -> 0.2, ..."]),
        (np.zeros(2), np.zeros(3), ["x: array float64 (2,) -> array float64 (3,)"]),
        (
            np.zeros(1),
            np.ones(1),
            ['x: numpy.array([0.0], dtype="float64") -> numpy.array([1.0], dtype="float64") (1 of 1 values differ)'],
        ),
        (len, math.sqrt, ["x: len -> math.sqrt"]),
        (kinds.Color.RED, kinds.Color.GREEN, ["x: Color.RED -> Color.GREEN"]),
        (kinds.Settings(1), kinds.Settings(1, names=()), ["+ x.names: ()"]),
        (kinds.Settings(1), kinds.Plain(1), ["x: Settings(size=1) -> Plain(low=1)"]),
        (kinds.Hidden(1), kinds.Hidden(2), None),
        (functools.partial(int, base=2), functools.partial(int, base=3), ["x.base: 2 -> 3"]),
        (functools.partial(int), functools.partial(float), ["x[0]: int -> float"]),
        (Chain(Gain(0, 1), Noise(1, 2)), Chain(Gain(0, 1), Noise(1, 3)), ["x[1].high_db: 2 -> 3"]),
        (kinds.Plain(1).warm_up, kinds.Plain(2).warm_up, ["x.warm_up.low: 1 -> 2"]),
        ("a" * 200 + "b", "a" * 200 + "c", [f'x: ...{"a" * 50}b" -> ...{"a" * 50}c"']),
        ("a" * 99 + "b" * 99, "a" * 99 + "c" * 99, [f'x: ...{"a" * 50}{"b" * 50}... -> ...{"a" * 50}{"c" * 50}...']),
        ("a\nb\nc", "a\nB\nc", ["x: changed", "@@ -1,3 +1,3 @@", "a", "-b", "+B", "c"]),
        ([1], [1, *range(5)], ["+ x[1:6]: [0, 1, 2, 3, 4]"]),
        (list(range(6)), [0, 1], ["- x[2:6]: [2, 3, 4, 5]"]),
        ({"a": 1, "path": "/data/x"}, {"file": "/data/x", "a": 1}, ["x.path: is called file now"]),
        ({"a": [1, 2], "b": [1, 2]}, {"c": [1, 2]}, ["x.a: is called c now", "- x.b: [1, 2]"]),
        ({"a": [1, 2]}, {"c": [1, 2], "d": [1, 2]}, ["- x.a: [1, 2]", "+ x.c: [1, 2]", "+ x.d: [1, 2]"]),
        ({"a": 1}, {"b": 1}, ["- x.a: 1", "+ x.b: 1"]),
    ],
    ids=kinds.without_addresses,
)  # fmt: skip
def test_what_changed(old, new, expected):
    lines = _lines({"x": old}, {"x": new})
    assert lines == expected or (expected is None and len(lines) == 1)


def test_what_is_the_same():
    a = {"b": 1, "a": np.int64(2), "p": pathlib.Path("/x"), "nan": math.nan, "cached": kinds.Plain(1).warm_up()}
    b = {"nan": float("nan"), "p": "/x", "cached": kinds.Plain(1), "a": 2, "b": np.int8(1)}
    assert not diff(a, b) and str(diff(a, b)) == ""


def _corpus(*, classes=5, name="labels", time="time", shared=True):
    time_dim, labels_dim = nn.SpatialDim(time), nn.FeatureDim(name, classes)
    other = time_dim if shared else nn.SpatialDim("time")
    return {
        "model": {"dims": [other, labels_dim, 2 * labels_dim, time_dim.ceildiv_right(2)]},
        "extern_data": {"data": {"dims": [nn.batch_dim, time_dim], "sparse_dim": labels_dim}},
    }


def test_dims_are_told_by_name_and_once():
    assert not diff(_corpus(), _corpus())
    assert _lines(_corpus(), _corpus(classes=7)) == [
        'extern_data.data.sparse_dim: Dim "labels" (5) -> Dim "labels" (7)'
    ]
    assert _lines(_corpus(), _corpus(name="words")) == [
        'extern_data.data.sparse_dim: Dim "labels" (5) -> Dim "words" (5)'
    ]
    assert _lines(_corpus(), _corpus(shared=False)) == ['model.dims[0]: Dim "time" -> another Dim "time"']


def test_derived_dims():
    dim, other = nn.FeatureDim("f", 4), nn.FeatureDim("g", 4)
    assert _lines({"x": [dim, other, 2 * dim]}, {"x": [dim, other, 2 * other]}) == [
        'x[2] (derived): Dim "f" (4) -> Dim "g" (4)'
    ]
    assert _lines({"x": [dim, dim + 4]}, {"x": [dim, 2 * dim]}) == ['x[1]: Dim "f+4" (8) -> Dim "2*f" (8)']
    twins = [nn.Dim(4, name="t"), nn.Dim(4, name="t")]
    assert _lines({"x": [*twins, 2 * twins[0]]}, {"x": [*twins, 2 * twins[1]]}) == [
        'x[2] (derived): Dim "t" (4) -> another Dim "t" (4)'
    ]


def test_dims_as_keys():
    def config(size=4, value=1, more=False):
        dim, other = nn.Dim(size, name="d"), nn.Dim(2, name="o")
        return {"x": {dim: value, "plain": 1, **({other: 3} if more else {})}}

    assert not diff(config(), config())
    assert _lines(config(), config(value=2)) == ['x[Dim "d" (4)]: 1 -> 2']
    assert _lines(config(), config(size=5)) == ['x key 0: Dim "d" (4) -> Dim "d" (5)']
    assert len(_lines(config(), config(more=True))) == 3


def test_kinds_of_dims():
    kind = nn.Dim.Types.Spatial
    a, b = {"x": nn.Dim(4, name="d")}, {"x": nn.Dim(4, name="d", kind=kind)}
    assert _lines(a, b) == ['x: Dim "d" (4) of kind None -> Dim "d" (4) of kind spatial']


_CONFIG = """
N = {n}
def helper(x):
    return x + {plus}
def get_model(**_):
    a = 1
    return helper(N)
"""


def test_functions_by_their_source(tmp_path):
    def config(n=1, plus=2, text=_CONFIG):
        path = tmp_path / "config.py"
        path.write_text(text.format(n=n, plus=plus))
        return {"get_model": read(path)["get_model"]}

    assert not diff(config(), config())
    assert _lines(config(), config(n=3)) == ["get_model uses N: 1 -> 3"]
    lines = _lines(config(), config(plus=5))
    assert lines[0] == "get_model uses helper: changed" and lines[-2:] == ["-    return x + 2", "+    return x + 5"]
    lines = _lines(config(), config(text=_CONFIG.replace("a = 1", "a = 7")))
    assert lines[0] == "get_model: changed" and "-    a = 1" in lines and "+    a = 7" in lines
    assert _lines(config(), {"get_model": len}) == ["get_model: get_model -> len"]


def test_options_tell_of_their_changes_once(tmp_path):
    path = tmp_path / "config.py"
    path.write_text("size = [1, 2]\ndef get_model(): return size\n")
    old = read(path)
    path.write_text("size = [1, 3]\ndef get_model(): return size\n")
    assert _lines(old, read(path)) == ["size[1]: 2 -> 3"]


def test_files_and_modules(tmp_path):
    path = tmp_path / "config.py"
    path.write_text("import math\nsize = 1\n")
    module = types.ModuleType("module")
    vars(module).update(size=2, math=math)
    assert _lines(str(path), module) == _lines(path, {"size": 2, "__file__": "x"}) == ["size: 1 -> 2"]
    with pytest.raises(TypeError, match="diff: a: expected options by name, a module or a path, got int"):
        diff(3, {})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="diff: b: expected options by name"):
        diff({}, [])  # type: ignore[arg-type]


def test_loops_end():
    a, b = kinds.Loop(), kinds.Loop()
    assert not diff({"x": a}, {"x": b})


def test_objects_of_classes_that_are_written_out(tmp_path):
    text = "import enum\nclass A:\n    def __init__(self, n): self.n = n\nclass E(enum.Enum):\n    P = 1\n    Q = 2\n"

    def config(text, end):
        (tmp_path / "config.py").write_text(text + end)
        config = read(tmp_path / "config.py")
        return {name: config[name] for name in "xy"}

    old = config(text, "x = A(1)\ny = E.P\n")
    assert not diff(old, config(text, "x = A(1)\ny = E.P\n"))
    assert _lines(old, config(text, "x = A(2)\ny = E.Q\n")) == ["x.n: 1 -> 2", "y: E.P -> E.Q"]
    lines = _lines(old, config(text.replace("n): self.n = n", "n): self.n = +n"), "x = A(1)\ny = E.P\n"))
    assert lines[0] == "x: changed"


def test_comments_and_layout_of_functions_do_not_count(tmp_path):
    def config(text):
        (tmp_path / "some.config").write_text(f"#!rnn.py\n{text}")
        return read(tmp_path / "some.config")

    before = config("def f(x): return x+1\n")
    assert not diff(before, config("def f(\n    x,\n):\n    # more\n    return x + 1\n"))
    assert diff(before, config("def f(x): return x+2\n"))


def test_dims_of_an_option_that_is_called_otherwise():
    def config(name, size=3):
        dim = nn.Dim(size, name="d")
        return {name: dim, "other": [dim]}

    assert _lines(config("a_dim"), config("b_dim")) == ["a_dim: is called b_dim now"]
    assert len(_lines(config("a_dim"), config("b_dim", 4))) == 3


def test_net_dicts():
    def network(size, other=3):
        time_dim = nn.Dim(None, name="time")
        layers = {"output": {"class": "linear", "axis": time_dim, "n_out": size}}
        extern_data = {"data": {"dims": [nn.batch_dim, time_dim]}}
        return NetDict(layers, extern_data, options={"batch_size": other})

    assert _lines(network(1), network(1)) == []
    assert _lines(network(1), network(2, 4)) == ["batch_size: 3 -> 4", "network.output.n_out: 1 -> 2"]
    assert _lines({"a": [network(1)]}, {"a": [network(2)]}) == ["a[0].network.output.n_out: 1 -> 2"]
    staged = [StagedNetDict({1: network(1), 5: network(size)}) for size in (2, 3)]
    assert _lines(*staged) == ["networks[5].output.n_out: 2 -> 3"]


def test_each_config_has_its_own_modules(tmp_path):
    """of the same names, in folders that the configs add"""

    def config(folder, *, size=1, unused=2):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "some_own_module.py").write_text(
            f"size = {size}\ndef f(): return size\nunused = {unused}\n"
        )
        path = tmp_path / folder / "some.config"
        path.write_text(
            "#!rnn.py\nimport os, sys\nsys.path.insert(0, os.path.dirname(__file__))\nimport some_own_module\n"
            "from some_own_module import f\nclass C:\n    pass\nc = C()\ndef g(): return some_own_module.f()\n"
        )
        return path

    before = list(sys.path)
    a = config("a")
    assert not diff(a, a) and not diff(a, config("b", unused=3))
    assert [str(change) for change in diff(a, config("c", size=3))] == ["  f uses size: 1 -> 3"]
    assert sys.path == before and "some_own_module" not in sys.modules
