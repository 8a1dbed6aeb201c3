"""Tests for preparing recordings with tables of transcripts."""

from __future__ import annotations

import ast
import json
import os
import zipfile
from pathlib import Path

import pytest

from returnn_common.datasets import Librispeech
from returnn_common.datasets.prepare import Problem, prepare_folder
from returnn_common.datasets.transcripts_table import TableColumns

from .corpus import encode, tone


def _recordings(folder: Path, names: list[str]):
    for number, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        kind = {"flac": "FLAC", "wav": "WAV", "mp3": "MP3"}[name.rpartition(".")[2]]
        subtype = "MPEG_LAYER_III" if kind == "MP3" else "PCM_16"
        (folder / name).write_bytes(encode(tone(0.5, seed=number), format=kind, subtype=subtype))


def _index(path: Path) -> list[dict]:
    with zipfile.ZipFile(path) as file:
        assert file.testzip() is None
        return ast.literal_eval(file.read(f"{path.stem}.txt").decode("utf8"))


@pytest.fixture
def corpus(tmp_path) -> Path:
    """train in three formats, dev in one folder below"""
    _recordings(tmp_path / "src", ["b/two.flac", "one.wav", "three.mp3", "dev/four.flac"])
    (tmp_path / "src" / "train.tsv").write_text(
        "path\tsentence\tspeaker\nb/two.flac\tTWO  WORDS\tanna\none.wav\tONE\t\nthree.mp3\tTHREE\tbert\n"
    )
    (tmp_path / "src" / "dev.jsonl").write_text(
        json.dumps({"audio": "dev/four.flac", "text": "FOUR", "id": "d"}) + "\n"
    )
    return tmp_path


def test_content(corpus):
    report = prepare_folder(corpus / "src", corpus / "dest")
    assert report.problems == report.missing == [] and list(report.splits) == ["dev", "train"]
    index = _index(corpus / "dest" / "train.zip")
    assert index[0] == {
        "text": "TWO WORDS",
        "duration": 0.5,
        "file": "b/two.flac",
        "seq_name": "b/two",
        "speaker": "anna",
    }
    assert [entry["seq_name"] for entry in index] == ["b/two", "one", "three"]
    assert "speaker" not in index[1]
    assert _index(corpus / "dest" / "dev.zip")[0]["seq_name"] == "d"
    again = prepare_folder(corpus / "src", corpus / "dest")
    assert again.up_to_date == ["dev", "train"] and again.splits == report.splits


def test_dataset_reads_it(corpus):
    from returnn.datasets.basic import init_dataset

    prepare_folder(corpus / "src", corpus / "dest", audio_format="ogg")
    splits = {"train_splits": ["train"], "dev_splits": ["dev"], "test_splits": []}
    dataset = Librispeech(path=corpus / "dest", train_epoch_split=1, **splits)
    dataset.check()
    assert dataset.get_references("train") == {"b/two": "TWO WORDS", "one": "ONE", "three": "THREE"}
    loaded = init_dataset(dataset.get_forward_dataset("train"))
    loaded.init_seq_order(epoch=1)
    loaded.load_seqs(0, 3)
    assert sorted(loaded.get_tag(i) for i in range(3)) == ["b/two", "one", "three"]
    assert all(abs(len(loaded.get_data(i, "data")) - 8000) < 2000 for i in range(3))


def test_same_bytes_again(corpus):
    for dest in ("one", "two"):
        prepare_folder(corpus / "src", corpus / dest, audio_format="ogg", num_workers=1 if dest == "one" else 3)
    for name in ("train.zip", "dev.zip", "train.manifest.json"):
        assert (corpus / "one" / name).read_bytes() == (corpus / "two" / name).read_bytes()


@pytest.mark.parametrize("change", ["recording", "table", "columns", "audio_folder"])
def test_changes_are_seen(corpus, change):
    prepare_folder(corpus / "src", corpus / "dest", splits=["train"])
    options: dict = {"splits": ["train"]}
    if change == "recording":
        (corpus / "src" / "one.wav").write_bytes(encode(tone(0.7), format="WAV"))
    elif change == "table":
        (corpus / "src" / "train.tsv").write_text("path\ttext\none.wav\tONE\n")
    elif change == "columns":
        options["columns"] = TableColumns(text="speaker")
    else:
        _recordings(corpus / "other", ["one.wav"])
        options["audio_folder"] = corpus / "other"
    report = prepare_folder(corpus / "src", corpus / "dest", **options)
    assert report.up_to_date == []
    index = _index(corpus / "dest" / "train.zip")
    if change == "recording":
        assert index[1]["duration"] == 0.7
    else:
        assert (
            tuple(entry["text"] for entry in index)
            == {"table": ("ONE",), "columns": ("anna", "bert"), "audio_folder": ("ONE",)}[change]
        )


def test_problems(corpus):
    (corpus / "src" / "one.wav").write_bytes(b"broken")
    with open(corpus / "src" / "train.tsv", "a") as file:
        file.write("nowhere.wav\tWORDS\t\n")
    report = prepare_folder(corpus / "src", corpus / "dest", splits=["train"])
    assert report.problems[0] == Problem("broken", "train/one", "cannot be decoded (Format not recognised)")
    assert (report.problems[1].kind, report.problems[1].name) == ("missing-recording", "train/nowhere.wav")
    assert len(report.problems) == 2 and report.splits["train"].num_utterances == 2


@pytest.mark.parametrize("name", ["../up", "/absolute", "a//b", ".", "a\\..\\b", "a\x07b"])
def test_names_for_no_file(tmp_path, name):
    _recordings(tmp_path / "src", ["one.wav", "two.wav"])
    (tmp_path / "src" / "a.tsv").write_text(f"path\ttext\tname\none.wav\tONE\t{name}\ntwo.wav\tTWO\ttwo\n")
    report = prepare_folder(tmp_path / "src", tmp_path / "dest")
    assert report.problems == [Problem("unusable-name", f"a/{name}", "expected a name for a file, perhaps in folders")]
    (tmp_path / "src" / "a.tsv").write_text(f"path\ttext\tname\none.wav\tONE\t{name}\n")
    with pytest.raises(ValueError, match=r"a.tsv: no row that can be used \(expected a name for a file"):
        prepare_folder(tmp_path / "src", tmp_path / "dest")


def test_recordings_elsewhere(corpus):
    """absolute paths"""
    table = corpus / "tables" / "mine.csv"
    table.parent.mkdir()
    table.write_text(f"path,text\n{corpus / 'src' / 'one.wav'},ONE\n")
    assert list(prepare_folder(table, corpus / "dest").splits) == ["mine"]


def test_a_table_in_each_folder(corpus):
    _recordings(corpus / "other", ["train/a.wav", "test/b.wav"])
    for name, file in (("train", "a.wav"), ("test", "b.wav")):
        (corpus / "other" / name / "metadata.csv").write_text(f"file_name,transcription\n{file},WORDS\n")
    assert list(prepare_folder(corpus / "other", corpus / "dest").splits) == ["test", "train"]


def test_chosen_splits(corpus):
    (corpus / "src" / "reported.tsv").write_text("reason\n")  # would not do
    assert list(prepare_folder(corpus / "src", corpus / "dest", splits=["dev"]).splits) == ["dev"]
    with pytest.raises(ValueError, match="src: no table for eval in it, only dev, reported, train"):
        prepare_folder(corpus / "src", corpus / "dest", splits=["eval"])


def test_two_tables_of_one_split(corpus):
    (corpus / "src" / "dev.csv").write_text("path,text\n")
    with pytest.raises(ValueError, match="two tables for the split 'dev': .*dev.csv and .*dev.jsonl"):
        prepare_folder(corpus / "src", corpus / "dest")


def test_nothing_there(tmp_path):
    with pytest.raises(FileNotFoundError, match="tables of transcripts: no such file or folder: .*nowhere"):
        prepare_folder(tmp_path / "nowhere", tmp_path / "dest")
    (tmp_path / "src" / ".hidden").mkdir(parents=True)
    (tmp_path / "src" / ".hidden" / "train.tsv").write_text("path\ttext\n")
    with pytest.raises(FileNotFoundError, match=r"folder .*src: no tables of transcripts \(.tsv, .csv, .jsonl\) in it"):
        prepare_folder(tmp_path / "src", tmp_path / "dest")


def test_destination_is_a_file(corpus):
    (corpus / "dest").write_text("mine")
    with pytest.raises(NotADirectoryError, match="expected a folder, but .*dest is a file"):
        prepare_folder(corpus / "src", corpus / "dest")


def test_options_are_checked(corpus):
    with pytest.raises(ValueError, match="audio_format: expected one of"):
        prepare_folder(corpus / "src", corpus / "dest", audio_format="mp3")
    with pytest.raises(ValueError, match="num_workers: expected an integer"):
        prepare_folder(corpus / "src", corpus / "dest", num_workers=0)


def test_interrupted(corpus):
    def _interrupt(done: int, *_):
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare_folder(corpus / "src", corpus / "dest", on_progress=_interrupt)
    assert ".train.zip.part" in os.listdir(corpus / "dest")
    prepare_folder(corpus / "src", corpus / "dest")
    prepare_folder(corpus / "src", corpus / "whole")
    for name in os.listdir(corpus / "whole"):
        assert (corpus / "dest" / name).read_bytes() == (corpus / "whole" / name).read_bytes()
