"""
Checks recordings and brings them to 16 kHz mono FLAC.
"""

from __future__ import annotations

import hashlib
import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np

__all__ = ["BrokenAudioError", "ConvertedAudio", "EmptyAudioError", "convert_recording"]

SAMPLE_RATE = 16_000
_MAX_SAMPLES = 2**40


class BrokenAudioError(ValueError):
    """A recording that cannot be decoded, is cut off, or has samples that are no numbers."""


class EmptyAudioError(ValueError):
    """A recording without samples."""


@dataclass(frozen=True)
class ConvertedAudio:
    """
    :param flac: content of a FLAC file, 16 kHz mono
    :param num_samples: at 16 kHz
    :param resampled: whether the recording had another sample rate
    :param mixed_down: whether it had several channels
    """

    flac: bytes
    num_samples: int
    resampled: bool
    mixed_down: bool


def convert_recording(path: Path) -> ConvertedAudio:
    """
    Decodes a whole recording. One that is 16 kHz mono FLAC already is returned as it is, byte for byte; 16-bit audio
    of 16 kHz mono in another container keeps its samples; everything else is averaged over its channels and resampled
    (soxr, its high-quality setting), and stored with 16 bits.

    :param path: .flac, .wav or .ogg
    :raises BrokenAudioError: see there; the message is the reason, without the path
    :raises EmptyAudioError: see there
    """
    import soundfile

    content = path.read_bytes()
    if not content:
        raise EmptyAudioError("the file is empty")
    _check_container_complete(content)
    try:
        with soundfile.SoundFile(io.BytesIO(content)) as file:
            rate, declared, container, subtype = file.samplerate, file.frames, file.format, file.subtype
            dtype = "int16" if subtype == "PCM_16" else "float64"
            if declared > _MAX_SAMPLES:  # how libsndfile gives the length of a FLAC stream that states none
                raise BrokenAudioError("its header does not state its length (encode it again)")
            samples = file.read(dtype=dtype, always_2d=True)
    except (soundfile.SoundFileError, RuntimeError) as error:
        raise BrokenAudioError(f"cannot be decoded ({str(error).split(': ', 1)[-1].strip(' .')})") from error
    if declared <= 0:
        raise EmptyAudioError("it has no samples")
    if len(samples) != declared:
        raise BrokenAudioError(f"cut off or damaged: {declared} samples declared, {len(samples)} decoded")
    if not np.isfinite(samples).all():
        raise BrokenAudioError("has samples that are infinite or not a number")
    if container == "FLAC" and subtype == "PCM_16":
        _check_flac_digest(content, samples)

    resampled, mixed_down = rate != SAMPLE_RATE, samples.shape[1] > 1
    if container == "FLAC" and not resampled and not mixed_down:
        return ConvertedAudio(content, len(samples), False, False)
    samples = _to_16khz_mono(samples, rate=rate)
    if len(samples) == 0:
        raise EmptyAudioError("it has no samples at 16 kHz")
    buffer = io.BytesIO()
    soundfile.write(buffer, samples, SAMPLE_RATE, format="FLAC", subtype="PCM_16")
    return ConvertedAudio(buffer.getvalue(), len(samples), resampled, mixed_down)


def _to_16khz_mono(samples: np.ndarray, *, rate: int) -> np.ndarray:
    """
    :param samples: [time, channels], int16, or float64 in [-1, 1]
    :return: [time], int16
    """
    if rate == SAMPLE_RATE and samples.shape[1] == 1 and samples.dtype == np.int16:
        return samples[:, 0]
    scaled = samples.astype("float64") * (1.0 if samples.dtype == np.int16 else 2.0**15)
    mono = scaled.mean(axis=1)
    if rate != SAMPLE_RATE:
        import soxr

        mono = soxr.resample(mono, rate, SAMPLE_RATE, quality="HQ")
    return np.clip(np.rint(mono), -(2**15), 2**15 - 1).astype("int16")


def _check_container_complete(content: bytes):
    """
    libsndfile reads WAV and Ogg files that were cut off as if they ended there; their containers tell.
    """
    if content[:4] == b"RIFF" and len(content) >= 8:
        size = int.from_bytes(content[4:8], "little")
        # 0 and 2**32 - 1 stand for an unknown size, as programs write that cannot seek.
        if size not in (0, 2**32 - 1) and size + 8 > len(content) + 1:  # some leave out the last padding byte
            raise BrokenAudioError(f"cut off: {size + 8} bytes declared, {len(content)} present")
    elif content[:4] == b"OggS":
        last_page = content.rfind(b"OggS")
        header = content[last_page : last_page + 27]
        num_segments = header[26] if len(header) == 27 else 0
        table = content[last_page + 27 : last_page + 27 + num_segments]
        complete = len(header) == 27 and len(content) >= last_page + 27 + num_segments + sum(table)
        if not complete or not header[5] & 4:  # flag of the last page of a stream, RFC 3533
            raise BrokenAudioError("cut off: the Ogg stream has no end")


def _check_flac_digest(content: bytes, samples: np.ndarray):
    """FLAC files hold the MD5 of their samples (RFC 9639, section 8.2), unless it is zero."""
    start = content.find(b"fLaC")
    digest = content[start + 26 : start + 42]
    if start < 0 or not any(digest):
        return
    if hashlib.md5(samples.astype("<i2").tobytes()).digest() != digest:
        raise BrokenAudioError("damaged: its samples do not have the checksum that it states")
