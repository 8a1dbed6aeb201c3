"""
What is compared: configs in all forms, and values without what only stands for them.
"""

from __future__ import annotations

import os
import types
from collections.abc import Mapping
from typing import Any

from ._address import is_of_config
from ._delayed import plain_value
from ._namespaces import globals_of
from ._objects import is_path, path_text
from .net_dict import NetDict
from .reading import own_imports, read
from .staged import StagedNetDict

__all__ = ["AnyConfig", "is_plain_key", "load_config", "module_file", "simple_value"]

AnyConfig = Mapping[str, Any] | types.ModuleType | str | os.PathLike | NetDict | StagedNetDict


def load_config(name: str, config: AnyConfig) -> dict[str, Any]:
    """
    :param name: of the argument, for messages
    :param config: see :func:`.diff`
    :return: options by name
    :raises TypeError: if it is none
    """
    if isinstance(config, str | os.PathLike):
        with own_imports():
            return read(config)
    if isinstance(config, NetDict | StagedNetDict):
        config = _network(config)
    if isinstance(config, types.ModuleType):
        config = {n: v for n, v in vars(config).items() if not isinstance(v, types.ModuleType)}
    if not isinstance(config, Mapping):
        raise TypeError(f"diff: {name}: expected options by name, a module or a path, got {type(config).__name__}")
    return {n: v for n, v in config.items() if not (isinstance(n, str) and n.startswith("__")) and n != "config"}


def is_plain_key(key: Any) -> bool:
    """whether a dict's key is equal to others with the same content"""
    if type(key) is tuple:
        return all(map(is_plain_key, key))
    return isinstance(plain_value(key), str | int | float | bytes | type(None))


def simple_value(value: Any) -> Any:
    """:return: numbers and texts of what only stands for them"""
    value = plain_value(value)
    if isinstance(value, NetDict | StagedNetDict):
        return _network(value)
    return path_text(value) if is_path(value) and not isinstance(value, str) else value


def module_file(obj: Any) -> str | None:
    """:return: of a function or class; None for those of configs"""
    file = globals_of(obj).get("__file__")
    return None if is_of_config(obj) or file is None else os.path.realpath(file)


def _network(network: NetDict | StagedNetDict) -> dict[str, Any]:
    """:return: as a config"""
    layers = {"network": network.network} if isinstance(network, NetDict) else {"networks": network.networks}
    return {**network.options, "extern_data": network.extern_data, **layers}
