"""
The order of what is in sets, which has to be the same in each process.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from returnn.tensor import Dim
from returnn.tensor.marked_dim import MarkedDim

from ._delayed import is_later

__all__ = ["SetOrder", "ordered_dims"]


class SetOrder:
    """
    The batch dim comes first, then dims, then numbers and texts.

    :param dims: in their order; further ones are sorted by name and size
    """

    def __init__(self, dims: Iterable[Dim]):
        self._ranks: dict[Dim, int] = {}
        for dim in dims:
            self._ranks.setdefault(dim, len(self._ranks))

    def sorted(self, values: Iterable[Any]) -> list[Any]:
        """:return: what is in a set"""
        return sorted(values, key=self._key)

    def _key(self, value: Any) -> tuple[Any, ...]:
        if isinstance(value, MarkedDim):  # behind what it marks
            return *self._key(value.tag), type(value).__name__
        if isinstance(value, Dim):
            if value.is_batch_dim():
                return (0,)
            return 1, self._ranks.get(value, len(self._ranks)), str(value.name), value.dimension or 0
        return 2, type(value).__name__, value if isinstance(value, int | float) else 0, self._text(value)

    def _text(self, value: Any) -> str:
        if is_later(value):
            return str(getattr(value, "path", ""))  # it may be known only later
        if isinstance(value, set | frozenset):
            return repr(self.sorted(value))
        if callable(value) and hasattr(value, "__qualname__"):
            return f"{value.__module__}.{value.__qualname__}"
        return repr(value)


def ordered_dims(value: Any) -> Iterator[Dim]:
    """:return: those in dicts, lists and tuples, as they come there"""
    seen: dict[int, Any] = {}
    todo = [value]
    while todo:
        value = todo.pop()
        if isinstance(value, Dim):
            yield value
        if id(value) in seen:
            continue
        seen[id(value)] = value
        if isinstance(value, Mapping):
            todo.extend(reversed([x for item in value.items() for x in item]))
        elif isinstance(value, list | tuple):
            todo.extend(reversed(value))
