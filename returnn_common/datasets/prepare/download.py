"""
Gets the official archives of LibriSpeech.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import re
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from .archive import archive_name, is_archive
from .folder_tree import FolderTree
from .manifest import exclusive_folder
from .official import OFFICIAL_SPLITS
from .scan import is_audio

__all__ = ["MIRRORS", "DownloadError", "download_librispeech", "fetch"]

MIRRORS = (
    "https://www.openslr.org/resources/12",
    "https://us.openslr.org/resources/12",
    "https://openslr.elda.org/resources/12",
)
_ATTEMPTS = 5  # in vain, one after another
_CHUNK = 2**20
_TIMEOUT = 60.0  # seconds without a byte

DownloadProgress = Callable[[int, int, str], None]


class DownloadError(OSError):
    """A file that could not be got; what there is of it was kept, unless it is wrong."""


def download_librispeech(
    folder: str | os.PathLike[str],
    *,
    splits: Collection[str] | None = None,
    mirrors: Sequence[str] = MIRRORS,
    on_progress: DownloadProgress | None = None,
) -> list[Path]:
    """
    Gets ``folder/SPLIT.tar.gz`` for each split that is not in the folder yet, as archive or unpacked. After an
    interruption, the next call goes on with the rest of the file.

    :param folder: made where it is missing
    :param splits: None: all seven
    :param mirrors: addresses that have the archives, tried in this order
    :param on_progress: called with the bytes that are there, the whole number (0: not known), and the file's name
    :return: what was downloaded
    :raises ValueError: for a split that LibriSpeech does not have
    :raises DownloadError: see :func:`fetch`; also if the disk is too small
    :raises RuntimeError: another process is writing to ``folder``
    """
    if not mirrors or isinstance(mirrors, str):
        raise ValueError(f"mirrors: expected one or more addresses, got {mirrors!r}")
    folder = Path(folder)
    wanted = list(OFFICIAL_SPLITS) if splits is None else list(dict.fromkeys(splits))
    with exclusive_folder(folder):
        missing = [name for name in wanted if name not in _present(folder)]
        unknown = [name for name in missing if name not in OFFICIAL_SPLITS]
        if unknown:
            raise ValueError(f"LibriSpeech has no split {', '.join(unknown)}, only {', '.join(OFFICIAL_SPLITS)}")
        paths = []
        for name in missing:
            paths.append(folder / f"{name}.tar.gz")
            urls = [f"{mirror.rstrip('/')}/{name}.tar.gz" for mirror in mirrors]
            fetch(urls, paths[-1], md5=OFFICIAL_SPLITS[name].md5, on_progress=on_progress)
    return paths


def _present(folder: Path) -> set[str]:
    found = set()
    for inside, names in FolderTree(folder).walk():
        found.update(archive_name(name) for name in names if is_archive(name))
        if any(map(is_audio, names)):
            found.update(inside.split("/"))
    return found


def fetch(urls: Sequence[str], path: Path, *, md5: str, on_progress: DownloadProgress | None = None):
    """
    Downloads a file to ``path``, under the name ``path`` + ``.part`` as long as it is not complete and checked. What an
    earlier call has left there is not downloaded again, where the server can send a part of a file.

    :param urls: of the same file, tried in this order
    :param path: to write
    :param md5: checksum of the file, hexadecimal
    :param on_progress: see :func:`download_librispeech`
    :raises DownloadError: none of the addresses has the file, or one with this checksum; or the disk is too small
    """
    part = path.with_name(f"{path.name}.part")
    errors = []
    for url in urls:
        while True:
            had_part = part.exists() and part.stat().st_size > 0
            try:
                _fetch_whole(url, part, on_progress=on_progress)
            except _NotThere as error:
                errors.append(f"{url}: {error}")
                break
            found = _md5(part)
            if found == md5:
                os.replace(part, path)
                return
            part.unlink()
            if not had_part:
                errors.append(f"{url}: its MD5 checksum is {found}, expected {md5}")
                break  # else the part was of another file: once more, from the beginning
    raise DownloadError(f"{path.name} could not be downloaded: {'; '.join(errors)}")


class _NotThere(Exception):
    """This address does not help."""


class _Interrupted(Exception):
    """The same address may help."""


def _fetch_whole(url: str, part: Path, *, on_progress: DownloadProgress | None):
    """Asks for the rest until all is there."""
    in_vain = 0
    while True:
        before = part.stat().st_size if part.exists() else 0
        try:
            _fetch_rest(url, part, on_progress=on_progress)
            return
        except _Interrupted as error:
            after = part.stat().st_size if part.exists() else 0
            in_vain = 0 if after > before else in_vain + 1
            if in_vain >= _ATTEMPTS:
                raise _NotThere(str(error)) from error
            time.sleep(2 ** max(in_vain - 1, 0))


def _fetch_rest(url: str, part: Path, *, on_progress: DownloadProgress | None):
    offset = part.stat().st_size if part.exists() else 0
    response = _ask(url, offset)
    if response is None:  # there is no more
        return
    with response:
        start, total = _range(response)
        if start not in (0, offset):
            raise _Interrupted(f"asked for bytes from {offset}, got them from {start}")
        _check_space(part, start=start, total=total)
        with open(part, "r+b" if part.exists() else "wb") as file:
            file.truncate(start)
            file.seek(start)
            while chunk := _read(response):
                file.write(chunk)
                if on_progress is not None:
                    on_progress(file.tell(), total, part.stem)
            size = file.tell()
    if size < total:
        raise _Interrupted(f"the connection ended after {size} of {total} bytes")


def _ask(url: str, offset: int) -> Any:
    """:return: the server's answer, from some byte on; None if there are no bytes after the offset"""
    headers = {"User-Agent": "returnn_common"} | ({"Range": f"bytes={offset}-"} if offset else {})
    try:
        return urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=_TIMEOUT)
    except urllib.error.HTTPError as error:
        with error:
            if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and offset:
                return None  # if the file is shorter, the checksum will tell
            message = f"{error.code} {error.reason}"
            retry = error.code >= 500 or error.code in (
                http.HTTPStatus.REQUEST_TIMEOUT,
                http.HTTPStatus.TOO_MANY_REQUESTS,
            )
            raise (_Interrupted if retry else _NotThere)(message) from error
    except (OSError, http.client.HTTPException) as error:
        raise _Interrupted(str(getattr(error, "reason", None) or error)) from error
    except ValueError as error:  # no address at all
        raise _NotThere(str(error)) from error


def _range(response: Any) -> tuple[int, int]:
    """:return: the first byte that is sent, and the number of bytes of the whole file (0: not known)"""
    match = re.fullmatch(r"bytes (\d+)-\d+/(\d+)", response.headers.get("Content-Range") or "")
    if getattr(response, "status", None) == http.HTTPStatus.PARTIAL_CONTENT and match is not None:
        return int(match[1]), int(match[2])
    return 0, int(response.headers.get("Content-Length") or 0)


def _read(response: Any) -> bytes:
    try:
        return response.read(_CHUNK)
    except http.client.IncompleteRead as error:
        return error.partial  # the next one finds nothing, and the size tells
    except (OSError, http.client.HTTPException) as error:
        raise _Interrupted(str(error) or type(error).__name__) from error


def _check_space(part: Path, *, start: int, total: int):
    replaced = part.stat().st_size - start if part.exists() else 0
    missing, free = total - start, shutil.disk_usage(part.parent).free + replaced
    if missing > free:
        raise DownloadError(
            f"{part.stem}: {missing / 1e9:.1f} GB are to be downloaded, but {part.parent} has only {free / 1e9:.1f} GB "
            "left"
        )


def _md5(path: Path) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
