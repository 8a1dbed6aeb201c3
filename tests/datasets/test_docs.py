"""The example of docs/datasets.md, with a made-up corpus in the layout of Common Voice."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile

from returnn_common.datasets import TrainOptions
from returnn_common.datasets._sources import open_source
from returnn_common.datasets.augment import Gain

from .reading import read

DOCS = Path(__file__).resolve().parents[2] / "docs" / "datasets.md"
HEADER = "client_id\tpath\tsentence_id\tsentence\tsentence_domain\tup_votes\tdown_votes\tage\tgender\taccents\tlocale"


def test_common_voice(tmp_path, monkeypatch):
    (code,) = re.findall(r"```python\n(.*?)```", DOCS.read_text("utf8"), re.DOTALL)
    (tmp_path / "common_voice.py").write_text(code, "utf8")
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "clips").mkdir()
    sentences = {"train": ["It’s late — “so late”!", "?!", "One, two."], "dev": ["Yes."], "test": ["No."]}
    for split, texts in sentences.items():
        rows = []
        for i, text in enumerate(texts):
            samples = np.random.default_rng(i).normal(0, 0.1, 8000)
            soundfile.write(tmp_path / "clips" / f"common_voice_en_{split}{i}.mp3", samples, 32_000)
            rows.append(f"abc\tcommon_voice_en_{split}{i}.mp3\tid\t{text}\t\t2\t0\t\t\t\ten")
        (tmp_path / f"{split}.tsv").write_text("\n".join([HEADER, *rows]) + "\n", "utf8")
    dataset = importlib.import_module("common_voice").CommonVoice(
        tmp_path, train_epoch_split=1, training=TrainOptions(augment=Gain(0, 6), num_workers=1)
    )
    try:
        dataset.check()
        references = {"common_voice_en_train0": "IT'S LATE SO LATE", "common_voice_en_train2": "ONE TWO"}
        assert dataset.get_references("train") == references
        items = read(dataset.get_train_dataset()["dataset"])
        assert {name: dataset.vocab.decode(classes) for name, (_, classes) in items.items()} == references
        assert all(abs(len(data) - 4000) < 3 for data, _ in items.values())
    finally:
        sys.modules.pop("common_voice")


def test_kind_of_source():
    with pytest.raises(ValueError, match="expected kind as one of prepared, table, timit, got 'tables'"):
        open_source({"kind": "tables"})
