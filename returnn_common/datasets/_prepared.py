"""
Splits as ``returnn-common prepare`` writes them: a zip with recordings and an index (see :mod:`.prepare.oggzip`).
"""

from __future__ import annotations

import ast
import os
import zipfile
from typing import Any

import numpy as np

from ._decode import decode_audio

__all__ = ["PreparedSplit", "read_index"]

_LOCAL_HEADER = 30  # bytes, before the file's name; in them, at 28, the size of further fields
_LARGE_INDEX = 2**20  # bytes; from here on, RETURNN's faster parser is worth compiling


def read_index(file: zipfile.ZipFile, split: str) -> list[dict[str, Any]]:
    """
    :param file: open
    :param split: the split's name
    :return: for each utterance a dict with ``text``, ``duration`` in seconds, ``file`` and ``seq_name``
    :raises ValueError: if there is no index, or it is another one
    """
    try:
        content = file.read(f"{split}.txt")
        if len(content) >= _LARGE_INDEX:
            from returnn.util.literal_py_to_pickle import literal_eval

            entries = literal_eval(content)
        else:
            entries = ast.literal_eval(content.decode("utf8"))
        if not isinstance(entries, list) or not all("text" in e and "duration" in e and "file" in e for e in entries):
            raise ValueError("its index is no list of utterances")
        return [{"seq_name": entry["file"], **entry} for entry in entries]
    except (zipfile.BadZipFile, KeyError, TypeError, ValueError, SyntaxError) as error:
        raise ValueError(f"{file.filename} is not a prepared split ({error})") from error


class PreparedSplit:
    """
    A split's index in memory, and its recordings on request.

    :param path: of the zip
    :param split: the name inside, by default that of the file
    :raises FileNotFoundError: if the file is not there
    :raises ValueError: if it is another one
    """

    def __init__(self, path: str, *, split: str | None = None):
        self.path = path
        self._file: int | None = None
        split = os.path.splitext(os.path.basename(path))[0] if split is None else split
        try:
            file = zipfile.ZipFile(path)
        except zipfile.BadZipFile as error:
            raise ValueError(f"{path} is not a prepared split ({error})") from error
        with file:
            entries = read_index(file, split)
            self.names: list[str] = [entry["seq_name"] for entry in entries]
            self.texts: list[str] = [entry["text"] for entry in entries]
            self.seconds = np.array([entry["duration"] for entry in entries], "float64")
            self._places = np.array([_find(file, split, entry["file"]) for entry in entries], "int64").reshape(-1, 3)

    def read(self, index: int) -> np.ndarray:
        """
        :param index: of the utterance
        :return: {time}, float32, in [-1, 1], 16 kHz
        :raises BrokenAudioError: naming utterance and file
        """
        return decode_audio(self._read_bytes(index), what=f"{self.names[index]} in {self.path}")

    def close(self):
        """Until the next recording is read."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def __del__(self):
        self.close()

    def _read_bytes(self, index: int) -> bytes:
        """Recordings are stored as they are, so that they can be read without zipfile, which takes longer."""
        start, size, name_size = self._places[index].tolist()
        if self._file is None:
            self._file = os.open(self.path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        extra_size = int.from_bytes(os.pread(self._file, 2, start + 28), "little")
        return os.pread(self._file, size, start + _LOCAL_HEADER + name_size + extra_size)


def _find(file: zipfile.ZipFile, split: str, name: str) -> tuple[int, int, int]:
    """:return: where the recording starts, its size, and the size of its name, in bytes"""
    path = f"{split}/{name}"
    try:
        info = file.getinfo(path)
    except KeyError as error:
        raise ValueError(f"{file.filename} is not a prepared split (it has no {path})") from error
    if info.compress_type != zipfile.ZIP_STORED:
        raise ValueError(f"{file.filename} is not a prepared split ({path} is compressed)")
    encoded = info.orig_filename.encode("utf8" if info.flag_bits & 0x800 else "cp437")
    return info.header_offset, info.file_size, len(encoded)
