"""
What is in a structure, however deep.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator, Mapping
from typing import Any

from returnn.tensor import Dim, Tensor
from returnn.tensor.marked_dim import MarkedDim

__all__ = ["find_dims", "find_paths"]


def find_paths(value: Any) -> list[Any]:
    """:return: Sisyphus' paths and delayed values: in containers, partial functions, closures, and objects"""
    return [part for part in _walk(value) if _is_path(part)]


def find_dims(value: Any) -> list[Dim]:
    """:return: all dims, before each those from which it is derived"""
    found: dict[int, Dim] = {}

    def _add(dim: Dim):
        if id(dim) not in found:
            for x in dim.derived_from_op.inputs if dim.derived_from_op else ():
                _add(x)
            found[id(dim)] = dim

    for part in _walk(value):
        if isinstance(part, Dim):
            _add(part)
    return list(found.values())


def _is_path(part: Any) -> bool:
    return getattr(part, "_sis_path", None) is True or any(c.__name__ == "DelayedBase" for c in type(part).__mro__)


def _walk(value: Any) -> Iterator[Any]:
    seen: dict[int, Any] = {}
    stack = [value]
    while stack:
        part = stack.pop()
        if id(part) in seen or isinstance(part, (str, bytes, int, float, type, type(None), types.ModuleType)):
            continue
        seen[id(part)] = part
        yield part
        stack.extend(reversed(list(_parts(part))))


def _parts(part: Any) -> list[Any]:
    if _is_path(part) or isinstance(part, Dim):
        return []
    if isinstance(part, Tensor):
        return [*part.dims, part.sparse_dim]
    if isinstance(part, MarkedDim):
        return [part.tag]
    if isinstance(part, Mapping):
        return [*part.keys(), *part.values()]
    if isinstance(part, (list, tuple, set, frozenset)):
        return list(part)
    if isinstance(part, functools.partial):
        return [part.func, part.args, part.keywords]
    if isinstance(part, types.MethodType):
        return [part.__self__]
    if isinstance(part, types.FunctionType):
        return [cell.cell_contents for cell in part.__closure__ or () if _has_content(cell)]
    attributes = dict(getattr(part, "__dict__", {}))
    for cls in type(part).__mro__:
        slots = vars(cls).get("__slots__", ())
        for name in [slots] if isinstance(slots, str) else slots:
            if hasattr(part, name) and name != "__weakref__":
                attributes[name] = getattr(part, name)
    return list(attributes.values())


def _has_content(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True
