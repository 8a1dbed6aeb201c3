"""Fixtures of the tests of datasets."""

from __future__ import annotations

from pathlib import Path

import pytest

from returnn_common.datasets.prepare import prepare_librispeech

from .prepare.corpus import write_split


@pytest.fixture(scope="session")
def tiny(tmp_path_factory) -> Path:
    """Needs no real recordings: train with 12, dev with 4, test with 2 utterances of one word."""
    folder = tmp_path_factory.mktemp("tiny")
    write_split(folder / "src" / "train", speakers=3, utterances=4)
    write_split(folder / "src" / "dev")
    write_split(folder / "src" / "test", speakers=1)
    prepare_librispeech(folder / "src", folder / "dest")
    return folder / "dest"
