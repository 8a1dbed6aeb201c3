"""Tests for the page of statistics, and the command that writes it."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import numpy as np
import pytest

from returnn_common.cli.main import main
from returnn_common.cli.statistics_page import HEAD, summary_row, write_statistics
from returnn_common.datasets.prepare import prepare_librispeech
from returnn_common.datasets.prepare.statistics import compute_statistics

from ..datasets.prepare.corpus import write_split


class _Checker(HTMLParser):
    """Every element is closed; collects the texts."""

    def __init__(self):
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]):
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]):
        pass

    def handle_endtag(self, tag: str):
        assert self.open.pop() == tag

    def handle_data(self, data: str):
        self.texts.append(data)


def _split(name: str, durations: list[float], *, text: str = "TWO WORDS", prefix: str = "1-1-"):
    entries = [
        {"seq_name": f"{prefix}{i:04}", "text": text, "duration": duration} for i, duration in enumerate(durations)
    ]
    return compute_statistics(name, entries)


def test_page(tmp_path):
    durations = [0.5, 1.0, 1.5, 1.5, 7.0]
    write_statistics(tmp_path / "a.html", [_split("dev", durations), _split("test", [2.0])], title="Corpus <x>")
    page = (tmp_path / "a.html").read_text("utf8")
    checker = _Checker()
    checker.feed(page)
    assert checker.open == []
    text = "\n".join(checker.texts)
    for said in ("Corpus <x>", "dev", "test", "The longest", "The slowest", "1-1-0004", "TWO WORDS", "space 5"):
        assert said in text, said
    assert "duration [s]: mean 2.30, median 1.50, at most 7.00" in text
    assert "http" not in page and "<script" not in page  # nothing from elsewhere
    write_statistics(tmp_path / "b.html", [_split("dev", durations), _split("test", [2.0])], title="Corpus <x>")
    assert (tmp_path / "b.html").read_text("utf8") == page
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.html", "b.html"]


@pytest.mark.parametrize(
    "durations", [[0.5, 1.0, 1.5, 1.5, 7.0], [0.2, 0.4], [3.0], [0.001, 0.002], [35.2] * 9, [1e5, 1.0]]
)
def test_histograms_count_everything(tmp_path, durations):
    write_statistics(tmp_path / "a.html", [_split("dev", durations)], title="x")
    page = (tmp_path / "a.html").read_text("utf8")
    figures = dict(re.findall(r'aria-label="histogram: ([^"]*)">(.*?)</svg>', page, re.DOTALL))
    assert len(figures) == 6
    for name, figure in figures.items():
        counts = [int(count) for count in re.findall(r"<title>[^<]*: (\d+)</title>", figure)]
        assert sum(counts) == (1 if name == "minutes per speaker" else len(durations)), name
        heights = [float(height) for height in re.findall(r' height="([\d.]+)"', figure)]
        np.testing.assert_allclose(heights, np.array(counts) / max(counts) * max(heights), atol=0.06)
        x = [float(x) for x in re.findall(r'<(?:rect|text)[^>]* x="([\d.]+)"', figure)]
        assert 0 <= min(x) and max(x) <= 320


def test_bins_of_whole_numbers(tmp_path):
    """each has the same width, so that a flat distribution looks flat"""
    entries = [{"seq_name": f"{i}", "text": "A " * (i % 57), "duration": 1.0} for i in range(57 * 4)]
    write_statistics(tmp_path / "a.html", [compute_statistics("dev", entries)], title="x")
    page = (tmp_path / "a.html").read_text("utf8")
    figure = page.partition('aria-label="histogram: words"')[2].partition("</svg>")[0]
    bins = re.findall(r"<title>(\d+) to (\d+): (\d+)</title>", figure)
    assert bins[:2] == [("0", "1", "8"), ("2", "3", "8")] and bins[-1] == ("56", "57", "4") and len(bins) == 29


def test_text_from_outside_is_escaped(tmp_path):
    write_statistics(tmp_path / "a.html", [_split("dev", [1.0], text="<b>\x00&", prefix="<i>")], title="x")
    page = (tmp_path / "a.html").read_text("utf8")
    assert "<b>" not in page and "<i>" not in page and "&lt;b&gt;\N{REPLACEMENT CHARACTER}&amp;" in page


def test_long_transcripts_are_cut(tmp_path):
    write_statistics(tmp_path / "a.html", [_split("dev", [1.0], text="A" * 400)], title="x")
    page = (tmp_path / "a.html").read_text("utf8")
    assert f"<td>{'A' * 300} ...</td>" in page and "A" * 301 not in page


def test_summary():
    row = dict(zip(HEAD, summary_row(_split("dev", [1800.0, 1800.0, 1.0, 2.0, 3.0])), strict=True))
    assert row == {
        "split": "dev",
        "utterances": "5",
        "hours": "1.00",
        "speakers": "1",
        "words": "10",
        "different": "2",
        "seconds": "1.0, 3.0, 1800.0",
        "words/s": "0.00",
    }
    assert summary_row(_split("dev", [1.0], prefix="x"))[HEAD.index("speakers")] == ""


def test_command(tmp_path, capsys):
    write_split(tmp_path / "src" / "dev")
    write_split(tmp_path / "src" / "test", speakers=3)
    assert main(["prepare", "librispeech", str(tmp_path / "src"), str(tmp_path / "dest")]) == 0
    page = tmp_path / "dest" / "statistics.html"
    assert "<h2>dev</h2>" in page.read_text("utf8") and "<h2>test</h2>" in page.read_text("utf8")
    written = page.read_bytes()
    assert main(["prepare", "librispeech", str(tmp_path / "src"), str(tmp_path / "elsewhere")]) == 0
    assert (tmp_path / "elsewhere" / "statistics.html").read_bytes() == written
    page.unlink()
    capsys.readouterr()

    assert main(["prepare", "statistics", str(tmp_path / "dest")]) == 0
    assert page.read_bytes() == written
    said = capsys.readouterr().out
    assert "shortest of test: 1-1-0000, 0.10 s\n" in said and "fastest of dev: 1-1-0000, 0.10 s, 40.0 char" in said
    assert f"More: {page}\n" in said

    words = ["prepare", "statistics", str(tmp_path / "dest"), "--html", str(tmp_path / "a.html"), "--splits"]
    assert main([*words, "dev"]) == 0
    assert "<h2>test</h2>" not in (tmp_path / "a.html").read_text("utf8")
    assert main([*words, "dev,train"]) == 2
    assert "no prepared split train in it, only dev, test" in capsys.readouterr().err
    assert main(["prepare", "statistics", str(tmp_path)]) == 2
    assert "no prepared split at all in it, only none" in capsys.readouterr().err


def test_command_with_a_damaged_split(tmp_path, capsys):
    write_split(tmp_path / "src" / "dev")
    prepare_librispeech(tmp_path / "src", tmp_path / "dest")
    (tmp_path / "dest" / "dev.zip").write_bytes(b"x")
    assert main(["prepare", "statistics", str(tmp_path / "dest")]) == 2
    assert "dev.zip is not a prepared split" in capsys.readouterr().err
