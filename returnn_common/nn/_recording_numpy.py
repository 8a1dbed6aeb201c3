"""
Repeated operations of :mod:`._recording` as those of NumPy, for small tensors on the CPU: for a few hundred numbers,
one of PyTorch's operations takes 2 to 5 µs, one of NumPy's 0.3 to 2 µs. Float results differ in their last digits.

Where an operation is not in the tables here, or is called in another way, nothing is translated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy

from ._recording import Call, Program

__all__ = ["NumpyProgram", "Untranslatable", "as_array"]

_ELEMENTWISE: dict[str, str | Callable[..., Any]] = {
    "abs": numpy.abs,
    "add": "{} + {}",
    "bitwise_and": "{} & {}",
    "bitwise_not": "~{}",
    "bitwise_or": "{} | {}",
    "clamp_min": numpy.maximum,
    "exp": numpy.exp,
    "floor": numpy.floor,
    "floor_divide": "{} // {}",
    "log": numpy.log,
    "logaddexp": numpy.logaddexp,
    "maximum": numpy.maximum,
    "minimum": numpy.minimum,
    "mul": "{} * {}",
    "neg": "-{}",
    "remainder": "{} % {}",
    "sub": "{} - {}",
    "where": numpy.where,
}
_TRUE_OR_FALSE: dict[str, str | Callable[..., Any]] = {
    "eq": "{} == {}",
    "ge": "{} >= {}",
    "gt": "{} > {}",
    "le": "{} <= {}",
    "logical_and": numpy.logical_and,
    "logical_not": numpy.logical_not,
    "logical_or": numpy.logical_or,
    "lt": "{} < {}",
    "ne": "{} != {}",
}
_SAME_NUMBERS = ("_unsafe_view", "alias", "clone", "detach", "reshape", "squeeze", "unsqueeze", "view")
_DTYPES = ("bool", "int32", "int64", "float32", "float64")


class Untranslatable(Exception):
    """an operation, or the way in which it is called"""


def as_array(x: Any) -> numpy.ndarray:
    """
    :param x: tensor
    :return: the same memory
    :raises Untranslatable: for another device, or a dtype that NumPy lacks
    """
    if x.device.type != "cpu" or str(x.dtype).partition(".")[2] not in _DTYPES:
        raise Untranslatable(f"{x.dtype} on {x.device}")
    return x.detach().numpy()


class NumpyProgram(Program):
    """
    Takes and gives arrays. In between, they can have 1 where the tensors repeat the same numbers (`expand`).

    :raises Untranslatable:
    """

    def __init__(self, calls: Sequence[Call], *, inputs: Sequence[Any], outputs: Sequence[Any]):
        self.shapes: dict[str, tuple[int, ...]] = {}  # where they are not those of the tensors
        self.kept: list[Any] = []  # as long as ids are looked up
        super().__init__(calls, inputs=inputs, outputs=outputs)
        for x in outputs:
            self._whole(x)

    def _write(self, call: Call) -> None:
        """see :class:`Program`"""
        for x in call.results:
            as_array(x)
        name = str(call.func._schema.name).partition("::")[2]
        args, kwargs = call.args
        if name in _ELEMENTWISE or name in _TRUE_OR_FALSE:
            self._write_elementwise(name, call)
        elif name in _SAME_NUMBERS:
            self._line(call.results[:1], "{}.reshape({})", self._whole(args[0]), tuple(call.results[0].shape))
        elif name == "expand":
            shape = tuple(self._shape(args[0]))
            shape = (1,) * (call.results[0].dim() - len(shape)) + shape
            self._line(call.results, "{}.reshape({})", args[0], shape, shape=shape)
        elif name == "_to_copy" and list(kwargs) == ["dtype"]:
            dtype = as_array(call.results[0]).dtype
            self._line(call.results, "{}.astype({})", args[0], dtype, shape=self._shape(args[0]))
        elif name == "embedding" and len(args) == 2:
            self._line(call.results, "{}[{}]", *map(self._whole, args))
        elif name == "index" and all(x is not None and str(x.dtype) == "torch.int64" for x in args[1]):
            indices = ", ".join("{}" for _ in args[1])
            self._line(call.results, "{}[" + indices + "]", *map(self._whole, [args[0], *args[1]]))
        elif name in ("bmm", "mm"):
            self._line(call.results, "{} @ {}", *map(self._whole, args))
        elif name == "permute":
            self._line(call.results, "{}.transpose({})", self._whole(args[0]), tuple(args[1]))
        elif name == "t" and args[0].dim() == 2:
            self._line(call.results, "{}.transpose()", self._whole(args[0]))
        elif name == "select":
            before = (slice(None),) * (args[1] % args[0].dim())
            self._line(call.results, "{}[{}]", self._whole(args[0]), (*before, args[2]))
        elif name in ("amax", "max"):
            self._write_maximum(call)
        elif name == "topk" and len(args) == 2 and not kwargs and args[0].is_floating_point():
            self._line(call.results, "{}({}, {})", _top_k, self._whole(args[0]), args[1])
        elif name == "gather" and not kwargs:
            self._write_gather(call)
        else:
            raise Untranslatable(f"{call.func} with {len(args)} arguments and {list(kwargs)}")

    def _write_elementwise(self, name: str, call: Call):
        args, kwargs = call.args
        # Of one number alone, neither NumPy nor PyTorch lets the dtype decide.
        args = [a.item() if self._is_number(a) else a for a in args]
        tensors = [a for a in args if hasattr(a, "dtype")]
        if kwargs or len(tensors) == 0:
            raise Untranslatable(f"{call.func} of {args}, {kwargs}")
        of_values = args[name == "where" :]
        dtype = numpy.result_type(*(as_array(a).dtype if hasattr(a, "dtype") else a for a in of_values))
        if name in _ELEMENTWISE and dtype != as_array(call.results[0]).dtype:
            raise Untranslatable(f"{call.func} with the result {call.results[0].dtype}")
        func = _ELEMENTWISE.get(name) or _TRUE_OR_FALSE[name]
        shape = numpy.broadcast_shapes(*map(self._shape, tensors))
        if isinstance(func, str):
            self._line(call.results, func, *args, shape=shape)
        else:
            self._line(call.results, "{}(" + ", ".join("{}" for _ in args) + ")", func, *args, shape=shape)

    def _is_number(self, x: Any) -> bool:
        """:return: whether it is a constant of no dims"""
        return hasattr(x, "dtype") and x.dim() == 0 and id(x) not in self.names

    def _write_maximum(self, call: Call):
        args, kwargs = call.args
        x, axis, *keep = *args, *[None] * (2 - len(args))
        if kwargs or any(keep) or not isinstance(axis, (int, list)) or (isinstance(axis, list) and len(axis) != 1):
            raise Untranslatable(f"{call.func} over {axis}")
        axis = axis if isinstance(axis, int) else axis[0]
        self._line(call.results[:1], "{}.max({})", self._whole(x), axis)
        if call.is_tuple:
            self._line(call.results[1:], "{}.argmax({})", x, axis)

    def _write_gather(self, call: Call):
        x, axis, index = call.args[0][:3]
        axis, shape = axis % x.dim(), self._shape(index)
        self._whole(x)
        others = [i for i in range(x.dim()) if i != axis]
        if any(x.shape[i] != index.shape[i] for i in others):
            raise Untranslatable(f"{call.func} from a part of the other dims")
        if all(shape[i] == 1 for i in others):  # the same ones for all
            flat = numpy.empty(0)  # stands for the result of the first line
            self.kept.append(flat)
            self._line([flat], "{}.reshape(-1)", index)
            self._line(call.results, "{}.take({}, {})", x, flat, axis)
            return
        last = max(i for i in range(x.dim()) if i == axis or shape[i] > 1)
        ranges = [numpy.arange(x.shape[i]).reshape([-1 if i == k else 1 for k in range(last + 1)]) for i in range(last)]
        template = ", ".join("{}.reshape({})" if i == axis else "{}" for i in range(last + 1))
        if last > axis:
            ranges.append(numpy.arange(x.shape[last]))
        parts = [[index, shape[: last + 1]] if i == axis else [ranges[i]] for i in range(last + 1)]
        self._line(call.results, "{}[" + template + "]", x, *(p for part in parts for p in part))

    def _line(self, results: Sequence[Any], template: str, *args: Any, shape: tuple[int, ...] | None = None):
        """:param template: code, with {} for each of args"""
        used = {self._name(x) for x in args if not _is_literal(x)}
        text = template.format(*(repr(x) if _is_literal(x) else self._name(x) for x in args))
        for name, x in zip(self._emit(text, used, results=results, is_tuple=len(results) > 1), results, strict=True):
            if shape is not None and shape != tuple(x.shape):
                self.shapes[name] = shape

    def _name(self, x: Any) -> str:
        if (
            hasattr(x, "dtype")
            and not isinstance(x, numpy.ndarray)
            and hasattr(x, "device")
            and id(x) not in self.names
        ):
            if id(x) not in self.arrays:
                self.arrays[id(x)] = as_array(x)
            x = self.arrays[id(x)]
        return super()._name(x)

    def _shape(self, x: Any) -> tuple[int, ...]:
        return self.shapes.get(self._name(x), tuple(x.shape))

    def _whole(self, x: Any) -> Any:
        """:return: the same, of which no dim is shorter than that of the tensor"""
        if self._shape(x) != tuple(x.shape):
            raise Untranslatable(f"an array of {self._shape(x)} for one of {x.shape}")
        return x


def _is_literal(x: Any) -> bool:
    if isinstance(x, tuple):
        return all(map(_is_literal, x))
    return isinstance(x, (bool, int, slice, type(None)))


def _top_k(x: numpy.ndarray, k: int) -> tuple[numpy.ndarray, numpy.ndarray]:
    """:return: the largest ones in the last dim, largest first, and their indices"""
    rows = -x.reshape(-1, x.shape[-1])
    if len(rows) == 1:
        (row,) = rows
        best = row.argpartition(k - 1)[:k]
        best = best[row[best].argsort()]
        values = -row[best]
    else:
        number = numpy.arange(len(rows))[:, None]
        best = rows.argpartition(k - 1, axis=1)[:, :k]
        best = best[number, rows[number, best].argsort(axis=1)]
        values = -rows[number, best]
    shape = (*x.shape[:-1], k)
    return values.reshape(shape), best.reshape(shape)
