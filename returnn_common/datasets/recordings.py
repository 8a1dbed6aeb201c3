"""
Utterances that are files of their own.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from ._decode import decode_audio, is_plain_flac
from .audio import SAMPLE_RATE, BrokenAudioError, EmptyAudioError, open_recording
from .prepare.report import Problem

__all__ = ["Recordings"]


class Recordings:
    """
    What :class:`.speech_dataset.SpeechDataset` loads. Recordings that cannot be opened are left out.

    :param names: of the utterances
    :param paths: of their recordings, anything that libsndfile reads
    :param texts: their transcripts
    """

    def __init__(self, names: Sequence[str], paths: Sequence[str], texts: Sequence[str]):
        self.names: list[str] = []
        self.paths: list[str] = []
        self.texts: list[str] = []
        self.problems: list[Problem] = []
        """the recordings that were left out"""
        seconds = []
        for name, path, text in zip(names, paths, texts, strict=True):
            try:
                seconds.append(_stated_seconds(path))
            except (BrokenAudioError, EmptyAudioError, OSError) as error:
                kind = "empty-recording" if isinstance(error, EmptyAudioError) else "broken"
                self.problems.append(Problem(kind, name, f"{path}: {error}"))
                continue
            self.names.append(name)
            self.paths.append(path)
            self.texts.append(text)
        self.seconds = np.array(seconds, "float64")

    def read(self, index: int) -> np.ndarray:
        """
        :param index: of the utterance
        :return: {time}, float32, in [-1, 1], resampled to 16 kHz, average of the channels
        :raises BrokenAudioError: naming the recording
        """
        path = self.paths[index]
        what = f"{self.names[index]} ({path})"
        try:
            if path.lower().endswith(".flac") and os.path.getsize(path) < 2**24:
                with open(path, "rb") as file:
                    content = file.read()
                if is_plain_flac(content):
                    return decode_audio(content, what=what)
            with open_recording(path) as recording:
                return np.concatenate(list(recording.blocks()))
        except (BrokenAudioError, EmptyAudioError, OSError) as error:
            message = str(error)
            raise BrokenAudioError(message if message.startswith(what) else f"{what}: {message}") from error

    def close(self):
        """There is nothing to free."""


def _stated_seconds(path: str) -> float:
    with open_recording(path) as recording:
        if not recording.file.frames:
            raise EmptyAudioError("it has no samples")
        return np.ceil(recording.file.frames * (SAMPLE_RATE / recording.sample_rate)) / SAMPLE_RATE
