"""
Utterances of tables of transcripts.
"""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ._paths import resolve_path
from .prepare.folder import find_tables
from .prepare.report import Problem
from .recordings import Recordings
from .transcripts_table import TableColumns, TranscriptRow, read_transcripts_table

__all__ = ["open_table", "read_table"]


def open_table(**options: Any) -> Recordings:
    """
    :param options: see :func:`read_table`
    :return: what can be used; a warning says what cannot
    """
    recordings, problems = read_table(**options)
    if problems:
        first = "; ".join(f"{problem.name}: {problem.message}" for problem in problems[:3])
        more = f"; and {len(problems) - 3} more" * (len(problems) > 3)
        where = resolve_path(options["folder"])
        warnings.warn(f"AudioFolder: {where}: {len(problems)} problems, left out: {first}{more}", stacklevel=2)
    return recordings


def read_table(
    *,
    folder: Any,
    tables: Sequence[str] | None,
    audio_folder: Any = None,
    columns: Mapping[str, str | None] | None = None,
    part: str | None = None,
    hold_out: Sequence[str] = (),
    hold_out_every: int = 1,
) -> tuple[Recordings, list[Problem]]:
    """
    :param folder: a table or a folder of tables, see :func:`.prepare.folder.prepare_folder`
    :param tables: names of those to read; None: the only one
    :param audio_folder: where relative paths start; relative to the table's folder
    :param columns: fields of :class:`.transcripts_table.TableColumns`
    :param part: which part of the rows to take: "train" or one of ``hold_out``; None: all
    :param hold_out: parts that are held out
    :param hold_out_every: each is one of so many rows
    :return: what can be used, and what cannot
    :raises FileNotFoundError: if a table is not there
    :raises ValueError: if it is none, or nothing can be used
    """
    rows: list[TranscriptRow] = []
    problems: list[Problem] = []
    found = find_tables(Path(resolve_path(folder)), tables)
    for table in found.values():
        audio_path = None if audio_folder is None else table.parent / resolve_path(audio_folder)
        content = read_transcripts_table(table, audio_folder=audio_path, columns=TableColumns(**(columns or {})))
        rows += [row for row in content.rows if part in (None, _part(row, hold_out, hold_out_every))]
        problems += content.problems
    recordings = Recordings([row.name for row in rows], [row.path for row in rows], [row.text for row in rows])
    problems += recordings.problems
    if not recordings.names:
        first = "; ".join(f"{problem.name}: {problem.message}" for problem in problems[:3]) or "it has too few rows"
        what = f" for {part}" * (part is not None)
        raise ValueError(f"AudioFolder: nothing to use{what} in {', '.join(map(str, found.values()))} ({first})")
    return recordings, problems


def _part(row: TranscriptRow, hold_out: Sequence[str], every: int) -> str:
    """By the name, so that it stays where it is when others come."""
    number = zlib.crc32(row.name.encode("utf8", "surrogateescape")) % every
    return hold_out[number] if number < len(hold_out) else "train"
