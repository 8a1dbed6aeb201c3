"""Tests for the dataset that RETURNN loads speech with, and for the decoders that it uses."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
import soundfile
from returnn.datasets.basic import init_dataset

from returnn_common.datasets import TrainOptions, _decode
from returnn_common.datasets._decode import decode_audio
from returnn_common.datasets._prepared import PreparedSplit
from returnn_common.datasets.audio import BrokenAudioError
from returnn_common.datasets.speech_dataset import SpeechDataset, _Reader

from .reading import read, tiny_dataset


def _encode(samples: np.ndarray, **kwargs) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, kwargs.pop("rate", 16_000), **{"format": "FLAC", **kwargs})
    return file.getvalue()


@pytest.fixture(params=["miniaudio", "libsndfile"])
def decoder(request, monkeypatch) -> str:
    """each of both"""
    if request.param == "libsndfile":
        monkeypatch.setattr(_decode, "_miniaudio", None)
    else:
        pytest.importorskip("miniaudio")
    return request.param


SAMPLES = np.random.default_rng(0).integers(-(2**15), 2**15, 5000).astype("int16")


@pytest.mark.parametrize("kind", ["FLAC", "WAV", "FLAC 24", "tiny"])
def test_decoders(decoder, kind):
    samples = SAMPLES[:1] if kind == "tiny" else SAMPLES
    options = {"subtype": "PCM_24"} if kind == "FLAC 24" else {"format": "WAV"} if kind == "WAV" else {}
    audio = decode_audio(_encode(samples, **options), what="x")
    assert audio.dtype == np.float32
    np.testing.assert_array_equal(audio, samples / np.float32(2**15))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "x: cannot be decoded"),
        (b"fLaC" + bytes(50), "x: cannot be decoded"),
        (_encode(SAMPLES)[:6000], "x: (cannot be decoded|cut off or damaged: .* samples, of 5000)"),
        (_encode(SAMPLES, rate=8000), "x: expected 16 kHz mono, got 8000 Hz with 1 channels"),
        (_encode(np.stack([SAMPLES, SAMPLES], axis=1)), "x: expected 16 kHz mono, got 16000 Hz with 2 channels"),
        (_encode(SAMPLES[:0], format="WAV"), "x: cut off or damaged: 0 samples, of some"),
    ],
)
def test_what_is_broken_is_named(decoder, content, message):
    with pytest.raises(BrokenAudioError, match=message):
        decode_audio(content, what="x")


def _make_zip(path: Path, *, compression: int = zipfile.ZIP_STORED, entries: str | None = None) -> Path:
    with zipfile.ZipFile(path, "w") as file:
        for name in ("ä", "b"):
            file.writestr(f"s/{name}.flac", _encode(SAMPLES), compression)
        default = [{"text": "T", "duration": 0.3, "file": f"{name}.flac"} for name in ("ä", "b")]
        file.writestr("s.txt", repr(default) if entries is None else entries)
    return path


def test_zip_of_other_programs(tmp_path):
    split = PreparedSplit(str(_make_zip(tmp_path / "s.zip")))
    assert split.names == ["ä.flac", "b.flac"] and split.texts == ["T", "T"]
    for i in (1, 0):
        np.testing.assert_array_equal(split.read(i), SAMPLES / np.float32(2**15))
    split.close()
    assert len(split.read(0)) == 5000, "opened again"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"compression": zipfile.ZIP_DEFLATED}, r"is not a prepared split \(s/ä.flac is compressed\)"),
        ({"entries": "3"}, r"is not a prepared split \(its index is no list of utterances\)"),
        ({"entries": "[{}]"}, r"is not a prepared split \(its index is no list of utterances\)"),
        ({"entries": "[{'text': '', 'duration': 1.0, 'file': 'c'}]"}, r"is not a prepared split \(it has no s/c\)"),
    ],
)
def test_zip_that_is_something_else(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        PreparedSplit(str(_make_zip(tmp_path / "s.zip", **options)))


def test_reading_ahead():
    loaded: list[tuple[int, int]] = []

    def load(index: int, seq_idx: int):
        loaded.append((index, seq_idx))
        return index, seq_idx

    reader = _Reader(load, [10 * i for i in range(20)])
    assert [reader.get(i) for i in (0, 1, 2)] == [(0, 0), (10, 1), (20, 2)]
    assert [reader.get(i) for i in (9, 10, 19)] == [(90, 9), (100, 10), (190, 19)], "others are skipped"
    assert reader.get(3) == (30, 3), "back"
    reader.stop()
    assert all(index == 10 * i for index, i in loaded) and len(loaded) < 22


def test_single_utterances(tiny):
    opts = tiny_dataset(tiny).get_forward_dataset("train")
    items = read(opts)
    dataset = init_dataset(opts)
    tags = dataset.get_all_tags()
    assert sorted(tags) == sorted(items) and dataset.get_total_num_seqs() == 12
    np.testing.assert_array_equal(dataset.get_corpus_seq(5).features["data"], items[tags[5]][0])
    dataset.init_seq_order(epoch=1, seq_list=[tags[7], tags[2]])
    assert [dataset.get_tag(i) for i in range(dataset.num_seqs)] == [tags[7], tags[2]]
    dataset.init_seq_order(epoch=1, seq_order=[4])
    assert dataset.num_seqs == 1 and dataset.get_tag(0) == tags[4] and dataset.get_corpus_seq_idx(0) == 4
    with pytest.raises(ValueError, match="no utterance 'x' among 12, such as"):
        dataset.init_seq_order(epoch=1, seq_list=["x"])
    dataset.finish_epoch(free_resources=True)


def test_curriculum(tmp_path):
    """the longest are left out until the mean is small enough"""
    with zipfile.ZipFile(tmp_path / "s.zip", "w") as file:
        for i in range(1, 5):
            file.writestr(f"s/{i}.flac", _encode(SAMPLES[: 1000 * i]))
        file.writestr("s.txt", repr([{"text": "WORD", "duration": float(i), "file": f"{i}.flac"} for i in range(1, 5)]))
    training = TrainOptions(curriculum=((1, 1.5), (3, 2.0)))
    dataset = tiny_dataset(tmp_path, train_splits=["s"], training=training)
    names = [sorted(read(dataset.get_train_dataset(), epoch=epoch)) for epoch in (1, 2, 3, 4)]
    assert names == [["1.flac", "2.flac"], *[["1.flac", "2.flac", "3.flac"]] * 2, [f"{i}.flac" for i in range(1, 5)]]


@pytest.mark.parametrize("result", [None, np.zeros((3, 1)), np.zeros(0)])
def test_augmentation_that_returns_something_else(tiny, result):
    training = TrainOptions(augment=lambda audio, *, rng: result)
    with pytest.raises(ValueError, match=r"augmentation .*: expected audio with the shape \[time\], got"):
        read(tiny_dataset(tiny, training=training).get_train_dataset())


def test_transcript_that_does_not_fit(tiny):
    opts = {**tiny_dataset(tiny).get_forward_dataset("dev"), "vocab": {"class": "CharacterVocab", "characters": "WOR"}}
    assert opts["class"] is SpeechDataset
    with pytest.raises(ValueError, match="utterance .*: CharacterVocab.* lacks 'D' in 'WORD'"):
        read(opts)
