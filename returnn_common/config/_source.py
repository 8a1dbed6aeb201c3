"""
The source of functions, classes and lambdas, and the names in it that come from outside.
"""

from __future__ import annotations
import __future__

import ast
import functools
import inspect
import symtable
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ._namespaces import describe, globals_of
from ._source_text import find_class, find_function, shift
from ._uses import Uses, attribute_uses, with_absolute_imports

__all__ = ["Source", "closure_of", "find_source"]

_ANNOTATIONS = __future__.annotations.compiler_flag
_DESCRIPTORS = (staticmethod, classmethod, property, functools.cached_property, functools.singledispatchmethod)
_PARTS = ("__func__", "fget", "fset", "fdel", "func")  # of them


@dataclass(frozen=True)
class Source:
    """
    :param text: of the whole definition, not indented
    :param name: that it defines; "<lambda>" for a lambda, where the text is an expression
    :param namespace: where it was defined, by name
    :param closure: see :func:`closure_of`
    :param free_names: names from outside that it uses, in order
    :param needed_at_once: those of them that it needs where it is defined, such as in decorators and defaults
    :param lazy_annotations: whether its annotations are never evaluated
    :param uses: name -> attributes that it uses of that
    """

    text: str
    name: str
    namespace: dict[str, Any]
    closure: dict[str, Any]
    free_names: tuple[str, ...]
    needed_at_once: frozenset[str]
    lazy_annotations: bool
    uses: Mapping[str, Uses]


def find_source(obj: Any) -> Source:
    """
    :param obj: function, class or lambda
    :raises ValueError: if the source is not there, or has changed
    """
    if inspect.isclass(obj):
        node, text = find_class(obj)
        namespace = globals_of(obj)
    else:
        function, decorated = _definition_of(obj)
        node, text = find_function(function, decorated=decorated)
        namespace = globals_of(function)
    lazy = _has_lazy_annotations(obj)
    closure = closure_of(obj)
    table, given = _symbols(text if not isinstance(node, ast.Lambda) else f"_ = {text}", closure, lazy=lazy)
    defined = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_assigned() or symbol.is_imported()}
    defined -= given
    at_once = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_referenced()} - defined
    used = at_once | set(_outer_names(table, closure))
    mentioned = [n.id for n in ast.walk(node) if isinstance(n, ast.Name)]
    if isinstance(node, ast.Lambda):
        name = "<lambda>"
    else:  # another name for a class, or its definition
        name = getattr(node.targets[0], "id", "") if isinstance(node, ast.Assign) else node.name
    free = tuple(n for n in dict.fromkeys([*mentioned, *sorted(used)]) if n in used and n not in ("__class__", name))
    needed = _names_at_import(node, table) if inspect.isclass(obj) else at_once
    uses = attribute_uses(node, lazy_annotations=lazy)
    text = with_absolute_imports(text, namespace)
    return Source(text, name, namespace, closure, free, frozenset(needed) & set(free), lazy, uses)


def _symbols(body: str, closure: dict[str, Any], *, lazy: bool) -> tuple[symtable.SymbolTable, set[str]]:
    """:return: of the block in which the definition stands; names that are only in there for its sake"""
    future = "from __future__ import annotations\n" * lazy
    try:
        return symtable.symtable(future + body, "<source>", "exec"), set()
    except SyntaxError:  # it has ``nonlocal``: only possible within a function that has these variables
        assigned = "".join(f"    {name} = None\n" for name in closure)
        text = f"{future}def _():\n{assigned}{shift(body, 4)}\n"
        return symtable.symtable(text, "<source>", "exec").get_children()[0], set(closure)


def _definition_of(obj: Any) -> tuple[types.FunctionType, bool]:
    """
    :param obj: function, or what decorators have made of one
    :return: the function whose ``def`` makes it, and whether its decorators belong to it
    :raises ValueError: if it was not made by a ``def``
    """
    inner = inspect.unwrap(obj)
    if len(getattr(obj, "registry", ())) > 1 and hasattr(obj, "dispatch"):
        raise ValueError(f"{describe(obj)}: what is registered for types (singledispatch) can't be written out")
    if inner is not obj and _is_decorated(inner, obj):
        return inner, True
    if not isinstance(obj, types.FunctionType):
        raise ValueError(f"{describe(obj)}: {type(obj).__name__} was made by a call, not where {inner!r} is defined")
    # What stands under its name may be something else, which decorators have made of it.
    return obj, inner is not obj or globals_of(obj).get(obj.__name__) is obj


def _is_decorated(inner: types.FunctionType, obj: Any) -> bool:
    """:return: whether the decorators of a function's definition have made the object of it"""
    node, _ = find_function(inner)
    if not getattr(node, "decorator_list", ()):
        return False
    if "<locals>" in inner.__qualname__:
        return True
    found: Any = globals_of(inner)
    for part in inner.__qualname__.split("."):
        found = found.get(part) if isinstance(found, dict) else vars(found).get(part)
        if found is None:
            return False
    return found is obj or getattr(found, "__func__", None) is obj


def _outer_names(table: symtable.SymbolTable, closure: dict[str, Any]) -> Iterator[str]:
    for child in table.get_children():
        for symbol in child.get_symbols():
            name = symbol.get_name()
            if symbol.is_referenced() and (symbol.is_global() or (symbol.is_free() and name in closure)):
                yield name
        yield from _outer_names(child, closure)


def _names_at_import(node: ast.AST, table: symtable.SymbolTable) -> set[str]:
    """:return: names that a class statement needs: those outside of its methods"""
    found = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_referenced()}
    for child in table.get_children():
        if child.get_type() == "class":
            found |= {symbol.get_name() for symbol in child.get_symbols() if symbol.is_referenced()}
            found |= _names_at_import(node, child)
    return found


def closure_of(obj: Any) -> dict[str, Any]:
    """
    :return: values that a function, or the methods of a class, has from the function in which it was defined
    """
    found: dict[str, Any] = {}
    for function in _functions_in(obj):
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            if name == "__class__":
                continue
            try:
                found[name] = cell.cell_contents
            except ValueError:
                raise ValueError(f"{describe(obj)} uses {name}, which has no value yet") from None
    if not inspect.isclass(obj):
        found.update(_named_defaults(_functions_in(obj)[0]))
    else:  # its bases have no cells
        for base in obj.__bases__:
            if base.__name__ not in globals_of(obj):
                found.setdefault(base.__name__, base)
        found.pop(obj.__name__, None)
    return found


def _functions_in(obj: Any) -> list[types.FunctionType]:
    """:return: of a function: what its ``def`` makes; of a class: those of its methods, properties, inner classes"""
    if not inspect.isclass(obj):
        try:
            return [_definition_of(obj)[0]]
        except ValueError:  # its source is not known
            return [inspect.unwrap(obj)]
    found = []
    for value in vars(obj).values():
        if isinstance(value, type) and value.__qualname__.startswith(f"{obj.__qualname__}."):
            found += _functions_in(value)
        parts = [getattr(value, name, None) for name in _PARTS] if isinstance(value, _DESCRIPTORS) else [value]
        found += [method for part in parts for method in _methods_in(part, within=obj)]
    return found


def _methods_in(value: Any, *, within: type) -> list[types.FunctionType]:
    """:return: what a class statement has defined, whatever decorators have put around it"""
    function = inspect.unwrap(value)
    if not isinstance(function, types.FunctionType):
        return []
    if function.__qualname__.startswith(f"{within.__qualname__}."):
        return [function]
    cells = [cell.cell_contents for cell in function.__closure__ or () if cell != types.CellType()]
    return [x for x in cells if isinstance(x, types.FunctionType) and x.__qualname__.startswith(within.__qualname__)]


def _named_defaults(function: types.FunctionType) -> dict[str, Any]:
    """:return: for ``def f(x, n=n)``: what the default ``n`` was when this was executed, as in a loop"""
    try:
        node, _ = find_function(function)
    except ValueError:
        return {}
    args = node.args
    values = function.__defaults__ or ()
    found = dict(zip((d.id if isinstance(d, ast.Name) else None for d in args.defaults), values, strict=False))
    for arg, default in zip(args.kwonlyargs, args.kw_defaults, strict=True):
        if isinstance(default, ast.Name):
            found[default.id] = (function.__kwdefaults__ or {}).get(arg.arg)
    found.pop(None, None)
    now = function.__globals__
    return {name: value for name, value in found.items() if name not in now or now[name] is not value}


def _has_lazy_annotations(obj: Any) -> bool:
    if inspect.isclass(obj):
        return isinstance(globals_of(obj).get("annotations"), __future__._Feature)
    return bool(_functions_in(obj)[0].__code__.co_flags & _ANNOTATIONS)
