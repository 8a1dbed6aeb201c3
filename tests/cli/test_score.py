"""Tests of ``returnn-common score``: the numbers, what is listed, exit statuses."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from returnn_common.cli import score
from returnn_common.recog.nbest import write_nbest


def _run(*argv: object) -> int:
    parser = argparse.ArgumentParser()
    score.add_parser(parser.add_subparsers())
    args = parser.parse_args(["score", *map(str, argv)])
    assert args.func is score.main
    return args.func(args)


@pytest.fixture
def ref(tmp_path: Path) -> Path:
    path = tmp_path / "1-2.trans.txt"
    path.write_text("1-2-0000 ONE TWO THREE\n1-2-0001 FOUR\n1-2-0002\n1-2-0003 SIX SEVEN [/b]\n")
    return path


@pytest.fixture
def hyp(tmp_path: Path) -> Path:
    path = tmp_path / "n.py.gz"
    lists = {
        "1-2-0000": [(-1.0, "ONE TEN"), (-2.0, "ONE TWO THREE")],
        "1-2-0001": [(-1.0, "FOUR FIVE")],
        "1-2-0002": [(-1.0, "")],
        "9-9-0009": [(-1.0, "NINE NINE")],
    }
    write_nbest(path, lists)
    return path


def _cells(line: str) -> list[str]:
    return line.replace("│", " ").replace("┃", " ").split()


def test_table(hyp: Path, ref: Path, capsys: pytest.CaptureFixture[str]):
    assert _run(hyp, ref) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = [_cells(line) for line in lines]
    assert ["WER", "[%]", "errors", "sub", "del", "ins", "words", "utterances"] in rows
    assert ["best", "85.71", "6", "1", "4", "1", "7", "4"] in rows
    assert not any(row[:1] == ["oracle"] for row in rows)
    assert "1 without a hypothesis, counted as deletions: 1-2-0003" in lines
    assert "1 without a reference, not counted: 9-9-0009" in lines


def test_oracle(hyp: Path, ref: Path, capsys: pytest.CaptureFixture[str]):
    assert _run(hyp, ref, "--oracle") == 0
    rows = [_cells(line) for line in capsys.readouterr().out.splitlines()]
    assert ["oracle", "57.14", "4", "0", "3", "1", "7", "4"] in rows


def test_worst(hyp: Path, ref: Path, capsys: pytest.CaptureFixture[str]):
    assert _run(hyp, ref, "--worst", 2) == 0
    out = capsys.readouterr().out
    assert (
        "1-2-0003: 3 errors in 3 words (100.00 %)\nREF: SIX SEVEN [/b]\nHYP: *** ***** ****\n     D   D     D\n" in out
    )
    assert "1-2-0000: 2 errors in 3 words (66.67 %)\nREF: ONE " in out
    assert "1-2-0001:" not in out


def test_long_lists_are_not_cut(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "ref").write_text("".join(f"utterance-{i} A\n" for i in range(50)))
    (tmp_path / "hyp").write_text("utterance-0 A\n")
    assert _run(tmp_path / "hyp", tmp_path / "ref") == 0
    names = " ".join(f"utterance-{i}" for i in range(1, 50))
    assert f"49 without a hypothesis, counted as deletions: {names}\n" in capsys.readouterr().out


def test_without_hypotheses_all_is_deleted(tmp_path: Path, ref: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "none").write_text("{}")
    assert _run(tmp_path / "none", ref) == 0
    rows = [_cells(line) for line in capsys.readouterr().out.splitlines()]
    assert ["best", "100.00", "7", "0", "7", "0", "7", "4"] in rows


def test_infinite(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "ref").write_text("a\n")
    (tmp_path / "hyp").write_text("a X\n")
    assert _run(tmp_path / "hyp", tmp_path / "ref") == 0
    assert "inf" in capsys.readouterr().out


@pytest.mark.parametrize(
    "hyp_text, ref_text, message",
    [
        (None, "a X", "text file {hyp}: no such file"),
        ("a X", None, "text file {ref}: no such file"),
        ("a X", "", "{ref}: expected references, found none"),
        ("{'a': 3}", "a X", "{hyp}: expected a list of (score, text) or a text for 'a', got int"),
        ("a X\na Y", "a X", "{hyp}, line 2: utterance 'a' comes twice"),
        ("train/a X", "a X", "no utterance of {hyp} is in {ref}: names such as 'train/a' against 'a'"),
    ],
)
def test_bad_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], hyp_text: str | None, ref_text: str | None, message: str
):
    paths = {"hyp": tmp_path / "hyp", "ref": tmp_path / "ref"}
    for path, text in zip(paths.values(), [hyp_text, ref_text], strict=True):
        if text is not None:
            path.write_text(text)
    assert _run(paths["hyp"], paths["ref"]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err == f"returnn-common score: {message.format(**paths)}\n"


def test_oracle_of_texts_is_refused(tmp_path: Path, ref: Path, capsys: pytest.CaptureFixture[str]):
    assert _run(ref, ref, "--oracle") == 2
    assert "expected a Python dict" in capsys.readouterr().err
