"""Options of a recipe: defaults, values from the command line and from a config, and what is refused."""

from __future__ import annotations

import copy
import pickle

import pytest
from returnn.config import Config, global_config_ctx

from returnn_common.config import Options
from returnn_common.config.options import parse_value

DEFAULTS = {"layers": 3, "dropout": 0.1, "corpus": "data", "shuffle": True}


def _options(typed: dict | None = None, *command_line: str) -> Options:
    config = Config(typed or {})
    config.parse_cmd_args(list(command_line))
    with global_config_ctx(config):
        return Options(**DEFAULTS)


def test_defaults():
    for options in (_options(), _options({"other": 1})):
        assert options.as_dict() == options.defaults == DEFAULTS
        assert (options.layers, options.dropout, options.corpus, options.shuffle) == (3, 0.1, "data", True)
    with global_config_ctx(None):
        assert Options(layers=3).layers == 3


def test_repr():
    assert repr(_options({"layers": 5})) == "Options(layers=5, dropout=0.1, corpus='data', shuffle=True)"


@pytest.mark.parametrize(
    "arguments, expected",
    [
        (["++layers", "2"], {"layers": 2}),
        (["++layers", "4", "++dropout", "0.25"], {"layers": 4, "dropout": 0.25}),
        (["++dropout", "1e-3"], {"dropout": 1e-3}),
        (["++dropout", "0"], {"dropout": 0.0}),
        (["++shuffle", "False"], {"shuffle": False}),
        (["++corpus", "/some/folder with spaces"], {"corpus": "/some/folder with spaces"}),
        (["++corpus", "dev-clean,dev-other"], {"corpus": "dev-clean,dev-other"}),
        (["++corpus", "3"], {"corpus": "3"}),
        (["++corpus", "None"], {"corpus": "None"}),
    ],
)
def test_command_line(arguments: list[str], expected: dict):
    options = _options(None, *arguments)
    assert options.as_dict() == {**DEFAULTS, **expected}
    assert options.defaults == DEFAULTS
    for name, value in expected.items():
        assert getattr(options, name) == value and type(getattr(options, name)) is type(DEFAULTS[name])


@pytest.mark.parametrize("typed, expected", [({"layers": 7}, 7), ({"dropout": 1}, 1.0), ({"corpus": "x"}, "x")])
def test_typed_config(typed: dict, expected):
    """as in a config that a program writes"""
    (name,) = typed
    value = getattr(_options(typed), name)
    assert value == expected and type(value) is type(expected)


@pytest.mark.parametrize(
    "name, text",
    [
        ("layers", "two"),
        ("layers", "2.0"),
        ("layers", "True"),
        ("layers", "[2]"),
        ("layers", ""),
        ("dropout", "much"),
        ("dropout", "True"),
        ("shuffle", "1"),
        ("shuffle", "yes"),
        ("shuffle", "true"),
    ],
)
def test_values_of_another_type(name: str, text: str):
    kind = type(DEFAULTS[name]).__name__
    message = rf"^option {name}: expected a value of type {kind}, got '{text}'$".replace("[", r"\[")
    with pytest.raises(ValueError, match=message):
        parse_value(name, text, DEFAULTS[name])
    if text:
        with pytest.raises(ValueError, match=message):
            _options(None, f"++{name}", text)


@pytest.mark.parametrize(
    "typed", [{"layers": 2.5}, {"layers": True}, {"dropout": False}, {"shuffle": 1}, {"corpus": 5}, {"layers": None}]
)
def test_typed_values_of_another_type(typed: dict):
    ((name, value),) = typed.items()
    kind = type(DEFAULTS[name]).__name__
    with pytest.raises(ValueError, match=rf"^option {name}: expected a value of type {kind}, got {value!r}$"):
        _options(typed)


@pytest.mark.parametrize("default", [None, [1], (1,), {"a": 1}, b"x"])
def test_defaults_of_other_types(default):
    with pytest.raises(TypeError, match="^option layers: expected str, bool, int or float, got "):
        Options(layers=default)


def test_unknown_option():
    with pytest.raises(AttributeError, match="^no option 'layer', there are layers, dropout, corpus, shuffle$"):
        _ = _options().layer
    assert not hasattr(_options(), "layer")


def test_copies():
    """as RETURNN copies configs"""
    options = _options({"layers": 7})
    for copied in (copy.copy(options), copy.deepcopy(options), pickle.loads(pickle.dumps(options))):
        assert copied.as_dict() == options.as_dict() and copied.defaults == DEFAULTS


def test_values_cannot_be_changed_from_outside():
    options = _options()
    options.as_dict()["layers"] = 9
    options.defaults["layers"] = 9
    assert options.layers == 3 and options.defaults["layers"] == 3


def test_negative_values():
    """RETURNN's command line refuses them, a config file doesn't"""
    assert parse_value("layers", "-2", 3) == -2 and parse_value("dropout", "-0.5", 0.1) == -0.5
    assert _options({"layers": -2}).layers == -2
