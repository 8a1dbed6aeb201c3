"""What is written as code means the same, or is refused, also where Python's source alone doesn't tell."""

from __future__ import annotations

import importlib
import operator
import random
import sys
import types

import numpy as np
import pytest
import torch
from returnn.tensor import Dim

from returnn_common.config import diff, read, to_python
from returnn_common.sis import stable_hash
from tests.config import odd

HERE = ["tests.config.odd"]


def _back(tmp_path, config, *, inline=()):
    path = tmp_path / "config.py"
    path.write_text(to_python(config, inline=inline))
    again = read(path)
    assert to_python(again) == path.read_text()
    return again


@pytest.mark.parametrize("inline", [(), HERE], ids=["imported", "inline"])
@pytest.mark.parametrize(
    "function, expected",
    [
        (odd.without_wraps, 112),
        (odd.with_wraps, 3),
        (odd.with_wraps.__wrapped__, 2),  # type: ignore[attr-defined]
        (odd.by_call, 5),
        (odd.with_attributes, 9),
        (odd.first, 5),
        (odd.second, 4),
        (odd.make_counter(1), 5),
        (odd.OwnPartial(odd.plain), 4),
    ],
)
def test_functions_mean_the_same(function, expected, inline, tmp_path):
    """decorators (with or without ``functools.wraps``), attributes, tables of functions, ``nonlocal``"""
    again = _back(tmp_path, {"function": function, "max": 1, "float": float("nan")}, inline=inline)
    assert again["function"](4) == expected and type(again["function"]).__name__ == type(function).__name__
    assert (again["max"], str(again["float"])) == (1, "nan")


def test_a_class_that_its_own_table_has(tmp_path):
    assert _back(tmp_path, {"cls": odd.Registered}, inline=HERE)["cls"]().get()


@pytest.fixture
def package(tmp_path, monkeypatch):
    """of modules that use each other by their names, with a function ``get`` in the module ``model``"""
    files = {
        "__init__": "",
        "model": "from . import layers\nimport odd_package.tools as t\n"
        "def get(): return layers.Base().other().size + t.half(4) + layers.consts.MORE\n"
        "def get_any(name): return getattr(layers, name)\n"
        "def get_later():\n    from .layers import Base\n    return Base.size\n"
        "def get_outside():\n    from .outside import VALUE\n    return VALUE\n",
        "layers": "from . import consts\nclass Base:\n    size = consts.SIZE\n    def other(self): return make()\n"
        "class Other(Base):\n    pass\ndef make(): return Other()\n",
        "consts": "SIZE = 3\nMORE = 4\nUNUSED = 5\n",
        "tools": "import math\ndef half(x): return x / 2 if x else math.nan\n",
        "outside": "VALUE = 8\n",
    }
    (tmp_path / "odd_package").mkdir()
    for name, text in files.items():
        (tmp_path / "odd_package" / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("odd_package.model")
    for name in [name for name in sys.modules if name.split(".")[0] == "odd_package"]:
        del sys.modules[name]


def test_modules_that_functions_use_are_written_out(package, tmp_path):
    """with what is used of them, also where a class and those derived from it need each other"""
    again = _back(tmp_path, {"get": package.get, "layers": [1]}, inline=["odd_package"])
    text = (tmp_path / "config.py").read_text()
    assert again["get"]() == 3 + 2 + 4 and again["layers"] == [1]
    assert "import odd_package" not in text and "from odd_package" not in text and "UNUSED" not in text
    other = tmp_path / "other.py"
    other.write_text(text.replace("x / 2", "x / 3"))
    assert "x / 3" in str(diff(again, read(other))) and stable_hash(again) != stable_hash(read(other))
    other.write_text(text.replace("MORE = 4", "MORE = 5"))
    assert "4 -> 5" in str(diff(again, read(other))) and stable_hash(again) != stable_hash(read(other))
    assert stable_hash(again) == stable_hash(read(tmp_path / "config.py"))


def test_modules_of_which_not_all_is_seen_are_refused(package):
    with pytest.raises(ValueError, match="it can't be seen what is used of the module odd_package.layers"):
        to_python({"x": package.get_any}, inline=["odd_package"])
    with pytest.raises(ValueError, match="get_later imports odd_package.layers.Base when it runs, which is to be writ"):
        to_python({"x": package.get_later}, inline=["odd_package"])


def test_imports_within_functions(package, tmp_path):
    """relative ones would mean nothing in the config"""
    again = _back(tmp_path, {"x": package.get_outside}, inline=["odd_package.model"])
    assert again["x"]() == 8 and "from odd_package.outside import VALUE" in (tmp_path / "config.py").read_text()


def test_what_the_setter_of_a_property_uses(tmp_path):
    again = _back(tmp_path, {"cls": odd.make_class(3), "size": 100})["cls"]()
    again.size = 1
    assert again.size == 4


def test_options_named_like_builtin_functions(tmp_path):
    config = {"list": [1], "float": 2, "a": [float("inf"), {*()}, frozenset({1}), bytearray(b"x"), range(2), -0j]}
    again = _back(tmp_path, {**config, "set": 3, "frozenset": 4, "bytearray": 5, "range": 6, "complex": 7})
    assert again["a"] == config["a"] and again["float"] == 2 and str(again["a"][-1]) == str(-0j)


@pytest.mark.parametrize(
    "value",
    [
        odd.Child(1, y=3),
        odd.Labels(a=1),
        odd.Word("x"),
        types.SimpleNamespace(a=[1]),
        operator.methodcaller("f", 1, a=2),
        type(None),
        list[int],
        int | str,
        np.datetime64("2026-01-01T00:00"),
        np.timedelta64(3, "25s"),
        complex(float("nan"), -0.0),
        odd.make_class(3)(2),
    ],
    ids=lambda value: type(value).__name__,
)
def test_objects_come_back(value, tmp_path):
    config = {"x": value}
    again = _back(tmp_path, config)
    assert not diff(config, again)
    assert type(again["x"]).__name__ == type(value).__name__
    assert " at 0x" in repr(value) or repr(again["x"]) == repr(value)


def test_a_partial_function_that_took_over_a_name(tmp_path):
    assert _back(tmp_path, {"x": odd.updated}, inline=HERE)["x"]() == 5


@pytest.mark.parametrize(
    "value, error, message",
    [
        (np.random.default_rng(0), TypeError, r"x: .*no code can be written for numpy\.random\..*PCG64"),
        (random.Random(1), TypeError, "x: no code can be written for random.Random"),
        (property(len), TypeError, "x: no code can be written for builtins.property"),
        (torch.zeros(1), TypeError, "x: Tensor has values of an engine: give numbers, or NumPy's array"),
        (odd.renamed, TypeError, "x: no code can be written for functools.partial"),
        (odd.cached_by_call, ValueError, "x: .*plain: _lru_cache_wrapper was made by a call, not where .* is defined"),
        (odd.dispatched, ValueError, r"x: .*dispatched: what is registered for types \(singledispatch\) can't be"),
        (odd.needs_itself(), ValueError, "x: function: functions: both need each other when they are defined"),
    ],
)
def test_what_would_lose_something_is_refused(value, error, message):
    with pytest.raises(error, match=message):
        to_python({"x": value}, inline=HERE)


def test_names_that_python_reads_as_others():
    with pytest.raises(ValueError, match="expected names of options, as Python has them, got 'ﬁ'"):
        to_python({"ﬁ": 1})
    with pytest.raises(ValueError, match="expected RETURNN's own dim under the name batch_dim, got 6"):
        to_python({"batch_dim": 6})
    with pytest.raises(ValueError, match="expected RETURNN's own dim under the name single_step_dim"):
        to_python({"single_step_dim": Dim(1, name="x")})


def test_quotes_as_formatters_have_them():
    text = to_python({"a": ["\x1b", "5\" isn't", 'say "it"', b"x", "\n"]})
    assert r"""a = ["\x1b", "5\" isn't", 'say "it"', b"x", "\n"]""" in text
