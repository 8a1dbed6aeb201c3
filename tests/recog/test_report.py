"""Tests of the HTML report: well-formed, self-contained, with the right numbers, and robust against odd data."""

from __future__ import annotations

import dataclasses
import math
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from returnn_common.recog import _report_figures
from returnn_common.recog.report import ReportAlignment, ReportData, ReportExample, write_report
from returnn_common.recog.scoring import score_wer

_VOID = {"meta", "link", "br", "img", "hr", "input"}


class _Page(HTMLParser):
    """Checks the nesting, and collects the tags, the attributes, and the text of each innermost element."""

    def __init__(self, path: Path):
        super().__init__()
        self.source = path.read_text(encoding="utf8")
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self._open: list[str] = []
        self.feed(self.source)
        self.close()
        assert not self._open, f"not closed: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in _VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if data.strip() and self._open[-1] != "style":
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())

    def count(self, tag: str, **attrs: str) -> int:
        return sum(name == tag and attrs.items() <= found.items() for name, found in self.tags)

    def pairs(self) -> list[str]:
        return [attrs["class"] or "" for tag, attrs in self.tags if (attrs.get("class") or "").startswith("pair ")]


def _write(tmp_path: Path, data: ReportData) -> _Page:
    path = tmp_path / "out" / "report.html"
    write_report(path, data)
    assert [p.name for p in path.parent.iterdir()] == ["report.html"]
    page = _Page(path)
    _check_self_contained(page)
    return page


def _check_self_contained(page: _Page) -> None:
    assert not {"script", "link", "iframe", "object", "embed"} & {tag for tag, _ in page.tags}
    for tag, attrs in page.tags:
        for name, value in attrs.items():
            if name in ("src", "href", "xlink:href", "data", "srcset", "action"):
                assert value and value.startswith(("#", "data:image/png;base64,")), (tag, name, value)
            assert not name.startswith("on") and "://" not in (value or ""), (tag, name, value)
    ids = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    assert len(set(ids)) == len(ids)
    references = re.findall(r'url\(#(.+?)\)|href="#(.+?)"', page.source)
    assert {a or b for a, b in references} <= set(ids)
    assert "@import" not in page.source and set(re.findall(r"url\((.)", page.source)) <= {"#"}
    assert set(re.findall(r"var\((.+?)\)", page.source)) <= set(re.findall(r"(--[\w-]+):", page.source))
    assert not re.search("#0[123]0[23]", page.source), "a marker colour is left"


def _example(**changes: Any) -> ReportExample:
    posteriors = np.full((10, 4), 0.01)
    posteriors[:, 3] = 0.97
    posteriors[2:4, 0], posteriors[2:4, 3] = [0.6, 0.9], [0.38, 0.08]
    posteriors[7, 2], posteriors[7, 3] = 0.8, 0.1
    example = ReportExample(
        seq_tag="1-1-0001",
        spectrogram=np.random.default_rng(1).normal(size=(40, 16)),
        frame_shift=0.01,
        posteriors=posteriors,
        labels=["ONE", "TWO", "$THREE$", "<blank>"],
        posterior_shift=0.04,
        reference="ONE THREE",
        hypothesis="ONE $THREE$",
    )
    return dataclasses.replace(example, **changes)


def _full() -> ReportData:
    refs = {"utt-a": "ONE TWO THREE", "utt-b": "FOUR FIVE", "utt-c": "SIX", "utt-d": "SEVEN"}
    hyps = {"utt-a": "ONE TEN THREE NINE", "utt-b": "FOUR", "utt-c": "SIX", "utt-x": "ZERO"}
    return ReportData(
        title="digits_ctc",
        settings={"num_layers": 3, "peak": 0.003},
        learning_curves={"train loss": [(1, 40.0), (2, 3.0), (3, 0.25)], "dev loss": [(1, 42.0), (2, 5.0), (3, 1.125)]},
        learning_rates=[(1, 1e-3), (2, 3e-3), (3, 1e-4)],
        wer={"dev": score_wer(refs, refs), "test": score_wer(hyps, refs)},
        example=_example(),
        num_parameters=1234567,
        train_seconds=187.0,
        recog_seconds=12.34,
        audio_seconds=7400,
    )


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> _Page:
    return _write(tmp_path_factory.mktemp("full"), _full())


def test_numbers_and_words(page: _Page):
    assert page.text.count("digits_ctc") == 2, "as title and heading"
    for tile in [
        "WER dev 0.00 %", "WER test 57.14 %", "parameters 1,234,567", "training 3 min 7 s", "recognition 12.3 s",
        "recognised audio 2 h 3 min", "real-time factor 0.002",
    ]:  # fmt: skip
        assert tile in page.text
    assert "test 57.14 4 1 2 1 7 4" in page.text, "the row of the table"
    assert "dev 0.00 0 0 0 0 7 4" in page.text
    assert "1 of 4 references have no hypothesis" in page.text and "utt-x" in page.text
    assert "num_layers 3 peak 0.003" in page.text
    assert "Last: train loss 0.25 (epoch 3), dev loss 1.125 (epoch 3)" in page.text
    assert page.count("svg") == 3
    assert "No utterance has an error." in page.text, "dev"


def test_worst_utterances(tmp_path: Path, page: _Page):
    assert "3 of 3 utterances with errors, of 4." in page.text
    assert re.search(
        r"utt-a 2 errors in 3 words, 66.67 % .* utt-d 1 error in 1 word, 100.00 % .* utt-b 1 error", page.text
    )
    assert "reference recognised ONE ONE TWO TEN S THREE THREE – NINE I" in page.text
    assert "FOUR FOUR FIVE – D" in page.text
    kinds = ["side", "ok", "sub", "ok", "ins", "side", "del", "side", "ok", "del"]
    assert page.pairs() == [f"pair {kind}" for kind in kinds]
    tables = ReportData(title="", wer=_full().wer, num_worst=1)
    page = _write(tmp_path, tables)
    assert "1 of 3 utterances with errors" in page.text and "utt-b" not in page.text
    page = _write(tmp_path, dataclasses.replace(tables, num_worst=0))
    assert "utt-a" not in page.text and page.pairs() == []


def test_example(tmp_path: Path, page: _Page):
    assert "1-1-0001: log-mel spectrogram (40 frames of 10 ms) and CTC posteriors (10 frames of 40 ms)" in page.text
    assert page.count("image") == 1, "the spectrogram, embedded"
    # A name where a label is the most probable: once for a run of frames; and no formula.
    names = [text for text in page.texts if text in ("ONE", "TWO", "$THREE$", "<blank>")]
    assert names.count("$THREE$") == 1 and names.count("<blank>") == 0
    assert _report_figures._find_spikes(_example().posteriors, 3) == [(3, 0), (7, 2)]
    # With another blank, the last label is one like others, here the most probable in all other frames.
    page = _write(tmp_path, ReportData(title="", example=_example(blank=1)))
    assert "<blank>" in page.texts
    assert {"0.00", "0.40"} <= set(page.texts) and "0.45" not in page.texts, "seconds, of both"


def test_figures_follow_the_theme(page: _Page):
    source = page.source
    svg = source[source.index("<svg") : source.rindex("</svg>")]
    assert "var(--series-0)" in svg and "var(--series-1)" in svg and "var(--text)" in svg
    assert "prefers-color-scheme: dark" in source
    assert not re.search(r"font-family|font:", svg), "figures take the page's font"


def test_many_curves_and_labels(tmp_path: Path):
    curves = {f"curve {i}": [(e, float(i + e)) for e in range(60)] for i in range(11)}
    rng = np.random.default_rng(2)
    posteriors = rng.dirichlet(np.full(60, 0.02), size=80)
    labels = [f"label{i}" for i in range(60)]
    example = _example(posteriors=posteriors, labels=labels)
    page = _write(tmp_path, ReportData(title="many", learning_curves=curves, example=example))
    assert all(f"curve {i}" in page.texts for i in range(11))
    best = {labels[i] for i in posteriors.argmax(axis=1) if i != 59}
    assert best <= set(page.texts)
    lines = page.source.count("stroke-width: 1.6")
    assert lines >= len(best), "each label that is named has a line"


def test_everything_is_escaped(tmp_path: Path):
    evil = "<script>alert('x')</script>&amp;\"\x00\x07"
    result = score_wer({evil: f"{evil} X"}, {evil: f"Y {evil}", "missing" + evil: "Z"})
    data = ReportData(
        title=evil,
        settings={evil: evil},
        learning_curves={evil: [(1, 2.0)]},
        wer={evil: result},
        example=_example(seq_tag=evil, labels=[evil] * 4, blank=1, reference=evil, hypothesis=evil),
    )
    page = _write(tmp_path, data)
    shown = "<script>alert('x')</script>&amp;\"\ufffd\ufffd"
    assert page.text.count(shown) >= 12
    assert page.count("script") == 0 and "<script" not in page.source and "\x00" not in page.source


@pytest.mark.parametrize("num_points", [0, 1])
def test_nearly_nothing(tmp_path: Path, num_points: int):
    page = _write(tmp_path, ReportData(title="empty"))
    assert "Nothing was recorded." in page.text and "Nothing was recognised." in page.text
    points = [(1, 2.0)][:num_points]
    data = ReportData(
        title="",
        learning_curves={"a": points, "b": []},
        learning_rates=points,
        wer={"dev": score_wer({}, {}), "test": score_wer({"a": "X"}, {"a": ""})},
        num_parameters=0,
        recog_seconds=0.0,
        audio_seconds=0.0,
    )
    page = _write(tmp_path, data)
    assert "There are no utterances." in page.text
    assert "WER test ∞ %" in page.text and "test ∞ 1 0 0 1 0 1" in page.text
    assert page.count("svg") == 2 * num_points and "real-time" not in page.text


def test_values_that_are_no_numbers(tmp_path: Path):
    nan, inf = math.nan, math.inf
    data = ReportData(
        title="",
        learning_curves={"a": [(1, nan), (2, 3.0), (3, inf)], "b": [(1, nan)], "c": [(1, -inf), (2, -2.0)]},
        learning_rates=[(1, nan)],
        example=_example(spectrogram=np.full((5, 3), nan), posteriors=np.full((2, 4), nan)),
        train_seconds=nan,
        audio_seconds=inf,
        recog_seconds=1.0,
    )
    page = _write(tmp_path, data)
    assert "NaN or infinite, and not drawn: 5 values." in page.text
    assert "training nan" in page.text and "a ∞ (epoch 3)" in page.text
    assert page.count("svg") == 3
    assert not re.search("nan|inf", " ".join(re.findall(r' d="([^"]*)"', page.source)))


@pytest.mark.parametrize(
    "changes",
    [
        {"spectrogram": np.zeros((0, 16))},
        {"posteriors": np.zeros((0, 4))},
        {"labels": [], "posteriors": np.zeros((10, 0))},
    ],
)
def test_example_without_frames(tmp_path: Path, changes: dict[str, Any]):
    page = _write(tmp_path, ReportData(title="", example=_example(**changes)))
    assert page.count("svg") == 1
    both = _example(spectrogram=np.zeros((0, 16)), posteriors=np.zeros((0, 4)))
    page = _write(tmp_path, ReportData(title="", example=both))
    assert "1-1-0001 has no frames." in page.text and page.count("svg") == 0


def test_same_data_same_page(tmp_path: Path, page: _Page):
    import matplotlib

    before = dict(matplotlib.rcParams)
    with matplotlib.rc_context({"text.usetex": True, "axes.facecolor": "red"}):
        again = _write(tmp_path, _full())
        assert matplotlib.rcParams["axes.facecolor"] == "red"
    assert again.source == page.source, "whatever the user's settings are"
    assert dict(matplotlib.rcParams) == before


def test_without_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    path = tmp_path / "report.html"
    path.write_text("old")
    with pytest.raises(ModuleNotFoundError, match=r"package matplotlib: pip install 'returnn_common\[demo\]'"):
        write_report(path, _full())
    assert path.read_text() == "old" and [p.name for p in tmp_path.iterdir()] == ["report.html"]
    write_report(path, dataclasses.replace(_full(), learning_curves={}, learning_rates=(), example=None))
    assert "57.14" in path.read_text()


@pytest.mark.parametrize(
    "changes, match",
    [
        ({"spectrogram": np.zeros(3)}, r"'1-1-0001' .*spectrogram \{time, mel\}, got the shape \(3,\)"),
        ({"posteriors": np.zeros((3, 5))}, r"posteriors \{time, label\} for 4 labels, got the shape \(3, 5\)"),
        ({"posteriors": np.zeros(4)}, r"for 4 labels, got the shape \(4,\)"),
        ({"posteriors": np.full((3, 4), -7.5)}, "between 0 and 1, got -7.5 to -7.5; are they logarithms"),
        ({"frame_shift": 0.0}, "expected frame_shift of more than 0 seconds, got 0.0"),
        ({"posterior_shift": math.nan}, "expected posterior_shift of more than 0 seconds, got nan"),
        ({"blank": 4}, "expected blank among the indices of 4 labels, got 4"),
    ],
)
def test_refuses(tmp_path: Path, changes: dict[str, Any], match: str):
    with pytest.raises(ValueError, match=match):
        write_report(tmp_path / "r.html", ReportData(title="", example=_example(**changes)))
    assert not list(tmp_path.iterdir())


def _alignment(**options: Any) -> ReportAlignment:
    known = {"seq_tag": "a/1", "labels": ["A", "B$<"], "num_frames": 4, "frame_shift": 0.04}
    return ReportAlignment(**{**known, **options})


def test_alignments(tmp_path: Path):
    """the best one and a soft one, with and without a spectrogram; no labels and no frames at all"""
    alignments = [
        _alignment(starts=[0, 2], ends=[1, 4], spectrogram=np.zeros([16, 8])),
        _alignment(seq_tag="b", soft=np.full([4, 2], 0.5)),
        _alignment(seq_tag="c", labels=[], starts=[], ends=[]),
        _alignment(seq_tag="d", labels=[], num_frames=0, soft=np.zeros([0, 0])),
        _alignment(seq_tag="e", labels=["long"] * 30, num_frames=30, starts=list(range(30)), ends=list(range(1, 31))),
    ]
    write_report(tmp_path / "r.html", ReportData("t", alignments=alignments))
    page = (tmp_path / "r.html").read_text()
    assert page.count("<svg") == 5 and "Word error rate" not in page and "Learning curves" not in page
    assert "a/1: the best alignment, 4 frames of 40 ms" in page and "B$&lt;" in page
    assert "b: how probable each label is in each frame" in page
    assert page.count("mel filter") == 1


@pytest.mark.parametrize(
    "options, message",
    [
        ({}, "expected either starts and ends, or soft"),
        ({"starts": [0, 1]}, "expected either starts and ends, or soft"),
        ({"starts": [0], "ends": [1]}, "expected starts and ends of 2 labels, got 1 and 1"),
        ({"soft": np.zeros([2, 4])}, r"soft {time, label} for 4 frames and 2 labels, got the shape \(2, 4\)"),
        ({"soft": np.zeros([4, 2]), "frame_shift": 0.0}, "of more than 0 seconds, got 0.0 and 0.01"),
        ({"soft": np.zeros([4, 2]), "spectrogram_shift": -1.0}, "of more than 0 seconds, got 0.04 and -1.0"),
    ],
)
def test_alignments_that_do_not_fit(options: dict[str, Any], message: str, tmp_path: Path):
    with pytest.raises(ValueError, match=f"alignment of 'a/1' in the report: .*{message}"):
        write_report(tmp_path / "r.html", ReportData("t", alignments=[_alignment(**options)]))
