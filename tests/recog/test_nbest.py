"""Tests of the n-best files: round trips, the bytes, and what is refused."""

from __future__ import annotations

import gzip
import math
from pathlib import Path

import numpy as np
import pytest

from returnn_common.recog.nbest import NBestWriter, best_texts, read_nbest, write_nbest

_LISTS = {
    "dev/84/1-2-0003": [(-1.5, "HELLO WORLD"), (-2.25, "HELLO"), (-math.inf, "")],
    'quote\'s "tag"': [(0.1 + 0.2, 'IT\'S "SO"'), (-3.0, "back\\slash\nnew line\u2028\x85\t{}")],
    "Übung/日本": [(math.inf, "schön 語"), (5.0, "a],")],
    "none": [],
}


@pytest.mark.parametrize("name", ["n.py", "n.py.gz", "new/folder/n.gz"])
def test_round_trip(tmp_path: Path, name: str):
    path = tmp_path / name
    write_nbest(path, _LISTS)
    assert read_nbest(path) == _LISTS
    assert list(read_nbest(path)) == list(_LISTS)
    assert [p.name for p in path.parent.iterdir()] == [path.name], "a temporary file is left"
    raw = path.read_bytes()
    assert (raw[:2] == b"\x1f\x8b") == name.endswith(".gz")
    text = (gzip.decompress(raw) if name.endswith(".gz") else raw).decode("utf8")
    # What search jobs do with the file: evaluate it, line by line or as a whole.
    assert eval(text, {}) == _LISTS
    assert len(text.splitlines()) == len(_LISTS) + 2


def test_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write_nbest(tmp_path / "a.gz", _LISTS)
    monkeypatch.setattr("time.time", lambda: 1e9)
    write_nbest(tmp_path / "other name.gz", _LISTS)
    assert (tmp_path / "a.gz").read_bytes() == (tmp_path / "other name.gz").read_bytes()


def test_numpy_scores_become_plain_numbers(tmp_path: Path):
    write_nbest(tmp_path / "n", {"a": [(np.float32(-0.5), "X"), (np.int64(-1), "Y")]})  # type: ignore[list-item]
    assert (tmp_path / "n").read_text() == "{\n'a': [(-0.5, 'X'), (-1.0, 'Y')],\n}\n"


def test_reads_other_writers_files(tmp_path: Path):
    path = tmp_path / "n"
    path.write_text("{\n'a': [\n(-1, 'X'),\n(-inf, 'Y'),\n],\n'b': [\n],\n}\n")
    assert read_nbest(path) == {"a": [(-1.0, "X"), (-math.inf, "Y")], "b": []}
    # Begins like our own files and goes on otherwise.
    path.write_text("{\n'a': [[1, 'X'],],\n'b': [[1, 'X'],\n[0, 'Y'],\n],\n}\n")
    assert read_nbest(path) == {"a": [(1.0, "X")], "b": [(1.0, "X"), (0.0, "Y")]}
    path.write_text("{'a': 'X Y', 'b': ''}")
    assert read_nbest(path) == {"a": [(0.0, "X Y")], "b": [(0.0, "")]}
    path.write_text("{}")
    assert read_nbest(path) == {}
    # Gzip under a name without .gz.
    path.write_bytes(gzip.compress(b"{'a': 'X'}"))
    assert read_nbest(path) == {"a": [(0.0, "X")]}


def test_best_texts():
    assert best_texts(_LISTS) == {
        "dev/84/1-2-0003": "HELLO WORLD",
        'quote\'s "tag"': 'IT\'S "SO"',
        "Übung/日本": "schön 語",
    }


@pytest.mark.parametrize(
    "entry, error, match",
    [
        ({"a": [(math.nan, "X")]}, ValueError, "score 0 of 'a' is NaN"),
        ({7: [(0.0, "X")]}, TypeError, r"sequence tag as str, got 7 \(int\)"),
        ({"a": [(0.0, None)]}, TypeError, "expected str as text 0 of 'a', got None"),
        ({"a": [("1", "X")]}, TypeError, "expected a number as score 0 of 'a', got '1'"),
        ({"a": [(1.0, "X", 2)]}, TypeError, r"expected \(score, text\) as hypothesis 0 of 'a'"),
    ],
)
def test_refuses_to_write(tmp_path: Path, entry: dict, error: type[Exception], match: str):
    path = tmp_path / "n"
    path.write_text("old")
    with pytest.raises(error, match=match):
        write_nbest(path, {"good": [(0.0, "X")], **entry})
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path], "a failed write must leave no trace"


def test_writer_refuses_a_tag_twice(tmp_path: Path):
    with pytest.raises(ValueError, match="'a' comes twice"), NBestWriter(tmp_path / "n") as writer:
        writer.add("a", [])
        writer.add("a", [])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "content, match",
    [
        (b"", "expected a Python dict"),
        (b"utt-1 HELLO WORLD\n", "expected a Python dict"),
        (b"{'a': 'X'", "expected a Python dict"),
        (b"{'a': '\0'}", "null bytes"),
        (b"[1, 2]", "expected a Python dict .* got '\\[1, 2\\]'"),
        (b"{**{}}", "got '\\*\\*'"),
        (b"{'a': print(1)}", r"only literals .* got 'print\(1\)'"),
        (b"{'a': 3}", r"expected a list of \(score, text\) or a text for 'a', got int"),
        (b"{3: 'X'}", "sequence tag as str, got 3"),
        (b"{[]: 'X'}", "sequence tag as str"),
        (b"{'a': [('X', 1.0)]}", "expected a number as score 0 of 'a', got 'X'"),
        (b"{'a': [(nan, 'X')]}", "is NaN"),
        (b"{'a': 'X', 'a': 'Y'}", "'a' comes twice"),
        (b"{\n'a': [(1, 'X')],\n'a': [(1, 'X')],\n}\n", "'a' comes twice"),
        (b"{'a': '\xff'}", "cannot be read as UTF-8 text"),
        (gzip.compress(b"{'a': 'X Y Z'}", mtime=0)[:-9], "cannot be read as UTF-8 text"),
        (gzip.compress(b"{'a': 'X Y Z'}", mtime=0)[:10] + b"\xff" * 20, "cannot be read as UTF-8 text"),
        (b"{'a': " + b"(" * 500 + b"}", "expected a Python dict"),
    ],
)
def test_refuses_to_read(tmp_path: Path, content: bytes, match: str):
    path = tmp_path / "list"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=match) as info:
        read_nbest(path)
    assert str(path) in str(info.value)


def test_no_such_file(tmp_path: Path):
    with pytest.raises(FileNotFoundError, match="n-best file .*gone: no such file"):
        read_nbest(tmp_path / "gone")


def test_the_order_is_that_of_the_search(tmp_path: Path):
    """which ranks by the score per label, say"""
    write_nbest(tmp_path / "n", {"a": [(-3.0, "X Y Z"), (-2.0, "X")]})
    assert read_nbest(tmp_path / "n") == {"a": [(-3.0, "X Y Z"), (-2.0, "X")]}
