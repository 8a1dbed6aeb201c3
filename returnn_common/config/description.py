"""
What models, dims, datasets and configs are, as plain data: the same in every process, and for the same thing in future.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import inspect
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from returnn.tensor import Dim, Tensor, single_step_dim
from returnn.tensor.marked_dim import MarkedDim

from .. import nn
from ._address import address, is_of_config, meant_class, room
from ._delayed import is_delayed, plain_value
from ._modules import is_made_up, module_contents
from ._objects import is_path, path_text, same_content
from ._source import closure_of, find_source

__all__ = ["DescribedModel", "Describer", "Description"]

Description = Any
"""None, bool, int, float, complex, str, bytes, or a tuple of descriptions"""


class Describer:
    """
    Describes values one after the other, with dims numbered by their first occurrence in all of them.

    A description has

    - of a module (a model): its class, and its attributes: submodules, parameters (dims, type), dims, options;
    - of a dim: its number, kind and size, or for a derived one the operation and its inputs; not its name;
    - of a function or class: its :func:`address`; of partial functions also their arguments, of functions within
      functions the values that they use; of those in a config file their source, and what that uses;
    - of other objects: what they say themselves (Sisyphus' ``_sis_hash`` or ``__sis_state__``), or class and
      attributes.

    Arguments and attributes that have the default of the function or class are left out, so that it may get more of
    them. So are the values of parameters, and attributes of a module that are None or False and belong to no argument.
    """

    def __init__(self):
        self._numbers: dict[str, dict[int, int]] = {"dim": {}, "module": {}, "parameter": {}}  # id -> of its occurrence
        self._keep: list[Any] = []
        self._active: set[int] = set()  # functions and objects that are being described

    def config(self, config: Mapping[str, Any]) -> Description:
        """
        :param config: options by name; ``extern_data`` comes first, the others in the order of their names
        :raises ValueError: naming the option, for a lambda and other things that have no description
        """
        names = sorted(config, key=lambda name: (name != "extern_data", name))
        parts = {name: self.value(config[name], where=name) for name in names}
        return ("config", *((name, parts[name]) for name in sorted(parts)))

    def value(self, value: Any, *, where: str) -> Description:
        """
        :param value:
        :param where: it is, for messages
        :raises ValueError: see :meth:`config`
        """
        value = value if is_delayed(value) else plain_value(value)
        if type(value) in (type(None), bool, int, float, complex, str, bytes):
            return value
        if isinstance(value, Dim):
            return self._dim(value)
        if isinstance(value, MarkedDim):
            return (type(value).__name__, self._dim(value.tag))
        if isinstance(value, nn.Module):
            return self._once("module", value) or self._module(value, where=where)
        if isinstance(value, Tensor):
            return self._tensor(value, where=where)
        if callable(getattr(value, "_sis_hash", None)) and not inspect.isclass(value):
            return ("sisyphus", value._sis_hash())
        if isinstance(value, np.ndarray):
            return ("array", value.dtype.str, value.shape, np.ascontiguousarray(value).tobytes())
        if id(value) in self._active:
            if callable(value) or isinstance(value, types.ModuleType):
                return ("again", value.__name__ if isinstance(value, types.ModuleType) else address(value))
            raise ValueError(f"{where}: {type(value).__name__} contains itself, so that it has no hash")
        self._active.add(id(value))
        try:
            return self._compound(value, where=where)
        finally:
            self._active.discard(id(value))

    def _compound(self, value: Any, *, where: str) -> Description:
        if type(value) in (list, tuple):
            return (type(value).__name__, *(self.value(x, where=f"{where}[{i}]") for i, x in enumerate(value)))
        if isinstance(value, Mapping):
            return self._mapping(value, where=where)
        if isinstance(value, set | frozenset):
            return ("set", *sorted((self.value(x, where=where) for x in self._order(value)), key=repr))
        return self._object(value, where=where)

    def _once(self, kind: str, value: Any) -> Description:
        """:return: where it has come before: its number; or None"""
        numbers = self._numbers[kind]
        if id(value) in numbers:
            return (kind, numbers[id(value)])
        numbers[id(value)] = len(numbers)
        self._keep.append(value)
        return None

    def _dim(self, dim: Dim) -> Description:
        dim = dim.get_same_base()
        kind = dim.kind.name if dim.kind else None
        if dim.is_batch_dim():
            return ("batch dim",)
        if dim is single_step_dim or dim.special:
            return ("special dim", dim.name)
        operation = dim.derived_from_op
        if operation is not None and operation.kind != "constant":
            return ("dim", kind, operation.kind, *(self._dim(x) for x in operation.inputs))
        if operation is not None:
            return ("constant dim", dim.dimension)
        self._once("dim", dim)
        return ("dim", kind, dim.dimension, self._numbers["dim"][id(dim)])

    def _order(self, values: Iterable[Any]) -> list[Any]:
        """:return: of a set: dims with numbers first, those that have none by size and name; all else at last"""

        def _key(value: Any) -> tuple[Any, ...]:
            if not isinstance(value, Dim):
                return (2, 0, "")
            base, numbers = value.get_same_base(), self._numbers["dim"]
            return (id(base) not in numbers, numbers.get(id(base), base.dimension or 0), str(base.name))

        return sorted(values, key=_key)

    def _mapping(self, value: Mapping[Any, Any], *, where: str) -> Description:
        keys = [(self.value(key, where=f"{where}: key"), key) for key in self._order(value)]
        keys.sort(key=lambda pair: repr(pair[0]))
        names = {id(k): f".{k}" if isinstance(k, str) else f"[{k!r}]" for _, k in keys}
        return ("dict", *((key, self.value(value[k], where=f"{where}{names[id(k)]}")) for key, k in keys))

    def _module(self, module: nn.Module, *, where: str) -> Description:
        cls = meant_class(type(module))
        defaults = _defaults(cls.__init__)
        is_foreign = address(cls).startswith("returnn.")  # RETURNN's private attributes are its own affair
        parts = []
        for name, value in sorted(vars(module).items(), key=lambda item: _number_last(item[0])):
            own = name.removeprefix("_")
            if own in defaults:
                if defaults[own] is not inspect.Parameter.empty and same_content(defaults[own], value):
                    continue
            elif value is None or value is False or (name.startswith("_") and is_foreign):
                continue
            parts.append((name, self.value(value, where=f"{where}.{name}")))
        return ("module", self._class(cls, where=where), *parts)

    def _tensor(self, tensor: Tensor, *, where: str) -> Description:
        is_parameter = isinstance(tensor, nn.Parameter)
        if is_parameter and (again := self._once("parameter", tensor)):
            return again
        options: dict[str, Any] = {"sparse_dim": tensor.sparse_dim}
        if isinstance(tensor.feature_dim_axis_or_unspecified, int):
            options["feature_dim_axis"] = tensor.feature_dim_axis_or_unspecified
        if isinstance(tensor, nn.Parameter):
            options["trainable"] = False if tensor.trainable is False else None  # None: as the engine likes
            options["weight_decay"] = tensor.weight_decay or None
            if isinstance(tensor.initial, nn.init.ParamInit | bool | int | float | complex | np.generic):
                options["initial"] = tensor.initial
        parts = [(n, self.value(v, where=f"{where}.{n}")) for n, v in options.items() if v is not None]
        kind = "parameter" if is_parameter else "tensor"
        return (kind, tensor.dtype, tuple(self._dim(dim) for dim in tensor.dims), *parts)

    def _object(self, value: Any, *, where: str) -> Description:
        if isinstance(value, types.ModuleType):
            contents = self._mapping(module_contents(value), where=where) if is_made_up(value) else ()
            return ("python module", room(value.__name__), *contents)
        if isinstance(value, functools.partial):
            return self._partial(value, where=where)
        if isinstance(value, types.MethodType):
            return ("method", self.value(value.__self__, where=where), value.__name__)
        if inspect.isclass(value) or inspect.isroutine(value) or hasattr(value, "__wrapped__"):
            return self._function(value, where=where)
        if isinstance(value, np.ufunc):
            return self._function(value, where=where)
        if isinstance(value, enum.Enum):
            return ("enum", self._class(type(value), where=where), value.name)
        if is_path(value) and not hasattr(value, "__sis_state__") and not callable(getattr(value, "get_path", None)):
            return path_text(value)
        return ("object", self._class(type(value), where=where), *self._state(value, where=where))

    def _state(self, value: Any, *, where: str) -> Iterable[Description]:
        if hasattr(value, "__sis_state__"):
            state = value.__sis_state__()
        elif dataclasses.is_dataclass(value):
            state = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        else:
            state = _attributes(value)
            if state is None:
                return [self._reduced(value, where=where)]
        if not isinstance(state, Mapping):
            return [self.value(state, where=where)]
        defaults = _defaults(type(value))
        return [
            (name, self.value(part, where=f"{where}.{name}"))
            for name, part in sorted(state.items())
            if not same_content(defaults.get(name.removeprefix("_"), inspect.Parameter.empty), part)
            and not (part is None and name.startswith("_"))
        ]

    def _reduced(self, value: Any, *, where: str) -> Description:
        """:return: of an object without attributes: what it pickles as"""
        try:
            reduced = value.__reduce_ex__(2)
        except Exception:
            raise ValueError(f"{where}: {value!r} has nothing that could be hashed") from None
        if isinstance(reduced, str):
            return reduced
        return tuple(self.value(part, where=where) for part in reduced[1:3])

    def _partial(self, value: functools.partial, *, where: str) -> Description:
        function = self.value(value.func, where=where)
        try:
            signature = inspect.signature(value.func)
            bound = signature.bind_partial(*value.args, **value.keywords)
        except (TypeError, ValueError):
            options: dict[str, Any] = {**{str(i): arg for i, arg in enumerate(value.args)}, **value.keywords}
        else:
            options = {
                name: arg
                for name, arg in bound.arguments.items()
                if not same_content(signature.parameters[name].default, arg)
            }
        parts = [(name, self.value(arg, where=f"{where}({name})")) for name, arg in sorted(options.items())]
        return ("partial", function, *parts)

    def _function(self, function: Any, *, where: str) -> Description:
        if getattr(function, "__name__", "") == "<lambda>":
            raise ValueError(
                f"{where}: a lambda has no name that could be hashed (nor does Sisyphus take it): define a function"
            )
        name = address(function)
        if name.startswith("__main__:"):
            raise ValueError(
                f"{where}: {function.__qualname__} is of the script that runs, and elsewhere in another one: "
                "define it in a module"
            )
        if is_of_config(function):
            return self._source(function, where=where)
        uses = closure_of(function) if "<locals>" in name else {}
        parts = [(n, self.value(v, where=f"{where}: {n}")) for n, v in sorted(uses.items())]
        return ("function", name, *parts)

    def _class(self, cls: type, *, where: str) -> Description:
        return self.value(cls, where=where) if is_of_config(cls) else address(cls)

    def _source(self, function: Any, *, where: str) -> Description:
        """:return: of a function or class of a config that was read: other configs have some of the same names"""
        try:
            source = find_source(function)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from error
        known = {**source.namespace, **source.closure}
        known.pop("config", None)  # RETURNN's, which has all that is in there
        uses = [(n, self.value(known[n], where=f"{where}: {n}")) for n in source.free_names if n in known]
        return ("function", source.name, source.text, *uses)


class DescribedModel:
    """
    A config's ``get_model``, which describes the model as soon as it is there: before anything runs it.

    :param get_model:
    :param config: what is described with it; ``extern_data`` first
    """

    def __init__(self, get_model: Callable[..., Any], config: Mapping[str, Any]):
        self._get_model, self._config = get_model, config
        self.description: Description | ValueError = None

    def __call__(self, **options: Any) -> Any:
        model = self._get_model(**options)
        try:
            self.description = Describer().config({**self._config, "model": model})
        except ValueError as error:
            self.description = error
        return model


def _defaults(function: Any) -> dict[str, Any]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return {}
    return {parameter.name: parameter.default for parameter in parameters}


def _attributes(value: Any) -> dict[str, Any] | None:
    if hasattr(value, "__dict__"):
        return vars(value)
    slots = [name for cls in type(value).__mro__ for name in getattr(cls, "__slots__", ())]
    return {name: getattr(value, name) for name in slots if hasattr(value, name)} if slots else None


def _number_last(name: str) -> tuple[bool, int, str]:
    """:return: key for sorting: the layers of a list by their numbers"""
    return (name.isdigit(), int(name) if name.isdigit() else 0, name)
