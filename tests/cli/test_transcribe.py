"""The command transcribe: real files of each format, written formats read back, each message."""

from __future__ import annotations

import itertools
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import soundfile

import returnn_common
from returnn_common import nn
from returnn_common.cli import main
from returnn_common.cli.recipes import find_recipe
from returnn_common.cli.run_model import load_run_model
from tests.cli.run_folders import make_run_folder
from tests.recog.tones import WORDS, set_parameters, speak

torch = pytest.importorskip("torch")

ROOT = Path(returnn_common.__file__).resolve().parents[1]
RECIPE = """
from returnn_common.config import Options
from returnn_common.datasets import Librispeech, WordVocab
from tests.recog.tones import WORDS, make_tone_model

options = Options(corpus="data", backend="torch", recog_split="dev", num_average=1)
dataset = Librispeech(path=options.corpus, vocab=WordVocab(WORDS), train_splits=["train"], dev_splits=["dev"])
globals().update(dataset.get_config_opts())
num_epochs = 1
behavior_version = 38


def get_model(*, epoch, step, **_):
    return make_tone_model(extern_data["classes"]["sparse_dim"])
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    """folder of a run"""
    folder = tmp_path_factory.mktemp("model")
    (folder / "tones.py").write_text(RECIPE)
    make_run_folder(folder / "run", str(folder / "tones.py"), options={}, change=set_parameters)
    return str(folder / "run")


def _record(path: Path, text: str, *, rate: int = 16_000, channels: int = 1, **options) -> list[tuple[float, float]]:
    """:return: times of the words"""
    waveform, times = speak(text.split(), rate=rate, **options)
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, np.stack([waveform] * channels, axis=1) if channels > 1 else waveform, rate)
    return times


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _run(capsys, *arguments: str) -> tuple[int, str, str]:
    status = main(["transcribe", *arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_text(model, folder, capsys):
    """one file: its text; several: lines with names, in the order of the arguments, of folders sorted"""
    _record(folder / "a.wav", "two four one")
    assert _run(capsys, model, "a.wav") == (0, "two four one\n", "")
    _record(folder / "calls" / "z.flac", "one one", rate=8_000)
    _record(folder / "calls" / "deep" / "b.OGG", "three", rate=44_100)
    _record(folder / "calls" / "empty.wav", "")
    (folder / "calls" / "notes.txt").write_text("no recording")
    _record(folder / "calls" / ".hidden.wav", "two")
    shutil.copy("a.wav", "anything")
    status, out, err = _run(capsys, model, "calls", "anything", "a.wav", "a.wav")
    assert (status, err) == (0, "")
    assert out.splitlines() == [
        "calls/deep/b.OGG\tthree",
        "calls/empty.wav\t",
        "calls/z.flac\tone one",
        "anything\ttwo four one",
        "a.wav\ttwo four one",
    ]


@pytest.mark.parametrize("suffix", ["wav", "flac", "ogg", "mp3"])
def test_sample_rates_and_channels(model, folder, capsys, suffix):
    """the same text, and a duration within a frame, for each"""
    if suffix.upper() not in soundfile.available_formats():
        pytest.skip(f"this libsndfile has no {suffix}")
    seconds = []
    for rate in (8_000, 16_000, 44_100):
        _record(folder / f"{rate}.{suffix}", "two four one one", rate=rate, channels=2)
        seconds.append(len(speak("two four one one".split(), rate=rate)[0]) / rate)
    status, out, err = _run(capsys, model, "--format", "json", str(folder))
    assert status == 0
    entries = json.loads(out)
    assert [Path(entry["file"]).stem for entry in entries] == ["16000", "44100", "8000"]
    for entry, rate in zip(entries, (16_000, 44_100, 8_000), strict=True):
        assert (entry["text"], entry["sample_rate"], entry["channels"]) == ("two four one one", rate, 2)
        assert entry["duration"] == pytest.approx(1.3, abs=0.01 if suffix != "mp3" else 0.1)
        ours, theirs = ([word[k] for word in e["words"] for k in ("start", "end")] for e in (entry, entries[0]))
        np.testing.assert_allclose(ours, theirs, atol=0.021)  # a frame of this model
    assert err.startswith("returnn-common transcribe: the average of several channels was taken: ") and "(2)" in err


def test_json(model, folder, capsys):
    times = _record(folder / "a.wav", "two four one")
    _record(folder / "b.wav", "")
    status, out, _ = _run(capsys, model, "--format", "json", "a.wav")
    entry = json.loads(out)
    assert status == 0 and list(entry) == [
        "file",
        "duration",
        "sample_rate",
        "channels",
        "text",
        "score",
        "words",
        "segments",
    ]
    assert (entry["file"], entry["duration"], entry["text"]) == ("a.wav", 1.0, "two four one")
    assert [word["word"] for word in entry["words"]] == ["two", "four", "one"]
    found = [(word["start"], word["end"]) for word in entry["words"]]
    np.testing.assert_allclose(found, times, atol=0.04)
    assert all(0.5 < word["confidence"] <= 1.0 for word in entry["words"]) and entry["score"] < 0
    score = entry["score"]
    assert entry["segments"] == [{"start": 0.0, "end": 1.0, "text": "two four one", "score": score}]
    entries = json.loads(_run(capsys, model, "--format", "json", "a.wav", "b.wav")[1])
    assert [(entry["text"], len(entry["words"])) for entry in entries] == [("two four one", 3), ("", 0)]
    entry = json.loads(_run(capsys, model, "--format", "json", "--no-times", "a.wav")[1])
    assert "words" not in entry and (entry["text"], entry["score"]) == ("two four one", score)


def test_ctm(model, folder, capsys):
    times = {}
    for name in ("my call.wav", "b.wav", "empty.wav"):
        times[Path(name).stem.replace(" ", "_")] = _record(
            folder / name, {"b.wav": "four", "empty.wav": ""}.get(name, "two one")
        )
    status, out, _ = _run(capsys, model, "--format", "ctm", "my call.wav", "b.wav", "empty.wav")
    rows = [line.split(" ") for line in out.splitlines()]
    assert status == 0 and [(row[0], row[1], row[4]) for row in rows] == [
        ("my_call", "1", "two"),
        ("my_call", "1", "one"),
        ("b", "1", "four"),
    ]
    for row, (start, end) in zip(rows, [*times["my_call"], *times["b"]], strict=True):
        assert float(row[2]) == pytest.approx(start, abs=0.04)
        assert float(row[2]) + float(row[3]) == pytest.approx(end, abs=0.04)
        assert re.fullmatch(r"\d+\.\d\d", row[2]) and re.fullmatch(r"\d+\.\d\d", row[3]) and 0.5 < float(row[5]) <= 1.0


def test_ctm_of_files_with_the_same_name(model, folder, capsys):
    for name in ("x/a.wav", "y/a.wav", "y/a.flac"):
        _record(folder / name, "one")
    ids = [line.split()[0] for line in _run(capsys, model, "--format", "ctm", "x", "y/a.wav")[1].splitlines()]
    assert ids == ["x/a", "y/a"]
    ids = [line.split()[0] for line in _run(capsys, model, "--format", "ctm", "x", "y")[1].splitlines()]
    assert ids == ["x/a.wav", "y/a.flac", "y/a.wav"]


def _read_srt(text: str) -> list[tuple[float, float, list[str]]]:
    """as a player does: number, times, lines, an empty line"""
    cues = []
    for i, block in enumerate(text.strip("\n").split("\n\n") if text else []):
        number, times, *lines = block.split("\n")
        assert number == str(i + 1)
        match = re.fullmatch(r"(\d\d):(\d\d):(\d\d),(\d{3}) --> (\d\d):(\d\d):(\d\d),(\d{3})", times)
        assert match, times
        h, m, s, ms, h2, m2, s2, ms2 = map(int, match.groups())
        cues.append((h * 3600 + m * 60 + s + ms / 1000, h2 * 3600 + m2 * 60 + s2 + ms2 / 1000, lines))
    return cues


def test_srt(model, folder, capsys):
    words = ("one two three four " * 10).split()
    pauses = [0.4] * (len(words) + 1)
    pauses[5] = 1.5
    times = _record(folder / "a.wav", " ".join(words), pauses=pauses)
    status, out, _ = _run(capsys, model, "--format", "srt", "--max-seconds", "5", "a.wav")
    cues = _read_srt(out)
    assert status == 0 and " ".join(" ".join(lines) for _, _, lines in cues) == " ".join(words)
    assert " ".join(cues[0][2]) == "one two three four one"  # then there is a pause
    done, before = 0, 0.0
    for start, end, lines in cues:
        num_words = len(" ".join(lines).split())
        assert before <= start < end and 1 <= len(lines) <= 2 and max(map(len, lines)) <= 42
        assert times[done][0] == pytest.approx(start, abs=0.04)
        assert times[done + num_words - 1][1] == pytest.approx(end, abs=0.04) or end == pytest.approx(start + 1)
        assert end - start <= 7.1
        done, before = done + num_words, end
    assert len(cues) > 3
    _record(folder / "empty.wav", "")
    assert _run(capsys, model, "--format", "srt", "empty.wav") == (0, "", "")
    _record(folder / "short.wav", "two", pauses=[0.1, 2.0])
    ((start, end, lines),) = _read_srt(_run(capsys, model, "--format", "srt", "short.wav")[1])
    assert lines == ["two"] and end == pytest.approx(start + 1.0)


def test_long_recordings(model, folder, capsys):
    """are split: the same text; times of the whole recording"""
    text = "one two three four four one " * 4
    times = _record(folder / "a.wav", text, pauses=[0.4] * 25, rate=44_100)
    whole = json.loads(_run(capsys, model, "--format", "json", "a.wav", "--max-seconds", "100")[1])
    split = json.loads(
        _run(capsys, model, "--format", "json", "a.wav", "--max-seconds", "4", "--batch-seconds", "7")[1]
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
        _record(folder / "in" / f"{i}.wav", text)
    expected = _run(capsys, model, "--format", "json", "in")
    assert expected[0] == 0
    for seconds in ("0.01", "1.5"):
        found = json.loads(_run(capsys, model, "--format", "json", "in", "--batch-seconds", seconds)[1])
        for ours, theirs in zip(found, json.loads(expected[1]), strict=True):
            assert ours.pop("score") == pytest.approx(theirs.pop("score"), abs=1e-3)
            assert ours.pop("segments")[0]["text"] == theirs.pop("segments")[0]["text"]
            for a, b in zip(ours.pop("words"), theirs.pop("words"), strict=True):
                assert a.pop("confidence") == pytest.approx(b.pop("confidence"), abs=1e-3) and a == b
            assert ours == theirs


def test_output_into_a_file(model, folder, capsys):
    _record(folder / "a.wav", "two")
    _record(folder / "b.wav", "one")
    (folder / "t.txt").write_text("old " * 100)
    assert _run(capsys, model, "a.wav", "b.wav", "--output", "t.txt") == (0, "", "")
    assert (folder / "t.txt").read_text() == "a.wav\ttwo\nb.wav\tone\n"
    assert _run(capsys, model, "a.wav", "b.wav", "--output", "t.json", "--format", "json")[0] == 0
    assert [entry["text"] for entry in json.loads((folder / "t.json").read_text())] == ["two", "one"]
    assert _run(capsys, model, "a.wav", "--output", "t.srt", "--format", "srt")[0] == 0
    assert len(_read_srt((folder / "t.srt").read_text())) == 1


@pytest.mark.parametrize("output", ["new/", "there"])
def test_output_into_a_folder(model, folder, capsys, output):
    (folder / "there").mkdir()
    _record(folder / "in" / "x" / "a.wav", "two")
    _record(folder / "in" / "b.flac", "one")
    for format, suffix in {"text": "txt", "json": "json", "ctm": "ctm", "srt": "srt"}.items():
        assert _run(capsys, model, "in", "--output", output, "--format", format) == (0, "", "")
        contents = {path.relative_to(output): path.read_text() for path in Path(output).rglob(f"*.{suffix}")}
        assert sorted(map(str, contents)) == [f"b.{suffix}", f"x/a.{suffix}"]
        content = contents[Path(f"x/a.{suffix}")]
        if format == "text":
            assert content == "two\n"
        elif format == "json":
            assert json.loads(content)["text"] == "two"
        elif format == "ctm":
            assert content.startswith("a 1 ") and content.count("\n") == 1
        else:
            assert _read_srt(content)[0][2] == ["two"]


def test_what_cannot_be_read(model, folder, capsys):
    """is named, the others are done"""
    _record(folder / "a.wav", "two")
    (folder / "garbage.wav").write_bytes(b"no audio at all" * 10)
    (folder / "nobytes.flac").touch()
    soundfile.write(folder / "nosamples.wav", np.zeros(0), 16_000)
    _record(folder / "cut.wav", "one two")
    (folder / "cut.wav").write_bytes((folder / "cut.wav").read_bytes()[:-1000])
    (folder / "nothing").mkdir()
    names = ["garbage.wav", "nobytes.flac", "missing.wav", "a.wav", "nosamples.wav", "cut.wav", "nothing"]
    for format in ("text", "json", "ctm"):
        status, out, err = _run(capsys, model, *names, "--format", format)
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
    status, out, err = _run(capsys, model, "garbage.wav")
    assert (status, out, err.count("\n")) == (1, "", 1) and "garbage.wav: cannot be decoded" in err


def test_damage_at_the_end_of_a_long_recording(model, folder, capsys):
    """nothing of it is given out"""
    waveform, _ = speak(["one"] * 60)
    soundfile.write(folder / "a.flac", waveform, 16_000)
    content = bytearray((folder / "a.flac").read_bytes())
    content[30] ^= 1  # of the checksum
    (folder / "a.flac").write_bytes(content)
    _record(folder / "b.wav", "two")
    status, out, err = _run(capsys, model, "a.flac", "b.wav", "--max-seconds", "2", "--batch-seconds", "3")
    assert (status, out) == (1, "b.wav\ttwo\n")
    assert "a.flac: damaged: its samples do not have the checksum that it states" in err
    status, out, err = _run(capsys, model, "missing", "nothing", "--format", "json")
    assert (status, out) == (1, "") and err.count("no such file") == 2


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_no_permission(model, folder, capsys):
    _record(folder / "a.wav", "two")
    (folder / "a.wav").chmod(0)
    status, out, err = _run(capsys, model, "a.wav")
    assert (status, out, err) == (1, "", "returnn-common transcribe: a.wav: Permission denied\n")


def test_names_that_are_no_text(model, folder, capsys):
    _record(folder / "tab\there.wav", "two")
    name = os.fsdecode(b"latin\xe9.wav")
    shutil.copy("tab\there.wav", name)
    status, out, err = _run(capsys, model, "tab\there.wav", name)
    assert (status, out, err) == (0, "tab\\there.wav\ttwo\nlatin\\udce9.wav\ttwo\n", "")


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--beam", "0", "a.wav"], "--beam 0: expected at least 1"),
        (["--max-seconds", "0.5", "a.wav"], "--max-seconds 0.5: expected at least 1"),
        (["--batch-seconds", "0", "a.wav"], "--batch-seconds 0: expected more than 0"),
        (["--lm", "x", "a.wav"], "--lm x needs --lm-scale"),
        (["--lm-scale", "0.5", "a.wav"], "--lm-scale 0.5 needs --lm"),
        (["--no-times", "--format", "srt", "a.wav"], "--no-times: --format srt is made of times"),
        (["--format", "srt", "a.wav", "b.wav"], "--format srt: a file for each recording, give a folder for them"),
        (["--output", "a.wav", "a.wav"], "--output a.wav: that is a recording to be transcribed"),
        (["--output", "sub/t.txt", "a.wav"], "--output sub/t.txt: there is no folder sub"),
        (["--output", "a.wav/", "b.wav"], "--output a.wav/: expected a folder, but it is a file"),
        (["--output", "o/", "in"], "--output o/: in/a.flac and in/a.wav would both be written to o/a.txt"),
        (["--device", "gpu", "a.wav"], "--device gpu: Expected one of cpu, cuda"),
        (["--checkpoint", "best", "a.wav"], "--checkpoint best: expected average, last, the number of an epoch, or"),
    ],
)
def test_bad_arguments(model, folder, capsys, arguments, message):
    for name in ("a.wav", "b.wav", "in/a.wav", "in/a.flac"):
        _record(folder / name, "two")
    before = sorted(folder.rglob("*"))
    status, out, err = _run(capsys, model, *arguments)
    assert (status, out) == (2, "") and err.startswith(f"returnn-common transcribe: {message}"), err
    assert sorted(folder.rglob("*")) == before


def test_folders_that_are_no_model(model, folder, capsys):
    _record(folder / "a.wav", "two")
    assert _run(capsys, "nowhere", "a.wav") == (2, "", "returnn-common transcribe: nowhere: no such folder\n")
    (folder / "run").mkdir()
    assert "run: expected a folder that 'returnn-common run' has written" in _run(capsys, "run", "a.wav")[2]


SMALL = {"model_dim": 8, "num_layers": 1, "num_epochs": 1, "num_average": 1}


def _other_model(folder: Path, recipe: str, options: dict, *changes: tuple[str, str]) -> str:
    text = find_recipe(recipe).read_text("utf8")
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    folder.mkdir(exist_ok=True)
    (folder / "recipe.py").write_text(text)
    make_run_folder(folder / "model", str(folder / "recipe.py"), options=options)
    return str(folder / "model")


def test_attention_model(folder, capsys):
    """with a CTC head beside it: times of each word of what its decoder says"""
    model = _other_model(folder, "digits_aed", {**SMALL, "beam_size": 2})
    _record(folder / "a.wav", "two four one")
    status, out, _ = _run(capsys, model, "--format", "json", "a.wav")
    entry = json.loads(out)
    assert status == 0 and [word["word"] for word in entry["words"]] == entry["text"].split() != []
    assert _run(capsys, model, "a.wav")[1] == entry["text"] + "\n"
    assert json.loads(_run(capsys, model, "--format", "json", "--beam", "8", "a.wav")[1])["score"] >= entry["score"]


def test_model_without_a_ctc_head(folder, capsys):
    options = {"model_dim": 8, "num_layers": 1, "num_epochs": 1, "num_average": 1}
    model = _other_model(folder, "digits_aed", options, ("aux_ctc_layers=[options.num_layers],", "aux_ctc_layers=[],"))
    _record(folder / "a.wav", "two")
    status, text, err = _run(capsys, model, "a.wav")
    assert (status, err) == (0, "")
    for format, other in {
        "json": "or --no-times for a JSON without them",
        "ctm": "or --format text",
        "srt": "",
    }.items():
        status, out, err = _run(capsys, model, "--format", format, "a.wav")
        assert (status, out) == (2, "") and other in err
        assert f"--format {format}: {model} cannot tell when words are spoken, for its AedModel has no CTC head" in err
    entry = json.loads(_run(capsys, model, "--format", "json", "--no-times", "a.wav")[1])
    assert entry["text"] + "\n" == text and "words" not in entry


def test_log_mel_from_the_dataset(folder, capsys):
    """of a model that takes features: they are computed as its dataset does it, which is as a model does it"""
    _record(folder / "a.wav", "two four one")
    mels = ("LogMel(40, prior_frames=50, frequency_warp=0.15)", "LogMel(80, normalize=False)")
    inside = _other_model(folder / "inside", "digits_ctc", SMALL, mels)
    outside = _other_model(
        folder / "outside",
        "digits_ctc",
        SMALL,
        ("    train_splits=", '    audio="log-mel",\n    train_splits='),
        ("    train_augment=Chain(SpeedPerturbation(0.8, 1.25), Noise(10, 40), Equalizer(3.0)),\n", ""),
        mels,
        ("features=features, ", "features=None, "),
    )
    entries = [json.loads(_run(capsys, model, "--format", "json", "a.wav")[1]) for model in (inside, outside)]
    assert entries[0]["text"] == entries[1]["text"] != ""
    assert entries[0]["score"] == pytest.approx(entries[1]["score"], rel=1e-3)


ARPA = """
\\data\\
ngram 1=6

\\1-grams:
-1.0 </s>
-99 <s>
-4.0 one
-0.5 two
-0.5 three
-0.5 four

\\end\\
"""


def test_ngram_lm(model, folder, capsys):
    """changes the score by what it says, and the text if it weighs enough"""
    (folder / "lm.arpa").write_text(ARPA)
    _record(folder / "a.wav", "one two two")

    def run(*arguments: str):
        status, out, err = _run(capsys, model, "--format", "json", "--beam", "8", *arguments, "a.wav")
        assert (status, err) == (0, "")
        entry = json.loads(out)
        assert [word["word"] for word in entry["words"]] == entry["text"].split()
        return entry["text"], entry["score"]

    text, score = run()
    assert text == "one two two"
    log_prob = math.log(10) * (-4.0 - 0.5 - 0.5 - 1.0)
    assert run("--lm", "lm.arpa", "--lm-scale", "0.5") == (text, pytest.approx(score + 0.5 * log_prob, abs=1e-2))
    assert run("--lm", "lm.arpa", "--lm-scale", "0") == (text, score)
    assert "one" not in run("--lm", "lm.arpa", "--lm-scale", "1000")[0]


def test_neural_lm(model, folder, capsys):
    vocabulary = "SentencePieceVocab(options.sentencepiece_model) if options.sentencepiece_model else CharacterVocab()"
    words = ("import CharacterVocab,", "import WordVocab, CharacterVocab,")
    options = {**SMALL, "lm": "lstm", "embed_dim": 4}
    lm = _other_model(folder / "lm", "librispeech_lm", options, words, (vocabulary, f"WordVocab({WORDS})"))
    _record(folder / "a.wav", "one two two")
    plain, with_lm = (
        json.loads(_run(capsys, model, "--format", "json", "--beam", "8", "a.wav", *arguments)[1])
        for arguments in ([], ["--lm", lm, "--lm-scale", "0.1"])
    )
    run = load_run_model(lm)
    with run.forward():
        time = nn.Dim(
            nn.convert_to_tensor(np.array([3], "int32"), dims=[batch := nn.Dim(1, name="batch")]), name="time"
        )
        labels = nn.convert_to_tensor(
            np.array([[0, 1, 1]], "int32"), dims=[batch, time], sparse_dim=nn.Dim(len(WORDS), name="words")
        )
        nll = float(run.model.nll(labels, in_spatial_dim=time)[0].raw_tensor)
    assert with_lm["text"] == plain["text"] == "one two two" and nll > 1
    assert with_lm["score"] == pytest.approx(plain["score"] - 0.1 * nll, abs=1e-2)


def test_search_options(folder, capsys):
    """of the recipe, changed by those that are given"""
    options = {**SMALL, "beam_size": 2}
    model = _other_model(
        folder / "model", "digits_aed", options, ("\nbeam_size =", '\nsearch_options = {"max_len": 2}\nbeam_size =')
    )
    _record(folder / "a.wav", "two four one")
    assert len(_run(capsys, model, "a.wav")[1].split()) <= 2
    assert len(_run(capsys, model, "a.wav", "--set", "max_len=1")[1].split()) <= 1
    longest = _run(capsys, model, "a.wav", "--set", "max_len=20", "--set", "length_exponent=0.0")[1]
    assert longest != _run(capsys, model, "a.wav")[1]
    for settings, message in [
        (["max_len"], "--set max_len: expected OPTION=VALUE"),
        (["max_len=1", "max_len=2"], "--set max_len=2: 'max_len' is given twice"),
        (["beam_size=3"], "--set beam_size=3: use --beam"),
        (["lm_scale=0.3"], "--set lm_scale=0.3: use --lm-scale"),
        (["speed=9"], "search option 'speed': AedModel.search has no such option, it has "),
    ]:
        arguments = [part for setting in settings for part in ("--set", setting)]
        status, out, err = _run(capsys, model, "a.wav", *arguments)
        assert (status, out) == (2, "") and message in err


def test_lm_that_does_not_fit(model, folder, capsys):
    _record(folder / "a.wav", "one")
    (folder / "lm.arpa").write_text(ARPA.replace("two", "zwei"))
    for lm, message in {
        "lm.arpa": "its vocabulary is not that of",
        "no": "--lm no: no such folder",
        model: "recogniser",
    }.items():
        status, out, err = _run(capsys, model, "a.wav", "--lm", lm, "--lm-scale", "1")
        assert (status, out) == (2, "") and message in err


def test_models_that_transcribe_nothing(folder, capsys):
    _record(folder / "a.wav", "two")
    lm = _other_model(folder / "lm", "librispeech_lm", {**SMALL, "lm": "lstm", "embed_dim": 4})
    status, _, err = _run(capsys, lm, "a.wav")
    assert status == 2 and f"{lm}: a language model transcribes nothing; it can be the --lm of a recogniser" in err
    copy = _other_model(folder / "copy", "copy_task", SMALL)
    status, _, err = _run(capsys, copy, "a.wav")
    assert status == 2 and f"{copy}: its model takes no recordings, or gives no text" in err


def test_not_enough_memory(model, folder, capsys, monkeypatch):
    _record(folder / "a.wav", "two")

    def fail(*_args, **_kwargs):
        raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes")

    monkeypatch.setattr("returnn_common.models.ctc.CtcModel.search", fail)
    status, out, err = _run(capsys, model, "a.wav")
    assert (status, out) == (1, "")
    assert err == "returnn-common transcribe: not enough memory: try a smaller --batch-seconds, or --max-seconds\n"
    monkeypatch.setattr("returnn_common.models.ctc.CtcModel.search", lambda *_args, **_kwargs: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        _run(capsys, model, "a.wav")


def test_interrupted(model, folder):
    """what is done is written; a list is closed"""
    for i in range(3):
        _record(folder / "in" / f"{i}.wav", "two one")
    os.mkfifo(folder / "in" / "3.wav")  # which nobody writes: reading it waits
    command = [sys.executable, "-m", "returnn_common.cli", "transcribe", model, "in", "--format", "json"]
    command += ["--batch-seconds", "0.01", "--output", "out.json"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True) as process:
        end = time.monotonic() + 120
        while not ((folder / "out.json").is_file() and (folder / "out.json").read_text().count("two one") >= 6):
            assert process.poll() is None and time.monotonic() < end
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "Interrupted.\n")
    entries = json.loads((folder / "out.json").read_text())
    assert [entry["text"] for entry in entries] == ["two one"] * 3


def test_progress_on_a_terminal(model, folder, capsys, monkeypatch):
    for name, value in {"FORCE_COLOR": "1", "NO_COLOR": "1", "TERM": "xterm", "COLUMNS": "100"}.items():
        monkeypatch.setenv(name, value)
    _record(folder / "a.wav", "two")
    (folder / "b.wav").touch()
    status, out, err = _run(capsys, model, "a.wav", "b.wav")
    assert (status, out) == (1, "a.wav\ttwo\n")
    assert "transcribing" in err and "b.wav: the file is empty" in err
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)  # the transcripts tell enough
    assert "transcribing" not in _run(capsys, model, "a.wav", "b.wav")[2]
