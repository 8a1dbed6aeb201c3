"""
The folder of a recognition, ``OUT_DIR/recog/NAME``: what was asked for, what is done, and a lock.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..errors import CommandError
from ..run.folder import differences, locked, read_json, write_json, write_text

__all__ = ["RecogFolder"]


class RecogFolder:
    """
    Files of a recognition. ``recog.json`` says what was asked for, ``state.json`` what is done.

    :param path: the folder
    """

    def __init__(self, path: Path):
        self.path = path
        self.config = path / "config.py"
        self.checkpoints = path / "checkpoint"
        self.results = path / "results.json"
        self.lock_file: int | None = None
        self._state: dict[str, Any] = {}

    def nbest(self, split: str, kind: str = "") -> Path:
        """n-best lists of a split; of kind "rescored", "mbr", ...: in another order"""
        return self.path / f"{split}{kind and '.' + kind}.py.gz"

    def components(self, split: str) -> Path:
        """the scores of the parts for the n-best lists of a split"""
        return self.path / f"{split}.scores.json.gz"

    def log(self, split: str) -> Path:
        """RETURNN's"""
        return self.path / f"{split}.log"

    def tuning(self, split: str, suffix: str) -> Path:
        """what the tuning of scales on a split has found: .tsv, .json, .png"""
        return self.path / f"{split}.tuning{suffix}"

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
        :param config: text of RETURNN's config
        :raises CommandError: if it holds something else, or a recognition with other settings, or is in use
        """
        asked = self.path / "recog.json"
        if self.path.exists() and not (self.path.is_dir() and (asked.is_file() or not _holds_anything(self.path))):
            raise CommandError(f"{self.path} holds something else already; choose another --name")
        self.path.mkdir(parents=True, exist_ok=True)
        with locked(self.path, what="the recognition") as self.lock_file:
            try:
                settings = json.loads(json.dumps(settings))
                differing = differences(read_json(asked) or settings, settings)
                if differing:
                    raise CommandError(
                        f"{self.path} is a recognition with other settings ({'; '.join(differing)}); "
                        "choose another --name"
                    )
                self._state = read_json(self.path / "state.json") or {}
                write_json(asked, settings)
                write_text(self.config, config)
                yield
            finally:
                self.lock_file = None


def _holds_anything(path: Path) -> bool:
    return any(entry.name != "lock" for entry in path.iterdir())
