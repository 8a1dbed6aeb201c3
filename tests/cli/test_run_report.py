"""Tests for what the report of a run reads from a prepared corpus."""

from __future__ import annotations

import numpy as np
import pytest

from returnn_common.cli.run import command, report
from returnn_common.datasets.prepare import prepare_librispeech

from ..datasets.prepare.corpus import tone, write_split


@pytest.mark.parametrize("audio_format", ["flac", "ogg"])
def test_audio_of_an_utterance(tmp_path, audio_format):
    write_split(tmp_path / "src" / "dev")
    prepare_librispeech(tmp_path / "src", tmp_path / "dest", audio_format=audio_format)
    audio = report.read_audio(tmp_path / "dest" / "dev.zip", "1-1-0001")
    assert audio is not None and audio[1] == 16_000 and len(audio[0]) == 2400
    assert np.corrcoef(audio[0], tone(0.15, seed=11))[0, 1] > 0.95
    assert report.read_audio(tmp_path / "dest" / "dev.zip", "1-1-0009") is None


@pytest.mark.parametrize(("name", "expected"), [("dev.tar.gz", True), ("a.FLAC", True), ("a.txt", False)])
def test_what_may_be_a_corpus(tmp_path, name, expected):
    (tmp_path / "LibriSpeech").mkdir()
    (tmp_path / "LibriSpeech" / name).touch()
    assert command._has_recordings(tmp_path) is expected
