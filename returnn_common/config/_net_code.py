"""
The code of a net dict, its dims, its extern_data and the other options of its config.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

from returnn.tensor import Dim

from ._layout import Expression, layout
from ._set_order import SetOrder, ordered_dims
from ._writer import Writer
from .dims_code import DimsCode

__all__ = ["ROOM", "RESERVED_NAMES", "NetCode", "Part", "join_parts"]

RESERVED_NAMES = (
    "network",
    "extern_data",
    "Dim",
    "Tensor",
    "Op",
)
_WIDTH = 88  # of lines: black's
_INLINE_ARRAY = 16  # elements
_PACKAGES = {"returnn", "numpy", "tensorflow"}  # from which functions may come, and the standard library


# How deep that is, depends on the length of the longest path through the network. The stack of the main thread grows
# when it is needed, up to its limit.
_ROOM_LINES = """
# RETURNN makes a layer within the calls that make the one which needs it: room for that.
sys.setrecursionlimit(max(sys.getrecursionlimit(), 100_000))
_, _limit = resource.getrlimit(resource.RLIMIT_STACK)
_stack = _limit if 0 < _limit < 2**30 else 2**30
resource.setrlimit(resource.RLIMIT_STACK, (_stack, _limit))
"""


@dataclass
class Part:
    """
    :param imports: lines
    :param definitions: texts of what the values need: constants, functions
    :param values: by name; paths in them become what they are when the code is asked for
    :param lines: the rest
    """

    imports: list[str] = field(default_factory=list)
    definitions: list[str] = field(default_factory=list)
    values: dict[str, Expression] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)

    @property
    def code(self) -> str:
        """for itself"""
        return join_parts([self])


_DEFINITIONS = ("def ", "class ", "async def ", "@")
ROOM = Part(["import resource", "import sys"], lines=_ROOM_LINES.strip().splitlines())


def join_parts(parts: list[Part]) -> str:
    """:return: one source, with the imports at its top"""
    sections = ["\n".join(_sorted_imports(line for part in parts for line in part.imports))]
    for part in parts:
        sections.extend(text for text in part.definitions if text not in sections)
        values = [layout(code, before=f"{name} = ", width=_WIDTH, fill=False) for name, code in part.values.items()]
        sections.append("\n".join([*values, *part.lines]))
    text, before = "", ""
    for section in (section.strip("\n") for section in sections):
        if not section:
            continue
        lines = 2 if section.startswith(_DEFINITIONS) or before.startswith(_DEFINITIONS) else 1
        text += "\n" * lines * bool(text) + section + "\n"
        before = section
    return text


def _sorted_imports(lines: Any) -> list[str]:
    """:return: those of the standard library first; names from one module in one line"""
    names: dict[str, set[str]] = {}
    modules: set[str] = set()
    for line in lines:
        module, _, imported = line.removeprefix("from ").partition(" import ")
        if line.startswith("from "):
            names.setdefault(module, set()).update(imported.split(", "))
        else:
            modules.add(line)
    plain = [(line.split()[1], 0, line) for line in modules]
    froms = [(m, 1, f"from {m} import {', '.join(sorted(found, key=_import_order))}") for m, found in names.items()]
    groups: dict[bool, list[tuple[str, int, str]]] = {False: [], True: []}
    for entry in sorted([*plain, *froms], key=lambda e: (e[1], e[0])):
        groups[entry[0].split(".")[0] not in sys.stdlib_module_names].append(entry)
    found = [[line for _, _, line in group] for group in groups.values() if group]
    return found[0] if len(found) == 1 else [*found[0], "", *found[1]] if found else []


def _import_order(name: str) -> tuple[bool, str]:
    return not name[0].isupper(), name  # as isort: classes first


class NetCode:
    """
    Writes values that share dims. Each of the methods gives a part of the source; :attr:`dims_part` is asked last.

    :param names: of dims that have one already
    :param values: all that will be written: in sets, other dims come in the order of their first occurrence elsewhere
    """

    def __init__(self, names: Mapping[str, Dim], *, values: Any = ()):
        self.dims = DimsCode(reserved=RESERVED_NAMES, names=names, name_all=True)
        self._order = SetOrder([*names.values(), *ordered_dims(values)])
        self._known: dict[str, Hashable] = {}
        self._reserved = {*RESERVED_NAMES, *names}

    def part(self, values: Mapping[str, Any]) -> Part:
        """
        :return: an assignment for each of the values, by name
        :raises TypeError: for what has no code, or needs more than RETURNN
        """
        reserved = dict.fromkeys([*self._reserved, *self.dims.names, *values])
        writer = Writer(
            reserved,
            inline=_packages_to_write(),
            dims=self.dims,
            order=self._order,
            inline_array=_INLINE_ARRAY,
            known=self._known,
        )
        try:
            codes = {name: writer.value(value, where=name) for name, value in values.items()}
        except ValueError as error:
            raise TypeError(f"expected what can be written as code: {error}") from error
        imports = [line for line in writer.names.code().splitlines() if line]
        for line in imports:
            if line.split()[1].split(".")[0] not in {*_PACKAGES, *sys.stdlib_module_names}:
                raise TypeError(f"{', '.join(values)}: a function in there needs {line!r}, which RETURNN doesn't have")
        return Part(imports, writer.definitions, codes)

    @property
    def dims_part(self) -> Part:
        """of all dims which were in the values"""
        return Part(self.dims.imports, lines=self.dims.lines)


def _packages_to_write() -> tuple[str, ...]:
    """:return: all whose functions are written out, as RETURNN may be without these packages"""
    packages = {name.split(".")[0] for name in sys.modules}
    return tuple(sorted(packages - _PACKAGES - set(sys.stdlib_module_names)))
