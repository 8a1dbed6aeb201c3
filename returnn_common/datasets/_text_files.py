"""
Which files, and which of their lines, are a split of a text corpus.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Union

import numpy as np

__all__ = ["SPLITS", "Paths", "find_files", "lines_of_split"]

SPLITS = ("train", "dev", "test")
_SUFFIXES = (".txt", ".txt.gz")

Paths = Union[str, "os.PathLike[str]", Sequence[Union[str, "os.PathLike[str]"]]]


def find_files(split: str, paths: dict[str, Paths | None]) -> tuple[list[str], list[str]]:
    """:return: the split's files, and for which splits lines of these files are held out"""
    own = {name: _own_files(name, paths) for name in SPLITS}
    if split != "train" and own[split]:
        return own[split], []
    return own["train"], [name for name in ("dev", "test") if not own[name]]


def _own_files(split: str, paths: dict[str, Paths | None]) -> list[str]:
    """:return: nothing if lines of the training files are held out"""
    path = paths[split]
    if split != "train" and path is not None:
        return _list_files(path)
    train = paths["train"]
    assert train is not None
    if not isinstance(train, (str, os.PathLike)) or not os.path.isdir(train):
        return _list_files(train) if split == "train" else []
    kinds = {file: os.path.basename(file).partition(".txt")[0] for file in _list_files(train)}
    files = [file for file, kind in kinds.items() if (kind if kind in ("dev", "test") else "train") == split]
    if split == "train" and not files:
        raise FileNotFoundError(f"TextCorpus: no text to train on in {os.fspath(train)}, only {', '.join(kinds)}")
    return files


def _list_files(path: Paths) -> list[str]:
    if not isinstance(path, (str, os.PathLike)):
        files = [file for part in path for file in _list_files(part)]
        if not files:
            raise ValueError("TextCorpus: path: expected a file, a folder, or several, got an empty list")
        return files
    path = os.fspath(path)
    if not os.path.exists(path):
        raise FileNotFoundError(f"TextCorpus: no such file or folder: {path}")
    if not os.path.isdir(path):
        return [path]
    files = [os.path.join(path, name) for name in sorted(os.listdir(path)) if name.endswith(_SUFFIXES)]
    if not files:
        raise FileNotFoundError(f"TextCorpus: no text file ({', '.join(_SUFFIXES)}) in the folder {path}")
    return files


def lines_of_split(numbers: np.ndarray, split: str, *, every: int, held_out: list[str]) -> np.ndarray:
    """
    :param numbers: of the lines, in their files
    :param held_out: splits that consist of lines of these files
    :return: which lines belong to the split
    """
    kinds = np.where(numbers % every == 0, "dev", np.where(numbers % every == every // 2, "test", "train"))
    if split in held_out:
        return kinds == split
    return ~np.isin(kinds, held_out)
