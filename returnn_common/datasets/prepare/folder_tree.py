"""
Files in folders, and what is asked of a tree of files.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Protocol

__all__ = ["FileTree", "FolderTree", "file_stamp"]


def file_stamp(path: str | os.PathLike[str]) -> str:
    """:return: text that changes when the file does: its size and time"""
    stat = os.stat(path)
    return f"{stat.st_size}\0{stat.st_mtime_ns}"


class FileTree(Protocol):
    """
    Where the files of a corpus are: :class:`FolderTree` or :class:`.archive.ArchiveTree`. Paths are relative to it,
    with slashes.
    """

    name: str

    def read(self, path: str) -> bytes:
        """:return: content of a file"""
        ...

    def walk(self) -> Iterator[tuple[str, list[str]]]:
        """:return: (folder, sorted names of its files) for each folder with files; "" for the outermost"""
        ...

    def loaders(self, paths: Iterable[str]) -> Iterator[Callable[[], bytes]]:
        """:return: functions that give the files' contents; they may be called in other threads"""
        ...

    def where(self, path: str = "") -> str:
        """:return: the tree, or a file in it, for messages"""
        ...


class FolderTree:
    """
    The files below a folder.

    :param root: the folder
    """

    def __init__(self, root: Path):
        self.root = root.resolve()  # for its name, e.g. given as "."
        self.name = self.root.name

    def walk(self) -> Iterator[tuple[str, list[str]]]:
        """
        Follows links, since corpora are often put together from them, but enters no folder twice, and none that is
        hidden. A folder that cannot be read is an error: what is in it would be missing without a word.
        """

        def _raise(error: OSError):
            raise error

        visited = set()
        for root, folders, names in os.walk(self.root, followlinks=True, onerror=_raise):
            real = os.path.realpath(root)
            if real in visited:
                folders.clear()
                continue
            visited.add(real)
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            folder = os.path.relpath(root, self.root).replace(os.sep, "/")
            names = sorted(name for name in names if not name.startswith("."))
            if names:
                yield "" if folder == "." else folder, names

    def read(self, path: str) -> bytes:
        """see :class:`FileTree`"""
        with open(os.path.join(self.root, path), "rb") as file:
            return file.read()

    def loaders(self, paths: Iterable[str]) -> Iterator[Callable[[], bytes]]:
        """see :class:`FileTree`"""
        for path in paths:
            yield functools.partial(self.read, path)

    def stamp(self, path: str) -> str:
        """:return: text that changes when the file does, with its path"""
        return f"{path}\0{file_stamp(os.path.join(self.root, path))}"

    def where(self, path: str = "") -> str:
        """see :class:`FileTree`"""
        return os.path.join(self.root, path) if path else str(self.root)
