"""
Changes of a config, as a person reads them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from returnn.tensor import Dim

from ._functions import Definitions
from ._layout import one_line
from ._writer import Writer

__all__ = ["Change", "ConfigDiff", "text_of"]

_WIDTH = 100  # of a value


@dataclass(frozen=True)
class Change:
    """
    One difference.

    :param path: where, such as ``train.dataset.path[0]``
    :param old: as text; None: it was not there
    :param new: as text; None: it is there no more
    :param lines: of functions: what differs in their source
    """

    path: str
    old: str | None
    new: str | None
    lines: tuple[str, ...] = ()

    def __str__(self) -> str:
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
