"""
What the vocabularies share.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from ..interface import VocabConfig

__all__ = ["check_file", "check_labels", "fspath", "refuse_unknown"]


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


def fspath(owner: str, path: object) -> str:
    """
    :return: path as a str, also of what has ``get_path()``, such as Sisyphus' paths
    :raises TypeError: if it is no path
    """
    if not isinstance(path, (str, os.PathLike)) and callable(getattr(path, "get_path", None)):
        path = path.get_path()  # type: ignore[attr-defined]
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"{owner}: expected a path, got {type(path).__name__} {path!r}")
    return str(os.fspath(path))


def check_file(owner: str, path: str) -> str:
    """
    :raises FileNotFoundError: if there is no such file
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"{owner}: no such file: {path}")
    return path
