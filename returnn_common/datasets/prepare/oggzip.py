"""
Writes the files that RETURNN's ``OggZipDataset`` reads, and keeps a record of what they were made from.

``SPLIT.zip`` holds the recordings as ``SPLIT/UTTERANCE.flac`` and ``SPLIT.txt``, a Python list of dicts. The same input
gives the same bytes. ``SPLIT.manifest.json`` beside it is written last: a zip without it was interrupted.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import zipfile
from pathlib import Path

from .report import Problem, SplitSummary
from .scan import SplitSource

__all__ = ["Manifest", "OggZipWriter", "exclusive_folder", "read_manifest", "source_digest", "write_manifest"]

_PART_SUFFIX = ".part"
_FORMAT = 1  # raise it when the zip's content changes, so that older ones are made again


class OggZipWriter:
    """
    Writes one zip under a temporary name; :meth:`finish` renames it. Used as a context manager, leaving it without
    :meth:`finish` removes the temporary file.

    :param path: where the zip is to be
    """

    def __init__(self, path: Path):
        self._path = path
        self._part = path.with_name(f".{path.name}{_PART_SUFFIX}")
        self._file = open(self._part, "wb")
        self._zip = zipfile.ZipFile(self._file, "w")
        self._entries: list[str] = []

    def __enter__(self) -> OggZipWriter:
        return self

    def __exit__(self, *_exc):
        self._zip.fp = None  # so that it does not write its directory for nobody; no effect after finish()
        self._file.close()
        self._part.unlink(missing_ok=True)

    def add(self, name: str, *, text: str, flac: bytes, seconds: float):
        """
        :param name: of the utterance
        :param text: its transcript
        :param flac: content of its FLAC file
        :param seconds: its duration
        """
        file = f"{name}.flac"
        self._zip.writestr(_zip_info(f"{self._path.stem}/{file}"), flac)
        self._entries.append(repr({"text": text, "duration": float(seconds), "file": file, "seq_name": name}))

    def finish(self):
        """Completes the file and gives it its name."""
        index = "[\n" + ",\n".join(self._entries) + "\n]\n"
        info = _zip_info(f"{self._path.stem}.txt")
        info.compress_type = zipfile.ZIP_DEFLATED
        self._zip.writestr(info, index)
        self._zip.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        os.replace(self._part, self._path)


def _zip_info(name: str) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
    info.create_system = 3
    info.external_attr = 0o644 << 16
    return info


@dataclasses.dataclass(frozen=True)
class Manifest:
    """
    :param source: digest of the names, sizes and times of all files that the split was made from
    :param zip_size: in bytes
    :param summary: of the split
    :param problems: what was skipped
    """

    source: str
    zip_size: int
    summary: SplitSummary
    problems: list[Problem]


def source_digest(split: SplitSource, *, root: Path) -> str:
    """A digest that changes when a file of the split is added, removed, or modified; or the format of the output."""
    digest = hashlib.sha256(f"{_FORMAT}\n".encode())
    for path in split.files:
        stat = path.stat()
        digest.update(
            f"{path.relative_to(root).as_posix()}\0{stat.st_size}\0{stat.st_mtime_ns}\n".encode(
                "utf8", "surrogateescape"
            )
        )
    return digest.hexdigest()


def manifest_path(zip_path: Path) -> Path:
    """The manifest's path, beside the zip."""
    return zip_path.with_name(f"{zip_path.stem}.manifest.json")


def read_manifest(zip_path: Path) -> Manifest | None:
    """
    :return: the record of a zip, if it is complete and still has the recorded size; else None
    """
    try:
        data = json.loads(manifest_path(zip_path).read_text("utf8"))
        manifest = Manifest(
            source=data["source"],
            zip_size=data["zip_size"],
            summary=SplitSummary(**data["summary"]),
            problems=[Problem(**problem) for problem in data["problems"]],
        )
        if zip_path.stat().st_size != manifest.zip_size or not zipfile.is_zipfile(zip_path):
            return None
        return manifest
    except (OSError, ValueError, KeyError, TypeError):
        return None  # not there, or from another program: the zip is made again


def write_manifest(zip_path: Path, manifest: Manifest):
    """Writes it under a temporary name first, like the zip."""
    path = manifest_path(zip_path)
    part = path.with_name(f".{path.name}{_PART_SUFFIX}")
    part.write_text(json.dumps(dataclasses.asdict(manifest), indent=1, ensure_ascii=False), "utf8")
    os.replace(part, path)


@contextlib.contextmanager
def exclusive_folder(folder: Path):
    """
    Makes the folder if it is not there, keeps others out (where the file system can lock), and removes what an
    interrupted call has left. The lock ends with the process, also when it is killed.

    :raises RuntimeError: if another process is preparing into it
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder, os.O_RDONLY)
    try:
        try:
            import fcntl

            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RuntimeError(f"another process is writing to {folder}") from error
        except (ImportError, OSError):
            pass  # no locks on this system
        for path in folder.glob(f".*{_PART_SUFFIX}"):
            if path.name.endswith((f".zip{_PART_SUFFIX}", f".manifest.json{_PART_SUFFIX}")):
                path.unlink()
        yield
    finally:
        os.close(lock)
