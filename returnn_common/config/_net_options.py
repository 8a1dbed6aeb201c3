"""
What a net dict's config gives: checked, its data with dims, and what else it has.
"""

from __future__ import annotations

import functools
import re
import types
from collections.abc import Mapping
from typing import Any

import numpy
from returnn.tensor import Tensor
from returnn.util.basic import BehaviorVersion

from ._address import room
from ._net_code import NetCode
from ._objects import is_path

__all__ = ["STEPS", "checked_options", "data_with_dims", "is_plain", "other_options"]

STEPS = {"train": "train_step", "eval": "train_step", "forward": "forward_step", "search": "forward_step"}
_BEHAVIOR_VERSION = 16  # the least that RETURNN's layers backend wants
# Options that may be functions; others are what has made the config.
_FUNCTIONS = {"train", "dev", "eval_datasets", "forward_data", "search_data", "dynamic_learning_rate"}
_IS_OURS = re.compile(r"^\s*(from|import) (returnn_common|\.)", re.MULTILINE)
_REPLACED = {"extern_data", "network", "get_network", "backend", "use_tensorflow", "behavior_version"}


def checked_options(options: dict[str, Any]) -> dict[str, Any]:
    """:return: with ``task`` and ``behavior_version``"""
    for name in ("get_model", "extern_data"):
        if name not in options:
            raise ValueError(f"config: expected {name}, got only {', '.join(sorted(options)) or 'an empty one'}")
    task = options.get("task") or ("train" if "train_step" in options or "forward_step" not in options else "forward")
    if task not in STEPS:
        raise ValueError(f"config: expected a task of {', '.join(STEPS)}, got {task!r}")
    for name in ("get_model", STEPS[task]):
        if not callable(options.get(name)):
            raise ValueError(f"config: expected a function {name} for task {task!r}, got {options.get(name)!r}")
    if not isinstance(options["extern_data"], Mapping):
        raise TypeError(f"config: expected extern_data as a dict, got {options['extern_data']!r}")
    version = options.get("behavior_version", max(_BEHAVIOR_VERSION, BehaviorVersion.get()))
    if isinstance(version, bool) or not isinstance(version, int):
        raise TypeError(f"config: expected behavior_version as an int, got {version!r}")
    if version < _BEHAVIOR_VERSION:
        raise ValueError(f"config: expected a behavior_version of at least {_BEHAVIOR_VERSION}, got {version}")
    return {**options, "task": task, "behavior_version": version}


def data_with_dims(name: str, entry: Any) -> dict[str, Any]:
    """:return: options of an entry of extern_data, with dims in it"""
    if isinstance(entry, Tensor):
        tensor, rest = entry, {}
    elif not isinstance(entry, Mapping):
        raise TypeError(f"extern_data {name!r}: expected a dict or a Tensor, got {type(entry).__name__} {entry!r}")
    elif "dims" in entry or "dim_tags" in entry:
        return dict(entry)
    else:  # as it was written before there were dims
        rest = {key: value for key, value in entry.items() if key in ("vocab", "available_for_inference")}
        tensor = Tensor(**{"name": name, **{key: value for key, value in entry.items() if key not in rest}})
    options: dict[str, Any] = {"dims": list(tensor.dims), "dtype": tensor.dtype}
    if tensor.sparse_dim is not None:
        options["sparse_dim"] = tensor.sparse_dim
    if tensor.feature_dim is not None:
        options["feature_dim"] = tensor.feature_dim
    return {**options, **rest}


def other_options(options: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """:return: what can be written with RETURNN alone; the names of the rest, except for what has made the config"""
    others = {k: v for k, v in options.items() if k not in _REPLACED and not k.startswith(("_", "torch_"))}
    others = {"behavior_version": options["behavior_version"], **others}
    written = {name: value for name, value in others.items() if is_plain(value) or _can_be_written(name, value)}
    return written, [name for name, value in others.items() if name not in written and _is_data(name, value)]


def _is_data(name: str, value: Any) -> bool:
    """:return: whether RETURNN would have used it, rather than the config's own functions"""
    return type(value) in (dict, list, tuple, set) or name in _FUNCTIONS


def _can_be_written(name: str, value: Any) -> bool:
    if not _is_data(name, value):
        return False
    try:
        needed = NetCode({}).part({name: value}).definitions
    except (TypeError, ValueError):
        return False
    return not any(_IS_OURS.search(text) for text in needed) and not _has_ours(value)


def _has_ours(value: Any) -> bool:
    """:return: whether there are classes or functions of this package, which would have to be written out wholly"""
    if isinstance(value, Mapping):
        return any(_has_ours(x) for item in value.items() for x in item)
    if isinstance(value, (list, tuple, set, frozenset)):
        return any(map(_has_ours, value))
    if isinstance(value, functools.partial):
        return _has_ours([value.func, value.args, value.keywords])
    owner = value if isinstance(value, (type, types.FunctionType)) else type(value)
    return room(owner.__module__).partition(".")[0] == "returnn_common"


def is_plain(value: Any) -> bool:
    """:return: whether its code needs no dims and definitions"""
    if isinstance(value, Mapping):
        return type(value) is dict and all(is_plain(x) for item in value.items() for x in item)
    if isinstance(value, (list, tuple, set, frozenset)):
        return all(map(is_plain, value))
    plain = (str, bytes, bool, int, float, complex, type(None), numpy.ndarray, numpy.generic)
    return isinstance(value, plain) or is_path(value)
