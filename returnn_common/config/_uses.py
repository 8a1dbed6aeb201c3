"""
What a definition uses of modules: ``nn.init.Glorot``, say; and what it imports itself.
"""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["Uses", "attribute_uses", "imported_modules", "with_absolute_imports"]

Uses = dict[tuple[str, ...], bool]  # attributes, such as ("init", "Glorot") -> whether where it is defined


def attribute_uses(node: ast.AST, *, lazy_annotations: bool) -> dict[str, Uses]:
    """
    :param node: a definition
    :param lazy_annotations: whether its annotations are never evaluated
    :return: name -> what is used of it; no attributes, where it is used itself
    """
    found: dict[str, Uses] = {}
    for name, attributes, at_once in _walk(node, at_once=True, lazy=lazy_annotations):
        uses = found.setdefault(name, {})
        uses[attributes] = uses.get(attributes, False) or at_once
    return found


def _walk(node: ast.AST, *, at_once: bool, lazy: bool) -> Iterator[tuple[str, tuple[str, ...], bool]]:
    attributes: list[str] = []
    base = node
    while isinstance(base, ast.Attribute):
        attributes.insert(0, base.attr)
        base = base.value
    if isinstance(base, ast.Name):
        yield base.id, tuple(attributes), at_once
        return
    for field, value in ast.iter_fields(base):
        if lazy and (field == "returns" or (field == "annotation" and isinstance(base, ast.arg | ast.AnnAssign))):
            continue
        is_body = field == "body" and isinstance(base, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, ast.AST):
                yield from _walk(part, at_once=at_once and not is_body, lazy=lazy)


def imported_modules(text: str) -> list[str]:
    """
    :param text: of a definition
    :return: what is imported within, with the names that are taken from there, which may be modules as well
    """
    found = []
    for node in _imports(text):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        else:
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return found


def with_absolute_imports(text: str, namespace: Mapping[str, Any]) -> str:
    """
    :param text: of a definition
    :param namespace: of the module in which it was
    :return: without the dots of relative imports, which only mean something there
    """
    package = namespace.get("__package__") or ""
    lines = text.splitlines(keepends=True)
    for node in _imports(text):
        if isinstance(node, ast.ImportFrom) and node.level:
            try:
                module = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            except (ImportError, ValueError):  # it couldn't be imported there either
                continue
            line = lines[node.lineno - 1]
            start = len(line.encode()[: node.col_offset].decode())
            rest = re.sub(r"^from\s*[.\s]+[\w.]*", f"from {module}", line[start:], count=1)
            lines[node.lineno - 1] = line[:start] + rest.replace(f"{module}import ", f"{module} import ", 1)
    return "".join(lines)


def _imports(text: str) -> list[ast.Import | ast.ImportFrom]:
    if "import" not in text:
        return []
    try:
        tree = ast.parse(text)
    except SyntaxError:  # it stands within a function
        tree = ast.parse(f"def _():\n {text}") if text.startswith("(") else ast.Module([], [])
    return [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
