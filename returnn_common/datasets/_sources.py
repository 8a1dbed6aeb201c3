"""
Where utterances come from, as plain data in the options of :class:`.speech_dataset.SpeechDataset`.
"""

from __future__ import annotations

import os
from typing import Any, Protocol

import numpy as np

from ._paths import resolve_path
from ._prepared import PreparedSplit

__all__ = ["Source", "open_source", "prepared_source"]


class Source(Protocol):
    """
    Utterances: their names, transcripts and durations in memory, their recordings on request.
    """

    names: list[str]
    texts: list[str]
    seconds: np.ndarray

    def read(self, index: int) -> np.ndarray:
        """:return: {time}, float32, in [-1, 1], 16 kHz"""
        ...

    def close(self):
        """Frees what can be opened again."""
        ...


def prepared_source(folder: Any, split: str) -> dict[str, Any]:
    """
    :param folder: where ``SPLIT.zip`` is
    :param split: name
    :return: options for :func:`open_source`
    """
    return {"kind": "prepared", "folder": folder, "split": split}


def open_source(options: dict[str, Any]) -> Source:
    """
    :param options: ``kind``, and what this kind needs. For corpora that are not in this package, the kind is a function
        that returns a :class:`Source`; it has to be in a module, so that it can be pickled.
    :raises FileNotFoundError: if something is not there
    :raises ValueError: if there is no such kind, or it cannot be used
    """
    arguments = dict(options)
    kind = arguments.pop("kind", None)
    if callable(kind):
        return kind(**arguments)
    if kind not in _KINDS:
        raise ValueError(f"source of utterances: expected kind as one of {', '.join(_KINDS)}, got {kind!r}")
    return _KINDS[kind](**arguments)


def _open_prepared(*, folder: Any, split: str) -> Source:
    return PreparedSplit(os.path.join(resolve_path(folder), f"{split}.zip"))


def _open_table(**options: Any) -> Source:
    from ._table_source import open_table

    return open_table(**options)


def _open_timit(**options: Any) -> Source:
    from ._timit import open_timit

    return open_timit(**options)


_KINDS = {"prepared": _open_prepared, "table": _open_table, "timit": _open_timit}
