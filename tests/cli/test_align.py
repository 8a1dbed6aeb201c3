"""Tests of the command align: what it refuses, what RETURNN is asked for, and what is shown."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from returnn_common.cli import main
from returnn_common.cli.align import align_run
from returnn_common.cli.align.command import Alignments
from returnn_common.cli.recog.request import Asked
from returnn_common.recog.alignment_files import AlignmentNotes
from tests.cli.fake_returnn import FakeReturnn
from tests.cli.tiny import make_corpus
from tests.cli.trained import AED, make_trained, make_word_lm

pytest.importorskip("torch")


class _Returnn(FakeReturnn):
    """two utterances, one of which has no alignment"""

    def forward(self, options: dict[str, str]):
        notes = AlignmentNotes(topology="rnnt", blank=10, frame_shift=0.06)
        split = options["recog_split"]
        notes.scores = {f"{split}-1-0000": -2.5, f"{split}-1-0001": float("-inf")}
        spans: dict[str, Any] = {"starts": [1, 3], "ends": [2, 4]}
        if "align_ctm_file" not in options:
            spans = {"soft": np.eye(2)[[0, 0, 1, 1, 1]]}
        notes.add_example(f"{split}-1-0000", ["ONE", "A<B"], num_frames=5, **spans)
        notes.write(options["align_notes_file"])
        for name in ("align_output_file", "align_ctm_file"):
            if name in options:
                Path(options[name]).write_text("x")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """with runs of recognisers and of a language model"""
    folder = tmp_path_factory.mktemp("align")
    make_corpus(folder / "corpus")
    for name in ("digits_transducer", "digits_aed", "digits_ctc"):
        make_trained(name, folder / name, corpus=folder / "corpus", settings=AED)
    for name in ("digits_aed", "digits_transducer"):
        shutil.copytree(folder / name, folder / f"{name}_alone")
        config = folder / f"{name}_alone" / "config.py"
        heads = "aux_ctc_layers=[options.num_layers],"
        assert heads in config.read_text()
        config.write_text(config.read_text().replace(heads, "aux_ctc_layers=[],"))
    make_word_lm(folder / "lm")
    return folder


def _align(run: Path, runner: FakeReturnn, *, splits=(), **wanted) -> dict[str, str]:
    """:return: what RETURNN got, at last"""
    assert align_run(str(run), Asked(splits=list(splits)), Alignments(**wanted), runner=runner) == 0
    return runner.calls[-1][1] if runner.calls else {}


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["nowhere"], "returnn-common align: nowhere: no such folder\n"),
        (["FOLDER/lm/out"], "FOLDER/lm/out: word_lm is a language model, which recognises nothing"),
        (["FOLDER/digits_ctc", "--split", "eval"], "--split eval: no such split, digits_ctc has train, dev, test"),
        (["FOLDER/digits_ctc", "--beam", "3"], "--beam 3 needs --recognised"),
        (["FOLDER/digits_ctc", "--checkpoint", "3"], "--checkpoint 3: FOLDER/digits_ctc/checkpoints has epochs 1, 2"),
        (["FOLDER/digits_ctc", "--name", "a/b"], "--name a/b: expected letters, digits and . , = + - _"),
        (
            ["FOLDER/digits_ctc", "--split", "dev", "--split", "test", "--out", "x.hdf"],
            "--out x.hdf: expected one --split, got dev, test",
        ),
        (["FOLDER/digits_aed_alone"], "FOLDER/digits_aed_alone: its AedModel cannot align; train one with CTC"),
        (["FOLDER/digits_ctc", "--use-ctc"], "--use-ctc: the CtcModel of FOLDER/digits_ctc has nothing else than CTC"),
        (
            ["FOLDER/digits_transducer_alone", "--use-ctc"],
            "--use-ctc: the TransducerModel of FOLDER/digits_transducer_alone has no CTC head; train one with aux_ctc",
        ),
    ],
)
def test_what_cannot_work(arguments: list[str], message: str, folder: Path, capsys):
    assert main(["align", *(argument.replace("FOLDER", str(folder)) for argument in arguments)]) == 2
    stderr = capsys.readouterr().err
    assert message.replace("FOLDER", str(folder)) in stderr and stderr.count("\n") == 1
    assert not list(folder.glob("*/align"))


def test_language_model_of_the_recipe(folder: Path, tmp_path: Path, capsys):
    """is only used where something is recognised"""
    shutil.copytree(folder / "digits_ctc", out := tmp_path / "out")
    with open(out / "config.py", "a") as file:
        file.write("\nsearch_options = {'lm': 'gone', 'lm_scale': 1.0, 'rescore': True}\n")
    _align(out, _Returnn())
    assert "search_options = {}\n" in (out / "align" / "average" / "config.py").read_text()
    assert main(["align", str(out), "--recognised"]) == 2
    assert "/gone: no such folder or file" in capsys.readouterr().err


def test_what_returnn_is_asked_for(folder: Path, tmp_path: Path, capsys):
    shutil.copytree(folder / "digits_transducer", out := tmp_path / "out")
    runner = _Returnn()
    options = _align(out, runner)
    assert (options["task"], options["recog_split"]) == ("forward", "dev")
    files = out / "align" / "average"
    assert options["align_output_file"] == str(files / "dev.hdf") and options["align_ctm_file"] == str(
        files / "dev.ctm"
    )
    code = (files / "config.py").read_text()
    assert "align_labels = 'targets'\nalign_soft = False\nalign_options = {}\n" in code
    shown = capsys.readouterr().out.splitlines()
    assert "dev: 1 of 2 utterances aligned" in shown and f"alignments: {files / 'dev.hdf'}" in shown
    assert "dev: no alignment, for there are too few frames: dev-1-0001" in shown
    page = (files / "report.html").read_text()
    assert "dev-1-0000: the best alignment, 5 frames of 60 ms" in page and "A&lt;B" in page
    assert page.count("<svg") == 1 and "Word error rate" not in page and "Learning curves" not in page

    _align(out, runner, splits=["dev", "test"])  # goes on
    assert [options["recog_split"] for _, options in runner.calls] == ["dev", "test"]
    options = _align(out, runner, soft=True, use_ctc=True, out=str(tmp_path / "mine.hdf"), splits=["train"])
    assert options["align_output_file"] == str(tmp_path / "mine.hdf") and "align_ctm_file" not in options
    code = (out / "align" / "average-soft-use_ctc" / "config.py").read_text()
    assert "align_soft = True\nalign_options = {'use_ctc': True}\n" in code
    page = (out / "align" / "average-soft-use_ctc" / "report.html").read_text()
    assert "train-1-0000: how probable each label is in each frame" in page
    _align(out, runner, recognised=True)
    assert "align_labels = 'search'\n" in (out / "align" / "average-recognised-beam4" / "config.py").read_text()


def test_without_matplotlib(folder: Path, tmp_path: Path, monkeypatch, capsys):
    shutil.copytree(folder / "digits_ctc", out := tmp_path / "out")
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    _align(out, _Returnn())
    assert "no report: the report's figures need the package matplotlib" in capsys.readouterr().out


def test_interrupted(folder: Path, tmp_path: Path, capsys):
    shutil.copytree(folder / "digits_ctc", out := tmp_path / "out")
    assert align_run(str(out), Asked(), Alignments(), runner=_Returnn(fail_at=1)) == 130
    assert capsys.readouterr().err == "Interrupted; run the same command again to go on.\n"
