"""
Recordings that are 16 kHz mono already, decoded from memory.
"""

from __future__ import annotations

import io

import numpy as np

from .audio import SAMPLE_RATE, BrokenAudioError

try:  # a third less time than libsndfile, for the same samples
    import miniaudio as _miniaudio
except ImportError:
    _miniaudio = None

__all__ = ["decode_audio", "is_plain_flac"]

_FULL_SCALE = np.float32(2**15)


def decode_audio(content: bytes, *, what: str) -> np.ndarray:
    """
    :param content: of a FLAC, Ogg or WAV file, 16 kHz mono
    :param what: named in errors
    :return: {time}, float32, in [-1, 1]
    :raises BrokenAudioError: if it cannot be decoded, is cut off, empty, or another kind of recording
    """
    stated = _flac_samples(content)
    samples = _decode_16_bits(content) if stated and _miniaudio is not None else None
    if samples is None:
        samples = _decode_any(content, what=what)
    if not len(samples) or (stated and len(samples) != stated):
        raise BrokenAudioError(f"{what}: cut off or damaged: {len(samples)} samples, of {stated or 'some'}")
    return samples


def is_plain_flac(content: bytes) -> bool:
    """:return: whether it is a FLAC file of 16 kHz, mono, 16 bits that states its length"""
    return bool(_flac_samples(content))


def _flac_samples(content: bytes) -> int:
    """:return: the number of samples that a FLAC file with 16 kHz, mono, 16 bits states (RFC 9639, 8.2); else 0"""
    if len(content) < 42 or content[:4] != b"fLaC" or content[4] & 0x7F:
        return 0
    fields = int.from_bytes(content[18:26], "big")
    rate, channels, bits, samples = fields >> 44, (fields >> 41) & 7, (fields >> 36) & 31, fields & (2**36 - 1)
    return samples if (rate, channels + 1, bits + 1) == (SAMPLE_RATE, 1, 16) else 0


def _decode_16_bits(content: bytes) -> np.ndarray | None:
    """:return: None if it fails, so that libsndfile says why"""
    assert _miniaudio is not None
    try:
        decoded = _miniaudio.flac_read_s16(content)
    except _miniaudio.MiniaudioError:
        return None
    return np.multiply(np.frombuffer(decoded.samples, "int16"), 1 / _FULL_SCALE, dtype="float32")


def _decode_any(content: bytes, *, what: str) -> np.ndarray:
    import soundfile

    try:
        with soundfile.SoundFile(io.BytesIO(content)) as file:
            rate, channels = file.samplerate, file.channels
            samples = file.read(dtype="float32") if (rate, channels) == (SAMPLE_RATE, 1) else None
    except (soundfile.SoundFileError, RuntimeError) as error:
        raise BrokenAudioError(f"{what}: cannot be decoded ({str(error).split(': ', 1)[-1].strip(' .')})") from error
    if samples is None:
        raise BrokenAudioError(f"{what}: expected 16 kHz mono, got {rate} Hz with {channels} channels")
    return samples
