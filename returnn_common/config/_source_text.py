"""
The text of functions, classes and lambdas, found in their files.
"""

from __future__ import annotations

import ast
import copy
import functools
import io
import linecache
import tokenize
import types
from collections.abc import Iterator
from typing import Any

from ._namespaces import SOURCE, describe, globals_of, is_lambda

__all__ = ["find_class", "find_function", "shift"]


def find_function(function: types.FunctionType, *, decorated: bool = True) -> tuple[Any, str]:
    """
    :param function:
    :param decorated: with its decorators
    :return: its definition, and the text of that
    :raises ValueError: if its file has changed
    """
    code = function.__code__
    lines, tree = _read(function, code.co_filename, function.__globals__)
    for node in ast.walk(tree):
        if isinstance(node, ast.Lambda) and is_lambda(function):
            if node.lineno <= code.co_firstlineno <= (node.end_lineno or node.lineno) and _is_code_of(node, code):
                return node, _expression_text(node, lines)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == code.co_name:
            if _first_line(node) == code.co_firstlineno and _num_args(node) == _num_args_of(code):
                if not decorated:
                    node = copy.copy(node)
                    node.decorator_list = []
                return node, _definition_text(node, lines)
    raise ValueError(f"{describe(function)}: its source in {code.co_filename} has changed, or is not Python code")


def find_class(cls: type) -> tuple[Any, str]:
    namespace = globals_of(cls)
    filename = namespace.get("__file__")
    if filename is None:
        raise ValueError(f"{describe(cls)}: its source is not known")
    lines, tree = _read(cls, filename, namespace)
    wanted = [part for part in cls.__qualname__.split(".") if part != "<locals>"]
    found = [node for path, node in _definitions(tree, ()) if list(path) == wanted and isinstance(node, ast.ClassDef)]
    # Such as ``Point = namedtuple("Point", "x y")``.
    found = found or [
        node
        for node in tree.body
        if isinstance(node, ast.Assign) and [getattr(target, "id", None) for target in node.targets] == wanted
    ]
    if not found:
        raise ValueError(f"{describe(cls)}: its source in {filename} has changed")
    return found[-1], _definition_text(found[-1], lines)


def _definitions(node: ast.AST, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], ast.AST]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield (*path, child.name), child
            yield from _definitions(child, (*path, child.name))
        else:
            yield from _definitions(child, path)


def _read(obj: Any, filename: str, namespace: dict[str, Any]) -> tuple[list[str], ast.Module]:
    if SOURCE in namespace and filename == namespace.get("__file__"):
        lines = namespace[SOURCE].splitlines(keepends=True)
    else:
        linecache.checkcache(filename)
        lines = linecache.getlines(filename, namespace)
    try:
        tree = _parse("".join(lines))
    except SyntaxError:
        lines = []
    if not lines:
        raise ValueError(f"{describe(obj)}: its source, {filename}, can't be read")
    return lines, tree


@functools.lru_cache(maxsize=64)
def _parse(text: str) -> ast.Module:
    return ast.parse(text)


def _first_line(node: Any) -> int:
    return min([node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", ()))])


def _num_args(node: ast.FunctionDef | ast.AsyncFunctionDef) -> tuple[int, int]:
    return len(node.args.posonlyargs) + len(node.args.args), len(node.args.kwonlyargs)


def _num_args_of(code: types.CodeType) -> tuple[int, int]:
    return code.co_argcount, code.co_kwonlyargcount


def _is_code_of(node: ast.Lambda, code: types.CodeType) -> bool:
    compiled = compile(ast.Expression(node), "<lambda>", "eval")
    found = next(const for const in compiled.co_consts if isinstance(const, types.CodeType))
    if found.co_varnames != code.co_varnames or len(found.co_consts) != len(code.co_consts):
        return False
    if any(a != b for a, b in zip(found.co_consts, code.co_consts, strict=True) if not isinstance(a, types.CodeType)):
        return False
    # Variables of a surrounding function are global where the lambda stands alone: other instructions for them.
    return sorted([*found.co_names, *found.co_freevars]) == sorted([*code.co_names, *code.co_freevars])


def _expression_text(node: ast.expr, lines: list[str]) -> str:
    text = ast.get_source_segment("".join(lines), node)
    # Of several lines: the brackets around it, which make that possible, are not part of it.
    return text if text is not None and "\n" not in text else ast.unparse(node)


def _definition_text(node: Any, lines: list[str]) -> str:
    part = lines[_first_line(node) - 1 : node.end_lineno]
    text = shift("".join(part).rstrip() + "\n", -(len(part[0]) - len(part[0].lstrip())))
    return text


def shift(text: str, indent: int) -> str:
    """
    :param text: of a definition
    :param indent: by how many spaces it is moved to the right
    :return: with that indentation; lines within a text of several lines stay as they are
    """
    try:
        # Only what is not indented can be parsed, but tokens are found in each.
        tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    except (tokenize.TokenError, IndentationError):
        tokens = []
    inside: set[int] = set()
    starts: list[int] = []
    for token in tokens:
        name = tokenize.tok_name[token.type]
        if name == "STRING":
            inside.update(range(token.start[0] + 1, token.end[0] + 1))
        elif name.endswith("STRING_START"):  # since Python 3.12
            starts.append(token.start[0])
        elif name.endswith("STRING_END"):
            inside.update(range(starts.pop() + 1, token.end[0] + 1))
    moved = []
    for number, line in enumerate(text.splitlines(keepends=True), 1):
        if number not in inside and line.strip():
            line = " " * indent + line if indent >= 0 else line[min(-indent, len(line) - len(line.lstrip())) :]
        moved.append(line)
    return "".join(moved)
