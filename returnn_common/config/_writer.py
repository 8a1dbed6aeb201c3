"""
Values as code, with what the code needs: imports, dims, functions.
"""

from __future__ import annotations

import builtins
import enum
import functools
import keyword
import math
import sys
import types
from collections.abc import Hashable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from returnn.tensor import Dim, Tensor
from returnn.tensor.marked_dim import MarkedDim

from .. import nn
from ._arrays import Arrays
from ._delayed import is_delayed, plain_value
from ._functions import Definitions
from ._imports import Imports
from ._layout import Brackets, Expression, Late, call, items, one_line, quote, quote_bytes
from ._namespaces import find_import
from ._objects import Call, constructor_call, is_path, path_text
from ._set_order import SetOrder, ordered_dims
from ._special import special_code
from .dims_code import DimsCode

__all__ = ["Writer"]

_LITERALS = (type(None), bool, int, float, complex, str, bytes, bytearray, type(...), type(NotImplemented))


class Writer:
    """
    Writes the options of a config one after the other.

    :param options: all of them
    :param inline: modules whose functions and classes are written out
    :param dims: for dims; None: they are declared in the config
    :param order: of sets; None: that of the options, ``extern_data`` first
    :param inline_array: how many elements of an array are written where it is; a larger one gets lines of its own
    :param known: names of code that is joined with this one, see :class:`.Imports`
    """

    def __init__(
        self,
        options: Mapping[str, Any],
        *,
        inline: tuple[str, ...] = (),
        dims: DimsCode | None = None,
        order: SetOrder | None = None,
        inline_array: int = 200,
        known: dict[str, Hashable] | None = None,
    ):
        self.options = options
        reserved = {*options, "config", "annotations", "batch_dim", "single_step_dim", *dir(builtins)}
        self.dims = dims or DimsCode(reserved=reserved)
        self.names = Imports(options=options, reserved=reserved, dims=self.dims, known=known)
        self._order = order or SetOrder(ordered_dims([options.get("extern_data"), options]))
        self._functions = Definitions(self, inline=inline)
        self._arrays = Arrays(self, inline=inline_array)
        self._active: list[int] = []  # ids of what is being written

    @property
    def definitions(self) -> list[str]:
        """Functions, classes, and what they use; each is code."""
        return self._functions.texts

    def define(self, text: str):
        """:param text: code that what is written from now on needs"""
        self._functions.texts.append(text)

    @property
    def lazy_annotations(self) -> bool:
        """Whether a function that is written out has annotations that are not to be evaluated."""
        return self._functions.lazy_annotations

    def imports_code(self) -> str:
        """:return: lines"""
        return self.names.code(extra=self.dims.imports)

    def dims_code(self) -> str:
        """:return: lines"""
        return "".join(f"{line}\n" for line in self.dims.lines)

    def option(self, name: str) -> Expression:
        """:return: code of an option's value; its name, if that is defined already"""
        value = self.options[name]
        if isinstance(value, types.ModuleType):
            return self.names.module(value.__name__, wanted=name)
        if self._functions.is_function(value):
            return self._functions.ref(value, where=name, wanted=name)
        return self.value(value, where=name)

    def value(self, value: Any, *, where: str) -> Expression:
        """
        :param value:
        :param where: it is, for messages
        :return: code
        :raises ValueError: see :func:`.to_python`
        :raises TypeError: see there
        """
        if is_delayed(value):
            return Late(value, _delayed_code)
        value = plain_value(value)
        if isinstance(value, _LITERALS) and not isinstance(value, enum.Enum):
            return self._literal(value, where=where)
        if isinstance(value, Dim | MarkedDim):
            return self._dim(value, where=where)
        if id(value) in self._active:
            raise ValueError(f"{where}: {type(value).__name__} contains itself, which can't be written as code")
        self._active.append(id(value))
        try:
            return self._compound(value, where=where)
        finally:
            self._active.pop()

    def _compound(self, value: Any, *, where: str) -> Expression:
        if self._functions.is_function(value):
            return self._functions.ref(value, where=where)
        if isinstance(value, types.ModuleType):
            return self.names.module(value.__name__)
        if isinstance(value, np.ndarray):
            return self._arrays.code(value, where=where)
        if type(value) in (list, tuple, set, frozenset, dict):
            return self._collection(value, where=where)
        if isinstance(value, enum.Enum):
            cls = self._functions.ref(type(value), where=where)
            if value.name in type(value).__members__:
                return f"{cls}.{value.name}"
            return call(cls, [self.value(value.value, where=where)])  # several flags
        if is_path(value):
            return Late(value, _path_code)
        return self._object(value, where=where)

    def _literal(self, value: Any, *, where: str) -> Expression:
        if type(value) not in _LITERALS:
            return self._object(value, where=where)
        if isinstance(value, str):
            return quote(value)
        if isinstance(value, float) and not math.isfinite(value):
            return f'{self.names.name("builtins", "float")}("{value}")'
        if isinstance(value, complex) and not _has_literal(value):
            parts = [self._literal(part, where=where) for part in (value.real, value.imag)]
            return call(self.names.name("builtins", "complex"), parts)
        if isinstance(value, bytes | bytearray):
            code = quote_bytes(bytes(value))
            return code if isinstance(value, bytes) else call(self.names.name("builtins", "bytearray"), [code])
        return repr(value)

    def _dim(self, dim: Dim | MarkedDim, *, where: str) -> str:
        try:
            return self.dims.ref(dim)
        except (ValueError, TypeError) as error:
            raise type(error)(f"{where}: {error}") from error

    def _collection(self, value: Any, *, where: str) -> Expression:
        if isinstance(value, dict):
            parts = [
                (
                    f"{one_line(self.value(key, where=f'{where}: key {key!r}'))}: ",
                    self.value(item, where=_inner(where, key)),
                )
                for key, item in value.items()
            ]
            return Brackets("{", tuple(parts), "}")
        if isinstance(value, set | frozenset):
            codes = [self.value(part, where=where) for part in self._order.sorted(value)]
            parts = sorted(codes, key=lambda code: not isinstance(code, str))
            if not value:
                return f"{self.names.name('builtins', type(value).__name__)}()"
            braces = items("{", parts, "}")
            return braces if isinstance(value, set) else call(self.names.name("builtins", "frozenset"), [braces])
        parts = [self.value(part, where=f"{where}[{i}]") for i, part in enumerate(value)]
        if isinstance(value, list):
            return items("[", parts, "]")
        return items("(", parts, ")", needs_comma=True)

    def _object(self, value: Any, *, where: str) -> Expression:
        if isinstance(value, nn.Module):
            raise TypeError(
                f"{where}: {type(value).__name__} is a model, of which no code can be written: "
                "give the function that makes it (such as get_model), or functools.partial of it"
            )
        if isinstance(value, Tensor):
            return self._tensor(value, where=where)
        if hasattr(value, "__array__") and not isinstance(value, type | np.datetime64 | np.timedelta64):
            raise TypeError(f"{where}: {type(value).__name__} has values of an engine: give numbers, or NumPy's array")
        if isinstance(value, types.MethodType):
            return self._method(value, where=where)
        if (special := special_code(self, value, where=where)) is not None:
            return special
        if (found := find_import(value) or _find_global(value)) is not None:
            return self.names.name(*found)
        made_by = constructor_call(value)
        if made_by is None:
            raise TypeError(
                f"{where}: no code can be written for {type(value).__module__}.{type(value).__qualname__} {value!r}: "
                "expected plain data, a function, a class, functools.partial of them, or an object whose attributes "
                "are the arguments of its class"
            )
        return self.call(made_by, where=where)

    def call(self, made_by: Call, *, where: str) -> Expression:
        """:return: code of a call"""
        if isinstance(made_by.function, type) and issubclass(made_by.function, functools.partial):
            function = self._functions.ref(made_by.function, where=where)
            inner = f"{where}: {_name_of(made_by.args[0])}"
        elif isinstance(made_by.function, functools.partial):  # as some pickle
            function = one_line(self.value(made_by.function, where=where))
            inner = f"{where}: {_name_of(made_by.function.func)}"
        else:
            function = self._functions.ref(made_by.function, where=where)
            inner = f"{where}: {_name_of(made_by.function)}"
        args = [self.value(arg, where=inner) for arg in made_by.args]
        if not all(
            isinstance(name, str) and name.isidentifier() and not keyword.iskeyword(name) for name in made_by.options
        ):
            options = ("**", self.value(dict(made_by.options), where=inner))
            return Brackets(f"{function}(", (*(("", arg) for arg in args), options), ")")
        options = [(name, self.value(value, where=f"{inner}({name})")) for name, value in made_by.options.items()]
        return call(function, args, options)

    def import_of(self, obj: Any) -> str:
        """:return: its name in the code, for what can be imported"""
        found = find_import(obj)
        assert found is not None, obj
        return self.names.name(*found)

    def _method(self, method: types.MethodType, *, where: str) -> Expression:
        if isinstance(method.__self__, type):
            owner: Expression = self._functions.ref(method.__self__, where=where)
        else:
            owner = self.value(method.__self__, where=where)
        if isinstance(owner, Brackets):
            return replace(owner, after=f"{owner.after}.{method.__name__}")
        return f"{one_line(owner)}.{method.__name__}"

    def _tensor(self, tensor: Tensor, *, where: str) -> Expression:
        if tensor.raw_tensor is not None:
            raise TypeError(f"{where}: {tensor} has values: no code can be written for it")
        return self.call(constructor_call(tensor), where=where)


def _has_literal(value: complex) -> bool:
    """:return: whether ``repr(value)`` makes the same number; it doesn't with negative zeros, and what is not finite"""
    try:
        return repr(eval(repr(value), {})) == repr(value)  # noqa: S307 of a number
    except NameError:  # inf, nan
        return False


def _find_global(value: Any) -> tuple[str, str] | None:
    """:return: module and name of what pickles as a name, such as PyTorch's types"""
    try:
        name = value.__reduce_ex__(2)
    except Exception:
        return None
    module = getattr(value, "__module__", None) or type(value).__module__
    is_there = isinstance(name, str) and getattr(sys.modules.get(module), name, None) is value
    return (module, name) if is_there else None


def _delayed_code(value: Any) -> str:
    return one_line(Writer({}).value(plain_value(value), where="delayed value"))


def _path_code(path: Any) -> str:
    return quote(path_text(path))


def _inner(where: str, key: Any) -> str:
    return f"{where}.{key}" if isinstance(key, str) and key.isidentifier() else f"{where}[{key!r}]"


def _name_of(function: Any) -> str:
    return getattr(function, "__name__", None) or type(function).__name__
