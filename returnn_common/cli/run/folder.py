"""
The folder of a run: what was asked for, what is done, and a lock.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..errors import CommandError

__all__ = ["RunFolder", "differences", "locked", "read_json", "write_json", "write_text"]

_OURS = ("lock", ".run.json.part")  # what a call that was killed at once may have left
_SECONDS_FOR_LEFTOVERS = 10.0  # processes of a run that was killed end by themselves within this time


class RunFolder:
    """
    Files of a run below one folder. ``run.json`` says what was asked for, ``state.json`` what is done.

    :param path: the folder
    """

    def __init__(self, path: Path):
        self.path = path
        self.data = path / "data"
        self.config = path / "config.py"
        self.checkpoints = path / "checkpoints"
        self.learning_rates = path / "learning_rates"
        self.train_log = path / "train.log"
        self.recog = path / "recog"
        self.results = path / "results.json"
        self.report = path / "report.html"
        self.lock_file: int | None = None
        self._state: dict[str, Any] = {}

    def nbest(self, split: str) -> Path:
        """n-best lists of a split"""
        return self.recog / f"{split}.py.gz"

    def perplexity(self, split: str) -> Path:
        """what comes out for a split where that is no n-best lists, but perplexities"""
        return self.recog / f"{split}.json"

    @property
    def posteriors(self) -> Path:
        """probabilities of the labels for one utterance"""
        return self.recog / "posteriors.npz"

    @property
    def state(self) -> Mapping[str, Any]:
        """what is done, see :meth:`update`"""
        return self._state

    def update(self, **values: Any):
        """Records what is done, so that it is kept when this process is killed."""
        self._state.update(values)
        write_json(self.path / "state.json", self._state)

    @contextlib.contextmanager
    def open(self, settings: Mapping[str, Any], *, config: str) -> Iterator[None]:
        """
        Makes the folder, or goes on in it. No other process can have it open at the same time.

        :param settings: what was asked for; plain data
        :param config: text of the recipe
        :raises CommandError: if the folder holds something else, was begun with other settings, or is in use
        """
        self._check_content()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CommandError(f"--out {self.path} cannot be made: {error.strerror}") from None
        with locked(self.path, what="--out") as self.lock_file:
            try:
                self._check_content()
                self._begin(json.loads(json.dumps(settings)), config=config)
                yield
            finally:
                self.lock_file = None

    def _check_content(self):
        if self.path.exists() and not self.path.is_dir():
            raise CommandError(f"--out {self.path}: expected a folder, but it is a file")
        if self.path.is_dir() and not (self.path / "run.json").is_file():
            others = sorted(entry.name for entry in self.path.iterdir() if entry.name not in _OURS)
            if others:
                raise CommandError(
                    f"--out {self.path} holds something else already ({', '.join(others[:3])}"
                    f"{', ...' * (len(others) > 3)}); choose another folder"
                )

    def _begin(self, settings: dict[str, Any], *, config: str):
        before = read_json(self.path / "run.json")
        self._state = read_json(self.path / "state.json") or {}
        if before is not None:
            changed = self.config.is_file() and self.config.read_text("utf8") != config
            differing = differences(before, settings) + ["the recipe's file has changed"] * changed
            if differing and self.checkpoints.is_dir() and any(self.checkpoints.iterdir()):
                raise CommandError(
                    f"--out {self.path} was begun with other settings ({'; '.join(differing)}); choose another folder"
                )
            if differing:  # Nothing was trained yet: begin anew.
                self._state = {}
                (self.path / "state.json").unlink(missing_ok=True)
            if before.get("corpus") != settings.get("corpus"):
                shutil.rmtree(self.data, ignore_errors=True)
        write_json(self.path / "run.json", settings)
        write_text(self.config, config)


@contextlib.contextmanager
def locked(folder: Path, *, what: str) -> Iterator[int]:
    """
    Only one process at a time is in here. The lock is shared with the processes that this one starts, and ends with the
    last of them.

    :param folder: where the file "lock" is
    :param what: which argument names the folder, for the message
    :return: the file, open, for the processes to inherit
    :raises CommandError: if another process is in here
    """
    lock_file = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o666)
    try:
        _wait_for_lock(lock_file, f"{what} {folder}")
        yield lock_file
    finally:
        os.close(lock_file)


def _wait_for_lock(lock_file: int, name: str):
    try:
        import fcntl
    except ImportError:
        return  # no locks on this system
    end = time.monotonic() + _SECONDS_FOR_LEFTOVERS
    while True:
        try:
            fcntl.flock(lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            pid = os.pread(lock_file, 20, 0).decode("ascii", "replace").strip()
            alive = bool(pid) and _is_alive(pid)
            if alive or time.monotonic() > end:
                who = f"process {pid}" if alive else "the rest of a run that was killed"
                raise CommandError(f"{name} is in use by {who}; wait for it, or choose another folder") from None
            time.sleep(0.1)
        except OSError:
            return  # no locks on this file system
    os.ftruncate(lock_file, 0)
    os.pwrite(lock_file, f"{os.getpid()}\n".encode(), 0)


def _is_alive(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except (ValueError, ProcessLookupError):
        return False
    except PermissionError:
        pass
    try:  # a killed process that its parent has not yet asked for is no obstacle
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """:return: what differs, in words"""
    flat = [{**values, **values.get("options", {})} for values in (before, now)]
    names = [name for name in dict.fromkeys([*flat[0], *flat[1]]) if name != "options"]
    return [
        f"{name} was {flat[0].get(name)!r}, is {flat[1].get(name)!r}"
        for name in names
        if flat[0].get(name) != flat[1].get(name)
    ]


def read_json(path: Path) -> dict[str, Any] | None:
    """
    :return: the dict in a file; None: there is no such file
    :raises CommandError: if something else is in it
    """
    try:
        content = json.loads(path.read_text("utf8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise CommandError(f"{path} is damaged: {error}") from None
    if not isinstance(content, dict):
        raise CommandError(f"{path} is damaged: expected a dict, got {content!r:.50}")
    return content


def write_json(path: Path, content: Mapping[str, Any]):
    """Writes a file, all or nothing."""
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def write_text(path: Path, text: str):
    """Writes a file, all or nothing."""
    part = path.with_name(f".{path.name}.part")
    with open(part, "w", encoding="utf8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)
