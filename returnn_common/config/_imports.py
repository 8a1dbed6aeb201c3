"""
The import statements of a config, and which names are taken.
"""

from __future__ import annotations

import keyword
import sys
from collections.abc import Hashable, Iterable
from typing import Any

from .dims_code import DimsCode

__all__ = ["Imports", "meaning"]


class Imports:
    """
    :param options: of the config; they may have names of Python's own
    :param reserved: further names that nothing else may get
    :param dims: which have names of their own
    :param known: name -> what it stands for in code that is joined with this one; gets those of this one
    """

    def __init__(
        self,
        *,
        options: Iterable[str],
        reserved: Iterable[str],
        dims: DimsCode,
        known: dict[str, Hashable] | None = None,
    ):
        self._options = set(options)
        self._reserved = {*options, *reserved}
        self._dims = dims
        self._known = {} if known is None else known
        self._names: dict[tuple[str, str | None, str | None], str] = {}
        self._lines: dict[str, tuple[str, str | None]] = {}  # name -> module, name there

    def module(self, module: str, *, wanted: str | None = None) -> str:
        """
        :param module: its full name
        :param wanted: the name that it has to get, which is reserved
        :return: its name in the code
        """
        return self._add(module, None, wanted)

    def name(self, module: str, name: str, *, wanted: str | None = None) -> str:
        """
        :param module: its full name
        :param name: of what is in there; with dots, if it belongs to a class
        :param wanted: the name that it has to get, which is reserved
        :return: its name in the code
        """
        if module == "builtins":
            return f"{self.module(module)}.{name}" if name in self._options else name
        first, dot, rest = name.partition(".")
        return self._add(module, first, wanted if not dot else None) + dot + rest

    def is_free(self, name: str, means: Hashable = None) -> bool:
        """whether nothing has that name yet, or in other code only what has the same meaning"""
        if name in self._known and (means is None or self._known[name] != means):
            return False
        return name not in self._reserved and name not in self._dims.names and not keyword.iskeyword(name)

    def take(self, name: str, means: Hashable = None) -> str:
        """:return: that name, or one with a number, which now is taken"""
        candidate, number = name, 1
        while not self.is_free(candidate, means):
            number += 1
            candidate = f"{name}_{number}"
        self._reserved.add(candidate)
        self._known[candidate] = means
        self._dims.reserve(candidate)
        return candidate

    def _add(self, module: str, name: str | None, wanted: str | None) -> str:
        own = name or module.rpartition(".")[2]
        key = (module, name, wanted)
        if key not in self._names:
            found = sys.modules.get(module)
            short = wanted or self.take(own, meaning(found if name is None else getattr(found, name, key)))
            self._names[key] = short
            if short == own:  # whoever doesn't care can have this one
                self._names[module, name, None] = short
            self._lines[short] = (module, name)
        return self._names[key]

    def code(self, *, extra: Iterable[str] = ()) -> str:
        """
        :param extra: further lines ``from module import name, ...``
        :return: all import statements, sorted: those of the standard library first
        """
        plain: set[str] = set()
        froms: dict[str, set[str]] = {}
        for short, (module, name) in self._lines.items():
            if name is None and "." in module and module.rpartition(".")[2] == short:
                froms.setdefault(module.rpartition(".")[0], set()).add(short)
            elif name is None:
                plain.add(f"import {module}" + (f" as {short}" if short != module else "") + "\n")
            else:
                froms.setdefault(module, set()).add(name + (f" as {short}" if short != name else ""))
        for line in extra:
            module, _, names = line.removeprefix("from ").partition(" import ")
            froms.setdefault(module, set()).update(names.split(", "))
        lines = [*plain, *(_from(module, sorted(names)) for module, names in froms.items())]
        blocks = [sorted(line for line in lines if _is_standard(line) == standard) for standard in (True, False)]
        # As ruff and isort have it: plain imports before the others, in each block.
        blocks = [sorted(block, key=lambda line: line.startswith("from")) for block in blocks if block]
        return "\n".join("".join(block) for block in blocks)


def meaning(value: Any) -> Hashable:
    """:return: of a name that stands for this object"""
    return "object", id(value)


def _is_standard(line: str) -> bool:
    return line.split()[1].partition(".")[0] in sys.stdlib_module_names


def _from(module: str, names: list[str]) -> str:
    line = f"from {module} import {', '.join(names)}\n"
    if len(line) <= 121:
        return line
    inner = "".join(f"    {name},\n" for name in names)
    return f"from {module} import (\n{inner})\n"
