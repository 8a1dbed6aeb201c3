"""
Modules whose functions are written out: in the config they have what is used of them.
"""

from __future__ import annotations

import sys
import types
from typing import TYPE_CHECKING, Any

from ._layout import layout
from ._uses import Uses

if TYPE_CHECKING:
    from ._functions import Definitions
    from ._writer import Writer

__all__ = ["Modules", "is_made_up", "module_contents"]


def is_made_up(module: types.ModuleType) -> bool:
    """whether a module is none that can be imported, but one of a config that was read"""
    return sys.modules.get(module.__name__) is not module


def module_contents(module: types.ModuleType) -> dict[str, Any]:
    """:return: what it has by name"""
    return {name: value for name, value in vars(module).items() if not name.startswith("__")}


class Modules:
    """
    Writes, for functions that use ``layers.make()``::

        layers = ModuleType("my_package.layers")
        ... def make(): ...
        layers.make = make

    What is needed where something is defined is written before that, all else when nothing is half written.
    """

    def __init__(self, writer: Writer, definitions: Definitions):
        self._writer, self._definitions = writer, definitions
        self._names: dict[int, str] = {}  # id of a module -> name in the config
        self._known: set[tuple[int, str]] = set()  # with the attributes that it has, or will have
        self._later: list[tuple[types.ModuleType, str, str]] = []
        self._last = ""  # the text that was written last

    def ref(self, module: types.ModuleType, uses: Uses, *, name: str, where: str) -> str:
        """
        :param module:
        :param uses: what is used of it
        :param name: that it should get
        :param where: it is used, for messages
        :return: its name
        :raises ValueError: if it is used as a whole, so that it isn't known what of it
        """
        ref = self._name(module, name)
        for attributes, at_once in uses.items():
            self._add(module, attributes, at_once=at_once, where=where)
        return ref

    def _name(self, module: types.ModuleType, name: str) -> str:
        if id(module) not in self._names:
            self._names[id(module)] = self._writer.names.take(name)
            made = f'{self._writer.names.name("types", "ModuleType")}("{module.__name__}")'
            self._append(f"{self._names[id(module)]} = {made}\n")
        return self._names[id(module)]

    def _add(self, module: types.ModuleType, attributes: tuple[str, ...], *, at_once: bool, where: str):
        if not attributes:
            raise ValueError(
                f"{where}: it can't be seen what is used of the module {module.__name__}, which is to be written out"
            )
        first, *rest = attributes
        if not hasattr(module, first):  # not there now either; maybe in a part that isn't reached
            return
        value = getattr(module, first)
        if self._definitions.is_written_module(value):
            self._name(value, first)
            self._add(value, tuple(rest), at_once=at_once, where=f"{where}.{first}")
        if (id(module), first) in self._known:
            if not at_once or all(entry[:2] != (module, first) for entry in self._later):
                return
            self._later = [entry for entry in self._later if entry[:2] != (module, first)]
        self._known.add((id(module), first))
        if at_once:
            self._write(module, first, where)
        else:
            self._later.append((module, first, where))

    def write_rest(self):
        """Writes what had to wait."""
        while self._later:
            self._write(*self._later.pop(0))

    def _write(self, module: types.ModuleType, attribute: str, where: str):
        value: Any = getattr(module, attribute)
        where = f"{where}.{attribute}"
        if isinstance(value, types.ModuleType):
            code = self._names.get(id(value)) or self._writer.names.module(value.__name__)
        elif self._definitions.is_function(value):
            code = self._definitions.ref(value, where=where)
        else:
            code = self._writer.value(value, where=where)
        self._append(layout(code, before=f"{self._names[id(module)]}.{attribute} = ") + "\n")

    def _append(self, text: str):
        texts = self._definitions.texts
        if texts and texts[-1] is self._last:  # without an empty line between
            texts[-1] += text
        else:
            texts.append(text)
        self._last = texts[-1]
