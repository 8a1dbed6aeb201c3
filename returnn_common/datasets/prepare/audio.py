"""
Checks recordings and brings them to 16 kHz mono, FLAC or Ogg Vorbis.
"""

from __future__ import annotations

import hashlib
import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..audio import (
    MAX_SAMPLES,
    SAMPLE_RATE,
    BrokenAudioError,
    EmptyAudioError,
    check_container,
    mix_down,
    quantize,
    stated_flac_digest,
)
from .ogg_pages import set_serial

__all__ = [
    "AUDIO_FORMATS",
    "BrokenAudioError",
    "ConvertedAudio",
    "EmptyAudioError",
    "convert_content",
    "convert_recording",
]

AUDIO_FORMATS = ("flac", "ogg")
_VORBIS_BLOCK = 2**15  # libsndfile's encoder has failed on long ones


@dataclass(frozen=True)
class ConvertedAudio:
    """
    :param content: of a file, 16 kHz mono
    :param num_samples: at 16 kHz
    :param resampled: whether the recording had another sample rate
    :param mixed_down: whether it had several channels
    """

    content: bytes
    num_samples: int
    resampled: bool
    mixed_down: bool


def convert_recording(path: Path, *, audio_format: str = "flac") -> ConvertedAudio:
    """
    :param path: of a recording
    :param audio_format: see :func:`convert_content`
    :raises OSError: if it cannot be read
    """
    return convert_content(path.read_bytes(), audio_format=audio_format)


def convert_content(content: bytes, *, audio_format: str = "flac") -> ConvertedAudio:
    """
    Decodes a whole recording. One that is 16 kHz mono in the wanted format already is returned as it is, byte for byte;
    16-bit audio of 16 kHz mono in another container keeps its samples; everything else is averaged over its channels
    and resampled (soxr, its high-quality setting), and stored with 16 bits. The same samples give the same bytes.

    :param content: of a file: .flac, .wav, .ogg, or what else libsndfile reads
    :param audio_format: "flac" or "ogg" (Vorbis, with losses)
    :raises BrokenAudioError: see there
    :raises EmptyAudioError: see there
    """
    import soundfile

    if not content:
        raise EmptyAudioError("the file is empty")
    check_container(content[:12], tail=content, size=len(content))
    try:
        with soundfile.SoundFile(io.BytesIO(content)) as file:
            rate, declared, container, subtype = file.samplerate, file.frames, file.format, file.subtype
            dtype = "int16" if subtype == "PCM_16" else "float64"
            if declared > MAX_SAMPLES:
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
    is_wanted = container == "FLAC" if audio_format == "flac" else (container, subtype) == ("OGG", "VORBIS")
    if is_wanted and not resampled and not mixed_down:
        return ConvertedAudio(content, len(samples), False, False)
    samples = _to_16khz_mono(samples, rate=rate)
    if len(samples) == 0:
        raise EmptyAudioError("it has no samples at 16 kHz")
    return ConvertedAudio(_encode(samples, audio_format=audio_format), len(samples), resampled, mixed_down)


def _encode(samples: np.ndarray, *, audio_format: str) -> bytes:
    """
    :param samples: [time], int16
    """
    import soundfile

    buffer = io.BytesIO()
    if audio_format == "flac":
        soundfile.write(buffer, samples, SAMPLE_RATE, format="FLAC", subtype="PCM_16")
        return buffer.getvalue()
    with soundfile.SoundFile(buffer, "w", SAMPLE_RATE, 1, "VORBIS", format="OGG") as file:
        for start in range(0, len(samples), _VORBIS_BLOCK):
            file.write(samples[start : start + _VORBIS_BLOCK])
    return set_serial(buffer.getvalue(), 1)


def _to_16khz_mono(samples: np.ndarray, *, rate: int) -> np.ndarray:
    """
    :param samples: [time, channels], int16, or float64 in [-1, 1]
    :return: [time], int16
    """
    if rate == SAMPLE_RATE and samples.shape[1] == 1 and samples.dtype == np.int16:
        return samples[:, 0]
    mono = mix_down(samples)
    if rate != SAMPLE_RATE:
        import soxr

        mono = soxr.resample(mono, rate, SAMPLE_RATE, quality="HQ")
    return quantize(mono)


def _check_flac_digest(content: bytes, samples: np.ndarray):
    stated = stated_flac_digest(content)
    if stated is not None and hashlib.md5(samples.astype("<i2").tobytes()).digest() != stated:
        raise BrokenAudioError("damaged: its samples do not have the checksum that it states")
