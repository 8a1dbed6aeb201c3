"""
A small corpus out of nothing: strings of one to six spoken English digits, synthesised in many voices, for the demo.

The speech comes from eSpeak NG (https://github.com/espeak-ng/espeak-ng) in the wheel ``espeakng-loader``. It is easier
than real speech: a word error rate on it says only that everything works.
"""

from __future__ import annotations

import functools
import json
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["WORDS", "make_spoken_digits"]

WORDS = ("ZERO", "ONE", "TWO", "THREE", "FOUR", "FIVE", "SIX", "SEVEN", "EIGHT", "NINE")

_SAMPLE_RATE = 16_000
_RECORD = "spoken_digits.json"  # written last: says what was asked for
_LANGUAGES = (
    "en-us", "en-us", "en-us-nyc", "en", "en-gb-x-rp", "en-gb-scotland", "en-gb-x-gbclan", "en-gb-x-gbcwmd", "en-029",
)  # fmt: skip
# Voices that sound human; near copies of each other are left out, so that the test voices are really unheard.
_TRAIN_VARIANTS = (
    "f1", "f2", "f3", "f5", "belinda", "linda", "Andrea", "Alicia", "grandma", "shelby", "steph",
    "m1", "m2", "m4", "m5", "m6", "m7", "m8", "adam", "Alex", "Andy", "david", "Denis", "Diogo", "ed", "Gene", "Hugo",
    "Michael", "Mike", "paul", "rob", "victor",
)  # fmt: skip
_TEST_VARIANTS = ("f4", "Annie", "aunty", "m3", "Lee", "Nguyen", "quincy", "sandro")


@dataclass(frozen=True)
class _Speaker:
    number: int
    voice: str
    rate: int
    pitch: int
    pitch_range: int


@dataclass(frozen=True)
class _Utterance:
    """
    ``phrases``: what is spoken in one breath, [text, voice, rate, pitch, range]. ``pauses``: before each, and at the
    end, in seconds. ``level_db``: of the speech below full scale. ``noise_db``: of the noise against the speech.
    """

    split: str
    name: str
    text: str
    phrases: list[list[Any]]
    pauses: list[float]
    level_db: float
    noise_db: float


def make_spoken_digits(
    dest: str | Path,
    *,
    num_train: int = 600,
    num_dev: int = 75,
    num_test: int = 120,
    seed: int = 1,
    on_progress: Callable[[int, int], None] | None = None,
) -> Path:
    """
    Make a corpus in the LibriSpeech layout: SPLIT/SPEAKER/CHAPTER/SPEAKER-CHAPTER-NNNN.flac and .trans.txt, 16 kHz.

    The splits are ``train``, ``dev`` (the voices of ``train``) and ``test`` (voices heard nowhere else). They share no
    string of more than one digit. Voice, speed, pitch, pauses, level and noise vary. The same arguments give the same
    files. The folder appears under its name only when it is complete, and is kept as it is when made before.

    :param dest: folder to make
    :param num_train: utterances in ``train``
    :param num_dev: utterances in ``dev``
    :param num_test: utterances in ``test``
    :param seed: of all random choices
    :param on_progress: called with the numbers of utterances made and to be made
    :return: ``dest`` as a path
    :raises ValueError: if a number is not positive, or ``dest`` holds something else already
    :raises ModuleNotFoundError: if espeakng-loader, of the extra ``demo``, is not installed
    :raises RuntimeError: if the speech synthesis fails
    """
    dest = Path(dest)
    settings = {"version": 1, "num_train": num_train, "num_dev": num_dev, "num_test": num_test, "seed": seed}
    for name in ("num_train", "num_dev", "num_test"):
        if settings[name] < 1:
            raise ValueError(f"spoken digits: expected {name} of at least 1, got {settings[name]}")
    if _is_complete(dest, settings):
        return dest
    espeak = _find_espeak()
    utterances = _plan(settings)
    # A fixed name, so that what a killed run has left is found and removed.
    temporary = dest.parent / f".{dest.name}.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        phrases = _speak([phrase for utterance in utterances for phrase in utterance.phrases], espeak, seed=seed)
        rng = np.random.default_rng(seed)
        for done, utterance in enumerate(utterances, 1):
            _write_utterance(temporary, utterance, [next(phrases) for _ in utterance.phrases], rng)
            if on_progress:
                on_progress(done, len(utterances))
        (temporary / _RECORD).write_text(json.dumps(settings, indent=1) + "\n")
        if dest.exists():
            dest.rmdir()  # empty: checked above
        temporary.rename(dest)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return dest


def _is_complete(dest: Path, settings: dict[str, int]) -> bool:
    if not dest.exists() or (dest.is_dir() and not any(dest.iterdir())):
        return False
    record = dest / _RECORD
    if not record.is_file():
        raise ValueError(f"{dest}: expected no such file, an empty folder, or spoken digits made before (no {_RECORD})")
    found = json.loads(record.read_text())
    if found != settings:
        raise ValueError(f"{dest}: holds spoken digits made with {found}, expected {settings}; choose another folder")
    for split in ("train", "dev", "test"):
        num = sum(1 for _ in (dest / split).glob("*/*/*.flac"))
        if num != settings[f"num_{split}"]:
            raise ValueError(
                f"{dest}: expected {settings[f'num_{split}']} recordings in {split}, found {num}; remove it"
            )
    return True


def _plan(settings: dict[str, int]) -> list[_Utterance]:
    """All random choices but the noise's samples, made without any audio."""
    rng = random.Random(settings["seed"])
    train_speakers = _make_speakers(rng, _TRAIN_VARIANTS, first=1)
    test_speakers = _make_speakers(rng, _TEST_VARIANTS, first=1 + len(train_speakers))
    taken: dict[str, str] = {}  # string of digits -> split
    utterances = []
    # The small splits choose their strings first; there are only 100 of two digits.
    plan = [(3, "test", test_speakers), (2, "dev", train_speakers), (1, "train", train_speakers)]
    for chapter, split, speakers in plan:
        for index in range(settings[f"num_{split}"]):
            speaker = speakers[index % len(speakers)]
            name = f"{speaker.number}-{chapter}-{index // len(speakers):04d}"
            digits = _choose_digits(rng, split, taken)
            utterances.append(_plan_utterance(rng, split=split, name=name, speaker=speaker, digits=digits))
    return utterances


def _make_speakers(rng: random.Random, variants: tuple[str, ...], *, first: int) -> list[_Speaker]:
    return [
        _Speaker(
            number=number,
            voice=f"{rng.choice(_LANGUAGES)}+{variant}",
            rate=rng.randint(130, 200),
            pitch=rng.randint(35, 65),
            pitch_range=rng.randint(30, 70),
        )
        for number, variant in enumerate(rng.sample(variants, len(variants)), first)
    ]


def _choose_digits(rng: random.Random, split: str, taken: dict[str, str]) -> list[int]:
    while True:
        digits = [rng.randrange(10) for _ in range(rng.randint(1, 6))]
        key = "".join(map(str, digits))
        if len(digits) == 1 or taken.setdefault(key, split) == split:
            return digits


def _plan_utterance(rng: random.Random, *, split: str, name: str, speaker: _Speaker, digits: list[int]) -> _Utterance:
    rate = speaker.rate * rng.uniform(0.85, 1.15)
    pitch = speaker.pitch + rng.randint(-6, 6)
    phrases: list[list[Any]] = []
    rest = [WORDS[digit].lower() for digit in digits]
    while rest:
        size = rng.choice((1, 1, 2, 3))
        phrase_rate = round(rate * rng.uniform(0.95, 1.05))
        text = " ".join(rest[:size])
        phrases.append([text, speaker.voice, phrase_rate, pitch + rng.randint(-3, 3), speaker.pitch_range])
        rest = rest[size:]
    inner = [rng.uniform(0.03, 0.4) for _ in phrases[1:]]
    return _Utterance(
        split=split,
        name=name,
        text=" ".join(WORDS[digit] for digit in digits),
        phrases=phrases,
        pauses=[rng.uniform(0.1, 0.4), *inner, rng.uniform(0.1, 0.4)],
        level_db=rng.uniform(-32.0, -18.0),
        noise_db=rng.uniform(-45.0, -20.0),
    )


def _find_espeak() -> tuple[str, str]:
    """:return: the library, and the folder that holds its data"""
    try:
        import espeakng_loader
    except ImportError as exc:
        raise ModuleNotFoundError(
            "spoken digits need the package espeakng-loader: pip install 'returnn_common[demo]'"
        ) from exc
    return espeakng_loader.get_library_path(), str(Path(espeakng_loader.get_data_path()).parent)


def _speak(phrases: list[list[Any]], espeak: tuple[str, str], *, seed: int) -> Iterator[np.ndarray]:
    """:return: for each phrase its samples in [-1, 1], at 16 kHz, without silence around it"""
    import soxr

    worker = Path(__file__).with_name("_espeak_worker.py")
    # -I: no variable of the environment, nor a file beside the worker, changes what it imports.
    command = [sys.executable, "-I", str(worker), *espeak, str(seed)]
    with tempfile.TemporaryFile() as errors, tempfile.TemporaryFile() as jobs:
        jobs.write(json.dumps(phrases).encode())
        jobs.seek(0)
        process = subprocess.Popen(command, stdin=jobs, stdout=subprocess.PIPE, stderr=errors)
        assert process.stdout
        try:
            read = functools.partial(_read_exactly, process, errors)
            sample_rate = int.from_bytes(read(4), "little")
            for _ in phrases:
                samples = np.frombuffer(read(2 * int.from_bytes(read(4), "little")), "<i2") / 32768.0
                yield _trim(soxr.resample(samples, sample_rate, _SAMPLE_RATE))
        finally:
            process.stdout.close()
            process.kill()
            process.wait()


def _read_exactly(process: subprocess.Popen, errors: Any, num_bytes: int) -> bytes:
    data = process.stdout.read(num_bytes)  # type: ignore[union-attr]
    if len(data) < num_bytes:
        code = process.wait()
        errors.seek(0)
        message = errors.read().decode(errors="replace").strip().split("\n")[-1]
        raise RuntimeError(f"the speech synthesis ended early (exit status {code}): {message}")
    return data


def _trim(samples: np.ndarray) -> np.ndarray:
    loud = np.flatnonzero(np.abs(samples) > 0.01 * np.abs(samples).max())
    margin = _SAMPLE_RATE // 100
    return samples[max(0, loud[0] - margin) : loud[-1] + margin]


def _write_utterance(root: Path, utterance: _Utterance, phrases: list[np.ndarray], rng: np.random.Generator) -> None:
    import soundfile

    pauses = [np.zeros(round(seconds * _SAMPLE_RATE)) for seconds in utterance.pauses]
    speech = np.concatenate([part for pair in zip(pauses, phrases, strict=False) for part in pair] + pauses[-1:])
    rms = np.sqrt(np.mean(np.concatenate(phrases) ** 2))
    noise = rng.standard_normal(len(speech))
    noise[1:] += 0.8 * noise[:-1]  # more of the low frequencies, as in rooms
    noise *= rms * 10 ** (utterance.noise_db / 20) / np.sqrt(np.mean(noise**2))
    mixed = (speech + noise) * 10 ** (utterance.level_db / 20) / rms
    mixed *= min(1.0, 0.95 / np.abs(mixed).max())
    speaker, chapter, _ = utterance.name.split("-")
    folder = root / utterance.split / speaker / chapter
    folder.mkdir(parents=True, exist_ok=True)
    soundfile.write(folder / f"{utterance.name}.flac", mixed, _SAMPLE_RATE, subtype="PCM_16")
    with open(folder / f"{speaker}-{chapter}.trans.txt", "a", encoding="utf8") as out:
        out.write(f"{utterance.name} {utterance.text}\n")
