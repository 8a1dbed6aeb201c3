"""Each format, written and read back."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.cli.transcribe.helpers import read_srt, record, run_command


def test_text(model, folder, capsys):
    """one file: its text; several: lines with names, in the order of the arguments, of folders sorted"""
    record(folder / "a.wav", "two four one")
    assert run_command(capsys, model, "a.wav") == (0, "two four one\n", "")
    record(folder / "calls" / "z.flac", "one one", rate=8_000)
    record(folder / "calls" / "deep" / "b.OGG", "three", rate=44_100)
    record(folder / "calls" / "empty.wav", "")
    (folder / "calls" / "notes.txt").write_text("no recording")
    record(folder / "calls" / ".hidden.wav", "two")
    shutil.copy("a.wav", "anything")
    status, out, err = run_command(capsys, model, "calls", "anything", "a.wav", "a.wav")
    assert (status, err) == (0, "")
    assert out.splitlines() == [
        "calls/deep/b.OGG\tthree",
        "calls/empty.wav\t",
        "calls/z.flac\tone one",
        "anything\ttwo four one",
        "a.wav\ttwo four one",
    ]


def test_json(model, folder, capsys):
    times = record(folder / "a.wav", "two four one")
    record(folder / "b.wav", "")
    status, out, _ = run_command(capsys, model, "--format", "json", "a.wav")
    entry = json.loads(out)
    assert status == 0 and list(entry) == [
        "file",
        "duration",
        "sample_rate",
        "channels",
        "text",
        "score",
        "words",
        "segments",
    ]
    assert (entry["file"], entry["duration"], entry["text"]) == ("a.wav", 1.0, "two four one")
    assert [word["word"] for word in entry["words"]] == ["two", "four", "one"]
    found = [(word["start"], word["end"]) for word in entry["words"]]
    np.testing.assert_allclose(found, times, atol=0.04)
    assert all(0.5 < word["confidence"] <= 1.0 for word in entry["words"]) and entry["score"] < 0
    score = entry["score"]
    assert entry["segments"] == [{"start": 0.0, "end": 1.0, "text": "two four one", "score": score}]
    entries = json.loads(run_command(capsys, model, "--format", "json", "a.wav", "b.wav")[1])
    assert [(entry["text"], len(entry["words"])) for entry in entries] == [("two four one", 3), ("", 0)]
    entry = json.loads(run_command(capsys, model, "--format", "json", "--no-times", "a.wav")[1])
    assert "words" not in entry and (entry["text"], entry["score"]) == ("two four one", score)


def test_ctm(model, folder, capsys):
    times = {}
    for name in ("my call.wav", "b.wav", "empty.wav"):
        times[Path(name).stem.replace(" ", "_")] = record(
            folder / name, {"b.wav": "four", "empty.wav": ""}.get(name, "two one")
        )
    status, out, _ = run_command(capsys, model, "--format", "ctm", "my call.wav", "b.wav", "empty.wav")
    rows = [line.split(" ") for line in out.splitlines()]
    assert status == 0 and [(row[0], row[1], row[4]) for row in rows] == [
        ("my_call", "1", "two"),
        ("my_call", "1", "one"),
        ("b", "1", "four"),
    ]
    for row, (start, end) in zip(rows, [*times["my_call"], *times["b"]], strict=True):
        assert float(row[2]) == pytest.approx(start, abs=0.04)
        assert float(row[2]) + float(row[3]) == pytest.approx(end, abs=0.04)
        assert re.fullmatch(r"\d+\.\d\d", row[2]) and re.fullmatch(r"\d+\.\d\d", row[3]) and 0.5 < float(row[5]) <= 1.0


def test_ctm_of_files_with_the_same_name(model, folder, capsys):
    for name in ("x/a.wav", "y/a.wav", "y/a.flac"):
        record(folder / name, "one")
    ids = [line.split()[0] for line in run_command(capsys, model, "--format", "ctm", "x", "y/a.wav")[1].splitlines()]
    assert ids == ["x/a", "y/a"]
    ids = [line.split()[0] for line in run_command(capsys, model, "--format", "ctm", "x", "y")[1].splitlines()]
    assert ids == ["x/a.wav", "y/a.flac", "y/a.wav"]


def test_srt(model, folder, capsys):
    words = ("one two three four " * 10).split()
    pauses = [0.4] * (len(words) + 1)
    pauses[5] = 1.5
    times = record(folder / "a.wav", " ".join(words), pauses=pauses)
    status, out, _ = run_command(capsys, model, "--format", "srt", "--max-seconds", "5", "a.wav")
    cues = read_srt(out)
    assert status == 0 and " ".join(" ".join(lines) for _, _, lines in cues) == " ".join(words)
    assert " ".join(cues[0][2]) == "one two three four one"  # then there is a pause
    done, before = 0, 0.0
    for start, end, lines in cues:
        num_words = len(" ".join(lines).split())
        assert before <= start < end and 1 <= len(lines) <= 2 and max(map(len, lines)) <= 42
        assert times[done][0] == pytest.approx(start, abs=0.04)
        assert times[done + num_words - 1][1] == pytest.approx(end, abs=0.04) or end == pytest.approx(start + 1)
        assert end - start <= 7.1
        done, before = done + num_words, end
    assert len(cues) > 3
    record(folder / "empty.wav", "")
    assert run_command(capsys, model, "--format", "srt", "empty.wav") == (0, "", "")
    record(folder / "short.wav", "two", pauses=[0.1, 2.0])
    ((start, end, lines),) = read_srt(run_command(capsys, model, "--format", "srt", "short.wav")[1])
    assert lines == ["two"] and end == pytest.approx(start + 1.0)


def test_output_into_a_file(model, folder, capsys):
    record(folder / "a.wav", "two")
    record(folder / "b.wav", "one")
    (folder / "t.txt").write_text("old " * 100)
    assert run_command(capsys, model, "a.wav", "b.wav", "--output", "t.txt") == (0, "", "")
    assert (folder / "t.txt").read_text() == "a.wav\ttwo\nb.wav\tone\n"
    assert run_command(capsys, model, "a.wav", "b.wav", "--output", "t.json", "--format", "json")[0] == 0
    assert [entry["text"] for entry in json.loads((folder / "t.json").read_text())] == ["two", "one"]
    assert run_command(capsys, model, "a.wav", "--output", "t.srt", "--format", "srt")[0] == 0
    assert len(read_srt((folder / "t.srt").read_text())) == 1


@pytest.mark.parametrize("output", ["new/", "there"])
def test_output_into_a_folder(model, folder, capsys, output):
    (folder / "there").mkdir()
    record(folder / "in" / "x" / "a.wav", "two")
    record(folder / "in" / "b.flac", "one")
    for format, suffix in {"text": "txt", "json": "json", "ctm": "ctm", "srt": "srt"}.items():
        assert run_command(capsys, model, "in", "--output", output, "--format", format) == (0, "", "")
        contents = {path.relative_to(output): path.read_text() for path in Path(output).rglob(f"*.{suffix}")}
        assert sorted(map(str, contents)) == [f"b.{suffix}", f"x/a.{suffix}"]
        content = contents[Path(f"x/a.{suffix}")]
        if format == "text":
            assert content == "two\n"
        elif format == "json":
            assert json.loads(content)["text"] == "two"
        elif format == "ctm":
            assert content.startswith("a 1 ") and content.count("\n") == 1
        else:
            assert read_srt(content)[0][2] == ["two"]
