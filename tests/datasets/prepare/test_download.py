"""Tests for returnn_common/datasets/prepare/download.py, with a server on this machine."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import random
import shutil
from pathlib import Path

import pytest

from returnn_common.datasets.prepare import download as implementation
from returnn_common.datasets.prepare.download import MIRRORS, DownloadError, download_librispeech, fetch
from returnn_common.datasets.prepare.official import OFFICIAL_SPLITS

from .corpus import write_split
from .server import serve

CONTENT = random.Random(1).randbytes(100_000)
MD5 = hashlib.md5(CONTENT).hexdigest()


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(implementation.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(implementation, "_CHUNK", 10_000)


@pytest.mark.parametrize("says_length", [True, False])
def test_download(tmp_path, says_length):
    calls = []
    with serve({"a.tar.gz": CONTENT}, says_length=says_length) as server:
        path = tmp_path / "a.tar.gz"
        fetch([server.url + "a.tar.gz"], path, md5=MD5, on_progress=lambda *args: calls.append(args))
    assert path.read_bytes() == CONTENT and os.listdir(tmp_path) == ["a.tar.gz"]
    assert server.asked == [("a.tar.gz", 0)]
    assert calls[-1] == (100_000, 100_000 if says_length else 0, "a.tar.gz")
    assert [done for done, _, _ in calls] == sorted(done for done, _, _ in calls) and len(calls) >= 10


@pytest.mark.parametrize("ranges", [True, False])
def test_goes_on(tmp_path, ranges):
    """from the part that is there; a server that cannot do so sends all of it"""
    (tmp_path / "a.part").write_bytes(CONTENT[:60_000])
    with serve({"a": CONTENT}, ranges=ranges) as server:
        calls = []
        fetch([server.url + "a"], tmp_path / "a", md5=MD5, on_progress=lambda done, *_: calls.append(done))
    assert (tmp_path / "a").read_bytes() == CONTENT
    assert server.asked == [("a", 60_000)]
    assert (calls[0] > 60_000) == ranges


def test_connection_ends_again_and_again(tmp_path):
    with serve({"a": CONTENT}, cut_after=30_000) as server:
        fetch([server.url + "a"], tmp_path / "a", md5=MD5)
    assert (tmp_path / "a").read_bytes() == CONTENT
    assert server.asked == [("a", 0), ("a", 30_000), ("a", 60_000), ("a", 90_000)]


def test_connection_ends_and_the_server_cannot_go_on(tmp_path):
    """it does not go on for ever; what is there is kept"""
    with serve({"a": CONTENT}, cut_after=30_000, ranges=False) as server:
        with pytest.raises(DownloadError, match="a could not be downloaded: .*ended after 30000 of 100000 bytes"):
            fetch([server.url + "a"], tmp_path / "a", md5=MD5)
    assert len(server.asked) == 6
    assert (tmp_path / "a.part").read_bytes() == CONTENT[:30_000]


def test_part_of_another_file(tmp_path):
    """found by the checksum; downloaded once more, whole"""
    (tmp_path / "a.part").write_bytes(b"x" * 60_000)
    with serve({"a": CONTENT}) as server:
        fetch([server.url + "a"], tmp_path / "a", md5=MD5)
    assert (tmp_path / "a").read_bytes() == CONTENT
    assert server.asked == [("a", 60_000), ("a", 0)]


@pytest.mark.parametrize("content", [CONTENT, CONTENT + b"more than there is", b"x" * 100_000])
def test_complete_part(tmp_path, content):
    """the last call was killed before it gave the file its name; or it is a wrong one"""
    (tmp_path / "a.part").write_bytes(content)
    with serve({"a": CONTENT}) as server:
        fetch([server.url + "a"], tmp_path / "a", md5=MD5)
    assert (tmp_path / "a").read_bytes() == CONTENT
    assert server.asked == [("a", len(content))] + ([] if content == CONTENT else [("a", 0)])


def test_wrong_place(tmp_path):
    (tmp_path / "a.part").write_bytes(CONTENT[:60_000])
    with serve({"a": CONTENT}, wrong_range=5) as server:
        with pytest.raises(DownloadError, match="asked for bytes from 60000, got them from 60005"):
            fetch([server.url + "a"], tmp_path / "a", md5=MD5)
    assert (tmp_path / "a.part").read_bytes() == CONTENT[:60_000]


def test_wrong_checksum(tmp_path):
    with serve({"a": b"wrong"}) as server:
        found = hashlib.md5(b"wrong").hexdigest()
        with pytest.raises(DownloadError, match=f"a could.*/12/a: its MD5 checksum is {found}, expected {MD5}"):
            fetch([server.url + "a"], tmp_path / "a", md5=MD5)
    assert os.listdir(tmp_path) == [] and len(server.asked) == 1


def test_passing_errors(tmp_path):
    with serve({"a": CONTENT}, errors=[503, 429, 500]) as server:
        fetch([server.url + "a"], tmp_path / "a", md5=MD5)
    assert (tmp_path / "a").read_bytes() == CONTENT and len(server.asked) == 4


def test_next_mirror(tmp_path):
    """after one without the file, one with another file, and one that is not there"""
    with serve({}) as first, serve({"a": b"wrong"}) as second, serve({"a": CONTENT}) as third:
        with serve({}) as closed:
            pass
        urls = [f"{server.url}a" for server in (first, second, closed, third)]
        fetch(["no address", *urls], tmp_path / "a", md5=MD5)
        assert (tmp_path / "a").read_bytes() == CONTENT
        with pytest.raises(DownloadError) as error:
            fetch(["no address", *urls[:3]], tmp_path / "b", md5=MD5)
    for said in ("no address: unknown url type", f"{urls[0]}: 404 Not Found", f"{urls[1]}: its MD5", "refused"):
        assert said in str(error.value)


def test_full_disk(tmp_path, monkeypatch):
    """known before; or it happens"""
    usage = shutil.disk_usage(tmp_path)
    with serve({"a": CONTENT}) as server:
        with monkeypatch.context() as patch, pytest.raises(DownloadError) as error:
            patch.setattr(implementation.shutil, "disk_usage", lambda path: usage._replace(free=50_000))
            fetch([server.url + "a"], tmp_path / "a", md5=MD5)
        assert f"a: 0.0 GB are to be downloaded, but {tmp_path} has only 0.0 GB left" in str(error.value)
        assert os.listdir(tmp_path) == []

        def _full(done: int, *_):
            if done >= 50_000:
                raise OSError(28, "No space left on device")

        with pytest.raises(OSError, match="No space left on device"):
            fetch([server.url + "a"], tmp_path / "a", md5=MD5, on_progress=_full)
        assert os.listdir(tmp_path) == ["a.part"]
        asked = len(server.asked)
        fetch([server.url + "a"], tmp_path / "a", md5=MD5)
        assert (tmp_path / "a").read_bytes() == CONTENT and server.asked[asked:] == [("a", 50_000)]


@pytest.fixture
def official(monkeypatch) -> dict[str, bytes]:
    """as if the archives were short; file name -> content"""
    contents = {}
    for name, split in list(OFFICIAL_SPLITS.items()):
        contents[f"{name}.tar.gz"] = name.encode() * 1000
        md5 = hashlib.md5(contents[f"{name}.tar.gz"]).hexdigest()
        monkeypatch.setitem(OFFICIAL_SPLITS, name, dataclasses.replace(split, md5=md5))
    return contents


def _content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_librispeech(tmp_path, official):
    with serve(official) as server:
        paths = download_librispeech(tmp_path / "new" / "folder", mirrors=[server.url])
        assert sorted(path.name for path in paths) == sorted(official)
        assert _content(tmp_path / "new" / "folder") == official
        assert download_librispeech(tmp_path / "new" / "folder", mirrors=[server.url]) == []
        assert len(server.asked) == 7


def test_what_is_there_is_not_downloaded(tmp_path, official):
    write_split(tmp_path / "LibriSpeech" / "dev-clean")
    (tmp_path / "LibriSpeech" / "test-other").mkdir()  # empty
    (tmp_path / "test-clean.tar.gz").write_bytes(b"there")
    with serve(official) as server:
        splits = ["dev-clean", "test-clean", "dev-other", "test-other", "dev-other"]
        paths = download_librispeech(tmp_path, splits=splits, mirrors=[server.url])
    assert [path.name for path in paths] == ["dev-other.tar.gz", "test-other.tar.gz"]


def test_bad_calls(tmp_path):
    with pytest.raises(ValueError, match="LibriSpeech has no split dev, only dev-clean, dev-other, test-clean, "):
        download_librispeech(tmp_path, splits=["dev"])
    for mirrors in ([], MIRRORS[0]):
        with pytest.raises(ValueError, match="mirrors: expected one or more addresses, got"):
            download_librispeech(tmp_path, mirrors=mirrors)
