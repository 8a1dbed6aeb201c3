"""
Finds files: those bundled with the package (vocabularies), and large external ones (corpora) of which the user says
where they lie.
"""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath, PureWindowsPath

__all__ = ["get_bundled_path", "get_common_data_path"]

_PACKAGE_DIR = Path(__file__).resolve().parent


def get_common_data_path(name: str) -> str:
    """
    The path of an external file or folder, below ``$RETURNN_COMMON_DATA_PATH`` (default ``data-common``, relative to
    the working directory). Only puts the path together: the file system is not looked at, so that a config can be
    written on a machine that does not have the data.

    :param name: relative path with forward slashes, e.g. ``"librispeech"`` or ``"librispeech/dev-clean.zip"``
    :return: the path
    :raises ValueError: if the name is empty, absolute, or leads out of the folder
    """
    _check_name(name)
    return os.path.join(os.environ.get("RETURNN_COMMON_DATA_PATH") or "data-common", name)


def get_bundled_path(name: str) -> Path:
    """
    The path of a file shipped with this package. An installed wheel has them in ``returnn_common/_data``; in a
    checkout (and so in an editable install) they lie in ``data`` beside the package.

    :param name: relative path with forward slashes
    :return: the path of the existing file
    :raises ValueError: if the name is empty, absolute, or leads out of the folder
    :raises FileNotFoundError: if there is no such file; the message lists those that there are
    """
    _check_name(name)
    folders = _bundled_folders()
    for folder in folders:
        path = folder / name
        if path.is_file():
            return path
    present = sorted(
        {
            path.relative_to(folder).as_posix()
            for folder in folders
            for path in folder.rglob("*")
            if path.is_file() and path.suffix not in (".py", ".pyc")
        }
    )
    raise FileNotFoundError(f"no bundled file {name!r}; there are: {', '.join(present) or 'none'}")


def _bundled_folders() -> list[Path]:
    # Beside an installed package, "data" would be somebody else's; it counts only where there is no "_data".
    for folder in (_PACKAGE_DIR / "_data", _PACKAGE_DIR.parent / "data"):
        if folder.is_dir():
            return [folder]
    return []


def _check_name(name: str):
    if not isinstance(name, str):
        raise TypeError(f"name of a data file: expected a str, got {type(name).__name__} {name!r}")
    windows = PureWindowsPath(name)
    if not name or PurePosixPath(name).is_absolute() or windows.drive or windows.root or ".." in windows.parts:
        raise ValueError(f"name of a data file: expected a relative path without '..', got {name!r}")
