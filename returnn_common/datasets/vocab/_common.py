"""
What the vocabularies share.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .._paths import PathLike, SomePath, check_path, resolve_path
from ..interface import VocabConfig

__all__ = ["check_file", "check_labels", "keep_path", "refuse_unknown"]


def check_labels(owner: str, labels: Sequence[str]) -> dict[str, int]:
    """
    :return: label -> index
    :raises ValueError: if there is none, or one comes twice
    """
    indices: dict[str, int] = {}
    for label in labels:
        if label in indices:
            raise ValueError(f"{owner}: expected labels without duplicates, got {label!r} twice")
        indices[label] = len(indices)
    if not indices:
        raise ValueError(f"{owner}: expected at least one label, got none")
    return indices


def refuse_unknown(vocab: VocabConfig, unknown: Sequence[str], text: str):
    """
    :raises ValueError: if there is something unknown in the text
    """
    if unknown:
        raise ValueError(f"{vocab!r} lacks {', '.join(repr(part) for part in dict.fromkeys(unknown))} in {text!r}")


def keep_path(owner: str, path: Any) -> PathLike:
    """
    :return: the path as a str; what has ``get_path()``, such as Sisyphus' paths, as it is until it is used
    :raises TypeError: if it is no path
    """
    path = check_path(owner, path)
    return path if isinstance(path, SomePath) else os.fspath(path)


def check_file(owner: str, path: PathLike) -> str:
    """
    :return: the path itself
    :raises FileNotFoundError: if there is no such file
    """
    resolved = resolve_path(path)
    if not Path(resolved).is_file():
        raise FileNotFoundError(f"{owner}: no such file: {resolved}")
    return resolved
