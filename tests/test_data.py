"""Tests for returnn_common/data.py."""

from __future__ import annotations

import os

import pytest

from returnn_common import data


def test_common_data_path_default(monkeypatch):
    monkeypatch.delenv("RETURNN_COMMON_DATA_PATH", raising=False)
    assert data.get_common_data_path("librispeech") == os.path.join("data-common", "librispeech")


def test_common_data_path_from_environment(monkeypatch):
    monkeypatch.setenv("RETURNN_COMMON_DATA_PATH", "/no/such/folder")
    assert data.get_common_data_path("a/b.zip") == "/no/such/folder/a/b.zip"  # no look at the file system


@pytest.mark.parametrize("name", ["", "/etc/passwd", "../x", "a/../../x", "a\\..\\x", "C:\\x"])
@pytest.mark.parametrize("function", [data.get_common_data_path, data.get_bundled_path])
def test_bad_names(function, name):
    with pytest.raises(ValueError, match="expected a relative path without '..', got"):
        function(name)


def test_name_of_other_type():
    with pytest.raises(TypeError, match="expected a str, got int 3"):
        data.get_common_data_path(3)  # type: ignore[arg-type]


def test_bundled_in_checkout_and_wheel(tmp_path, monkeypatch):
    package = tmp_path / "package"
    (package.parent / "data" / "vocab").mkdir(parents=True)
    (package.parent / "data" / "vocab" / "a.txt").write_text("checkout")
    package.mkdir()
    monkeypatch.setattr(data, "_PACKAGE_DIR", package)
    assert data.get_bundled_path("vocab/a.txt").read_text() == "checkout"

    (package / "_data").mkdir()
    (package / "_data" / "b.txt").write_text("wheel")
    assert data.get_bundled_path("b.txt").read_text() == "wheel"
    with pytest.raises(FileNotFoundError, match=r"no bundled file 'vocab/a.txt'; there are: b.txt"):
        data.get_bundled_path("vocab/a.txt")  # "data" beside an installed package is not ours


def test_bundled_without_any_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(data, "_PACKAGE_DIR", tmp_path / "package")
    with pytest.raises(FileNotFoundError, match="no bundled file 'x'; there are: none"):
        data.get_bundled_path("x")
