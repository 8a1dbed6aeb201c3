"""Tests for returnn_common/datasets/prepare/official.py."""

from __future__ import annotations

import pytest

from returnn_common.datasets.prepare import prepare_librispeech
from returnn_common.datasets.prepare.folder_tree import FolderTree
from returnn_common.datasets.prepare.official import OFFICIAL_SPLITS, find_missing
from returnn_common.datasets.prepare.report import SplitSummary
from returnn_common.datasets.prepare.scan import SplitSource

from .corpus import write_split

CHAPTERS = """; a comment | with | bars | dev-clean
;ID    |READER|MINUTES| SUBSET           | PROJ.|BOOK ID| CH. TITLE | PROJECT TITLE
1      | 1    | 8.10  | dev-clean        | 1    | 1     | One       | Book
2      | 1    | 8.10  | dev-clean        | 1    | 1     | Two       | Book
1      | 2    | 8.10  | dev-clean        | 1    | 1     | Three     | Book
7      | 30   | 8.10  | dev-clean        | 1    | 1     | Four      | Book
8      | 4    | 8.10  | dev-clean        | 1    | 1     | Five      | Book
9      | 5    | 8.10  | dev-other        | 1    | 1     | Six       | Book
"""


def _source(tmp_path, name: str) -> SplitSource:
    return SplitSource(name, FolderTree(tmp_path))


def _whole(name: str) -> tuple[list[str], SplitSummary]:
    """as many utterances as the split has, in one chapter each"""
    official = OFFICIAL_SPLITS[name]
    names = [f"{i % official.num_speakers}-{i}-0000" for i in range(official.num_utterances)]
    return names, SplitSummary(official.num_utterances, 3600 * official.hours)


def test_numbers():
    """their sums are those of the corpus, 960 hours of training data, and 2484 speakers in all"""
    training = [split for name, split in OFFICIAL_SPLITS.items() if name.startswith("train")]
    assert sum(split.num_utterances for split in training) == 281_241
    assert sum(split.hours for split in training) == pytest.approx(961, abs=0.1)
    assert sum(split.num_speakers for split in OFFICIAL_SPLITS.values()) == 2484
    assert all(len(bytes.fromhex(split.md5)) == 16 for split in OFFICIAL_SPLITS.values())


@pytest.mark.parametrize("name", OFFICIAL_SPLITS)
def test_whole_split(tmp_path, name):
    names, summary = _whole(name)
    assert find_missing(_source(tmp_path, name), names, summary) == []


@pytest.mark.parametrize("hours", [5.0, 5.5])
def test_other_hours(tmp_path, hours):
    names, _ = _whole("dev-clean")
    assert find_missing(_source(tmp_path, "dev-clean"), names, SplitSummary(len(names), 3600 * hours)) == [
        f"dev-clean: {hours:.2f} hours, where the official split has 5.39: is it another corpus?"
    ]


def test_more_utterances(tmp_path):
    names, _ = _whole("dev-clean")
    sentences = find_missing(_source(tmp_path, "dev-clean"), [*names, "x"], SplitSummary(2704, 3600 * 5.39))
    assert sentences == [
        "dev-clean: 2704 of 2703 utterances, 5.39 of 5.39 hours, 40 of 40 speakers of the official split: is it "
        "another corpus?"
    ]


def test_other_names_are_not_checked(tmp_path):
    assert find_missing(_source(tmp_path, "train"), ["1-1-0003"], SplitSummary(1, 1.0)) == []


def test_the_gaps_of_the_transcripts_of_test_clean(tmp_path, shared_data):
    """2611 of 2620 are in that file; those that are not are inside of their chapters, so all of them are named"""
    text = (shared_data / "text" / "librispeech-test-clean.txt").read_text()
    names = [line.split()[0] for line in text.splitlines()]
    counts, gaps = find_missing(_source(tmp_path, "test-clean"), names, SplitSummary(len(names), 3600 * 5.38))
    assert counts == (
        "test-clean: 2611 of 2620 utterances, 5.38 of 5.4 hours, 40 of 40 speakers of the official split."
    )
    assert gaps == (
        "test-clean: missing between others: 121-123859-0002, 672-122797-0008, 908-157963-0007, 1995-1836-0004, "
        "2094-142345-0008, 2094-142345-0010, 4507-16021-0026, 4507-16021-0047, 7021-79730-0003."
    )


def test_many_gaps_are_cut_short(tmp_path):
    gaps = find_missing(_source(tmp_path, "dev-clean"), ["1-2-0030"], SplitSummary(1, 1.0))[1]
    assert gaps.startswith("dev-clean: missing between others: 1-2-0000, 1-2-0001, ")
    assert gaps.endswith(", 1-2-0019, and 10 more.")


def test_missing_speakers_and_chapters(tmp_path):
    write_split(tmp_path / "src" / "LibriSpeech" / "dev-clean")
    (tmp_path / "src" / "LibriSpeech" / "CHAPTERS.TXT").write_text(CHAPTERS)
    (tmp_path / "src" / "LibriSpeech" / "dev-clean" / "2" / "1" / "2-1-0000.flac").write_bytes(b"broken")
    expected = [
        "dev-clean: 3 of 2703 utterances, 0.00 of 5.39 hours, 2 of 40 speakers of the official split.",
        "dev-clean: nothing of the speakers 4, 30.",
        "dev-clean: nothing of the chapters 1/2.",
        "dev-clean: missing between others: 2-1-0000.",
    ]
    for _ in range(2):  # also when it is up to date
        assert prepare_librispeech(tmp_path / "src", tmp_path / "dest").missing == expected
