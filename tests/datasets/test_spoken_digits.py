"""Tests of the synthetic digit corpus: layout, sound, repeatability, and what is refused."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from returnn_common.datasets.prepare import spoken_digits
from returnn_common.datasets.prepare.spoken_digits import WORDS, make_spoken_digits

_SIZE: dict[str, Any] = {"num_train": 6, "num_dev": 2, "num_test": 2}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    progress: list[tuple[int, int]] = []
    path = tmp_path_factory.mktemp("digits") / "new" / "corpus"
    assert make_spoken_digits(path, **_SIZE, on_progress=lambda done, total: progress.append((done, total))) == path
    assert progress == [(done, 10) for done in range(1, 11)]
    assert [p.name for p in path.parent.iterdir()] == ["corpus"], "a temporary folder is left"
    return path


def _content(path: Path) -> dict[str, bytes]:
    return {str(p.relative_to(path)): p.read_bytes() for p in sorted(path.rglob("*")) if p.is_file()}


def _transcripts(path: Path) -> dict[str, str]:
    lines = [line for file in path.rglob("*.trans.txt") for line in file.read_text().splitlines()]
    assert len({line.split()[0] for line in lines}) == len(lines)
    return dict(line.split(" ", 1) for line in lines)


def test_layout(corpus: Path):
    assert sorted(p.name for p in corpus.iterdir()) == ["dev", "spoken_digits.json", "test", "train"]
    names = set()
    for split in ["train", "dev", "test"]:
        files = sorted((corpus / split).rglob("*.flac"))
        assert len(files) == _SIZE[f"num_{split}"]
        assert sorted(_transcripts(corpus / split)) == sorted(file.stem for file in files)
        for file in files:
            speaker, chapter, _ = file.stem.split("-")
            assert file.parent == corpus / split / speaker / chapter
            assert (file.parent / f"{speaker}-{chapter}.trans.txt").is_file()
            names.add(file.stem)
    assert len(names) == 10, "names are unique over the splits"
    for text in _transcripts(corpus).values():
        assert 1 <= len(text.split()) <= 6 and set(text.split()) <= set(WORDS)


def test_sound(corpus: Path):
    texts = _transcripts(corpus)
    for file in corpus.rglob("*.flac"):
        samples, rate = soundfile.read(file)
        assert rate == 16_000 and samples.ndim == 1
        num_words = len(texts[file.stem].split())
        seconds = len(samples) / rate
        assert 0.2 + 0.15 * num_words < seconds < 0.8 + 1.2 * num_words
        assert 0.02 < np.abs(samples).max() <= 0.951, "audible, not clipped"
        frames = samples[: len(samples) // 160 * 160].reshape(-1, 160).std(axis=1)
        # Noise, but no speech, at both ends; speech between them.
        assert 0 < frames[:8].max() < 0.3 * frames.max() and 0 < frames[-8:].max() < 0.3 * frames.max()
        assert abs(samples.mean()) < 0.01
    levels = [soundfile.read(file)[0].std() for file in corpus.rglob("*.flac")]
    assert max(levels) > 1.5 * min(levels), "levels vary"


def test_same_arguments_same_files(corpus: Path, tmp_path: Path):
    make_spoken_digits(tmp_path / "again", **_SIZE)
    assert _content(tmp_path / "again") == _content(corpus)
    make_spoken_digits(tmp_path / "other", **_SIZE, seed=2)
    assert _transcripts(tmp_path / "other") != _transcripts(corpus)


def test_not_made_again(corpus: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(spoken_digits, "_plan", None)
    before = {p: p.stat().st_mtime_ns for p in corpus.rglob("*")}
    assert make_spoken_digits(corpus, **_SIZE) == corpus
    assert {p: p.stat().st_mtime_ns for p in corpus.rglob("*")} == before


def test_default_plan():
    settings = {"num_train": 600, "num_dev": 75, "num_test": 120, "seed": 1}
    utterances = spoken_digits._plan(settings)
    voices: dict[str, set[str]] = {}
    strings: dict[str, set[str]] = {}
    words: dict[str, int] = dict.fromkeys(WORDS, 0)
    for utterance in utterances:
        voices.setdefault(utterance.split, set()).update(phrase[1].split("+")[1] for phrase in utterance.phrases)
        assert " ".join(phrase[0] for phrase in utterance.phrases).upper() == utterance.text
        for word in utterance.text.split():
            words[word] += 1
        if len(utterance.text.split()) > 1:
            strings.setdefault(utterance.split, set()).add(utterance.text)
    assert voices["dev"] == voices["train"] and len(voices["train"]) >= 30
    assert len(voices["test"]) >= 8 and not voices["test"] & voices["train"]
    assert not strings["train"] & strings["dev"] and not strings["train"] & strings["test"]
    assert not strings["dev"] & strings["test"]
    assert min(words.values()) > 0.8 * sum(words.values()) / 10
    assert {len(utterance.text.split()) for utterance in utterances} == set(range(1, 7))
    assert spoken_digits._plan({**settings, "seed": 2}) != utterances == spoken_digits._plan(settings)


def test_every_voice_speaks_differently():
    espeak = spoken_digits._find_espeak()
    variants = spoken_digits._TRAIN_VARIANTS + spoken_digits._TEST_VARIANTS
    languages = sorted(set(spoken_digits._LANGUAGES))
    voices = [f"en-us+{variant}" for variant in variants] + [f"{language}+f1" for language in languages]
    spoken = list(spoken_digits._speak([["seven", voice, 160, 50, 50] for voice in voices], espeak, seed=1))
    assert len(spoken) == len(voices)
    for samples in spoken:
        assert 0.2 < len(samples) / 16_000 < 1.2 and 0.05 < np.abs(samples).max() < 1.1
    assert len({samples.tobytes() for samples in spoken[: len(variants)]}) == len(variants)


def test_rate_and_pitch():
    espeak = spoken_digits._find_espeak()
    jobs = [["seven", "en-us+m1", rate, pitch, 0] for rate, pitch in [(130, 50), (200, 50), (160, 30), (160, 70)]]
    slow, fast, low, high = spoken_digits._speak(jobs, espeak, seed=1)  # type: ignore[misc]
    assert len(slow) > 1.2 * len(fast)

    def pitch_of(samples: np.ndarray) -> float:
        frame = samples[len(samples) // 2 :][:1600]
        correlation = np.correlate(frame, frame, "full")[len(frame) - 1 :]
        return 16_000 / (60 + correlation[60:300].argmax())

    assert pitch_of(high) > 1.15 * pitch_of(low)


def test_after_an_interruption(tmp_path: Path, corpus: Path):
    def stop(done: int, total: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    path = tmp_path / "d"
    with pytest.raises(KeyboardInterrupt):
        make_spoken_digits(path, **_SIZE, on_progress=stop)
    assert not list(tmp_path.iterdir())
    # What a killed run leaves: a temporary folder with part of the files.
    (tmp_path / ".d.tmp" / "train").mkdir(parents=True)
    (tmp_path / ".d.tmp" / "train" / "half.flac").write_bytes(b"x")
    path.mkdir()
    make_spoken_digits(path, **_SIZE)
    assert _content(path) == _content(corpus)
    assert [p.name for p in tmp_path.iterdir()] == ["d"]


def test_refuses_what_is_there(tmp_path: Path, corpus: Path):
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(ValueError, match="expected no such file, an empty folder, or spoken digits made before"):
        make_spoken_digits(tmp_path, **_SIZE)
    with pytest.raises(ValueError, match="thesis.txt: expected no such file"):
        make_spoken_digits(tmp_path / "thesis.txt", **_SIZE)
    assert (tmp_path / "thesis.txt").read_text() == "mine"
    with pytest.raises(ValueError, match="made with .*'seed': 1.*, expected .*'seed': 5"):
        make_spoken_digits(corpus, **_SIZE, seed=5)
    (tmp_path / "cut").mkdir()
    (tmp_path / "cut" / "spoken_digits.json").write_text(json.dumps({"version": 1, **_SIZE, "seed": 1}))
    with pytest.raises(ValueError, match="cut: expected 6 recordings in train, found 0"):
        make_spoken_digits(tmp_path / "cut", **_SIZE)


@pytest.mark.parametrize("name", list(_SIZE))
def test_refuses_numbers(tmp_path: Path, name: str):
    with pytest.raises(ValueError, match=f"expected {name} of at least 1, got 0"):
        make_spoken_digits(tmp_path / "d", **{**_SIZE, name: 0})


def test_missing_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "espeakng_loader", None)
    with pytest.raises(ModuleNotFoundError, match=r"package espeakng-loader: pip install 'returnn_common\[demo\]'"):
        make_spoken_digits(tmp_path / "d", **_SIZE)


def test_synthesis_fails(tmp_path: Path):
    library, folder = spoken_digits._find_espeak()

    def speak(job: list, espeak: tuple[str, str]) -> list[np.ndarray]:
        return list(spoken_digits._speak([job], espeak, seed=1))

    for voice in ["en-us+nobody", "nowhere+f1"]:
        with pytest.raises(RuntimeError, match=rf"ended early \(exit status 1\): .*has no voice '{voice[:5]}"):
            speak(["one", voice, 160, 50, 50], (library, folder))
    with pytest.raises(RuntimeError, match="gives no sound for '' in the voice 'en-us"):
        speak(["", "en-us+f1", 160, 50, 50], (library, folder))
    with pytest.raises(RuntimeError, match="ended early .*OSError"):
        speak(["one", "en-us+f1", 160, 50, 50], (str(tmp_path / "lib.so"), folder))
    with pytest.raises(RuntimeError, match=r"ended early .*eSpeak NG does not start \(code .*\) with the data in"):
        speak(["one", "en-us+f1", 160, 50, 50], (library, str(tmp_path)))
