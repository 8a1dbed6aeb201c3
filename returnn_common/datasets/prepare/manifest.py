"""
The record beside each prepared split, ``SPLIT.manifest.json``: what it was made from, and what came out.

It is written last: a zip without it was interrupted.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from .report import Problem, SplitSummary

__all__ = ["Manifest", "exclusive_folder", "manifest_path", "read_manifest", "source_digest", "write_manifest"]

_FORMAT = 1  # raise it when the zip's content changes, so that older ones are made again


@dataclasses.dataclass(frozen=True)
class Manifest:
    """
    :param source: digest of the names, sizes and times of all files that the split was made from
    :param zip_size: in bytes
    :param summary: of the split
    :param problems: what was skipped
    :param missing: what an official split should have, and this one has not; sentences
    :param archive_splits: all splits of the archive that this one is from
    """

    source: str
    zip_size: int
    summary: SplitSummary
    problems: list[Problem]
    missing: list[str] = dataclasses.field(default_factory=list)
    archive_splits: list[str] = dataclasses.field(default_factory=list)


def source_digest(stamps: Iterable[str], *, audio_format: str) -> str:
    """
    :param stamps: of each file that a split is made from: path, size, time
    :param audio_format: of the output
    :return: a digest that changes when a file of the split is added, removed, or modified; or the format of the output
    """
    digest = hashlib.sha256(f"{_FORMAT}\n".encode())
    if audio_format != "flac":
        digest.update(f"{audio_format}\n".encode())
    for stamp in stamps:
        digest.update(f"{stamp}\n".encode("utf8", "surrogateescape"))
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
        data["summary"] = SplitSummary(**data["summary"])
        data["problems"] = [Problem(**problem) for problem in data["problems"]]
        manifest = Manifest(**data)
        if zip_path.stat().st_size != manifest.zip_size or not zipfile.is_zipfile(zip_path):
            return None
        return manifest
    except (OSError, ValueError, KeyError, TypeError):
        return None  # not there, or from another program: the zip is made again


def write_manifest(zip_path: Path, manifest: Manifest):
    """Writes it under a temporary name first, like the zip."""
    path = manifest_path(zip_path)
    part = path.with_name(f".{path.name}.part")
    part.write_text(json.dumps(dataclasses.asdict(manifest), indent=1, ensure_ascii=False), "utf8")
    os.replace(part, path)


@contextlib.contextmanager
def exclusive_folder(folder: Path) -> Iterator[None]:
    """
    Makes the folder if it is not there, and keeps others out (where the file system can lock). The lock ends with the
    process, also when it is killed.

    :raises RuntimeError: if another process is writing to it
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
        yield
    finally:
        os.close(lock)
