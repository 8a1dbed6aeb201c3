"""Tests for text of LibriSpeech: what RETURNN reads is compared with the files."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from returnn.datasets.basic import init_dataset

from returnn_common.datasets import CharacterVocab, LibrispeechLm
from returnn_common.datasets.prepare import prepare_librispeech

from .prepare.corpus import write_split
from .reading import LaterPath

_LINES = ["A LINE OF A BOOK", "AND ANOTHER'S END"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("lm")
    for split, speakers in [("train-clean-100", 2), ("dev-clean", 1), ("test-clean", 1), ("test-other", 1)]:
        write_split(path / "src" / split, speakers=speakers)
    prepare_librispeech(path / "src", path / "dest")
    with gzip.open(path / "dest" / "librispeech-lm-norm.txt.gz", "wt") as file:
        file.write("\n\n".join(_LINES))
    return path / "dest"


def _read(opts: dict) -> dict[str, str]:
    dataset = init_dataset(opts)
    dataset.init_seq_order(epoch=1)
    texts, i = {}, 0
    while dataset.is_less_than_num_seqs(i):
        dataset.load_seqs(i, i + 1)
        texts[dataset.get_tag(i)] = CharacterVocab().decode(dataset.get_data(i, "data"))
        i += 1
    return texts


def test_text_and_transcripts(folder):
    dataset = LibrispeechLm(folder, train_epoch_split=1)
    dataset.check()
    train = _read(dataset.get_train_dataset())
    assert sorted(train.values()) == sorted([*_LINES, *["WORD"] * 4])
    assert train["librispeech-lm-norm.txt.gz:3"] == _LINES[1] and train["train-clean-100.zip:4"] == "WORD"
    assert len(_read(dataset.get_main_dataset())) == 2 and len(_read(dataset.get_eval_datasets()["test"])) == 4
    assert dataset.get_references("dev") == _read(dataset.get_forward_dataset("dev"))
    opts = dataset.get_config_opts()
    assert opts["target"] is None and opts["extern_data"] is dataset.get_extern_data()
    assert "eval_datasets" not in opts and len(dataset.get_word_starts()) == 29


def test_options(folder, tmp_path):
    text = LibrispeechLm(LaterPath(str(folder)), use_transcripts=False, train_epoch_split=1)  # type: ignore[arg-type]
    assert sorted(_read(text.get_train_dataset()).values()) == sorted(_LINES)
    assert len(LibrispeechLm(folder, use_text=False).get_references("train")) == 4
    split = LibrispeechLm(folder, train_epoch_split=3, train_seq_ordering="default").get_train_dataset()
    assert len(_read(split)) == 2
    assert LibrispeechLm(folder, random_seed=3).get_config_opts()["dataset_random_seed_offset"] == 3
    assert LibrispeechLm(folder, vocab="spm1k").get_extern_data()["data"]["sparse_dim"].dimension == 1000
    (tmp_path / "librispeech-lm-norm.txt").write_text("PLAIN")
    for split in ("dev-clean", "test-clean"):
        (tmp_path / f"{split}.zip").symlink_to(folder / f"{split}.zip")
    plain = LibrispeechLm(tmp_path, use_transcripts=False)
    assert list(plain.get_references("train").values()) == ["PLAIN"]


def test_what_is_missing(folder, tmp_path):
    with pytest.raises(FileNotFoundError, match="no such file or folder: .*/librispeech-lm-norm.txt.gz"):
        LibrispeechLm(tmp_path).check()
    with pytest.raises(FileNotFoundError, match="no such file or folder: .*/train-clean-100.zip"):
        LibrispeechLm(tmp_path, use_text=False).check()
    with pytest.raises(ValueError, match="LibrispeechLm: expected use_text or use_transcripts, got neither"):
        LibrispeechLm(folder, use_text=False, use_transcripts=False)
    with pytest.raises(TypeError, match="LibrispeechLm: path: expected a path, got int 3"):
        LibrispeechLm(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="train_epoch_split: expected an integer of at least 1, got 0"):
        LibrispeechLm(folder, train_epoch_split=0)
    with pytest.raises(TypeError, match="vocab: expected a VocabConfig or a name, got int 3"):
        LibrispeechLm(folder, vocab=3)  # type: ignore[arg-type]
