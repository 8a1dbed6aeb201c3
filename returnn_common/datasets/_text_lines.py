"""
Lines of text files, found by number without a Python object for each.
"""

from __future__ import annotations

import functools
import gzip
import mmap
import os
import re
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ._prepared import PreparedSplit

__all__ = ["TextLines", "read_lines"]

_SPACES = np.array([byte in b" \t\r\f\v" for byte in range(256)])
_BYTES_AT_ONCE = 2**26


class TextLines:
    """
    Lines, or parts of them, of files. A line is without spaces at its ends, and not empty.

    :param paths: of the files; UTF-8, plain or .gz
    :param names: of the files, in tags
    :param contents: of the files
    :param spans: for each line: index of the file, number of the line from 1, number of the part from 1 (0: the line
        is whole), begin and end in bytes
    """

    def __init__(self, paths: Sequence[str], names: Sequence[str], contents: Sequence[Any], spans: np.ndarray):
        self.paths, self.names, self.contents, self.spans = paths, names, contents, spans

    def __len__(self) -> int:
        return len(self.spans)

    def __iter__(self) -> Iterator[str]:
        return (self.text(i) for i in range(len(self)))

    def select(self, index: np.ndarray) -> TextLines:
        """:return: those lines alone"""
        return TextLines(self.paths, self.names, self.contents, self.spans[index])

    def text(self, i: int) -> str:
        """
        :return: the line, with single spaces between words
        :raises ValueError: if it is not UTF-8
        """
        file, number, _, begin, end = self.spans[i].tolist()
        try:
            return " ".join(self.contents[file][begin:end].decode("utf8").split())
        except UnicodeDecodeError as error:
            raise ValueError(f"{self.paths[file]}: line {number}: expected UTF-8, got {error.object[:50]!r}") from error

    def num_bytes(self, i: int) -> int:
        """:return: of the line"""
        return int(self.spans[i, 4] - self.spans[i, 3])

    def tag(self, i: int) -> str:
        """:return: unique name of the line: ``FILE:LINE`` or ``FILE:LINE:PART``"""
        file, number, part, _, _ = self.spans[i].tolist()
        return f"{self.names[file]}:{number}" + (f":{part}" if part else "")

    @property
    def line_numbers(self) -> np.ndarray:
        """in the file, from 1, of each line"""
        return self.spans[:, 1]


def read_lines(paths: Sequence[str], *, max_chars: int | None = None) -> TextLines:
    """
    :param paths: of the files; UTF-8, plain (mapped, not read into memory) or .gz; or prepared splits of speech (.zip),
        of which the transcripts are read
    :param max_chars: longer lines are split where a word ends, into parts as long as possible
    :raises FileNotFoundError: naming the file
    :raises ValueError: for a damaged file, or a longer word
    """
    files = [_read_file(path, *_version(path)) for path in paths]
    spans = []
    for index, (path, (content, lines)) in enumerate(zip(paths, files, strict=True)):
        whole = np.zeros([len(lines), 5], "int64")
        whole[:, 0], whole[:, 1], whole[:, 3:] = index, lines[:, 0], lines[:, 1:]
        spans.append(whole if max_chars is None else _split(path, content, whole, max_chars))
    base_names = [os.path.basename(path) for path in paths]
    names = base_names if len(set(base_names)) == len(paths) else list(paths)
    return TextLines(paths, names, [content for content, _ in files], np.concatenate(spans))


def _version(path: str) -> tuple[int, int]:
    if not os.path.isfile(path):
        raise FileNotFoundError(f"TextCorpus: no such file: {path}")
    stat = os.stat(path)
    return stat.st_mtime_ns, stat.st_size


@functools.lru_cache(maxsize=8)  # the datasets of a config share a file
def _read_file(path: str, mtime: int, size: int) -> tuple[Any, np.ndarray]:
    """:return: content, and for each line that is not empty: its number, begin, end"""
    if path.endswith(".zip"):  # a prepared split of speech: its transcripts
        texts = PreparedSplit(path).texts
        content = "\n".join(" ".join(text.split()) for text in texts).encode("utf8")
    elif path.endswith(".gz"):
        try:
            with gzip.open(path, "rb") as file:
                content = file.read()
        except (OSError, EOFError, zlib.error) as error:
            raise ValueError(f"TextCorpus: {path} cannot be unpacked: {error}") from error
    elif size:
        with open(path, "rb") as file:
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    else:
        content = b""
    return content, _find_lines(np.frombuffer(content, "uint8"))


def _find_lines(content: np.ndarray) -> np.ndarray:
    ends = [
        np.flatnonzero(content[start : start + _BYTES_AT_ONCE] == ord("\n")) + start
        for start in range(0, len(content), _BYTES_AT_ONCE)
    ]
    end = np.concatenate([*ends, [len(content)]]).astype("int64")
    begin = np.concatenate([[0], end[:-1] + 1])
    numbers = np.arange(1, len(end) + 1)
    for position, step, edge in ((begin, 1, 0), (end, -1, -1)):
        moving = np.flatnonzero(begin < end)
        while len(moving):
            moving = moving[_SPACES[content[position[moving] + edge]]]
            position[moving] += step
            moving = moving[begin[moving] < end[moving]]
    return np.stack([numbers, begin, end], axis=1)[begin < end]


def _split(path: str, content: Any, spans: np.ndarray, max_chars: int) -> np.ndarray:
    """:return: spans, with several for each line that is too long"""
    parts = {}
    for i in np.flatnonzero(spans[:, 4] - spans[:, 3] > max_chars).tolist():  # in bytes: at least as many as characters
        _, number, _, begin, end = spans[i].tolist()
        found = _split_line(content[begin:end], max_chars, where=f"{path}: line {number}")
        if len(found) > 1:
            parts[i] = np.array(found) + begin
    counts = np.ones(len(spans), "int64")
    counts[list(parts)] = [len(found) for found in parts.values()]
    first = np.cumsum(counts) - counts
    spans = np.repeat(spans, counts, axis=0)
    for i, found in parts.items():
        rows = slice(first[i], first[i] + len(found))
        spans[rows, 2] = range(1, len(found) + 1)
        spans[rows, 3:] = found
    return spans


def _split_line(line: bytes, max_chars: int, *, where: str) -> list[tuple[int, int]]:
    """:return: begin and end of each part"""
    if _num_chars(line) <= max_chars:
        return [(0, len(line))]
    parts: list[tuple[int, int]] = []
    for word in re.finditer(rb"\S+", line):
        begin, end = word.span()
        if parts and _num_chars(line[parts[-1][0] : end]) <= max_chars:
            parts[-1] = parts[-1][0], end
        elif _num_chars(word[0]) <= max_chars:
            parts.append((begin, end))
        else:
            text = word[0].decode("utf8", "replace")
            raise ValueError(
                f"{where}: expected words of at most max_chars = {max_chars} characters, "
                f"got one of {len(text)}, {text[:20]}..."
            )
    return parts


def _num_chars(text: bytes) -> int:
    return len(text.decode("utf8", "replace"))
