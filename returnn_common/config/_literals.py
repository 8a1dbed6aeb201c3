"""
Values as Python source, laid out as black and ruff do it (at 88 characters, and stable at any more).
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy

from ._objects import is_path, path_text

__all__ = ["Constants", "Literals", "quote"]

_WIDTH = 88
_INLINE_ARRAY = 16  # elements; larger arrays get a name, and lines of their own

# one line; or what opens it, prefix (of a dict) and value of each item, what closes it
_Node = str | tuple[str, list[tuple[str, Any]], str]


class Constants:
    """What values need before them: imports, and definitions (name -> text) in the order of their first use."""

    def __init__(self, *, reserved: Iterable[str] = ()):
        self.imports: dict[str, None] = {}
        self.definitions: dict[str, str] = {}
        self._reserved = set(reserved)
        self._by_content: dict[Any, str] = {}

    def name_for(self, content: Any, name: str) -> tuple[str, bool]:
        """:return: name of that content; whether it is a new one, which is then to be defined"""
        if content in self._by_content:
            return self._by_content[content], False
        candidate, number = name, 1
        while candidate in self._reserved:
            number += 1
            candidate = f"{name}_{number}"
        self._reserved.add(candidate)
        self._by_content[content] = candidate
        return candidate, True


class Literals:
    """
    :param constants: gets what the values need
    :param special: value -> its code, or None for values which aren't special. It is asked before all else.
    :param sort_key: of the elements of sets
    """

    def __init__(
        self, constants: Constants, *, special: Callable[[Any, str], str | None], sort_key: Callable[[Any], Any] = repr
    ):
        self._constants = constants
        self._special = special
        self._sort_key = sort_key

    def assignment(self, name: str, value: Any) -> list[str]:
        """
        :param name: of the variable
        :param value: of str, numbers, containers, arrays, and what is special
        :return: lines ``name = value``
        :raises TypeError: for a value of another type
        """
        lines: list[str] = []
        _lay_out(lines, f"{name} = ", self._node(value, name), "", 0)
        return lines

    def _node(self, value: Any, path: str) -> _Node:
        special = self._special(value, path)
        if special is not None:
            return special
        if isinstance(value, numpy.generic):
            value = value.item()
        if value is None or isinstance(value, (bool, int)):
            return repr(value) if type(value) in (bool, int, type(None)) else repr(int(value))
        if isinstance(value, float):
            return repr(float(value)) if math.isfinite(value) else f'float("{float(value)}")'
        if isinstance(value, str):
            return quote(value)
        if isinstance(value, bytes):
            return repr(value) if b'"' in value or b"'" in value else f'b"{repr(value)[2:-1]}"'
        if isinstance(value, (complex, range)):
            return repr(value)
        if isinstance(value, numpy.ndarray):
            return self._array(value, path)
        if is_path(value):
            return quote(path_text(value))
        if isinstance(value, Mapping):
            items = [(f"{_one_line(self._node(k, path))}: ", self._node(v, f"{path}[{k!r}]")) for k, v in value.items()]
            return ("{", items, "}")
        if isinstance(value, (set, frozenset)):
            elements = [("", self._node(x, path)) for x in sorted(value, key=self._sort_key)]
            if isinstance(value, frozenset):
                return ("frozenset(", [("", ("{", elements, "}"))] if elements else [], ")")
            return ("{", elements, "}") if elements else "set()"
        if isinstance(value, (list, tuple)):
            elements = [("", self._node(x, f"{path}[{i}]")) for i, x in enumerate(value)]
            if isinstance(value, tuple):  # a named one as well: by position it means the same
                return ("(", elements, ",)" if len(elements) == 1 else ")")
            return ("[", elements, "]")
        raise TypeError(
            f"{path}: expected numbers, text, containers, arrays, dims or functions,"
            f" got {type(value).__name__} {value!r}"
        )

    def _array(self, array: numpy.ndarray, path: str) -> str:
        """:return: code of the exact array"""
        self._constants.imports["import numpy"] = None
        dtype = array.dtype.newbyteorder("=") if array.dtype.byteorder == ">" else array.dtype
        if not array.size:
            return f"numpy.zeros({array.shape}, dtype={quote(dtype.name)})"
        if array.size <= _INLINE_ARRAY or dtype.kind not in "biufc":
            return f"numpy.array({_one_line(self._node(_exact(array), path))}, dtype={quote(dtype.name)})"
        data = numpy.ascontiguousarray(array, dtype).tobytes()
        shape = ", ".join(map(str, array.shape))
        name, is_new = self._constants.name_for((dtype.name, array.shape, data), f"{_name_of(path)}_array")
        if is_new:
            self._constants.imports["import base64"] = None
            text = base64.b64encode(data).decode("ascii")
            lines = [
                f'{name} = """',
                *(text[i : i + _WIDTH] for i in range(0, len(text), _WIDTH)),
                '"""',
                f"{name} = numpy.frombuffer(base64.b64decode({name}), {quote(dtype.name)})",
                f"{name} = {name}.reshape({shape}).copy()",  # else it could not be changed
            ]
            self._constants.definitions[name] = "\n".join(lines)
        return name


def quote(text: str) -> str:
    """:return: literal in double quotes, or in single quotes if these need fewer backslashes"""
    literal = repr(text)
    if literal[0] == '"' or '"' in text:
        return literal
    return f'"{literal[1:-1]}"'.replace("\\'", "'")


def _exact(array: numpy.ndarray) -> Any:
    """:return: lists of numbers, floats as short as they can be for their type"""
    if array.dtype.kind != "f":
        return array.tolist()
    return json.loads(json.dumps(_shortest(array.astype(array.dtype).tolist(), array)), parse_constant=float)


def _shortest(values: Any, array: numpy.ndarray) -> Any:
    if not isinstance(values, list):
        value = array[()]
        return float(str(value)) if numpy.isfinite(value) else float(value)
    return [_shortest(v, array[i]) for i, v in enumerate(values)]


def _name_of(path: str) -> str:
    """:return: part of a Python name, of the innermost keys that say something"""
    import re

    keys = [k for k in re.findall(r"\['([^']*)'\]", path) if k not in ("subnetwork", "value", "init", "unit")]
    name = re.sub(r"\W+", "_", "_".join(keys[-2:])).strip("_").lower() or "constant"
    return f"n{name}" if name[0].isdigit() else name


def _one_line(node: _Node) -> str:
    if isinstance(node, str):
        return node
    start, items, end = node
    return f"{start}{', '.join(prefix + _one_line(item) for prefix, item in items)}{end}"


def _lay_out(lines: list[str], prefix: str, node: _Node, suffix: str, indent: int):
    """Appends one line if that is short enough, else a line for each item."""
    if isinstance(node, str) or not node[1] or _is_short(node, _WIDTH - indent - len(prefix) - len(suffix)):
        lines.append(f"{' ' * indent}{prefix}{_one_line(node)}{suffix}")
        return
    start, items, end = node
    lines.append(f"{' ' * indent}{prefix}{start}")
    for item_prefix, item in items:
        _lay_out(lines, item_prefix, item, ",", indent + 4)
    lines.append(f"{' ' * indent}{end.lstrip(',')}{suffix}")


def _is_short(node: _Node, space: int) -> bool:
    """:return: whether one line has at most so many characters"""
    return _length(node, space) <= space


def _length(node: _Node, limit: int) -> int:
    """of one line; anything above the limit if it's longer"""
    if isinstance(node, str):
        return len(node)
    start, items, end = node
    length = len(start) + len(end) + 2 * max(0, len(items) - 1)
    for prefix, item in items:
        if length > limit:
            break
        length += len(prefix) + _length(item, limit - length)
    return length
