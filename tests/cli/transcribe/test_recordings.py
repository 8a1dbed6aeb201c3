"""Real files of each kind, long ones, and those that cannot be read."""

from __future__ import annotations

import itertools
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import soundfile

from returnn_common import nn
from returnn_common.cli.run_model import load_run_model
from tests.cli.transcribe.helpers import SMALL, make_model_of, record, run_command
from tests.recog.tones import speak


@pytest.mark.parametrize("suffix", ["wav", "flac", "ogg", "mp3"])
def test_sample_rates_and_channels(model, folder, capsys, suffix):
    """the same text, and a duration within a frame, for each"""
    if suffix.upper() not in soundfile.available_formats():
        pytest.skip(f"this libsndfile has no {suffix}")
    seconds = []
    for rate in (8_000, 16_000, 44_100):
        record(folder / f"{rate}.{suffix}", "two four one one", rate=rate, channels=2)
        seconds.append(len(speak("two four one one".split(), rate=rate)[0]) / rate)
    status, out, err = run_command(capsys, model, "--format", "json", str(folder))
    assert status == 0
    entries = json.loads(out)
    assert [Path(entry["file"]).stem for entry in entries] == ["16000", "44100", "8000"]
    for entry, rate in zip(entries, (16_000, 44_100, 8_000), strict=True):
        assert (entry["text"], entry["sample_rate"], entry["channels"]) == ("two four one one", rate, 2)
        assert entry["duration"] == pytest.approx(1.3, abs=0.01 if suffix != "mp3" else 0.1)
        ours, theirs = ([word[k] for word in e["words"] for k in ("start", "end")] for e in (entry, entries[0]))
        np.testing.assert_allclose(ours, theirs, atol=0.021)  # a frame of this model
    assert err.startswith("returnn-common transcribe: the average of several channels was taken: ") and "(2)" in err


def test_long_recordings(model, folder, capsys):
    """are split: the same text; times of the whole recording"""
    text = "one two three four four one " * 4
    times = record(folder / "a.wav", text, pauses=[0.4] * 25, rate=44_100)
    whole = json.loads(run_command(capsys, model, "--format", "json", "a.wav", "--max-seconds", "100")[1])
    split = json.loads(
        run_command(capsys, model, "--format", "json", "a.wav", "--max-seconds", "4", "--batch-seconds", "7")[1]
    )
    assert split["text"] == whole["text"] == text.strip() and len(whole["segments"]) == 1
    assert 4 <= len(split["segments"]) <= 8 and split["duration"] == whole["duration"]
    assert split["segments"][0]["start"] == 0.0 and split["segments"][-1]["end"] == split["duration"]
    for a, b in itertools.pairwise(split["segments"]):
        assert a["end"] == b["start"] and b["end"] - b["start"] <= 4.0
    assert " ".join(part["text"] for part in split["segments"]) == split["text"]
    for entry in (whole, split):
        np.testing.assert_allclose([(w["start"], w["end"]) for w in entry["words"]], times, atol=0.04)


def test_batches(model, folder, capsys):
    for i, text in enumerate(["two four one", "three", "", "one one four two three"]):
        record(folder / "in" / f"{i}.wav", text)
    expected = run_command(capsys, model, "--format", "json", "in")
    assert expected[0] == 0
    for seconds in ("0.01", "1.5"):
        found = json.loads(run_command(capsys, model, "--format", "json", "in", "--batch-seconds", seconds)[1])
        for ours, theirs in zip(found, json.loads(expected[1]), strict=True):
            assert ours.pop("score") == pytest.approx(theirs.pop("score"), abs=1e-3)
            assert ours.pop("segments")[0]["text"] == theirs.pop("segments")[0]["text"]
            for a, b in zip(ours.pop("words"), theirs.pop("words"), strict=True):
                assert a.pop("confidence") == pytest.approx(b.pop("confidence"), abs=1e-3) and a == b
            assert ours == theirs


def test_what_cannot_be_read(model, folder, capsys):
    """is named, the others are done"""
    record(folder / "a.wav", "two")
    (folder / "garbage.wav").write_bytes(b"no audio at all" * 10)
    (folder / "nobytes.flac").touch()
    soundfile.write(folder / "nosamples.wav", np.zeros(0), 16_000)
    record(folder / "cut.wav", "one two")
    (folder / "cut.wav").write_bytes((folder / "cut.wav").read_bytes()[:-1000])
    (folder / "nothing").mkdir()
    names = ["garbage.wav", "nobytes.flac", "missing.wav", "a.wav", "nosamples.wav", "cut.wav", "nothing"]
    for format in ("text", "json", "ctm"):
        status, out, err = run_command(capsys, model, *names, "--format", format)
        assert status == 1
        messages = err.replace("returnn-common transcribe: ", "").splitlines()
        assert messages[:2] == [
            "missing.wav: no such file",
            "nothing: no recordings (.wav, .flac, .ogg, .oga, .opus, .mp3, .aif, .aiff, .au, .caf, .w64, .rf64) in it",
        ]
        assert messages[2].startswith("garbage.wav: cannot be decoded (")
        assert messages[3:] == [
            "nobytes.flac: the file is empty",
            "nosamples.wav: it has no samples",
            messages[5],
            "6 of 7 without a transcript",
        ]
        assert messages[5].startswith("cut.wav: cut off: ")
        assert "two" in out and (out.count("\n") == 1 or format == "json" and len(json.loads(out)) == 1)
    status, out, err = run_command(capsys, model, "garbage.wav")
    assert (status, out, err.count("\n")) == (1, "", 1) and "garbage.wav: cannot be decoded" in err


def test_damage_at_the_end_of_a_long_recording(model, folder, capsys):
    """nothing of it is given out"""
    waveform, _ = speak(["one"] * 60)
    soundfile.write(folder / "a.flac", waveform, 16_000)
    content = bytearray((folder / "a.flac").read_bytes())
    content[30] ^= 1  # of the checksum
    (folder / "a.flac").write_bytes(content)
    record(folder / "b.wav", "two")
    status, out, err = run_command(capsys, model, "a.flac", "b.wav", "--max-seconds", "2", "--batch-seconds", "3")
    assert (status, out) == (1, "b.wav\ttwo\n")
    assert "a.flac: damaged: its samples do not have the checksum that it states" in err
    status, out, err = run_command(capsys, model, "missing", "nothing", "--format", "json")
    assert (status, out) == (1, "") and err.count("no such file") == 2


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_no_permission(model, folder, capsys):
    record(folder / "a.wav", "two")
    (folder / "a.wav").chmod(0)
    status, out, err = run_command(capsys, model, "a.wav")
    assert (status, out, err) == (1, "", "returnn-common transcribe: a.wav: Permission denied\n")


def test_names_that_are_no_text(model, folder, capsys):
    record(folder / "tab\there.wav", "two")
    name = os.fsdecode(b"latin\xe9.wav")
    shutil.copy("tab\there.wav", name)
    status, out, err = run_command(capsys, model, "tab\there.wav", name)
    assert (status, out, err) == (0, "tab\\there.wav\ttwo\nlatin\\udce9.wav\ttwo\n", "")
    status, out, err = run_command(capsys, model, ":cat: [red].wav")
    assert (status, out, err) == (1, "", "returnn-common transcribe: :cat: [red].wav: no such file\n")


def test_folders(model, folder, capsys, monkeypatch):
    """links are followed, but not in circles; a folder that cannot be read is named"""
    record(folder / "other" / "b.wav", "one")
    record(folder / "in" / "a.wav", "two")
    (folder / "in" / "link").symlink_to(folder / "other")
    (folder / "other" / "up").symlink_to(folder / "in")
    expected = "in/a.wav\ttwo\nin/link/b.wav\tone\n"
    assert run_command(capsys, model, "in") == (0, expected, "")

    def walk(path, *, onerror, **_options):
        onerror(PermissionError(13, "Permission denied"))
        return []

    monkeypatch.setattr("returnn_common.cli.transcribe.recordings.os.walk", walk)
    status, out, err = run_command(capsys, model, "in", "other/b.wav")
    assert (status, out) == (1, "other/b.wav\tone\n") and "in: Permission denied\n" in err


def test_reading_fails(model, folder, capsys, monkeypatch):
    """as from a broken disk"""
    record(folder / "a.wav", "two")

    def fail(_path):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("returnn_common.cli.transcribe.pipeline.open_recording", fail)
    expected = "returnn-common transcribe: a.wav: Input/output error\n"
    assert run_command(capsys, model, "a.wav") == (1, "", expected)


def test_real_recordings(shared_data, folder, capsys):
    """FLACs of spoken digits: text and score are those of the model's search on their samples"""
    paths = sorted((shared_data / "digits" / "dev").rglob("*.flac"))[:6]
    if not paths:
        pytest.skip(f"no recordings of digits in {shared_data}")
    out = make_model_of(folder, "digits_ctc", SMALL)
    entries = json.loads(run_command(capsys, out, *map(str, paths), "--format", "json")[1])
    run = load_run_model(out)
    with run.forward():
        for entry, path in zip(entries, paths, strict=True):
            samples, rate = soundfile.read(path, dtype="float32")
            assert (entry["file"], entry["sample_rate"], entry["channels"]) == (str(path), rate, 1)
            assert entry["duration"] == pytest.approx(len(samples) / rate, abs=1e-3)
            batch, time = nn.Dim(1, name="batch", kind=nn.Dim.Types.Batch), nn.Dim(len(samples), name="time")
            source = nn.convert_to_tensor(samples[None], dims=[batch, time])
            ((score, labels),) = run.model.search(source, in_spatial_dim=time).nbest(0)
            assert entry["text"] == run.recipe.dataset.vocab.decode(labels) != ""
            assert entry["score"] == pytest.approx(score, rel=1e-3)
            assert [word["word"] for word in entry["words"]] == entry["text"].split()
