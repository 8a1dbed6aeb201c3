"""
Writes the files that RETURNN's ``OggZipDataset`` reads.

``SPLIT.zip`` holds the recordings as ``SPLIT/UTTERANCE.flac`` (or ``.ogg``) and ``SPLIT.txt``, a Python list of dicts.
The same input gives the same bytes, also when the writing was interrupted and went on.
"""

from __future__ import annotations

import ast
import contextlib
import json
import os
import zipfile
from pathlib import Path
from typing import Any, BinaryIO

__all__ = ["OggZipWriter", "read_index"]

_COMMIT_BYTES, _COMMIT_RECORDS = 2**25, 1000  # so much, at most, is lost when the process is killed


class OggZipWriter:
    """
    Writes one zip under a temporary name; :meth:`finish` renames it. Beside it is a journal of what the disk has for
    sure, so that another writer with the same ``source`` goes on from there. To be used as a context manager.

    :param path: where the zip is to be
    :param source: digest of what it is made from
    """

    def __init__(self, path: Path, *, source: str):
        self._path = path
        self._part = path.with_name(f".{path.name}.part")
        self._journal_path = path.with_name(f".{path.stem}.journal.part")
        records, end = _read_journal(self._journal_path, self._part, source=source)
        self.resumed: list[tuple[str, dict[str, Any]]] = [(record["name"], record["outcome"]) for record in records]
        """name and outcome of each utterance that an earlier writer has added or skipped"""
        self._entries: list[str] = []
        self._pending: list[str] = []
        self._pending_bytes = 0
        self._finished = False
        self._file: BinaryIO = open(self._part, "r+b" if records else "wb")
        self._file.truncate(end)
        self._zip = zipfile.ZipFile(self._file, "w")
        self._zip.start_dir = end  # where it goes on
        for record in records:
            if record["file"] is not None:
                self._restore(record)
        self._journal = open(self._journal_path, "a" if records else "w", encoding="utf8")
        if not records:
            self._pending.append(json.dumps({"source": source}))

    def __enter__(self) -> OggZipWriter:
        return self

    def __exit__(self, *_exc):
        self._zip.fp = None  # so that it does not write its directory for nobody; no effect after finish()
        with contextlib.suppress(OSError), self._journal, self._file:  # such as a full disk, which is reported already
            if not self._finished:
                self._commit()
        if self._finished or not self._entries:
            self._part.unlink(missing_ok=True)
            self._journal_path.unlink(missing_ok=True)

    def add(self, name: str, *, text: str, file: str, content: bytes, outcome: dict[str, Any]):
        """
        :param name: of the utterance
        :param text: its transcript
        :param file: name of its recording
        :param content: of that
        :param outcome: kept in the journal, see ``resumed``; ``seconds`` is the duration, ``speaker`` may be there
        """
        info = _zip_info(f"{self._path.stem}/{file}")
        self._zip.writestr(info, content)
        entry = {"text": text, "duration": float(outcome["seconds"]), "file": file, "seq_name": name}
        if outcome.get("speaker") is not None:
            entry["speaker"] = outcome["speaker"]
        self._entries.append(repr(entry))
        where = {"offset": info.header_offset, "crc": info.CRC, "end": self._zip.start_dir}
        self._record(name, info.filename, outcome, size=len(content), entry=self._entries[-1], **where)

    def skip(self, name: str, *, outcome: dict[str, Any]):
        """
        Notes in the journal that an utterance is left out.

        :param name: of the utterance
        :param outcome: see :meth:`add`
        """
        self._record(name, None, outcome, end=self._zip.start_dir)

    def finish(self):
        """Completes the file and gives it its name."""
        index = "[\n" + ",\n".join(self._entries) + "\n]\n"
        info = _zip_info(f"{self._path.stem}.txt")
        info.compress_type = zipfile.ZIP_DEFLATED
        self._zip.writestr(info, index)
        self._zip.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        os.replace(self._part, self._path)
        self._finished = True

    def _record(self, name: str, file: str | None, outcome: dict[str, Any], *, size: int = 0, **fields: Any):
        self._pending.append(json.dumps({"name": name, "file": file, "outcome": outcome, "size": size, **fields}))
        self._pending_bytes += size
        if self._pending_bytes > _COMMIT_BYTES or len(self._pending) > _COMMIT_RECORDS:
            self._commit()

    def _commit(self):
        """First what is recorded, then the record."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._journal.write("".join(f"{line}\n" for line in self._pending))
        self._journal.flush()
        self._pending.clear()
        self._pending_bytes = 0

    def _restore(self, record: dict[str, Any]):
        info = _zip_info(record["file"])
        info.header_offset, info.CRC = record["offset"], record["crc"]
        info.file_size = info.compress_size = record["size"]
        self._zip.filelist.append(info)
        self._zip.NameToInfo[info.filename] = info
        self._entries.append(record["entry"])


def read_index(path: Path) -> list[dict[str, Any]]:
    """
    :param path: ``SPLIT.zip``
    :return: ``text``, ``duration``, ``file``, ``seq_name`` and perhaps ``speaker`` of each utterance
    :raises ValueError: if it is no prepared split
    :raises OSError: if it cannot be read
    """
    try:
        with zipfile.ZipFile(path) as file, file.open(f"{path.stem}.txt") as lines:
            # One by one: the whole list at once takes a lot of memory.
            entries = [ast.literal_eval(line.decode("utf8").rstrip().rstrip(",")) for line in lines if line[:1] == b"{"]
    except (zipfile.BadZipFile, KeyError, ValueError, SyntaxError) as error:
        raise ValueError(f"{path} is not a prepared split ({error})") from error
    return entries


def _read_journal(path: Path, part: Path, *, source: str) -> tuple[list[dict[str, Any]], int]:
    """
    :return: records whose data are there, and the position after the last of them
    """
    records: list[dict[str, Any]] = []
    end = 0
    try:
        size = part.stat().st_size
        with open(path, encoding="utf8") as file:
            if json.loads(file.readline()) != {"source": source}:
                return [], 0
            for line in file:
                record = json.loads(line)
                if not line.endswith("\n") or record["end"] > size:
                    break
                records.append(record)
                end = record["end"]
    except (OSError, ValueError):
        pass  # not there, or cut off
    return records, end


def _zip_info(name: str) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
    info.create_system = 3
    info.external_attr = 0o644 << 16
    return info
