"""
Named options of a config, with defaults, which RETURNN's command line can change.
"""

from __future__ import annotations

import ast
from typing import Any

from returnn.config import get_global_config

__all__ = ["Options", "parse_value"]


class Options:
    """
    The options of a recipe. In the config::

        options = Options(num_layers=3, dropout=0.1)
        ... make_conformer_encoder(80, num_layers=options.num_layers)

    ``python -m returnn CONFIG ++num_layers 2`` then changes one of them. A value must have the type of its default
    (int is fine for float).

    :param defaults: by name; str, bool, int or float
    :raises TypeError: for a default of another type
    :raises ValueError: for a value which doesn't fit its default's type
    """

    def __init__(self, **defaults: str | bool | int | float):
        for name, default in defaults.items():
            if not isinstance(default, (str, bool, int, float)):
                raise TypeError(f"option {name}: expected str, bool, int or float, got {default!r}")
        self._defaults = dict(defaults)
        self._values = {name: self._read(name, default) for name, default in defaults.items()}

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["_values"][name]
        except KeyError:
            raise AttributeError(
                f"no option {name!r}, there are {', '.join(self.__dict__.get('_values', ()))}"
            ) from None

    def __repr__(self) -> str:
        return f"Options({', '.join(f'{name}={value!r}' for name, value in self._values.items())})"

    @property
    def defaults(self) -> dict[str, Any]:
        """By name."""
        return dict(self._defaults)

    def as_dict(self) -> dict[str, Any]:
        """Current values by name."""
        return dict(self._values)

    @staticmethod
    def _read(name: str, default: Any) -> Any:
        config = get_global_config(raise_exception=False)
        if config is None or not config.has(name):
            return default
        if name not in config.typed_dict:
            return parse_value(name, config.value(name, None), default)
        value = config.typed_value(name)
        # A config that a program has written may have the command line's texts as well.
        return parse_value(name, value, default) if isinstance(value, str) else _check_type(name, value, default)


def parse_value(name: str, text: str, default: Any) -> Any:
    """
    :param name: of the option, for the message
    :param text: as on the command line
    :param default: the value must have its type
    :return: the value
    :raises ValueError: if it doesn't
    """
    if isinstance(default, str):
        return text
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        value = text
    return _check_type(name, value, default, given=text)


def _check_type(name: str, value: Any, default: Any, *, given: Any = None) -> Any:
    """:return: the value; int becomes float where the default is one"""
    if type(default) is float and type(value) is int:
        value = float(value)
    if type(value) is not type(default):
        got = value if given is None else given
        raise ValueError(f"option {name}: expected a value of type {type(default).__name__}, got {got!r}")
    return value
