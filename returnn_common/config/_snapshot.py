"""
Whether containers are still as they were.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["Snapshot"]


class Snapshot:
    """
    :param value: dicts, lists, tuples and sets, of which it remembers what is in them now
    """

    def __init__(self, value: Any):
        self._copy = _copy(value)

    def matches(self, value: Any) -> bool:
        """:return: whether the same objects are there, in the same order"""
        return _is_same(self._copy, _copy(value))


def _copy(value: Any) -> Any:
    if isinstance(value, Mapping):
        return [type(value), *(_copy(x) for item in value.items() for x in item)]
    if isinstance(value, list | tuple):
        return [type(value), *map(_copy, value)]
    if isinstance(value, set | frozenset):
        return type(value)(value)
    return value


def _is_same(a: Any, b: Any) -> bool:
    if type(a) is not list or type(b) is not list:
        return a is b or (isinstance(a, str | int | float | set | frozenset) and type(a) is type(b) and a == b)
    return len(a) == len(b) and all(map(_is_same, a, b))
