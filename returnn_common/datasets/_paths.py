"""
Paths in options: as they were given until they are used.
"""

from __future__ import annotations

import os
from typing import Any, Protocol, Union, runtime_checkable

__all__ = ["PathLike", "SomePath", "check_path", "resolve_path", "resolve_paths"]


@runtime_checkable
class SomePath(Protocol):
    """A path of a workflow manager, which may not be there yet, as Sisyphus' ``tk.Path``."""

    def get_path(self) -> str:
        """:return: the path itself"""
        ...


PathLike = Union[str, "os.PathLike[str]", SomePath]


def check_path(owner: str, path: Any) -> PathLike:
    """
    :param owner: named in the error
    :return: the path as it is
    :raises TypeError: if it is none
    """
    if not isinstance(path, (str, os.PathLike, SomePath)):
        raise TypeError(f"{owner}: expected a path, got {type(path).__name__} {path!r}")
    return path


def resolve_path(path: PathLike) -> str:
    """:return: the path itself; of an object with ``get_path()`` and ``__fspath__``, the former"""
    if isinstance(path, SomePath):
        path = path.get_path()
    return os.fspath(path)


def resolve_paths(value: Any) -> Any:
    """:return: nested dicts, lists and tuples with all paths in them resolved"""
    if isinstance(value, dict):
        return {key: resolve_paths(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(resolve_paths(item) for item in value)
    if isinstance(value, (os.PathLike, SomePath)):
        return resolve_path(value)
    return value
