"""
From one's own recordings, with tables of their transcripts, to the files that RETURNN reads.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from .folder_tree import FolderTree
from .manifest import exclusive_folder, source_digest
from .pipeline import PrepareJob, ProgressCallback, check_options
from .report import PrepareReport
from .scan import SplitSource, Utterance

if TYPE_CHECKING:
    from ..transcripts_table import TableColumns

__all__ = ["find_tables", "prepare_folder"]

_TABLES = (".tsv", ".csv", ".jsonl")


def prepare_folder(
    src: str | os.PathLike[str],
    dest: str | os.PathLike[str],
    *,
    audio_folder: str | os.PathLike[str] | None = None,
    columns: TableColumns | None = None,
    splits: Collection[str] | None = None,
    audio_format: str = "flac",
    num_workers: int = 2,
    on_progress: ProgressCallback | None = None,
) -> PrepareReport:
    """
    Writes ``dest/SPLIT.zip`` for each table of transcripts (see :mod:`returnn_common.datasets.transcripts_table`), for
    ``Librispeech(path=dest, train_splits=["train"], ...)``. Differs from :func:`.prepare_librispeech` in where it finds
    recordings and transcripts.

    :param src: a table, or a folder of tables: ``train.tsv`` gives the split "train", and so does the only table in the
        folder ``train``
    :param dest: folder to write to, made where it is missing
    :param audio_folder: where relative paths in the tables start; by default the table's folder
    :param columns: names of the tables' columns, where they are unusual
    :param splits: only these; None: all that there are
    :param audio_format: see :func:`.prepare_librispeech`
    :param num_workers: see :func:`.prepare_librispeech`
    :param on_progress: see :func:`.prepare_librispeech`
    :raises FileNotFoundError: ``src`` is not there, or there is no table
    :raises NotADirectoryError: ``dest`` is a file
    :raises ValueError: a table is none, or has nothing usable; a split is not there or has two tables
    :raises RuntimeError: another process is writing to ``dest``
    """
    check_options(audio_format=audio_format, num_workers=num_workers)
    dest = Path(dest)
    tables = find_tables(Path(src), splits)
    found = [_read_split(name, table, audio_folder, columns) for name, table in tables.items()]
    if dest.exists() and not dest.is_dir():
        raise NotADirectoryError(f"destination: expected a folder, but {dest} is a file")
    with exclusive_folder(dest):
        job = PrepareJob(dest, audio_format=audio_format, num_workers=num_workers, on_progress=on_progress)
        job.expect(sum(len(split.utterances) for split, _ in found))
        for split, tree in found:
            # A table may give names and transcripts anew, with other columns, while its files are the same.
            stamps = [*map(tree.stamp, split.files), *(f"{u.name}\0{u.text}\0{u.speaker}" for u in split.utterances)]
            job.prepare(split, source=source_digest(stamps, audio_format=audio_format))
    return job.report(str(src))


def find_tables(src: Path, splits: Collection[str] | None) -> dict[str, Path]:
    """
    :param src: a table, or a folder of tables, see :func:`prepare_folder`
    :param splits: only these; None: all that there are
    :return: by split, sorted
    :raises FileNotFoundError: ``src`` is not there, or has no tables
    :raises ValueError: there is no table for one of the splits, or two
    """
    if not src.exists():
        raise FileNotFoundError(f"tables of transcripts: no such file or folder: {src}")
    by_name: dict[str, list[Path]] = defaultdict(list)
    if src.is_file():
        by_name[src.stem].append(src)
    else:
        for path in _tables_in(src):
            by_name[path.stem].append(path)
        for folder in sorted(src.iterdir() if not by_name else ()):
            inside = _tables_in(folder) if folder.is_dir() and not folder.name.startswith(".") else []
            for path in inside:
                by_name[folder.name if len(inside) == 1 else path.stem].append(path)
    if not by_name:
        raise FileNotFoundError(f"folder {src}: no tables of transcripts ({', '.join(_TABLES)}) in it")
    missing = sorted(set(splits or ()) - set(by_name))
    if missing:
        raise ValueError(f"folder {src}: no table for {', '.join(missing)} in it, only {', '.join(sorted(by_name))}")
    tables = {}
    for name, paths in sorted(by_name.items()):
        if splits is None or name in splits:
            if len(paths) > 1:
                raise ValueError(f"two tables for the split {name!r}: {paths[0]} and {paths[1]}")
            tables[name] = paths[0]
    return tables


def _tables_in(folder: Path) -> list[Path]:
    return sorted(
        path
        for path in folder.iterdir()
        if path.suffix.lower() in _TABLES and not path.name.startswith(".") and path.is_file()
    )


def _read_split(
    name: str, table: Path, audio_folder: str | os.PathLike[str] | None, columns: TableColumns | None
) -> tuple[SplitSource, FolderTree]:
    from ..transcripts_table import read_transcripts_table  # which imports a module of this package

    content = read_transcripts_table(table, audio_folder=audio_folder, columns=columns)
    tree = FolderTree(table.parent if audio_folder is None else Path(audio_folder))
    split = SplitSource(name, tree)
    for problem in content.problems:
        split.add_problem(problem.kind, problem.name, problem.message)
    for row in sorted(content.rows, key=lambda row: row.name):
        path = os.path.relpath(os.path.realpath(row.path), tree.root)
        path = row.path if path.startswith(os.pardir) else path
        if _is_file_name(row.name):
            split.utterances.append(Utterance(row.name, row.text, path, row.speaker))
            split.files.append(path)
        else:
            split.add_problem("unusable-name", row.name, "expected a name for a file, perhaps in folders")
    split.files.append(os.path.abspath(table))
    if not split.utterances:
        raise ValueError(f"table of transcripts {table}: no row that can be used ({split.problems[0].message})")
    return split, tree


def _is_file_name(name: str) -> bool:
    return name.isprintable() and not any(part in ("", ".", "..") for part in name.replace("\\", "/").split("/"))
