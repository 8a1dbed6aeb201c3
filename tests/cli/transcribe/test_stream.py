"""returnn-common transcribe --stream: the text of the whole, and what is known before."""

from __future__ import annotations

import json
import re

import pytest

from tests.cli.run_folders import make_run_folder
from tests.cli.transcribe.helpers import RECIPE, SMALL, make_model_of, record, run_command
from tests.recog.tones import set_parameters


@pytest.fixture(scope="module")
def streaming(tmp_path_factory) -> str:
    """:return: folder of a run, whose model recognises tones"""
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("streaming")
    text = RECIPE.replace('make_tone_model(extern_data["classes"]["sparse_dim"])', "make_it()")
    text += '\n\ndef make_it():\n    return make_tone_model(extern_data["classes"]["sparse_dim"], streaming=True)\n'
    (folder / "tones.py").write_text(text)
    make_run_folder(folder / "run", str(folder / "tones.py"), options={}, change=set_parameters)
    return str(folder / "run")


def test_text_and_what_is_known_before(folder, capsys, streaming):
    record(folder / "a.wav", "two four one", rate=8_000)
    status, out, err = run_command(capsys, streaming, "--stream", "a.wav")
    assert (status, out) == (0, "two four one\n") == run_command(capsys, streaming, "a.wav")[:2]
    shown = [re.fullmatch(r"(\d+\.\d\d) s: (.*)", line).groups() for line in err.splitlines()]
    assert [text for _, text in shown] == ["two", "two four", "two four one"]
    times = [float(time) for time, _ in shown]
    assert times == sorted(times) and 0.1 < times[0] < 0.4


def test_several_recordings(folder, capsys, streaming):
    record(folder / "x" / "a.wav", "two four")
    record(folder / "x" / "b.wav", "one", channels=2)
    (folder / "x" / "c.wav").write_bytes(b"nothing")
    status, out, err = run_command(capsys, streaming, "--stream", "--format", "json", "--no-times", "x")
    entries = json.loads(out)
    assert status == 1 and [entry["text"] for entry in entries] == ["two four", "one"]
    assert all("words" not in entry for entry in entries)
    assert "x/a.wav 0." in err and "x/b.wav 0." in err and "x/c.wav: " in err and "average of several channels" in err


def test_streaming_encoder_of_a_recipe(folder, capsys):
    for recipe in ("digits_ctc", "digits_transducer"):
        options = {**SMALL, "encoder": "streaming"}
        model = make_model_of(folder / recipe, recipe, options)
        record(folder / "a.wav", "two four one three")
        status, out, _ = run_command(capsys, model, "--stream", "a.wav", "--beam", "2")
        assert (status, out) == run_command(capsys, model, "a.wav", "--beam", "2")[:2]
        assert out.split()


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--format", "json"], "--stream: --format json has times, which need whole recordings; add --no-times"),
        (["--format", "srt"], "--stream: --format srt has times, which need whole recordings; use --format text"),
        (["--set", "mbr=1.0"], "--stream: search_options has mbr, which needs whole recordings; add --set mbr=None"),
        (["--set", "recombine=mean"], "recombine, expected 'sum' or 'max', got 'mean'"),
    ],
)
def test_errors(folder, capsys, streaming, arguments: list[str], message: str):
    record(folder / "a.wav", "two")
    status, out, err = run_command(capsys, streaming, "--stream", "a.wav", *arguments)
    assert status == 2 and out == "" and message in " ".join(err.split())


def test_model_that_needs_whole_recordings(folder, capsys, model):
    record(folder / "a.wav", "two")
    status, out, err = run_command(capsys, model, "--stream", "a.wav")
    err = " ".join(err.split())
    assert status == 2 and out == "" and "needs whole recordings, for its Subsampling or its features look into" in err
    assert "--set encoder=streaming of digits_ctc" in err
