"""
What is in a prepared split: durations, words, characters, speakers, and how fast they speak.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .oggzip import read_index

__all__ = ["Extreme", "SplitStatistics", "compute_statistics", "prepared_splits", "read_statistics"]

_NAME = re.compile(r"([^-]+)-[^-]+-\d+")  # SPEAKER-CHAPTER-NUMBER
_NUM_EXTREMES = 5


@dataclass(frozen=True)
class Extreme:
    """
    An utterance that stands out.

    :param name: of the utterance
    :param value: by which it does
    :param seconds: its duration
    :param text: its transcript
    """

    name: str
    value: float
    seconds: float
    text: str


@dataclass(frozen=True)
class SplitStatistics:
    """
    :param name: of the split
    :param seconds: {utterance}, durations
    :param words: {utterance}, their numbers
    :param characters: {utterance}, their numbers, with spaces
    :param speaker_seconds: speaker -> speech; empty if no speakers are known
    :param num_different_words: in all transcripts
    :param character_counts: character -> how often
    :param extremes: "longest", "shortest", "fastest", "slowest" -> some utterances; for the latter two, the value is in
        characters per second
    """

    name: str
    seconds: np.ndarray
    words: np.ndarray
    characters: np.ndarray
    speaker_seconds: dict[str, float]
    num_different_words: int
    character_counts: Counter[str]
    extremes: dict[str, list[Extreme]]

    @property
    def quantities(self) -> dict[str, np.ndarray]:
        """what there is a histogram of: name with unit -> {utterance}, or {speaker}"""
        seconds = np.maximum(self.seconds, 1e-9)
        return {
            "duration [s]": self.seconds,
            "words": self.words,
            "characters": self.characters,
            "words per second": self.words / seconds,
            "characters per second": self.characters / seconds,
            "minutes per speaker": np.array(list(self.speaker_seconds.values())) / 60,
        }


def prepared_splits(folder: Path) -> list[str]:
    """:return: names of the splits that are ready in a folder, sorted"""
    return sorted(path.stem for path in folder.glob("*.zip") if path.with_name(f"{path.stem}.manifest.json").is_file())


def read_statistics(path: Path) -> SplitStatistics:
    """
    :param path: ``SPLIT.zip``
    :raises ValueError: if it is no prepared split
    :raises OSError: if it cannot be read
    """
    return compute_statistics(path.stem, read_index(path))


def compute_statistics(name: str, entries: Iterable[Mapping[str, Any]]) -> SplitStatistics:
    """
    :param name: of the split
    :param entries: with ``seq_name``, ``text``, ``duration``, and perhaps ``speaker``; else the speaker is the first
        part of SPEAKER-CHAPTER-NUMBER
    :raises ValueError: if there are none
    """
    entries = list(entries)
    if not entries:
        raise ValueError(f"statistics of the split {name!r}: it has no utterances")
    seconds = np.array([entry["duration"] for entry in entries], "float64")
    characters = np.array([len(entry["text"]) for entry in entries])
    words: Counter[str] = Counter()
    character_counts: Counter[str] = Counter()
    speakers: Counter[str] = Counter()
    for entry in entries:
        words.update(entry["text"].split())
        character_counts.update(entry["text"])
        match = _NAME.fullmatch(entry["seq_name"])
        speaker = entry.get("speaker") or (match[1] if match else None)
        if speaker is not None:
            speakers[speaker] += entry["duration"]

    def _extremes(values: np.ndarray, *, highest: bool) -> list[Extreme]:
        order = np.argsort(-values if highest else values, kind="stable")[:_NUM_EXTREMES]
        return [Extreme(entries[i]["seq_name"], float(values[i]), float(seconds[i]), entries[i]["text"]) for i in order]

    rates = characters / np.maximum(seconds, 1e-9)
    return SplitStatistics(
        name=name,
        seconds=seconds,
        words=np.array([len(entry["text"].split()) for entry in entries]),
        characters=characters,
        speaker_seconds=dict(sorted(speakers.items())),
        num_different_words=len(words),
        character_counts=character_counts,
        extremes={
            "longest": _extremes(seconds, highest=True),
            "shortest": _extremes(seconds, highest=False),
            "fastest": _extremes(rates, highest=True),
            "slowest": _extremes(rates, highest=False),
        },
    )
