"""Tests of the reading of recordings, block by block: the samples that ``prepare`` stores, and each error."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import soundfile

from returnn_common.datasets import audio
from returnn_common.datasets.audio import BrokenAudioError, EmptyAudioError, open_recording
from returnn_common.datasets.prepare.audio import convert_recording

from .prepare.corpus import encode, tone


def _read(path: Path) -> np.ndarray:
    with open_recording(path) as recording:
        blocks = list(recording.blocks())
    assert all(len(block) for block in blocks)
    return np.concatenate(blocks)


@pytest.mark.parametrize("block_seconds", [1, 10])
@pytest.mark.parametrize(
    "suffix, options",
    [
        ("flac", {}),
        ("wav", {"rate": 8_000}),
        ("wav", {"rate": 44_100, "subtype": "FLOAT"}),
        ("ogg", {"rate": 48_000, "subtype": "OPUS"}),
        ("ogg", {"rate": 22_050, "subtype": "VORBIS"}),
    ],
)
def test_as_prepared(suffix, options, block_seconds, tmp_path, monkeypatch):
    """the same samples as those of the file that ``prepare`` makes, whatever the block"""
    monkeypatch.setattr(audio, "_BLOCK_SECONDS", block_seconds)
    rng = np.random.default_rng(1)
    samples = 0.3 * rng.normal(size=(int(options.get("rate", 16_000) * 2.3), 2))  # some out of [-1, 1]
    path = tmp_path / f"a.{suffix}"
    path.write_bytes(encode(samples, format=suffix.upper(), **options))
    with open_recording(path) as recording:
        assert (recording.sample_rate, recording.num_channels) == (options.get("rate", 16_000), 2)
    ours = _read(path)
    expected, _ = soundfile.read(io.BytesIO(convert_recording(path).content), dtype="float32")
    assert ours.dtype == np.float32 and len(ours) == pytest.approx(2.3 * 16_000, abs=1)
    np.testing.assert_array_equal(ours, expected)


@pytest.mark.parametrize("format", ["MP3", "AIFF"])
def test_other_formats(format, tmp_path):
    if format not in soundfile.available_formats():
        pytest.skip(f"this libsndfile has no {format}")
    samples = tone(1.0)
    subtype = "MPEG_LAYER_III" if format == "MP3" else "PCM_16"
    (tmp_path / "a").write_bytes(encode(samples, format=format, subtype=subtype))
    ours = _read(tmp_path / "a")
    assert len(ours) == len(samples)
    assert np.corrcoef(ours, samples)[0, 1] > 0.9


def _changed(content: bytes, index: int) -> bytes:
    changed = bytearray(content)
    changed[index] ^= 1
    return bytes(changed)


def _without_length(flac: bytes) -> bytes:
    changed = bytearray(flac)
    changed[21] &= 0xF0
    changed[22:26] = bytes(4)
    return bytes(changed)


_FLAC, _WAV = encode(tone(1.0)), encode(tone(1.0), format="WAV")
_OGG = encode(tone(1.0), format="OGG", subtype="VORBIS")
_AIFF = encode(tone(1.0), format="AIFF")
_NAN = encode(np.array([0.0, np.nan, 0.5] * 100), format="WAV", subtype="FLOAT")


@pytest.mark.parametrize(
    "content, name, message",
    [
        pytest.param(b"no audio at all" * 10, "a.flac", "cannot be decoded", id="garbage"),
        pytest.param(bytes(3000), "a.raw", "cannot be decoded", id="no header"),
        pytest.param(_FLAC[: len(_FLAC) // 2], "a", "cannot be decoded|cut off", id="half a flac"),
        pytest.param(_without_length(_FLAC), "a", "does not state its length", id="flac of unknown length"),
        pytest.param(_changed(_FLAC, 30), "a", "do not have the checksum", id="another checksum"),
        pytest.param(_WAV[: len(_WAV) // 2], "a", "cut off: 32044 bytes declared, 16022 present", id="half a wav"),
        pytest.param(_OGG[:-1], "a", "cut off: the Ogg stream has no end", id="ogg without its last byte"),
        pytest.param(_OGG + bytes(70_000), "a", "cut off: the Ogg stream has no end", id="ogg and something else"),
        pytest.param(_NAN, "a", "infinite or not a number", id="nan"),
    ],
)
def test_broken(content, name, message, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BrokenAudioError, match=message) as error:
        _read(tmp_path / name)
    assert str(tmp_path) not in str(error.value)


def test_fewer_samples_than_declared(tmp_path, monkeypatch):
    """as MP3s that were cut off: their containers don't tell"""
    (tmp_path / "a").write_bytes(_AIFF)
    with open_recording(tmp_path / "a") as recording:
        monkeypatch.setattr(type(recording.file), "frames", 17_000)
        with pytest.raises(BrokenAudioError, match="cut off or damaged: 17000 samples declared, 16000 decoded"):
            list(recording.blocks())


@pytest.mark.parametrize(
    "content, message",
    [
        pytest.param(b"", "the file is empty", id="no bytes"),
        pytest.param(encode(tone()[:0], format="WAV"), "it has no samples$", id="no samples"),
        pytest.param(encode(tone()[:1], rate=48_000), "no samples at 16 kHz", id="too short to resample"),
    ],
)
def test_empty(content, message, tmp_path):
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(EmptyAudioError, match=message):
        _read(tmp_path / "a")


def test_not_there(tmp_path):
    for path, kind in [(tmp_path / "nothing", FileNotFoundError), (tmp_path, IsADirectoryError)]:
        with pytest.raises(kind), open_recording(path):
            pass
