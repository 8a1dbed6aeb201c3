"""
Changes of a config, as a person reads them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from returnn.tensor import Dim

from ._delayed import plain_value
from ._functions import Definitions
from ._layout import one_line
from ._writer import Writer

__all__ = [
    "Change",
    "ConfigDiff",
    "element_texts",
    "is_telling",
    "same_code",
    "text_of",
    "texts_around_change",
]

_WIDTH = 100  # of a value


@dataclass(frozen=True)
class Change:
    """
    One difference.

    :param path: where, such as ``train.dataset.path[0]``
    :param old: as text; None: it was not there
    :param new: as text; None: it is there no more
    :param lines: of functions and texts of several lines: what differs in them
    :param name: what it is called now, if only its name changed
    """

    path: str
    old: str | None
    new: str | None
    lines: tuple[str, ...] = ()
    name: str | None = None

    def __str__(self) -> str:
        if self.name is not None:
            return f"  {self.path}: is called {self.name} now"
        if self.old is None:
            return f"+ {self.path}: {self.new}"
        if self.new is None:
            return f"- {self.path}: {self.old}"
        if self.lines:
            return "\n".join([f"  {self.path}: changed", *(f"      {line}" for line in self.lines)])
        return f"  {self.path}: {self.old} -> {self.new}"


@dataclass(frozen=True)
class ConfigDiff:
    """
    Is true if there are changes; as text, has one in a line: ``+`` what is new, ``-`` what has gone, and what changed.
    """

    changes: tuple[Change, ...] = field(default_factory=tuple)

    def __bool__(self) -> bool:
        return bool(self.changes)

    def __len__(self) -> int:
        return len(self.changes)

    def __iter__(self) -> Iterator[Change]:
        return iter(self.changes)

    def __str__(self) -> str:
        return "\n".join(map(str, self.changes))


def text_of(value: Any, *, shorten: bool = True) -> str:
    """:return: for a person"""
    if isinstance(value, Dim):
        size = f" ({value.dimension})" if value.dimension is not None else ""
        return f'Dim "{value.name}"{size}'
    if Definitions.is_function(value):
        module = "" if value.__module__ in (None, "__returnn_config__", "builtins") else f"{value.__module__}."
        return f"{module}{value.__qualname__}"
    try:
        text = one_line(Writer({}).value(value, where="value"))
    except (TypeError, ValueError):
        text = repr(value)
    text = " ".join(text.split())
    return text if len(text) <= _WIDTH or not shorten else f"{text[: _WIDTH - 3]}..."


def texts_around_change(a: str, b: str) -> tuple[str, str]:
    """:return: of two long texts, what is around the first difference"""
    first = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    start = max(0, first - _WIDTH // 2)
    parts = [text[start : start + _WIDTH] for text in (a, b)]
    ends = [len(text) <= start + _WIDTH for text in (a, b)]
    return tuple("..." * (start > 0) + part + "..." * (not end) for part, end in zip(parts, ends, strict=True))  # type: ignore[return-value]


def is_telling(value: Any) -> bool:
    """whether two things of this value are likely the same: not so with numbers, say"""
    if isinstance(value, str | bytes | list | tuple | dict | set | frozenset):
        return len(value) > 1
    return value is not None and not isinstance(plain_value(value), int | float | complex)


def element_texts(values: Any, start: int, end: int) -> list[tuple[str, str]]:
    """:return: indices and texts of some elements; many in one line"""
    if end - start <= 3:
        return [(f"[{i}]", text_of(values[i])) for i in range(start, end)]
    return [(f"[{start}:{end}]", text_of(list(values[start:end])))]


def same_code(a: str, b: str) -> bool:
    """whether two definitions only differ in comments and layout"""
    try:
        return a == b or ast.dump(ast.parse(a)) == ast.dump(ast.parse(b))
    except SyntaxError:
        return False
