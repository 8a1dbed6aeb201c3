"""What the tests of the command transcribe share: recordings of tones, models, a reader of subtitles."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import soundfile

from returnn_common.cli import main
from returnn_common.cli.recipes import find_recipe
from tests.cli.run_folders import make_run_folder
from tests.recog.tones import speak

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


def record(path: Path, text: str, *, rate: int = 16_000, channels: int = 1, **options) -> list[tuple[float, float]]:
    """:return: times of the words"""
    waveform, times = speak(text.split(), rate=rate, **options)
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, np.stack([waveform] * channels, axis=1) if channels > 1 else waveform, rate)
    return times


def run_command(capsys, *arguments: str) -> tuple[int, str, str]:
    status = main(["transcribe", *arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def read_srt(text: str) -> list[tuple[float, float, list[str]]]:
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


SMALL = {"model_dim": 8, "num_layers": 1, "num_epochs": 1, "num_average": 1}


def make_model_of(folder: Path, recipe: str, options: dict, *changes: tuple[str, str]) -> str:
    text = find_recipe(recipe).read_text("utf8")
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    folder.mkdir(exist_ok=True)
    (folder / "recipe.py").write_text(text)
    make_run_folder(folder / "model", str(folder / "recipe.py"), options=options)
    return str(folder / "model")
