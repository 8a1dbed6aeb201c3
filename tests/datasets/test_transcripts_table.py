"""Tests for tables of transcripts. Recordings are only looked for, so that empty files will do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from returnn_common.datasets.transcripts_table import TableColumns, TranscriptRow, read_transcripts_table


@pytest.fixture
def folder(tmp_path) -> Path:
    (tmp_path / "a" / "deep").mkdir(parents=True)
    for name in ("one.wav", "two.flac", "a/three.mp3", "a/deep/four.ogg"):
        (tmp_path / name).touch()
    return tmp_path


def _read(folder: Path, name: str, content: str | bytes, **kwargs):
    table = folder / name
    table.write_bytes(content if isinstance(content, bytes) else content.encode("utf8"))
    return read_transcripts_table(table, **kwargs)


def _texts(result) -> dict[str, str]:
    return {row.name: row.text for row in result.rows}


_ROWS = {"one": "hello", "two": 'so, it\'s  "you"', "a/three": "ÄÖ\u200c三", "a/deep/four": "x"}
_FILES = {"one": "one.wav", "two": "two.flac", "a/three": "a/three.mp3", "a/deep/four": "a/deep/four.ogg"}


def _table(kind: str) -> str:
    rows = [(_FILES[name], text) for name, text in _ROWS.items()]
    if kind == "tsv":
        return "path\tsentence\n" + "".join(f"{path}\t{text}\n" for path, text in rows)
    if kind in ("csv", "semicolon.csv"):
        separator = ";" if kind == "semicolon.csv" else ","
        quoted = [(path, text.replace('"', '""')) for path, text in rows]
        return separator.join(["text", "FILE"]) + "".join(f'\r\n"{text}"{separator}{path}' for path, text in quoted)
    return "\n\n".join(json.dumps({"audio_filepath": path, "duration": 1.5, "text": text}) for path, text in rows)


@pytest.mark.parametrize("kind", ["tsv", "csv", "semicolon.csv", "jsonl"])
def test_formats(folder, kind):
    result = _read(folder, f"table.{kind}", "\ufeff" + _table(kind))
    assert _texts(result) == {name: " ".join(text.split()) for name, text in _ROWS.items()} and not result.problems
    assert {row.name: row.path for row in result.rows} == {name: str(folder / path) for name, path in _FILES.items()}


def test_other_folder_and_paths(folder, tmp_path):
    other = tmp_path / "tables"
    other.mkdir()
    content = f"path\ttext\n../one.wav\ta\n{folder}/two.flac\tb\n"
    assert _texts(_read(other, "x.tsv", content)) == {
        f"{str(folder).lstrip('/')}/one": "a",
        f"{str(folder).lstrip('/')}/two": "b",
    }
    assert _texts(_read(other, "x.tsv", "path\ttext\nthree\ta\ndeep/four\tb\n", audio_folder=folder / "a")) == {
        "three": "a",
        "deep/four": "b",
    }, "without suffix"


def test_given_columns(folder):
    content = "n,words,path,who,text\n7,spoken words,one.wav,Ann,other\n8,more,two.flac,,other\n"
    result = _read(folder, "x.csv", content, columns=TableColumns(text="words", name="n", speaker="who"))
    assert result.rows == [
        TranscriptRow(name="7", path=str(folder / "one.wav"), text="spoken words", speaker="Ann"),
        TranscriptRow(name="8", path=str(folder / "two.flac"), text="more", speaker=None),
    ]
    detected = _read(folder, "x.csv", content)
    assert [(row.name, row.text, row.speaker) for row in detected.rows] == [
        ("one", "other", None),
        ("two", "other", None),
    ]
    assert _texts(_read(folder, "x.csv", content, columns=TableColumns(path="path"))) == _texts(detected)


def test_same_name_with_other_suffix(folder):
    (folder / "one.flac").touch()
    result = _read(folder, "x.tsv", "path\ttext\none.wav\ta\none.flac\tb\n")
    assert _texts(result) == {"one.wav": "a", "one.flac": "b"}


@pytest.mark.parametrize(
    ("kind", "lines", "problem", "name", "message"),
    [
        ("tsv", "gone.wav\tx\n", "missing-recording", "gone.wav", "x.tsv:3 lists it, but there is no .*/gone.wav"),
        ("tsv", "two.flac\t \n", "empty-transcript", "two.flac", r"its transcript \(x.tsv:3\) has no words"),
        ("tsv", "two.flac\n", "malformed-line", "x.tsv:3", "expected 2 fields, got 1"),
        ("csv", "two.flac,a,b\n", "malformed-line", "x.csv:3", "expected 2 fields, got 3"),
        ("tsv", "\ttext\n", "malformed-line", "x.tsv:3", "no recording is named"),
        ("tsv", "two.flac\ta\x07b\n", "malformed-line", "x.tsv:3", "unprintable characters in 'a.x07b'"),
        ("tsv", b"two.flac\t\xff\n", "malformed-line", "x.tsv:3", "not UTF-8 .* at byte 9"),
        (
            "tsv",
            "one.wav\tother\n",
            "duplicate-transcript",
            "one.wav",
            "differs between x.tsv:2, x.tsv:3, none of them",
        ),
        ("tsv", "one.wav\thello\n", "duplicate-transcript", "one.wav", "more than once: x.tsv:2, x.tsv:3"),
        ("jsonl", "{no json\n", "malformed-line", "x.jsonl:2", "no JSON"),
        ("jsonl", "[1]\n", "malformed-line", "x.jsonl:2", r"expected a JSON object, got \[1\]"),
        ("jsonl", '{"path": "two.flac", "text": ["a"]}\n', "malformed-line", "x.jsonl:2", r"as 'text', got \['a'\]"),
        ("jsonl", '{"path": "two.flac"}\n', "empty-transcript", "two.flac", "has no words"),
    ],
)
def test_problems(folder, kind, lines, problem, name, message):
    good = {"tsv": "path\ttext\none.wav\thello\n", "csv": "path,text\none.wav,hello\n", "jsonl": ""}[kind]
    good = good or '{"path": "one.wav", "text": "hello"}\n'
    last = {"tsv": "a/three\tlast\n", "csv": "a/three,last\n", "jsonl": '{"path": "a/three", "text": "last"}'}[kind]
    lines = lines if isinstance(lines, bytes) else lines.encode()
    result = _read(folder, f"x.{kind}", good.encode() + lines + last.encode())
    (found,) = result.problems
    assert (found.kind, found.name) == (problem, name)
    pytest.raises(ValueError, _raise, found.message).match(message)
    expected = {"a/three": "last"} if "differs" in message else {"one": "hello", "a/three": "last"}
    assert _texts(result) == expected


def _raise(message: str):
    raise ValueError(message)


def test_same_stated_name(folder):
    result = _read(folder, "x.csv", "id,path,text\nu,one.wav,a\nu,two.flac,b\nv,a/three,c\n")
    assert _texts(result) == {"v": "c"}
    (found,) = result.problems
    assert found.kind == "duplicate-recording" and found.message.endswith("none is used: one.wav, two.flac")


@pytest.mark.parametrize(
    ("name", "content", "columns", "message"),
    [
        ("x.txt", "a", None, "x.txt: expected a file .tsv, .csv or .jsonl"),
        ("x.tsv", "", None, "which column is the path.*; got none"),
        ("x.tsv", "one.wav\thello\n", None, "which column is the path.*one of path, file, .*; got one.wav, hello"),
        ("x.csv", "path,words_\n", None, "which column is the text.*or its name in `columns`; got path, words_"),
        ("x.csv", "path,text\n", TableColumns(text="Text"), "x.csv: no column 'Text', only path, text"),
        ("x.csv", "path,text\n", None, r"x.csv: no row that can be used \(it is empty\)"),
        ("x.csv", "path,text\nno.wav,a\n", None, r"no row that can be used \(no.wav: x.csv:2 lists it"),
        ("x.jsonl", "", None, r"no row that can be used \(it is empty\)"),
        ("x.csv", f'path,text\none.wav,"{"a" * 2**24}b\n', None, "x.csv: line 2: field larger than field limit"),
    ],
)
def test_no_table(folder, name, content, columns, message):
    with pytest.raises(ValueError, match=message):
        _read(folder, name, content, columns=columns)


def test_no_file(tmp_path):
    with pytest.raises(FileNotFoundError, match="table of transcripts: no such file: .*/x.tsv"):
        read_transcripts_table(tmp_path / "x.tsv")
