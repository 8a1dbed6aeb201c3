"""Tests for recordings with tables of transcripts: what RETURNN reads is compared with what was written."""

from __future__ import annotations

import json
import pickle
import warnings
from pathlib import Path

import numpy as np
import pytest
import soundfile

from returnn_common.datasets import AudioFolder, CharacterVocab, EvalOptions, FolderTables, Librispeech
from returnn_common.datasets.prepare import prepare_folder
from returnn_common.datasets.transcripts_table import TableColumns

from .reading import LaterPath, read

VOCAB = CharacterVocab("ab c")
_FORMATS = [("wav", 16_000, 1), ("flac", 16_000, 1), ("flac", 44_100, 2), ("ogg", 16_000, 1), ("mp3", 8_000, 1)]


def _write(path: Path, *, rate: int = 16_000, channels: int = 1, seed: int = 0, seconds: float = 0.1) -> np.ndarray:
    path.parent.mkdir(parents=True, exist_ok=True)
    samples = np.random.default_rng(seed).normal(0, 0.1, (round(rate * seconds), channels))
    soundfile.write(path, samples, rate)
    return samples


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """train with 12, dev with 2 recordings"""
    path = tmp_path_factory.mktemp("folder")
    rows = {"train": [], "dev": []}
    for i in range(14):
        suffix, rate, channels = _FORMATS[i % len(_FORMATS)]
        name = f"wav/rec{i}.{suffix}"
        _write(path / name, rate=rate, channels=channels, seed=i, seconds=0.1 + 0.01 * i)
        rows["train" if i < 12 else "dev"].append((name, "ab c"[: 1 + i % 2]))
    (path / "train.tsv").write_text("path\tsentence\n" + "".join(f"{name}\t{text}\n" for name, text in rows["train"]))
    lines = [json.dumps({"audio_filepath": name, "text": text}) for name, text in rows["dev"]]
    (path / "dev.jsonl").write_text("\n".join(lines))
    return path


def test_recordings_and_transcripts(folder):
    dataset = AudioFolder(folder, vocab=VOCAB)
    dataset.check()
    assert dataset.train_splits == ("train",) and dataset.dev_splits == ("dev",) and dataset.test_splits == ()
    items = {**read(dataset.get_train_dataset()), **read(dataset.get_main_dataset())}
    assert list(read(dataset.get_main_dataset())) == ["wav/rec12", "wav/rec13"] and len(items) == 14
    for i in range(14):
        suffix, rate, channels = _FORMATS[i % len(_FORMATS)]
        data, classes = items[f"wav/rec{i}"]
        assert VOCAB.decode(classes) == "ab c"[: 1 + i % 2]
        samples = soundfile.read(folder / f"wav/rec{i}.{suffix}", dtype="float32")[0]
        if rate == 16_000:
            np.testing.assert_allclose(data, samples, atol=2 / 2**15)  # of what is coded with loss, 16 bits are kept
        assert len(data) == pytest.approx(len(samples) * 16_000 / rate, abs=1)
    seconds = dataset.get_durations("dev")
    assert seconds["wav/rec13"] == pytest.approx(len(items["wav/rec13"][0]) / 16_000, abs=1e-4)


def test_same_as_prepared(folder, tmp_path):
    prepare_folder(folder, tmp_path)
    prepared = Librispeech(
        path=tmp_path, vocab=VOCAB, train_splits=["train"], dev_splits=["dev"], test_splits=[], train_epoch_split=1
    )
    ours = read(AudioFolder(folder, vocab=VOCAB).get_forward_dataset("train"))
    expected = read(prepared.get_forward_dataset("train"))
    assert sorted(ours) == sorted(expected)
    for name, (data, classes) in expected.items():
        np.testing.assert_array_equal(ours[name][0], data)
        np.testing.assert_array_equal(ours[name][1], classes)


def test_held_out(folder):
    dataset = AudioFolder(folder / "train.tsv", vocab=VOCAB, tables=FolderTables(hold_out_every=3))
    parts = [dataset.get_references(split) for split in ("train", "dev", "test")]
    assert all(parts) and len({name for part in parts for name in part}) == sum(map(len, parts)) == 12
    assert dataset.get_eval_datasets().keys() == {"dev", "test"}
    assert read(dataset.get_train_dataset()).keys() == parts[0].keys()
    only_train = FolderTables(dev=("valid",), hold_out_every=3)
    same = AudioFolder(folder, vocab=VOCAB, tables=only_train)
    assert [same.get_references(split) for split in ("train", "dev", "test")] == parts, "no table of this name"
    fewer = AudioFolder(folder / "train.tsv", vocab=VOCAB, tables=FolderTables(hold_out_every=10_000))
    with pytest.raises(ValueError, match=r"nothing to use for dev in .*train.tsv \(it has too few rows\)"):
        fewer.check()
    test_table = FolderTables(dev=("valid",), test=("dev",), hold_out_every=3)
    with_test = AudioFolder(folder, vocab=VOCAB, tables=test_table)
    assert len(with_test.get_references("train")) > len(parts[0]) and with_test.test_splits == ("dev",)


def test_options_of_tables(folder, tmp_path):
    _write(tmp_path / "clips" / "x.wav")
    (tmp_path / "validated.csv").write_text("id,where,what,text\n1,x.wav,ab,no\n")
    (tmp_path / "other.csv").write_text("id,where,what,text\n2,x.wav,b,no\n")
    tables = FolderTables(
        train=("validated",), dev=("other",), audio_folder="clips", columns=TableColumns(path="where", text="what")
    )
    dataset = AudioFolder(tmp_path, vocab=VOCAB, tables=tables, evaluation=EvalOptions(devtrain_subset=1))
    assert dataset.get_references("validated") == {"1": "ab"} and dataset.get_references("other") == {"2": "b"}
    assert list(dataset.get_config_opts()["eval_datasets"]) == ["devtrain"]


def test_path_that_comes_later(folder):
    later = AudioFolder(LaterPath(str(folder)), vocab=VOCAB)
    assert later.get_source("train")["folder"] is later.path
    assert read(later.get_train_dataset()).keys() == later.get_references("train").keys()
    assert later.test_splits == ("test",), "which is not known before"
    copy = pickle.loads(pickle.dumps(later.get_train_dataset()))
    assert len(read(copy)) == 12
    assert AudioFolder("/nowhere").train_splits == ("train",)


def test_what_cannot_be_used_is_named(tmp_path):
    for name in ("good", "cut", "empty", "silent"):
        _write(tmp_path / f"{name}.wav", seconds=0.0 if name == "silent" else 0.1)
    (tmp_path / "cut.wav").write_bytes((tmp_path / "good.wav").read_bytes()[:1000])
    (tmp_path / "empty.wav").write_bytes(b"")
    flac = _write(tmp_path / "damaged.flac")
    soundfile.write(tmp_path / "damaged.flac", flac, 16_000)
    content = bytearray((tmp_path / "damaged.flac").read_bytes())
    content[len(content) // 2] ^= 255
    (tmp_path / "damaged.flac").write_bytes(content)
    rows = "".join(f"{name}\tab\n" for name in ("good", "cut", "empty", "silent", "damaged", "gone.wav"))
    (tmp_path / "train.tsv").write_text(f"path\ttext\n{rows}good.wav\tab\n")
    (tmp_path / "dev.tsv").write_text("path\ttext\ngood\tab\n")
    dataset = AudioFolder(tmp_path, vocab=VOCAB)
    with pytest.warns(UserWarning, match="5 problems, left out: .*cut.wav: cut off: 3244 bytes declared.*and 2 more"):
        assert sorted(dataset.get_references("train")) == ["damaged", "good"]
    problems = {problem.name: problem for problem in dataset.find_problems("train")}
    assert {name: problem.kind for name, problem in problems.items()} == {
        "cut": "broken",
        "damaged": "broken",
        "empty": "empty-recording",
        "gone.wav": "missing-recording",
        "good.wav": "duplicate-transcript",
        "silent": "empty-recording",
    }
    assert "damaged.flac" in problems["damaged"].message
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(ValueError, match=r"damaged \(.*damaged.flac\): "):
            read(dataset.get_train_dataset())


def test_vocabulary_that_does_not_fit(folder):
    assert AudioFolder(folder).get_characters() == "ab"
    with pytest.raises(ValueError, match="cannot be written with CharacterVocab"):
        AudioFolder(folder).check()


def test_bad_options(folder):
    with pytest.raises(TypeError, match="AudioFolder: path: expected a path, got int 3"):
        AudioFolder(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="AudioFolder: tables: expected FolderTables, got 3"):
        AudioFolder("x", tables=3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="FolderTables: hold_out_every: expected an integer of at least 3, got 2"):
        FolderTables(hold_out_every=2)
    with pytest.raises(TypeError, match="FolderTables: audio_folder: expected a path, got int 3"):
        FolderTables(audio_folder=3)  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError, match="no such file or folder: /nowhere"):
        AudioFolder("/nowhere").check()
