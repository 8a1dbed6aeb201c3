"""
Which recordings there are.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["SUFFIXES", "Found", "Source", "find_recordings", "printable"]

# Of the files in folders. Those named one by one can be called anything.
SUFFIXES = (".wav", ".flac", ".ogg", ".oga", ".opus", ".mp3", ".aif", ".aiff", ".au", ".caf", ".w64", ".rf64")


@dataclass(frozen=True)
class Source:
    """
    :param path: as the user gives it, or below a folder that the user gives
    :param stem: for the names of files to write: without suffix, relative to that folder
    """

    path: Path
    stem: Path

    @property
    def name(self) -> str:
        """for people"""
        return printable(str(self.path))


@dataclass
class Found:
    """
    :param sources: each file once, in the order of the arguments, those of a folder sorted
    :param problems: name and message of what is missing
    :param is_single: whether the user has named one file and nothing else
    """

    sources: list[Source] = field(default_factory=list)
    problems: list[tuple[str, str]] = field(default_factory=list)
    is_single: bool = False


def find_recordings(arguments: Sequence[str]) -> Found:
    """
    :param arguments: files and folders
    """
    found = Found()
    seen: set[str] = set()
    for argument in arguments:
        path = Path(argument)
        try:
            sources = _in_folder(path) if path.is_dir() else [Source(path, Path(path.stem))] if path.exists() else []
        except OSError as error:
            found.problems.append((printable(argument), error.strerror or str(error)))
            continue
        if not sources:
            what = f"no recordings ({', '.join(SUFFIXES)}) in it" if path.is_dir() else "no such file"
            found.problems.append((printable(argument), what))
        for source in sources:
            real = os.path.realpath(source.path)
            if real not in seen:
                seen.add(real)
                found.sources.append(source)
    found.is_single = len(arguments) == 1 and not os.path.isdir(arguments[0])
    return found


def _in_folder(folder: Path) -> list[Source]:
    paths = sorted(_walk(folder))
    return [Source(path, path.relative_to(folder).with_suffix("")) for path in paths]


def _walk(folder: Path) -> Iterator[Path]:
    """Follows links, but enters no folder twice. A folder that cannot be read is an error: it would be missing."""

    def fail(error: OSError):
        raise error

    visited = set()
    for root, folders, names in os.walk(folder, followlinks=True, onerror=fail):
        real = os.path.realpath(root)
        if real in visited:
            folders.clear()
            continue
        visited.add(real)
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (Path(root) / name for name in names if name.lower().endswith(SUFFIXES) and not name.startswith("."))


def printable(name: str) -> str:
    """:return: without what is no UTF-8, and without tabs and line breaks, which end a name"""
    name = name.encode("utf8", "backslashreplace").decode("utf8")
    return name.replace("\t", "\\t").replace("\n", "\\n").replace("\r", "\\r")
