"""
Which names of a config that a person has written are options.
"""

from __future__ import annotations

import ast
import types
from typing import Any

__all__ = ["option_names"]


def option_names(text: str, namespace: dict[str, Any]) -> list[str]:
    """
    :param text: of the config
    :param namespace: what it defines
    :return: all names, in order, but modules, those that begin with "__", and imports that the file itself uses
    """
    tree = ast.parse(text)
    imported = {
        (alias.asname or alias.name).partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    assigned = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    return [
        name
        for name, value in namespace.items()
        if not name.startswith("__")
        and name not in (imported & used) - assigned
        and name not in ("config", "annotations")
        and not isinstance(value, types.ModuleType)
    ]
