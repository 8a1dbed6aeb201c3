"""Tests for the command ``prepare``."""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import tarfile
import zipfile

import pytest

from returnn_common.cli import prepare
from returnn_common.datasets.prepare.official import OFFICIAL_SPLITS

from ..datasets.prepare.corpus import encode, tone, write_chapter, write_split
from ..datasets.prepare.server import serve


def _run(*words: str) -> int:
    parser = argparse.ArgumentParser(prog="returnn-common")
    prepare.add_parser(parser.add_subparsers())
    args = parser.parse_args(["prepare", *map(str, words)])
    return args.func(args)


def test_all_well(tmp_path, capsys):
    write_split(tmp_path / "src" / "dev")
    assert _run("librispeech", tmp_path / "src", tmp_path / "dest", "--num-workers", "1") == 0
    output = capsys.readouterr()
    assert "dev" in output.out and "written" in output.out and "skipped:" not in output.out
    assert output.err == ""  # no progress bar, since it is not a terminal
    assert (tmp_path / "dest" / "dev.zip").is_file()
    assert _run("librispeech", tmp_path / "src", tmp_path / "dest") == 0
    assert "up to date" in capsys.readouterr().out


def test_problems_give_status_1_and_are_listed(tmp_path, capsys):
    write_chapter(
        tmp_path / "src" / "dev" / "1" / "1",
        {"1-1-0.flac": encode(tone()), "1-1-1.flac": b"x", "1-1-2.flac": encode(tone(), rate=8000)},
    )
    for _ in range(2):  # also when it was prepared before
        assert _run("librispeech", tmp_path / "src", tmp_path / "dest") == 1
        lines = capsys.readouterr().out.splitlines()
        assert "skipped: dev/1-1-1: cannot be decoded (Format not recognised) [broken]" in lines
        assert "1 problem: what is listed above was skipped." in lines
        assert "1 recording resampled to 16 kHz from other sample rates." in lines


def test_partial_official_split(tmp_path, capsys):
    """said, and an error on request"""
    write_split(tmp_path / "src" / "dev-clean")
    assert _run("librispeech", tmp_path / "src", tmp_path / "dest") == 0
    said = "dev-clean: 4 of 2703 utterances, 0.00 of 5.39 hours, 2 of 40 speakers of the official split.\n"
    assert said in capsys.readouterr().out
    assert _run("librispeech", tmp_path / "src", tmp_path / "dest", "--complete") == 1
    assert said in capsys.readouterr().out


def test_splits_and_format(tmp_path):
    for name in ("dev", "test", "train"):
        write_split(tmp_path / "src" / name)
    assert _run("librispeech", tmp_path / "src", tmp_path / "d", "--splits", "dev, test", "--audio-format", "ogg") == 0
    assert sorted(path.name for path in (tmp_path / "d").glob("*.zip")) == ["dev.zip", "test.zip"]
    with zipfile.ZipFile(tmp_path / "d" / "dev.zip") as file:
        assert "dev/1-1-0000.ogg" in file.namelist()


def test_download(tmp_path, capsys, monkeypatch):
    """then prepared; and nothing is downloaded again"""
    write_split(tmp_path / "src" / "dev-clean")
    with tarfile.open(tmp_path / "dev-clean.tar.gz", "w:gz") as tar:
        tar.add(tmp_path / "src" / "dev-clean", "LibriSpeech/dev-clean")
    content = (tmp_path / "dev-clean.tar.gz").read_bytes()
    known = dataclasses.replace(OFFICIAL_SPLITS["dev-clean"], md5=hashlib.md5(content).hexdigest())
    monkeypatch.setitem(OFFICIAL_SPLITS, "dev-clean", known)
    words = ["librispeech", tmp_path / "new", tmp_path / "dest", "--download", "--splits", "dev-clean", "--mirror"]
    with serve({"dev-clean.tar.gz": content}) as server:
        for _ in range(2):
            assert _run(*words, server.url) == 0
            assert "4 of 2703 utterances" in capsys.readouterr().out
        assert len(server.asked) == 1
    assert (tmp_path / "dest" / "dev-clean.zip").is_file()
    with serve({}) as server:
        assert _run("librispeech", tmp_path / "new", tmp_path / "dest", "--download", "--mirror", server.url) == 2
        said = f"dev-other.tar.gz could not be downloaded: {server.url}dev-other.tar.gz: 404 Not Found"
        assert said in capsys.readouterr().err
        assert _run("librispeech", tmp_path / "new", tmp_path / "dest", "--mirror", server.url) == 2
        assert "--mirror: expected together with --download" in capsys.readouterr().err


def test_bad_names(tmp_path, capsys):
    with pytest.raises(SystemExit):
        _run("librispeech", tmp_path, tmp_path / "dest", "--splits", "dev,,test")
    assert "expected names separated by commas, got 'dev,,test'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["librispeech", "nowhere", "dest"], "returnn-common prepare: corpus: expected a folder, but nowhere is"),
        (["librispeech", "src", "dest"], "no recordings"),
        (["librispeech", "src", "dest", "--num-workers", "0"], "num_workers: expected an integer of at least 1, got 0"),
    ],
)
def test_bad_calls_give_status_2(tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "src").mkdir()
    assert _run(*words) == 2
    output = capsys.readouterr()
    assert message in output.err and "Traceback" not in output.err and output.out == ""


@pytest.mark.parametrize("words", [[], ["timit", "src", "dest"], ["librispeech", "src"]])
def test_unknown_words_give_status_2(words, capsys):
    with pytest.raises(SystemExit) as error:
        _run(*words)
    assert error.value.code == 2
    assert "usage:" in capsys.readouterr().err


def test_interrupted(tmp_path, monkeypatch, capsys):
    def _interrupt(*_args, **_kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(prepare, "prepare_librispeech", _interrupt)
    assert _run("librispeech", tmp_path, tmp_path / "dest") == 1
    assert "Interrupted; run the same command again" in capsys.readouterr().err


def test_folder(tmp_path, capsys):
    (tmp_path / "src" / "clips").mkdir(parents=True)
    for name in ("a", "b"):
        (tmp_path / "src" / "clips" / f"{name}.flac").write_bytes(encode(tone()))
    (tmp_path / "src" / "train.tsv").write_text("wave\tGerman\na.flac\tEINS\nb.flac\tZWEI\nc.flac\tDREI\n")
    (tmp_path / "src" / "other.tsv").write_text("wave\tGerman\na.flac\tEINS\n")
    words = ["folder", tmp_path / "src", tmp_path / "dest", "--audio-format", "ogg", "--splits", "train"]
    words += ["--audio-folder", tmp_path / "src" / "clips", "--columns"]
    assert _run(*words, "path=wave,text=German") == 1
    assert "skipped: train/c.flac: train.tsv:4 lists it" in capsys.readouterr().out
    with zipfile.ZipFile(tmp_path / "dest" / "train.zip") as file:
        assert file.namelist() == ["train/a.ogg", "train/b.ogg", "train.txt"] and b"ZWEI" in file.read("train.txt")
    assert _run(*words, "path=x") == 2
    assert "no column 'x', only wave, German" in capsys.readouterr().err


@pytest.mark.parametrize("columns", ["path", "path=a,date=b"])
def test_bad_columns(tmp_path, capsys, columns):
    with pytest.raises(SystemExit):
        _run("folder", tmp_path, tmp_path / "dest", "--columns", columns)
    assert f"expected path=NAME,text=NAME,name=NAME,speaker=NAME or some of them, got {columns!r}" in (
        capsys.readouterr().err
    )
