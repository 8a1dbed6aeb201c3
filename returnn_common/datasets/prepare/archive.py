"""
Tar archives, read without unpacking: members in any order, with bounded memory.

A gzip stream can only be read from its beginning. So the archive is decompressed once to find its members, and the
decompressor's state is kept every 16 MiB; a member is read from the last such state before it.
"""

from __future__ import annotations

import functools
import os
import tarfile
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

__all__ = ["ARCHIVE_SUFFIXES", "ArchiveTree", "BrokenArchiveError", "archive_name", "is_archive"]

ARCHIVE_SUFFIXES = (".tar.gz", ".tgz", ".tar")
_BLOCK = 2**24  # bytes of content from one kept state to the next; a state takes 40 kB and up to a chunk
_NUM_BLOCKS = 12  # that stay in memory
_CHUNK = 2**14  # compressed bytes read at a time


class BrokenArchiveError(ValueError):
    """An archive that was cut off, is damaged, or is none."""


def is_archive(name: str) -> bool:
    """:return: whether a file is called like an archive that can be read"""
    return name.lower().endswith(ARCHIVE_SUFFIXES) and not name.startswith(".")


def archive_name(name: str) -> str:
    """:return: the name without the archive's suffix"""
    return next((name[: -len(suffix)] for suffix in ARCHIVE_SUFFIXES if name.lower().endswith(suffix)), name)


class ArchiveTree:
    """
    The files in a tar archive. Making it reads the whole archive once. To be used as a context manager.

    :param path: .tar, .tar.gz or .tgz, told apart by their content
    :param keep: which files are short and needed, such as transcripts: they are kept in memory
    :raises BrokenArchiveError: see there
    :raises OSError: if it cannot be read
    """

    def __init__(self, path: Path, *, keep: Callable[[str], bool]):
        self._path = path
        self.name = archive_name(path.name)
        with open(path, "rb") as file:
            compressed = file.read(2) == b"\x1f\x8b"
        self._content = _GzipContent(path) if compressed else _PlainContent(path)
        self._members: dict[str, tuple[int, int]] = {}
        self._kept: dict[str, bytes] = {}
        try:
            self._find_members(keep)
        except (tarfile.TarError, zlib.error, EOFError) as error:
            self._content.close()
            raise BrokenArchiveError(f"archive {path}: cut off or damaged ({error}); get it again") from error

    def __enter__(self) -> ArchiveTree:
        return self

    def __exit__(self, *_exc):
        self._content.close()

    def _find_members(self, keep: Callable[[str], bool]):
        stream = _Stream(self._content.blocks())
        with tarfile.open(fileobj=stream, mode="r|", bufsize=2**20) as tar:  # type: ignore[call-overload]
            while (member := tar.next()) is not None:
                tar.members.clear()  # it would keep them all
                path = os.path.normpath(member.name).lstrip("/")
                if member.islnk():
                    linked = os.path.normpath(member.linkname).lstrip("/")
                    if linked in self._members:
                        self._members[path] = self._members[linked]
                        if linked in self._kept:
                            self._kept[path] = self._kept[linked]
                elif member.isreg():
                    self._members[path] = member.offset_data, member.size
                    if keep(os.path.basename(path)):
                        file = tar.extractfile(member)
                        self._kept[path] = file.read() if file is not None else b""
            # tarfile takes a damaged header for the end, and the checksum of gzip comes last
            while rest := tar.fileobj.read(2**20):  # type: ignore[union-attr]
                if rest.count(0) != len(rest):
                    raise tarfile.ReadError("a header is damaged")

    def walk(self) -> Iterator[tuple[str, list[str]]]:
        """
        :return: (folder, sorted names of its files) for each folder with files, sorted; "" for the outermost. Without
            what is hidden.
        """
        folders: dict[str, list[str]] = {}
        for path in self._members:
            if not any(part.startswith(".") for part in path.split("/")):
                folder, _, name = path.rpartition("/")
                folders.setdefault(folder, []).append(name)
        for folder in sorted(folders):
            yield folder, sorted(folders[folder])

    def read(self, path: str) -> bytes:
        """:return: content of a file"""
        if path in self._kept:
            return self._kept[path]
        try:
            return self._content.read(*self._members[path])
        except (zlib.error, EOFError) as error:
            raise BrokenArchiveError(f"archive {self._path}: it has changed meanwhile ({error})") from error

    def loaders(self, paths: Iterable[str]) -> Iterator[Callable[[], bytes]]:
        """:return: functions that give the files' contents; they may be called in other threads"""
        for path in paths:
            yield functools.partial(bytes, self.read(path))

    def where(self, path: str = "") -> str:
        """:return: the archive, or a file in it, for messages"""
        return f"{self._path}:{path}" if path else str(self._path)


class _Stream:
    """What tarfile reads from."""

    def __init__(self, blocks: Iterator[bytes]):
        self._blocks = blocks
        self._block, self._position = b"", 0

    def read(self, size: int) -> bytes:
        if self._position >= len(self._block):
            self._block, self._position = next(self._blocks, b""), 0
        part = self._block[self._position : self._position + size]
        self._position += len(part)
        # tarfile takes less than it asked for as the end
        return part + self.read(size - len(part)) if part and len(part) < size else part


class _PlainContent:
    """Content of a file, at any place."""

    def __init__(self, path: Path):
        self._file = open(path, "rb")
        self.close = self._file.close

    def blocks(self) -> Iterator[bytes]:
        self._file.seek(0)
        while block := self._file.read(_BLOCK):
            yield block

    def read(self, offset: int, size: int) -> bytes:
        self._file.seek(offset)
        content = self._file.read(size)
        if len(content) < size:
            raise EOFError("it ends too early")
        return content


class _GzipContent:
    """Content of a gzip file, at any place that :meth:`blocks` has come to."""

    def __init__(self, path: Path):
        self._file = open(path, "rb")
        self.close = self._file.close
        self._states: list[tuple[Any, int]] = [(zlib.decompressobj(31), 0)]  # and the position in the file
        self._cache: OrderedDict[int, bytes] = OrderedDict()

    def blocks(self) -> Iterator[bytes]:
        index = 0
        while block := self._block(index):
            yield block
            index += 1

    def read(self, offset: int, size: int) -> bytes:
        parts = []
        while size > 0:
            index, start = divmod(offset, _BLOCK)
            part = self._block(index)[start : start + size]
            if not part:
                raise EOFError("it ends too early")
            parts.append(part)
            offset, size = offset + len(part), size - len(part)
        return b"".join(parts)

    def _block(self, index: int) -> bytes:
        if index in self._cache:
            self._cache.move_to_end(index)
            return self._cache[index]
        if index >= len(self._states):
            return b""
        decompressor, position = self._states[index]
        block, state = self._inflate(decompressor.copy(), position)
        if index + 1 == len(self._states) and len(block) == _BLOCK:
            self._states.append(state)
        self._cache[index] = block
        while len(self._cache) > _NUM_BLOCKS:
            self._cache.popitem(last=False)
        return block

    def _inflate(self, decompressor: Any, position: int) -> tuple[bytes, tuple[Any, int]]:
        """:return: up to ``_BLOCK`` bytes, and where the next ones start"""
        parts, missing = [], _BLOCK
        self._file.seek(position)
        while missing > 0:
            if decompressor.eof:
                if self._is_end():
                    break
                decompressor = zlib.decompressobj(31)  # gzip files may be joined
            chunk = self._file.read(_CHUNK)
            part = decompressor.decompress(chunk, missing)
            if not chunk and not part and not decompressor.eof:
                raise EOFError("the file ends too early")
            unused = len(decompressor.unused_data if decompressor.eof else decompressor.unconsumed_tail)
            position += len(chunk) - unused
            if unused:
                self._file.seek(position)
            parts.append(part)
            missing -= len(part)
        return b"".join(parts), (decompressor, position)

    def _is_end(self) -> bool:
        """:return: whether nothing but padding follows"""
        position = self._file.tell()
        while chunk := self._file.read(_CHUNK):
            if chunk.count(0) != len(chunk):
                self._file.seek(position)
                return False
        return True
