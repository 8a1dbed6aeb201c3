"""
Tables of recordings and their transcripts: TSV, CSV, or JSON Lines.
"""

from __future__ import annotations

import csv
import dataclasses
import json
import os
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from ._paths import PathLike, resolve_path
from .prepare.report import Problem

__all__ = ["TableColumns", "TranscriptRow", "TranscriptsTable", "read_transcripts_table"]

_USUAL_COLUMNS = {
    "path": ("path", "file", "audio", "file_name", "filename", "audio_path", "audio_filepath", "wav", "recording"),
    "text": ("text", "transcript", "transcription", "sentence", "transcript_text", "words"),
    "name": ("name", "id", "utt_id", "utterance_id", "utterance", "segment_id", "seq_name", "uid"),
    "speaker": ("speaker", "speaker_id", "client_id", "spk", "spk_id"),
}
_OPTIONAL = ("name", "speaker")
_SUFFIXES = (".flac", ".wav", ".ogg", ".mp3", ".opus")  # tried where the table leaves it out


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableColumns:
    """
    Names of the columns (of the keys in JSON Lines). None: the usual names (path, file, audio_filepath, ...; text,
    transcript, sentence, ...) are looked for, in lower or upper case.

    :param path: of the recording
    :param text: its transcript
    :param name: of the utterance; if there is no such column, the recording's path without its suffix
    :param speaker: optional as well
    """

    path: str | None = None
    text: str | None = None
    name: str | None = None
    speaker: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class TranscriptRow:
    """
    :param name: unique
    :param path: of the recording, which is there
    :param text: not empty, words separated by one space
    :param speaker: None where the table does not say
    """

    name: str
    path: str
    text: str
    speaker: str | None = None


@dataclasses.dataclass(frozen=True)
class TranscriptsTable:
    """
    :param rows: that can be used, in the order of the table
    :param problems: the others; ``name`` is the recording as the table has it, or ``TABLE:LINE``
    """

    rows: list[TranscriptRow]
    problems: list[Problem]


def read_transcripts_table(
    table: PathLike, *, audio_folder: PathLike | None = None, columns: TableColumns | None = None
) -> TranscriptsTable:
    """
    Reads ``.tsv`` (nothing is quoted), ``.csv`` (separated by comma, semicolon or tab, quoted with ``"``) with a
    header, or ``.jsonl`` (an object in each line); UTF-8. No recording is opened.

    :param table: path
    :param audio_folder: where relative paths start; by default the table's folder. A path without its suffix will do.
    :param columns: their names, where they are unusual
    :raises FileNotFoundError: if the table is not there
    :raises ValueError: if it is of another kind, is no table, has no such column, or no row that can be used
    """
    columns = TableColumns() if columns is None else columns
    table = resolve_path(table)
    if not os.path.isfile(table):
        raise FileNotFoundError(f"table of transcripts: no such file: {table}")
    folder = os.path.dirname(os.path.abspath(table)) if audio_folder is None else resolve_path(audio_folder)
    reader = _Reader(table, os.path.abspath(folder), columns)
    result = reader.read()
    if not result.rows:
        first = "; ".join(f"{problem.name}: {problem.message}" for problem in result.problems[:3]) or "it is empty"
        raise ValueError(f"table of transcripts {table}: no row that can be used ({first})")
    return result


class _Reader:
    def __init__(self, table: str, folder: str, columns: TableColumns):
        self.table, self.folder, self.columns = table, folder, columns
        self.problems: list[Problem] = []

    def read(self) -> TranscriptsTable:
        by_path: dict[str, list[tuple[str, TranscriptRow]]] = defaultdict(list)
        for number, fields in self._records():
            where = f"{os.path.basename(self.table)}:{number}"
            row = self._make_row(fields, where)
            if row is not None:
                by_path[row.path].append((where, row))
        rows = [row for found in by_path.values() if (row := self._only_one(found)) is not None]
        return TranscriptsTable(self._with_unique_names(rows), sorted(self.problems))

    def _add(self, kind: str, name: str, message: str):
        name, message = (text.encode("utf8", "backslashreplace").decode("utf8") for text in (name, message))
        self.problems.append(Problem(kind, name, message))

    def _records(self) -> Iterator[tuple[int, dict[str, str | None]]]:
        """:return: number of the line, and by ``path``, ``text``, ``name``, ``speaker`` what is there"""
        kind = os.path.splitext(self.table)[1].lower()
        if kind in (".jsonl", ".ndjson"):
            return self._json_records()
        if kind in (".tsv", ".csv"):
            return self._csv_records(is_csv=kind == ".csv")
        raise ValueError(f"table of transcripts {self.table}: expected a file .tsv, .csv or .jsonl")

    def _lines(self) -> Iterator[str]:
        """The lines with their ends; others than UTF-8 are left empty."""
        with open(self.table, "rb") as file:
            for number, line in enumerate(file, start=1):
                try:
                    yield (line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line).decode("utf8")
                except UnicodeDecodeError as error:
                    where = f"{os.path.basename(self.table)}:{number}"
                    self._add("malformed-line", where, f"not UTF-8 ({error.reason} at byte {error.start})")
                    yield "\n"

    def _csv_records(self, *, is_csv: bool) -> Iterator[tuple[int, dict[str, str | None]]]:
        lines = self._lines()
        header_line = next(lines, "")
        if is_csv:
            delimiter = max(",;\t", key=header_line.count)
            quoting = csv.QUOTE_MINIMAL
        else:
            delimiter, quoting = "\t", csv.QUOTE_NONE
        reader = csv.reader(_chain(header_line, lines), delimiter=delimiter, quoting=quoting)
        csv.field_size_limit(2**24)
        header = [field.strip() for field in next(reader, [])]
        indices = {key: header.index(name) for key, name in self._choose_columns(header).items()}
        for fields in self._fields(reader):
            number = reader.line_num
            if not any(field.strip() for field in fields):
                continue
            if len(fields) != len(header):
                where = f"{os.path.basename(self.table)}:{number}"
                self._add("malformed-line", where, f"expected {len(header)} fields, got {len(fields)}")
                continue
            yield number, {key: fields[index] for key, index in indices.items()}

    def _fields(self, reader: Any) -> Iterator[list[str]]:
        try:
            yield from reader
        except csv.Error as error:
            raise ValueError(f"table of transcripts {self.table}: line {reader.line_num}: {error}") from error

    def _json_records(self) -> Iterator[tuple[int, dict[str, str | None]]]:
        names: dict[str, str] = {}
        for number, line in enumerate(self._lines(), start=1):
            if not line.strip():
                continue
            where = f"{os.path.basename(self.table)}:{number}"
            try:
                entry = json.loads(line)
            except ValueError as error:
                self._add("malformed-line", where, f"no JSON ({error})")
                continue
            if not isinstance(entry, dict):
                self._add("malformed-line", where, f"expected a JSON object, got {line.strip()[:60]}")
                continue
            names = names or self._choose_columns(list(entry))
            values = {key: entry.get(name) for key, name in names.items()}
            wrong = [
                names[key] for key, value in values.items() if value is not None and isinstance(value, (dict, list))
            ]
            if wrong:
                self._add("malformed-line", where, f"expected a string as {wrong[0]!r}, got {entry[wrong[0]]!r}"[:200])
                continue
            yield number, {key: None if value is None else str(value) for key, value in values.items()}

    def _choose_columns(self, header: list[str]) -> dict[str, str]:
        """:return: for ``path``, ``text``, ... the name of the column"""
        chosen = {}
        lower = {name.lower(): name for name in reversed(header)}
        for key, usual in _USUAL_COLUMNS.items():
            given = getattr(self.columns, key)
            if given is not None:
                if given not in header:
                    raise ValueError(
                        f"table of transcripts {self.table}: no column {given!r}, only {', '.join(header) or 'none'}"
                    )
                chosen[key] = given
                continue
            found = [lower[name] for name in usual if name in lower]
            if found:
                chosen[key] = found[0]
            elif key not in _OPTIONAL:
                raise ValueError(
                    f"table of transcripts {self.table}: which column is the {key}? Expected a header with one of "
                    f"{', '.join(usual)}, or its name in `columns`; got {', '.join(header) or 'none'}"
                )
        if "name" in chosen and chosen["name"] in (chosen["path"], chosen["text"]):
            del chosen["name"]
        return chosen

    def _make_row(self, fields: dict[str, str | None], where: str) -> TranscriptRow | None:
        stated = (fields["path"] or "").strip()
        if not stated:
            self._add("malformed-line", where, "no recording is named")
            return None
        path = self._find(stated)
        text = " ".join((fields["text"] or "").split())
        if path is None:
            self._add("missing-recording", stated, f"{where} lists it, but there is no {self._full(stated)}")
        elif not text:
            self._add("empty-transcript", stated, f"its transcript ({where}) has no words")
        elif any(unicodedata.category(char) in ("Cc", "Cs") for char in text):
            self._add("malformed-line", where, f"unprintable characters in {text[:60]!r}")
        else:
            name = (fields.get("name") or "").strip()
            return TranscriptRow(name=name, path=path, text=text, speaker=(fields.get("speaker") or "").strip() or None)
        return None

    def _full(self, stated: str) -> str:
        return os.path.normpath(os.path.join(self.folder, stated))

    def _find(self, stated: str) -> str | None:
        path = self._full(stated)
        return next((full for full in (path, *(path + suffix for suffix in _SUFFIXES)) if os.path.isfile(full)), None)

    def _only_one(self, found: list[tuple[str, TranscriptRow]]) -> TranscriptRow | None:
        """:return: the first of the rows of one recording, if the others say the same"""
        (_, row), *others = found
        lines = ", ".join(where for where, _ in found)
        name = os.path.relpath(row.path, self.folder)
        if any(other != row for _, other in others):
            self._add("duplicate-transcript", name, f"differs between {lines}, none of them used")
            return None
        if others:
            self._add("duplicate-transcript", name, f"is listed more than once: {lines}")
        return row

    def _with_unique_names(self, rows: Iterable[TranscriptRow]) -> list[TranscriptRow]:
        named: dict[str, list[TranscriptRow]] = defaultdict(list)
        for row in rows:
            named[row.name or self._derived_name(row.path)].append(row)
        result = []
        for name, same in named.items():
            if len(same) == 1:
                result.append(dataclasses.replace(same[0], name=name))
            elif any(row.name for row in same):
                where = ", ".join(os.path.relpath(row.path, self.folder) for row in same)
                self._add("duplicate-recording", name, f"{len(same)} recordings have this name, none is used: {where}")
            else:  # they differ in the suffix
                for row in same:
                    suffix = os.path.splitext(row.path)[1]
                    result.append(dataclasses.replace(row, name=name + suffix))
        return result

    def _derived_name(self, path: str) -> str:
        inside = os.path.relpath(path, self.folder)
        if inside.startswith(os.pardir):
            inside = path.lstrip(os.sep)
        return os.path.splitext(inside)[0].replace(os.sep, "/")


def _chain(first: str, rest: Iterator[str]) -> Iterator[str]:
    yield first
    yield from rest
