"""
The source of functions, classes and lambdas, and the names in it that come from outside.
"""

from __future__ import annotations
import __future__

import ast
import builtins
import inspect
import symtable
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ._namespaces import describe, globals_of
from ._source_text import find_class, find_function

__all__ = ["Source", "closure_of", "find_source"]

_ANNOTATIONS = __future__.annotations.compiler_flag


@dataclass(frozen=True)
class Source:
    """
    :param text: of the whole definition, not indented
    :param name: that it defines; "<lambda>" for a lambda, where the text is an expression
    :param free_names: global names that it uses, in order; not the builtin ones
    :param needed_at_once: those of them that it needs where it is defined, such as in decorators and defaults
    :param lazy_annotations: whether its annotations are never evaluated
    """

    text: str
    name: str
    free_names: tuple[str, ...]
    needed_at_once: frozenset[str]
    lazy_annotations: bool


def find_source(obj: Any) -> Source:
    """
    :param obj: function, class or lambda
    :raises ValueError: if the source is not there, or has changed
    """
    if inspect.isclass(obj):
        node, text = find_class(obj)
    else:
        node, text = find_function(inspect.unwrap(obj))
    lazy = _has_lazy_annotations(obj)
    body = text if not isinstance(node, ast.Lambda) else f"_ = {text}"
    table = symtable.symtable(("from __future__ import annotations\n" * lazy) + body, "<source>", "exec")
    defined = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_assigned() or symbol.is_imported()}
    at_once = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_referenced()} - defined
    used = at_once | set(_global_names(table))
    mentioned = [n.id for n in ast.walk(node) if isinstance(n, ast.Name)]
    if isinstance(node, ast.Lambda):
        name = "<lambda>"
    else:  # another name for a class, or its definition
        name = getattr(node.targets[0], "id", "") if isinstance(node, ast.Assign) else node.name
    known = [n for n in dict.fromkeys([*mentioned, *sorted(used)]) if n in used and n not in ("__class__", name)]
    names = globals_of(obj), closure_of(obj)
    free = tuple(n for n in known if any(n in known_there for known_there in names) or not hasattr(builtins, n))
    needed = _names_at_import(node, table) if inspect.isclass(obj) else at_once
    return Source(text, name, free, frozenset(needed) & set(free), lazy)


def _global_names(table: symtable.SymbolTable) -> Iterator[str]:
    for child in table.get_children():
        for symbol in child.get_symbols():
            if symbol.is_global() and symbol.is_referenced():
                yield symbol.get_name()
        yield from _global_names(child)


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
    functions = [inspect.unwrap(obj)] if not inspect.isclass(obj) else list(vars(obj).values())
    found: dict[str, Any] = {}
    for function in functions:
        function = getattr(function, "__func__", getattr(function, "fget", function))
        if not isinstance(function, types.FunctionType) or function.__closure__ is None:
            continue
        for name, cell in zip(function.__code__.co_freevars, function.__closure__, strict=True):
            if name == "__class__":
                continue
            try:
                found[name] = cell.cell_contents
            except ValueError:
                raise ValueError(f"{describe(obj)} uses {name}, which has no value yet") from None
    if not inspect.isclass(obj):
        found.update(_named_defaults(inspect.unwrap(obj)))
    else:  # its bases have no cells
        for base in obj.__bases__:
            if base.__name__ not in globals_of(obj):
                found.setdefault(base.__name__, base)
        found.pop(obj.__name__, None)
    return found


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
    return bool(inspect.unwrap(obj).__code__.co_flags & _ANNOTATIONS)
