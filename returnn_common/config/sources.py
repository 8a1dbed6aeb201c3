"""A RETURNN config, in whatever form it comes, as a dict."""

from __future__ import annotations

import ast
import os
import types
from collections.abc import Mapping
from typing import Any

__all__ = ["read_config"]


def read_config(config: Any, *, options: Mapping[str, str] | None = None) -> dict[str, Any]:
    """
    :param config: dict, module, path of a config file, or RETURNN's own Config
    :param options: of a file, as on RETURNN's command line
    :return: name -> value, without what begins with two underscores
    :raises TypeError: if it's none of these
    :raises FileNotFoundError: if there is no such file
    """
    from returnn.config import Config, global_config_ctx

    if isinstance(config, Config):
        found: Mapping[str, Any] = {**config.typed_dict, **{k: v[0] for k, v in config.dict.items() if len(v) == 1}}
    elif isinstance(config, Mapping):
        found = config
    elif isinstance(config, types.ModuleType):
        found = vars(config)
    elif isinstance(config, (str, os.PathLike)):
        path = os.fspath(config)
        if not os.path.isfile(path):
            raise FileNotFoundError(f"config: no file {path!r}")
        loaded = Config()
        loaded.dict = {name: [value] for name, value in (options or {}).items()}
        namespace: dict[str, Any] = {"__file__": os.path.abspath(path), "__name__": "returnn_config", "config": loaded}
        loaded.typed_dict = namespace
        with global_config_ctx(loaded), open(path, encoding="utf8") as file:
            exec(compile(file.read(), path, "exec"), namespace)
        found = {
            **{name: value for name, value in namespace.items() if value is not loaded},
            **{name: _value(text) for name, text in (options or {}).items()},
        }
    else:
        raise TypeError(
            f"config: expected a dict, a module or the path of a file, got {type(config).__name__} {config!r}"
        )
    return {name: value for name, value in found.items() if not name.startswith("__")}


def _value(text: str) -> Any:
    """:return: what the text means in Python, or the text"""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
