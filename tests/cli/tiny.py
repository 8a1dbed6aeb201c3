"""A tiny corpus of spoken digits (tones instead of words), and a recipe that is small enough for it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import soundfile

from returnn_common.cli.recipes import find_recipe

WORDS = "ZERO ONE TWO THREE FOUR FIVE SIX SEVEN EIGHT NINE".split()
SPLITS = {"train": 6, "dev": 2, "test": 2}
SMALL = ["--set", "model_dim=8", "--set", "num_layers=1", "--set", "num_epochs=2", "--set", "num_average=2"]


def make_corpus(folder: Path, *, splits: Mapping[str, int] = SPLITS, words: list[str] = WORDS) -> Path:
    """
    :param folder: to make
    :param splits: utterances of each
    :param words: a tone for each
    :return: the folder
    """
    rng = np.random.default_rng(1)
    for split, num in splits.items():
        chapter = folder / split / "1" / "1"
        chapter.mkdir(parents=True)
        lines = []
        for index in range(num):
            numbers = rng.integers(0, len(words), size=rng.integers(1, 4))
            time = np.arange(6000) / 16_000
            audio = np.concatenate([0.3 * np.sin(2 * np.pi * (300 + 200 * number) * time) for number in numbers])
            name = f"{split}-1-{index:04}"
            soundfile.write(chapter / f"{name}.flac", audio + 0.01 * rng.normal(size=len(audio)), 16_000)
            lines.append(f"{name} {' '.join(words[number] for number in numbers)}\n")
        (chapter / "1-1.trans.txt").write_text("".join(lines))
    return folder


def make_recipe(path: Path, *, max_seqs: int = 2, load_in_process: bool = False) -> Path:
    """
    :param path: to write
    :param max_seqs: in a batch; small, so that an epoch has several steps
    :param load_in_process: PyTorch loads data without processes of its own, each of which imports everything first
    :return: the path
    """
    text = find_recipe("digits_ctc").read_text("utf8")
    assert "\nmax_seqs = 200\n" in text
    loading = 'torch_dataloader_opts = {"num_workers": 0}\n' if load_in_process else ""
    path.write_text(text.replace("\nmax_seqs = 200\n", f"\nmax_seqs = {max_seqs}\n{loading}"), "utf8")
    return path
