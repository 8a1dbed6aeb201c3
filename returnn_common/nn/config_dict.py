"""
Options of a config that are dicts.
"""

from __future__ import annotations

import ast
from typing import Any

from returnn.config import Config

__all__ = ["read_dict"]


def read_dict(config: Config, name: str) -> dict[str, Any]:
    """
    :param config:
    :param name: of an option that is a dict with names as keys, or its text
    :return: empty if there is none
    :raises ValueError: if it is something else
    """
    value = config.typed_value(name) if name in config.typed_dict else config.value(name, None)
    if value in (None, ""):
        return {}
    if isinstance(value, str):
        try:
            value = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            raise ValueError(f"{name}: expected a dict such as {{'lm_scale': 0.3}}, got {value!r}") from None
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise ValueError(f"{name}: expected a dict with names as keys, got {value!r}")
    return dict(value)
