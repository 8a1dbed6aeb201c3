"""Tests for returnn_common/datasets/prepare/audio.py."""

from __future__ import annotations

import io

import numpy as np
import pytest
import soundfile

from returnn_common.datasets.prepare.audio import BrokenAudioError, EmptyAudioError, convert_content, convert_recording

from .corpus import encode, tone


def _convert(tmp_path, content: bytes, suffix: str = "flac"):
    path = tmp_path / f"a.{suffix}"
    path.write_bytes(content)
    return convert_recording(path)


def _decode(flac: bytes) -> np.ndarray:
    samples, rate = soundfile.read(io.BytesIO(flac), dtype="int16")
    assert rate == 16_000 and samples.ndim == 1
    return samples


@pytest.mark.parametrize("subtype", ["PCM_16", "PCM_24"])
def test_flac_is_kept_byte_for_byte(tmp_path, subtype):
    content = encode(tone(), subtype=subtype)
    audio = _convert(tmp_path, content)
    assert audio.content == content
    assert (audio.num_samples, audio.resampled, audio.mixed_down) == (3200, False, False)


@pytest.mark.parametrize("subtype", ["PCM_16", "PCM_U8", "PCM_24", "FLOAT"])
def test_wav_keeps_its_samples(tmp_path, subtype):
    samples = (tone() // 256 * 256).astype("int16")  # also representable with 8 bits
    audio = _convert(tmp_path, encode(samples, format="WAV", subtype=subtype), "wav")
    if subtype == "FLOAT":  # soundfile writes int16 as their values, not as fractions of full scale
        audio = _convert(tmp_path, encode(samples / 2.0**15, format="WAV", subtype=subtype), "wav")
    np.testing.assert_array_equal(_decode(audio.content), samples)
    assert (audio.resampled, audio.mixed_down) == (False, False)


@pytest.mark.parametrize("subtype", ["VORBIS", "OPUS"])
def test_ogg(tmp_path, subtype):
    samples = tone(1.0)
    audio = _convert(tmp_path, encode(samples, format="OGG", subtype=subtype), "ogg")
    decoded = _decode(audio.content)
    assert len(decoded) == len(samples)
    assert np.corrcoef(decoded, samples)[0, 1] > 0.9


@pytest.mark.parametrize("num_samples", [1, 100, 16_000, 70_000])
def test_to_vorbis(num_samples):
    """the same bytes each time, of the same length; what is Vorbis already is kept"""
    samples = tone(5.0)[:num_samples]
    audio, again = (convert_content(encode(samples), audio_format="ogg") for _ in range(2))
    assert audio == again and audio.num_samples == num_samples
    decoded, rate = soundfile.read(io.BytesIO(audio.content), dtype="int16")
    assert (len(decoded), rate) == (num_samples, 16_000)
    if num_samples > 1000:
        assert np.corrcoef(decoded, samples)[0, 1] > 0.95
    assert convert_content(audio.content, audio_format="ogg").content == audio.content


def test_opus_becomes_vorbis():
    content = convert_content(encode(tone(), format="OGG", subtype="OPUS"), audio_format="ogg").content
    assert soundfile.info(io.BytesIO(content)).subtype == "VORBIS"


def test_channels_are_averaged(tmp_path):
    left, right = tone(seed=1), tone(seed=2)
    audio = _convert(tmp_path, encode(np.stack([left, right], axis=1)))
    assert (audio.resampled, audio.mixed_down) == (False, True)
    np.testing.assert_array_equal(_decode(audio.content), np.rint((left.astype(float) + right) / 2))


@pytest.mark.parametrize("rate", [8_000, 44_100, 48_000])
def test_resampling_keeps_a_tone(tmp_path, rate):
    time = np.arange(rate) / rate
    audio = _convert(tmp_path, encode(0.5 * np.sin(2 * np.pi * 440 * time), rate=rate))
    assert audio.resampled and not audio.mixed_down
    assert audio.num_samples == 16_000
    expected = 2**14 * np.sin(2 * np.pi * 440 * np.arange(16_000) / 16_000)
    inside = slice(500, -500)
    assert np.abs(_decode(audio.content)[inside] - expected[inside]).max() < 20  # of 16384


def test_full_scale_does_not_wrap(tmp_path):
    square = np.repeat(np.tile(np.array([32767, -32768], "int16"), 100), 40)
    samples = _decode(_convert(tmp_path, encode(square, rate=44_100)).content)
    assert samples.max() == 32767 and samples.min() == -32768
    assert (np.abs(np.diff(np.sign(samples))) > 0).sum() <= 2 * 200  # the ripples stay on their side


def _flip_bit(content: bytes) -> bytes:
    changed = bytearray(content)
    changed[len(content) // 2] ^= 0x40
    return bytes(changed)


def _without_length(flac: bytes) -> bytes:
    changed = bytearray(flac)
    changed[21] &= 0xF0
    changed[22:26] = bytes(4)
    return bytes(changed)


def _wrong_digest(flac: bytes) -> bytes:
    changed = bytearray(flac)
    changed[30] ^= 1
    return bytes(changed)


_FLAC, _WAV = encode(tone(1.0)), encode(tone(1.0), format="WAV")
_OGG = encode(tone(1.0), format="OGG", subtype="VORBIS")
_NAN, _INF = (encode(np.array([0.0, v, 0.5] * 100), format="WAV", subtype="FLOAT") for v in (np.nan, np.inf))


@pytest.mark.parametrize(
    ("content", "suffix", "message"),
    [
        pytest.param(b"no audio at all" * 10, "flac", "cannot be decoded", id="garbage"),
        pytest.param(_FLAC[: len(_FLAC) // 2], "flac", "cannot be decoded|cut off", id="half a flac"),
        pytest.param(_FLAC[:-3], "flac", "cannot be decoded|cut off", id="flac without its end"),
        pytest.param(_FLAC[:20], "flac", "cannot be decoded", id="half a flac header"),
        pytest.param(_flip_bit(_FLAC), "flac", "cannot be decoded|damaged", id="flac with a flipped bit"),
        pytest.param(_wrong_digest(_FLAC), "flac", "do not have the checksum", id="flac with another checksum"),
        pytest.param(_without_length(_FLAC), "flac", "does not state its length", id="flac of unknown length"),
        pytest.param(_WAV[: len(_WAV) // 2], "wav", "cut off: 32044 bytes declared, 16022 present", id="half a wav"),
        pytest.param(_OGG[: len(_OGG) // 2], "ogg", "cut off: the Ogg stream has no end", id="half an ogg"),
        pytest.param(_OGG[:-1], "ogg", "cut off: the Ogg stream has no end", id="ogg without its last byte"),
        pytest.param(_NAN, "wav", "infinite or not a number", id="nan"),
        pytest.param(_INF, "wav", "infinite or not a number", id="inf"),
    ],
)
def test_broken(tmp_path, content, suffix, message):
    with pytest.raises(BrokenAudioError, match=message) as error:
        _convert(tmp_path, content, suffix)
    assert str(tmp_path) not in str(error.value)  # whoever reports it says which recording it is


@pytest.mark.parametrize(
    ("content", "suffix", "message"),
    [
        pytest.param(b"", "flac", "the file is empty", id="no bytes"),
        pytest.param(encode(tone()[:0], format="WAV"), "wav", "has no samples$", id="wav"),
        pytest.param(encode(tone()[:0], format="OGG", subtype="VORBIS"), "ogg", "has no samples$", id="ogg"),
        pytest.param(encode(tone()[:1], rate=48_000), "flac", "has no samples at 16 kHz", id="too short to resample"),
    ],
)
def test_empty(tmp_path, content, suffix, message):
    with pytest.raises(EmptyAudioError, match=message):
        _convert(tmp_path, content, suffix)


def test_wav_of_unknown_size_is_read(tmp_path):
    content = bytearray(_WAV)  # as written to a pipe
    content[4:8] = content[40:44] = b"\xff\xff\xff\xff"
    assert _convert(tmp_path, bytes(content), "wav").num_samples == 16_000
