"""
How objects can be made anew: which function, with which arguments.
"""

from __future__ import annotations

import ast
import copyreg
import dataclasses
import functools
import inspect
import os
import sys
import types
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from returnn.tensor import Dim, Tensor

_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)

__all__ = ["Call", "constructor_call", "is_path", "path_text", "same_content"]


@dataclass(frozen=True)
class Call:
    """``function(*args, **options)``"""

    function: Any
    args: tuple[Any, ...] = ()
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def is_path(obj: Any) -> bool:
    """whether it is a path: of the standard library, of Sisyphus, or another that has ``get_path()``"""
    return not inspect.isclass(obj) and (callable(getattr(obj, "get_path", None)) or isinstance(obj, os.PathLike))


def path_text(path: Any) -> str:
    """:return: the path as text; what Sisyphus' jobs make may be known only when they have run"""
    text = path.get_path() if callable(getattr(path, "get_path", None)) else os.fspath(path)
    return text.decode() if isinstance(text, bytes) else text


def constructor_call(obj: Any) -> Call | None:
    """
    :param obj: an instance of some class
    :return: what makes another one like it, or None if that isn't known. Options that have their default are left out.
    """
    if isinstance(obj, functools.partial):
        return _from_partial(obj)
    if isinstance(obj, Tensor):
        return _from_tensor(obj)
    if isinstance(obj, types.SimpleNamespace):
        return _checked(Call(type(obj), (), vars(obj)), obj)
    for find in (_from_arguments, _from_fields, _from_attributes, _from_items, _from_repr, _from_reduce):
        found = find(obj)
        if found is not None:
            return found
    return None


def _from_tensor(tensor: Tensor) -> Call:
    """:return: without its values"""
    options: dict[str, Any] = {"dims": list(tensor.dims), "dtype": tensor.dtype, "sparse_dim": tensor.sparse_dim}
    if isinstance(tensor.feature_dim_axis_or_unspecified, int):
        options["feature_dim_axis"] = tensor.feature_dim_axis_or_unspecified
    return Call(Tensor, (tensor.name,), {name: value for name, value in options.items() if value is not None})


def _from_partial(obj: functools.partial) -> Call | None:
    names = {*functools.WRAPPER_ASSIGNMENTS, "__wrapped__"}  # by functools.update_wrapper: they only tell about it
    rest = [name for name in vars(obj) if name not in names]
    return None if rest else Call(type(obj), (obj.func, *obj.args), obj.keywords)


def _from_arguments(obj: Any) -> Call | None:
    """:return: where it remembers them, as our datasets and vocabularies do"""
    if not callable(getattr(obj, "get_arguments", None)):
        return None
    try:
        arguments = obj.get_arguments()
        parameters = inspect.signature(type(obj)).parameters
    except (TypeError, ValueError):
        return None
    args = [
        x for n, value in arguments.items() if parameters[n].kind is inspect.Parameter.VAR_POSITIONAL for x in value
    ]
    options = {n: v for n, v in arguments.items() if parameters[n].kind is not inspect.Parameter.VAR_POSITIONAL}
    return _checked(Call(type(obj), tuple(args), options), obj)


def _from_fields(obj: Any) -> Call | None:
    names = getattr(obj, "_fields", None)
    if isinstance(obj, tuple) and names is not None:
        return Call(type(obj), (), dict(zip(names, obj, strict=True)))
    if not dataclasses.is_dataclass(obj) or any(f.init and not hasattr(obj, f.name) for f in dataclasses.fields(obj)):
        return None
    fields = [f for f in dataclasses.fields(obj) if f.init]
    given = {f.name: getattr(obj, f.name) for f in fields if not _is_default(f, getattr(obj, f.name))}
    return _checked(Call(type(obj), (), given), obj)


def _is_default(field: dataclasses.Field, value: Any) -> bool:
    if field.default_factory is not dataclasses.MISSING:
        return same_content(field.default_factory(), value)
    return field.default is not dataclasses.MISSING and same_content(field.default, value)


def _from_attributes(obj: Any) -> Call | None:
    """:return: where each parameter of ``__init__`` is kept in an attribute of its name"""
    if "__init__" not in dir(type(obj)) or type(obj).__init__ is object.__init__:
        return _checked(Call(type(obj)), obj) if not _state(obj) and _can_make(obj) else None
    parameters = _parameters(type(obj))
    if parameters is None:
        return None
    args: list[Any] = []
    options: dict[str, Any] = {}
    rest = [p.name for p in parameters if p.kind is p.VAR_POSITIONAL and _state(obj).get(p.name)]
    for parameter in parameters:
        names = [name for name in (parameter.name, f"_{parameter.name}") if name in _state(obj)]
        if not names:
            if parameter.default is parameter.empty and parameter.kind not in _VARIABLE:
                return None
            continue
        value = _state(obj)[names[0]]
        if parameter.kind is parameter.VAR_POSITIONAL:
            args.extend(value)
        elif parameter.kind is parameter.VAR_KEYWORD:
            options.update(value)
        elif parameter.kind is parameter.POSITIONAL_ONLY or (parameter.kind is not parameter.KEYWORD_ONLY and rest):
            args.append(value)
        elif parameter.default is not parameter.empty and same_content(parameter.default, value):
            continue
        else:
            options[parameter.name] = value
    return _checked(Call(type(obj), tuple(args), options), obj)


def _parameters(cls: type) -> list[inspect.Parameter] | None:
    """:return: of ``__init__``; where that has ``**options`` for the one of a base, also those; None: not known"""
    found: dict[str, inspect.Parameter] = {}
    inits = [vars(base)["__init__"] for base in cls.__mro__ if "__init__" in vars(base)]
    for i, init in enumerate(inits):
        try:
            own = list(inspect.signature(init).parameters.values())[1:]
        except (ValueError, TypeError):
            return None if not i else list(found.values())
        for parameter in own:
            if not i or parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD):
                found.setdefault(parameter.name, parameter.replace(kind=parameter.KEYWORD_ONLY) if i else parameter)
        if all(parameter.kind is not parameter.VAR_KEYWORD for parameter in own):
            break
    return list(found.values())


def _from_items(obj: Any) -> Call | None:
    """:return: where it is a dict, list, ... with another name"""
    for cls in (dict, list, set, frozenset, tuple):
        if isinstance(obj, cls):
            return _checked(Call(type(obj), (cls(obj),)), obj)
    return None


def _can_make(obj: Any) -> bool:
    """:return: whether it pickles as its attributes, as objects do"""
    return type(obj).__reduce_ex__ is object.__reduce_ex__ and type(obj).__reduce__ is object.__reduce__


def _from_repr(obj: Any) -> Call | None:
    """:return: where ``repr(obj)`` is the code that makes it"""
    if type(obj).__repr__ is object.__repr__:
        return None
    try:
        node = ast.parse(repr(obj), mode="eval").body
    except (SyntaxError, ValueError):
        return None
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name | ast.Attribute):
        return None
    namespace = {**vars(sys.modules.get(type(obj).__module__, ast)), type(obj).__name__: type(obj)}

    def _value(part: ast.expr) -> Any:
        return eval(compile(ast.Expression(part), "<repr>", "eval"), namespace)  # noqa: S307 of the object's own class

    try:
        if _value(node.func) is not type(obj):
            return None
        options = {k.arg: _value(k.value) for k in node.keywords if k.arg is not None}
        return _checked(Call(type(obj), tuple(map(_value, node.args)), options), obj)
    except Exception:
        return None


def _from_reduce(obj: Any) -> Call | None:
    """:return: where it pickles as a call without anything else"""
    if _can_make(obj) and type(obj) not in copyreg.dispatch_table and not isinstance(obj, str | bytes | int | float):
        return None
    reduced = _reduced(obj)
    if not isinstance(reduced, tuple) or any(part is not None for part in reduced[2:]):
        return None
    function, args = reduced[:2]
    if getattr(function, "__name__", "") == "__newobj__":
        function, args = args[0], args[1:]
    return Call(function, tuple(args))


def _reduced(obj: Any) -> Any:
    """:return: as what it pickles; None if it doesn't"""
    reduce = copyreg.dispatch_table.get(type(obj))
    try:
        return reduce(obj) if reduce else obj.__reduce_ex__(2)
    except Exception:
        return None


def _content(obj: Any) -> Any:
    """:return: what is in an object besides its attributes, as in lists and what is not written in Python"""
    reduced = _reduced(obj)
    if reduced is None:
        return object()  # not known, so that it is the same as nothing
    if isinstance(reduced, str):
        return reduced
    function, args, state, elements, entries = [*reduced, None, None, None][:5]
    made_by = (args[1:], None) if _can_make(obj) else (function, args, state)
    return (*made_by, list(elements or ()), list(entries or ()))


def _checked(call: Call, obj: Any) -> Call | None:
    """:return: the call, if it really makes such an object"""
    try:
        made = call.function(*call.args, **call.options)
    except Exception:
        return None
    return call if type(made) is type(obj) and _same_state(made, obj) else None


def _state(obj: Any) -> dict[str, Any]:
    state = dict(getattr(obj, "__dict__", {}))
    for cls in type(obj).__mro__:
        slots = vars(cls).get("__slots__", ())
        for name in [slots] if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(obj, name):
                state[name] = getattr(obj, name)
    return state


def _same_state(made: Any, obj: Any) -> bool:
    """:return: whether both have the same attributes; private ones that a new object doesn't have are caches"""
    new, old = _state(made), _state(obj)
    if (_reduced(obj) is not None or not old) and not same_content(_content(made), _content(obj)):
        return False
    for name in {**new, **old}:
        if name == "_made_with" or (name.startswith("_") and new.get(name) is None):
            continue
        if name not in new or name not in old or not same_content(new[name], old[name]):
            return False
    return True


def same_content(a: Any, b: Any) -> bool:
    """
    :return: whether both are the same values, also where ``==`` doesn't say so: instances of one class with the same
        attributes are, and other dims than the same are not
    """
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, Dim):
        return a == b
    if isinstance(a, dict):
        return list(a) == list(b) and all(same_content(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same_content, a, b))
    if callable(getattr(a, "get_path", None)):
        return a.__dict__ == b.__dict__
    if isinstance(a, functools.partial):
        return same_content((a.func, a.args, a.keywords, vars(a)), (b.func, b.args, b.keywords, vars(b)))
    try:
        if bool(a == b):
            return True
    except Exception:
        pass
    if isinstance(a, float | complex):
        return repr(a) == repr(b)  # nan is not equal to itself
    if hasattr(a, "tobytes") and hasattr(a, "dtype") and hasattr(a, "shape"):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if callable(a) and hasattr(a, "__code__") or isinstance(a, type):
        return False
    state = _state(a)
    return bool(state) and state.keys() == _state(b).keys() and all(same_content(state[k], _state(b)[k]) for k in state)
