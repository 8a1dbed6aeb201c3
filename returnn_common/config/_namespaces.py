"""
Where functions and classes are from.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
import types
import weakref
from typing import Any

__all__ = ["SOURCE", "describe", "find_import", "globals_of", "is_lambda", "remember_classes"]

SOURCE = "__source__"  # in a config that was read: its text, since the file may be another one by now
_CLASSES: weakref.WeakKeyDictionary[type, dict[str, Any]] = weakref.WeakKeyDictionary()  # of configs -> the config


def is_lambda(obj: Any) -> bool:
    """whether it is a function without a name"""
    return isinstance(obj, types.FunctionType) and obj.__name__ == "<lambda>"


def find_import(obj: Any) -> tuple[str, str] | None:
    """
    :param obj: function, class, or something else that has a module and a name there
    :return: the shortest module from which it can be imported in any process, and its name there, which has dots if it
        belongs to a class; or None
    """
    name = getattr(obj, "__qualname__", None) or getattr(obj, "__name__", None)
    module = getattr(obj, "__module__", None)
    if not isinstance(name, str) or not isinstance(module, str) or "<" in name:
        return None
    if module == "builtins" and getattr(types, name, None) is obj:  # such as NoneType
        return "types", name
    if not _can_be_imported(module) or _look_up(module, name) is not obj:
        return None
    parts = module.split(".")
    for end in range(1, len(parts)):
        shorter = ".".join(parts[:end])
        if not any(part.startswith("_") for part in parts[:end]) and _look_up(shorter, name) is obj:
            return shorter, name
    return module, name


def _can_be_imported(module: str) -> bool:
    """whether another process has this module, too"""
    if module == "__main__" or module.startswith("__returnn_config__"):
        return False
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError, AttributeError):
        return False


def _look_up(module: str, name: str) -> Any:
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def remember_classes(namespace: dict[str, Any], *, module: str, within: Any = None):
    """
    Classes without functions don't know where they were defined.

    :param namespace: of a config that was read
    :param module: its name
    :param within: a class in it
    """
    for value in list(vars(within).values() if within else namespace.values()):
        if isinstance(value, type) and value.__module__ == module and value not in _CLASSES:
            _CLASSES[value] = namespace
            remember_classes(namespace, module=module, within=value)


def globals_of(obj: Any) -> dict[str, Any]:
    """:return: the module in which a function or class was defined, by name"""
    if not inspect.isclass(obj):
        return inspect.unwrap(obj).__globals__
    if obj in _CLASSES:
        return _CLASSES[obj]
    for value in vars(obj).values():
        function = getattr(value, "__func__", getattr(value, "fget", value))
        # Those that a decorator has made, as for dataclasses, belong to other modules.
        if isinstance(function, types.FunctionType) and function.__globals__.get("__name__") == obj.__module__:
            return function.__globals__
    return vars(sys.modules[obj.__module__]) if obj.__module__ in sys.modules else {}


def describe(obj: Any) -> str:
    return f"{getattr(obj, '__module__', '?')}.{getattr(obj, '__qualname__', repr(obj))}"
