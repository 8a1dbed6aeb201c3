"""
NumPy's arrays as code.
"""

from __future__ import annotations

import base64
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from ._layout import Expression, call, quote

if TYPE_CHECKING:
    from ._writer import Writer

__all__ = ["Arrays"]

_WIDTH = 88  # of lines with data
_SAY_NOTHING = ("subnetwork", "value", "init", "unit")  # keys of which no name is made


class Arrays:
    """
    :param writer: whose definitions get the large ones
    :param inline: up to that many elements are written where they are
    """

    def __init__(self, writer: Writer, *, inline: int):
        self._writer = writer
        self._inline = inline
        self._by_content: dict[Any, str] = {}

    def code(self, array: np.ndarray, *, where: str) -> Expression:
        """
        :param array:
        :param where: it is: a large one gets its name from that
        :return: code of the exact array
        :raises TypeError: if it has neither numbers nor texts
        """
        if array.dtype.hasobject or array.dtype.names:
            raise TypeError(f"{where}: expected an array of numbers or texts, got dtype {array.dtype}")
        if array.dtype.byteorder == ">":
            array = array.astype(array.dtype.newbyteorder("="))
        numpy = self._writer.names.module("numpy")
        dtype = ("dtype", quote(array.dtype.name if array.dtype.kind not in "SUmM" else array.dtype.str))
        if not array.size:
            return call(f"{numpy}.zeros", [self._writer.value(array.shape, where=where)], [dtype])
        if array.size > self._inline and array.dtype.kind in "biufc":
            return self._large(array, where=where)
        return call(f"{numpy}.array", [self._writer.value(_exact(array), where=where)], [dtype])

    def _large(self, array: np.ndarray, *, where: str) -> str:
        data = np.ascontiguousarray(array).tobytes()
        key = array.dtype.name, array.shape, data
        if key not in self._by_content:
            numpy, encoding = (self._writer.names.module(module) for module in ("numpy", "base64"))
            name = self._by_content[key] = self._writer.names.take(f"{_name_of(where)}_array", key)
            text = base64.b64encode(data).decode("ascii")
            lines = [
                f'{name} = """',
                *(text[i : i + _WIDTH] for i in range(0, len(text), _WIDTH)),
                '"""',
                f"{name} = {numpy}.frombuffer({encoding}.b64decode({name}), {quote(array.dtype.name)})",
                f"{name} = {name}.reshape({', '.join(map(str, array.shape))}).copy()",  # else it could not be changed
            ]
            self._writer.define("\n".join(lines) + "\n")
        return self._by_content[key]


def _exact(array: np.ndarray) -> Any:
    """:return: lists of numbers, floats as short as they can be for their type"""
    if array.dtype.kind in "mM":
        return array.astype("int64").tolist()
    return _shortest(array.tolist(), array) if array.dtype.kind == "f" else array.tolist()


def _shortest(values: Any, array: np.ndarray) -> Any:
    if not isinstance(values, list):
        value = array[()]
        return float(str(value)) if np.isfinite(value) else float(value)
    return [_shortest(v, array[i]) for i, v in enumerate(values)]


def _name_of(where: str) -> str:
    """:return: part of a Python name, of the innermost keys that say something"""
    keys = [key for key in re.findall(r"[^\W\d]\w*", where) if key not in _SAY_NOTHING]
    name = re.sub(r"\W+", "_", "_".join(keys[-2:]), flags=re.ASCII).strip("_").lower() or "constant"
    return f"n{name}" if name[0].isdigit() else name
