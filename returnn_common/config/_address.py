"""
Where functions and classes belong, wherever the code lies.
"""

from __future__ import annotations

import inspect
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["address", "is_of_config", "meant_class", "room"]

_PACKAGE = Path(__file__).resolve().parents[1]
# Of these, a part counts: things may move within.
_DEEP_ROOMS = {"models": ("encoder", "decoder", "lm")}
_FASTER = ["nn", "fused"]  # subclasses that do the same
_SEPARATE = "recipes"  # each has functions of the same names


def address(obj: Any) -> str:
    """
    :param obj: function or class
    :return: ``"module:name"``, wherever the package lies and under whichever name it was imported. Of this package and
        of RETURNN, only the part of the package counts (``returnn_common.models.encoder``, ``returnn.frontend``), so
        that things can move between its files.
    """
    name = getattr(obj, "__qualname__", None) or getattr(obj, "__name__", None) or type(obj).__qualname__
    if isinstance(obj, np.ufunc):
        return f"numpy:{name}"
    owner = getattr(obj, "__self__", None)
    if inspect.isbuiltin(obj) and owner is not None and not isinstance(owner, types.ModuleType):
        return f"{address(owner if isinstance(owner, type) else type(owner))}.{obj.__name__}"
    return f"{room(getattr(obj, '__module__', None) or 'builtins')}:{name}"


def is_of_config(obj: Any) -> bool:
    """:return: whether a function or class was defined in a config file, which is no module"""
    return getattr(obj, "__module__", None) in ("__returnn_config__", "returnn_config")


def meant_class(cls: type) -> type:
    """:return: the class itself, or the one that it computes faster"""
    return next(c for c in cls.__mro__ if (_parts_in_package(c.__module__) or [])[:2] != _FASTER)


def room(module: str) -> str:
    parts = _parts_in_package(module)
    if parts is not None:
        if parts[:1] == [_SEPARATE]:
            return ".".join(["returnn_common", *parts])
        deep = len(parts) > 2 and parts[1] in _DEEP_ROOMS.get(parts[0], ())
        return ".".join(["returnn_common", *parts[: 2 if deep else 1]])
    if module.startswith("returnn."):
        return ".".join(module.split(".")[:2])
    return module


def _parts_in_package(module: str) -> list[str] | None:
    """:return: of a module of ours, its name within the package, else None"""
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is not None and _PACKAGE in (path := Path(file).resolve()).parents:
        parts = list(path.relative_to(_PACKAGE).with_suffix("").parts)
        return parts[:-1] if parts[-1] == "__init__" else parts
    parts = module.split(".")  # of another clone
    if "returnn_common" not in parts:
        return None
    parts = parts[len(parts) - parts[::-1].index("returnn_common") :]
    # RETURNN's import_ has the version between.
    return parts[1:] if parts[:1] and parts[0].startswith(("v", "_")) and module.startswith("returnn_import") else parts
