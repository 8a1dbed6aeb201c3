"""Tests for returnn_common/datasets/prepare/statistics.py."""

from __future__ import annotations

import zipfile

import numpy as np
import pytest

from returnn_common.datasets.prepare import prepare_librispeech
from returnn_common.datasets.prepare.oggzip import read_index
from returnn_common.datasets.prepare.statistics import compute_statistics, prepared_splits, read_statistics

from .corpus import write_split


def _entry(name: str, text: str, seconds: float, **more: str) -> dict:
    return {"seq_name": name, "text": text, "duration": seconds, "file": f"{name}.flac", **more}


ENTRIES = [
    _entry("1-1-0000", "A BB CCC", 4.0),
    _entry("1-1-0001", "A", 2.0),
    _entry("2-7-0000", "BB A", 0.5),
    _entry("mine", "BB", 1.0, speaker="anna"),
]


def test_numbers():
    split = compute_statistics("dev", ENTRIES)
    assert split.name == "dev"
    np.testing.assert_array_equal(split.seconds, [4.0, 2.0, 0.5, 1.0])
    np.testing.assert_array_equal(split.words, [3, 1, 2, 1])
    np.testing.assert_array_equal(split.characters, [8, 1, 4, 2])
    assert split.num_different_words == 3
    assert split.speaker_seconds == {"1": 6.0, "2": 0.5, "anna": 1.0}
    assert split.character_counts == {"A": 3, "B": 6, "C": 3, " ": 3}
    np.testing.assert_allclose(split.quantities["words per second"], [0.75, 0.5, 4.0, 1.0])
    np.testing.assert_allclose(split.quantities["characters per second"], [2.0, 0.5, 8.0, 2.0])
    np.testing.assert_allclose(split.quantities["minutes per speaker"], [0.1, 0.5 / 60, 1 / 60])


def test_extremes():
    extremes = compute_statistics("dev", ENTRIES).extremes
    names = {kind: [one.name for one in found] for kind, found in extremes.items()}
    assert names["longest"] == ["1-1-0000", "1-1-0001", "mine", "2-7-0000"] == names["shortest"][::-1]
    assert names["fastest"][0] == "2-7-0000" and names["slowest"][0] == "1-1-0001"
    assert extremes["fastest"][0].value == 8.0 and extremes["fastest"][0].seconds == 0.5
    assert extremes["longest"][0].value == 4.0 and extremes["longest"][0].text == "A BB CCC"
    many = compute_statistics("dev", [_entry(f"x{i}", "A", i + 1.0) for i in range(30)]).extremes
    assert [one.name for one in many["longest"]] == ["x29", "x28", "x27", "x26", "x25"]


def test_unknown_speakers():
    assert compute_statistics("dev", [_entry("one", "A", 1.0)]).speaker_seconds == {}


def test_nothing():
    with pytest.raises(ValueError, match="statistics of the split 'dev': it has no utterances"):
        compute_statistics("dev", [])


def test_of_a_corpus(tmp_path):
    write_split(tmp_path / "src" / "dev")
    write_split(tmp_path / "src" / "test", speakers=3)
    prepare_librispeech(tmp_path / "src", tmp_path / "dest")
    (tmp_path / "dest" / "other.zip").write_bytes(b"")
    assert prepared_splits(tmp_path / "dest") == ["dev", "test"]
    split = read_statistics(tmp_path / "dest" / "test.zip")
    assert len(split.seconds) == 6 and len(split.speaker_seconds) == 3
    with pytest.raises(ValueError, match=r"other.zip is not a prepared split \(File is not a zip"):
        read_statistics(tmp_path / "dest" / "other.zip")
    with zipfile.ZipFile(tmp_path / "dest" / "other.zip", "w") as file:
        file.writestr("other.txt", "[\n{no dict}\n]\n")
    with pytest.raises(ValueError, match="other.zip is not a prepared split"):
        read_index(tmp_path / "dest" / "other.zip")
