"""Tests for reading corpora from archives."""

from __future__ import annotations

import gzip
import io
import os
import random
import tarfile
from pathlib import Path

import numpy as np
import pytest

from returnn_common.datasets.prepare import archive as implementation
from returnn_common.datasets.prepare import prepare_librispeech
from returnn_common.datasets.prepare.archive import ArchiveTree, BrokenArchiveError

from .corpus import encode, tone, write_chapter, write_split


def _pack(folder: Path, path: Path, *, seed: int | None = None, prefix: str = "LibriSpeech/") -> Path:
    """
    :param folder: a split
    :param seed: for the order of the files; None: sorted
    """
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    if seed is not None:
        random.Random(seed).shuffle(files)
    with tarfile.open(path, "w" if path.suffix == ".tar" else "w:gz") as tar:
        for file in files:
            tar.add(file, f"{prefix}{folder.name}/{file.relative_to(folder).as_posix()}")
    return path


def _zips(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.zip")}


@pytest.fixture
def corpus(tmp_path) -> Path:
    write_split(tmp_path / "src" / "dev-clean", speakers=3, utterances=3)
    write_chapter(
        tmp_path / "src" / "dev-clean" / "9" / "1", {"9-1-0.flac": b"x", "9-1-1.wav": encode(tone(), format="WAV")}
    )
    prepare_librispeech(tmp_path / "src", tmp_path / "expected")
    return tmp_path


@pytest.mark.parametrize("suffix", [".tar.gz", ".tgz", ".tar"])
@pytest.mark.parametrize("seed", [None, 1])
def test_same_as_from_folders(corpus, suffix, seed):
    (corpus / "archives").mkdir()
    path = _pack(corpus / "src" / "dev-clean", corpus / "archives" / f"dev-clean{suffix}", seed=seed)
    for src in (path, path.parent):
        report = prepare_librispeech(src, corpus / f"dest{src == path}")
        assert list(report.splits) == ["dev-clean"] and report.splits["dev-clean"].num_utterances == 10
        assert [problem.name for problem in report.problems] == ["dev-clean/9-1-0"]
        assert _zips(corpus / f"dest{src == path}") == _zips(corpus / "expected")


def test_without_a_folder_of_the_split(corpus):
    """the archive's own name is the split's then"""
    with tarfile.open(corpus / "mine.tar.gz", "w:gz") as tar:
        tar.add(corpus / "src" / "dev-clean" / "1", "1")
    assert list(prepare_librispeech(corpus / "mine.tar.gz", corpus / "dest").splits) == ["mine"]


def test_several_splits_in_one(corpus, monkeypatch):
    write_split(corpus / "src" / "test-clean")
    prepare_librispeech(corpus / "src", corpus / "expected")
    with tarfile.open(corpus / "dev-clean.tar.gz", "w:gz") as tar:
        tar.add(corpus / "src", "LibriSpeech")
    only = prepare_librispeech(corpus / "dev-clean.tar.gz", corpus / "dest", splits=["dev-clean"])
    assert list(only.splits) == ["dev-clean"] and only.up_to_date == []
    report = prepare_librispeech(corpus / "dev-clean.tar.gz", corpus / "dest")
    assert list(report.splits) == ["dev-clean", "test-clean"] and report.up_to_date == ["dev-clean"]
    assert _zips(corpus / "dest") == _zips(corpus / "expected")
    monkeypatch.setattr("returnn_common.datasets.prepare.librispeech.ArchiveTree", None)
    again = prepare_librispeech(corpus / "dev-clean.tar.gz", corpus / "dest")
    assert again.up_to_date == ["dev-clean", "test-clean"] and again.splits == report.splits
    assert again.problems == report.problems != []


def test_changed_archive_is_read_again(corpus):
    path = _pack(corpus / "src" / "dev-clean", corpus / "dev-clean.tar.gz")
    prepare_librispeech(path, corpus / "dest")
    write_split(corpus / "src" / "dev-clean", speakers=4, utterances=3)
    _pack(corpus / "src" / "dev-clean", path)
    report = prepare_librispeech(path, corpus / "dest")
    assert report.up_to_date == [] and report.splits["dev-clean"].num_utterances == 13


def test_folder_is_preferred_and_other_archives_are_left_alone(corpus):
    (corpus / "src" / "dev-clean.tar.gz").write_bytes(b"half an archive, unpacked already")
    (corpus / "src" / "original-mp3.tar.gz").write_bytes(b"no split")
    assert prepare_librispeech(corpus / "src", corpus / "dest").splits["dev-clean"].num_utterances == 10


def test_only_an_archive_of_another_name(corpus):
    """is taken, since there is nothing else"""
    (corpus / "archives").mkdir()
    _pack(corpus / "src" / "dev-clean", corpus / "archives" / "corpus.tar.gz")
    assert list(prepare_librispeech(corpus / "archives", corpus / "dest").splits) == ["dev-clean"]


def test_chosen_splits(corpus):
    write_split(corpus / "src" / "test-clean", speakers=1)
    folder = corpus / "archives"
    folder.mkdir()
    _pack(corpus / "src" / "dev-clean", folder / "dev-clean.tar.gz")
    (folder / "train-clean-100.tar.gz").write_bytes(b"not asked for, so not read")
    assert list(prepare_librispeech(folder, corpus / "dest", splits=["dev-clean"]).splits) == ["dev-clean"]
    with pytest.raises(ValueError, match="no split test-clean in it, only others"):
        prepare_librispeech(folder, corpus / "dest", splits=["test-clean"])
    with pytest.raises(ValueError, match="no split test-clean in it, only dev-clean"):
        prepare_librispeech(folder, corpus / "dest", splits=["dev-clean", "test-clean"])


def test_two_archives_of_one_split(corpus):
    folder = corpus / "archives"
    folder.mkdir()
    _pack(corpus / "src" / "dev-clean", folder / "dev-clean.tar.gz")
    _pack(corpus / "src" / "dev-clean", folder / "dev-other.tar.gz")
    with pytest.raises(ValueError, match="two sources for the split 'dev-clean': .*dev-clean.tar.gz:LibriSpeech/dev-"):
        prepare_librispeech(folder, corpus / "dest")


def test_interrupted(corpus):
    path = _pack(corpus / "src" / "dev-clean", corpus / "dev-clean.tar.gz", seed=2)

    def _interrupt(done: int, *_):
        if done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare_librispeech(path, corpus / "dest", on_progress=_interrupt)
    assert ".dev-clean.journal.part" in os.listdir(corpus / "dest")
    prepare_librispeech(path, corpus / "dest")
    assert _zips(corpus / "dest") == _zips(corpus / "expected")


def test_no_recordings(tmp_path):
    with tarfile.open(tmp_path / "dev.tar.gz", "w:gz") as tar:
        tar.addfile(tarfile.TarInfo("readme"))
    with pytest.raises(FileNotFoundError, match=r"dev.tar.gz: no recordings \(.flac"):
        prepare_librispeech(tmp_path / "dev.tar.gz", tmp_path / "dest")


def _damaged_header(content: bytes) -> bytes:
    """A member in the middle whose header's checksum is wrong; gzip's own is right."""
    plain = bytearray(gzip.decompress(content))
    third = [i for i in range(0, len(plain), 512) if plain[i + 257 : i + 262] == b"ustar"][2]
    plain[third] ^= 1
    return gzip.compress(bytes(plain))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        pytest.param(lambda content: content[: len(content) // 2], "ends too early", id="half"),
        pytest.param(lambda content: content[:-1], "ends too early", id="without the last byte"),
        pytest.param(lambda content: content[:-6] + b"\x00\x01" + content[-4:], "incorrect data check", id="checksum"),
        pytest.param(
            lambda content: content[:2000] + b"damage" + content[2006:], "Error -3|unexpected|incorrect", id="middle"
        ),
        pytest.param(_damaged_header, "a header is damaged", id="header"),
        pytest.param(lambda content: b"no archive" * 100, "invalid header|bad|damaged", id="none"),
        pytest.param(lambda content: b"", "empty file", id="empty"),
        pytest.param(lambda content: gzip.decompress(content)[:-20_000], "unexpected end|damaged", id="half a tar"),
    ],
)
def test_broken(corpus, damage, message):
    path = _pack(corpus / "src" / "dev-clean", corpus / "dev-clean.tar.gz")
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(
        BrokenArchiveError, match=rf"dev-clean.tar.gz: cut off or damaged \(.*({message}).*get it again"
    ):
        prepare_librispeech(path, corpus / "dest")
    assert os.listdir(corpus / "dest") == []


def test_changed_while_read(corpus):
    path = _pack(corpus / "src" / "dev-clean", corpus / "dev-clean.tar")

    def _change(*_):
        path.write_bytes(path.read_bytes()[:3000])

    with pytest.raises(BrokenArchiveError, match="it has changed meanwhile"):
        prepare_librispeech(path, corpus / "dest", on_progress=lambda done, *_: _change() if done else None)


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(implementation, "_BLOCK", 1000)
    monkeypatch.setattr(implementation, "_NUM_BLOCKS", 2)
    monkeypatch.setattr(implementation, "_CHUNK", 64)


@pytest.mark.parametrize("kind", ["tar", "gz", "joined", "padded", "stored"])
def test_any_member_at_any_time(tmp_path, small_blocks, kind):
    """with states every 1000 bytes, members longer and shorter than that, in random order"""
    rng = np.random.default_rng(3)
    contents = {f"{i}.bin": rng.bytes(int(rng.integers(0, 4000))) + bytes(i) for i in range(30)}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in contents.items():
            info = tarfile.TarInfo(f"./folder/{name}")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    plain = buffer.getvalue()
    middle = len(plain) // 2
    packed = {
        "tar": plain,
        "gz": gzip.compress(plain),
        "joined": gzip.compress(plain[:middle]) + gzip.compress(plain[middle:]),
        "padded": gzip.compress(plain) + bytes(1000),
        "stored": gzip.compress(plain, compresslevel=0),
    }[kind]
    (tmp_path / "a.tar").write_bytes(packed)
    with ArchiveTree(tmp_path / "a.tar", keep=lambda name: name == "7.bin") as tree:
        assert list(tree.walk()) == [("folder", sorted(contents))]
        names = [str(name) for name in rng.permutation([*contents, *contents])]
        for name, load in zip(names, tree.loaders(f"folder/{name}" for name in names), strict=True):
            assert load() == contents[name], name


def test_links_and_hidden_files(tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for name, kind in [
            ("d/one", None),
            ("d/two", tarfile.LNKTYPE),
            ("d/three", tarfile.SYMTYPE),
            ("d/._one", None),
        ]:
            info = tarfile.TarInfo(name)
            if kind is None:
                info.size = 3
            else:
                info.type, info.linkname = kind, "d/one"
            tar.addfile(info, io.BytesIO(b"abc") if kind is None else None)
    with ArchiveTree(tmp_path / "a.tar", keep=lambda name: name == "one") as tree:
        assert list(tree.walk()) == [("d", ["one", "two"])]
        assert tree.read("d/two") == tree.read("d/one") == b"abc"
        assert tree.where() == str(tmp_path / "a.tar") and tree.where("d/two") == f"{tmp_path / 'a.tar'}:d/two"
