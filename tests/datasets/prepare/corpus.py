"""Makes tiny corpora for the tests."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import soundfile


def tone(seconds: float = 0.2, *, rate: int = 16_000, seed: int = 0) -> np.ndarray:
    """A noisy tone, int16."""
    rng = np.random.default_rng(seed)
    time = np.arange(round(seconds * rate)) / rate
    return (8000 * np.sin(2 * np.pi * (200 + 50 * seed) * time) + rng.normal(0, 500, len(time))).astype("int16")


def encode(samples: np.ndarray, *, rate: int = 16_000, format: str = "FLAC", subtype: str = "PCM_16") -> bytes:
    """The content of an audio file."""
    buffer = io.BytesIO()
    soundfile.write(buffer, samples, rate, format=format, subtype=subtype)
    return buffer.getvalue()


def write_chapter(folder: Path, recordings: dict[str, bytes], transcript: str | bytes | None = None):
    """
    :param folder: SPLIT/SPEAKER/CHAPTER
    :param recordings: file name -> content
    :param transcript: of the .trans.txt; by default each recording has one word
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in recordings.items():
        (folder / name).write_bytes(content)
    if transcript is None:
        transcript = "".join(f"{name.split('.')[0]} WORD\n" for name in recordings)
    content = transcript.encode() if isinstance(transcript, str) else transcript
    (folder / f"{folder.parent.name}-{folder.name}.trans.txt").write_bytes(content)


def write_split(folder: Path, *, speakers: int = 2, utterances: int = 2):
    """A faultless split."""
    for speaker in range(1, speakers + 1):
        recordings = {
            f"{speaker}-1-{i:04}.flac": encode(tone(0.1 + 0.05 * i, seed=10 * speaker + i)) for i in range(utterances)
        }
        write_chapter(folder / str(speaker) / "1", recordings)
