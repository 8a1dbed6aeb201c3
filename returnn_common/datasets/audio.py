"""
Recordings of any sample rate and number of channels as 16 kHz mono, block by block, so that any length fits in memory.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = [
    "MAX_SAMPLES",
    "SAMPLE_RATE",
    "TAIL_BYTES",
    "BrokenAudioError",
    "EmptyAudioError",
    "Recording",
    "check_container",
    "mix_down",
    "open_recording",
    "quantize",
    "stated_flac_digest",
]

SAMPLE_RATE = 16_000
MAX_SAMPLES = 2**40  # libsndfile gives a larger length for a FLAC stream that states none
TAIL_BYTES = 27 + 255 + 255 * 255  # the longest page of an Ogg stream, RFC 3533
_HEAD_BYTES = 2**20  # tags may come before the beginning of a FLAC stream
_BLOCK_SECONDS = 10
_FULL_SCALE = 2**15


class BrokenAudioError(ValueError):
    """A recording that cannot be decoded, is cut off, or has samples that are no numbers."""


class EmptyAudioError(ValueError):
    """A recording without samples."""


@dataclass
class Recording:
    """
    An open recording, see :func:`open_recording`.

    :param file: of soundfile
    :param sample_rate: of the file, in Hz
    :param num_channels: of the file
    :param digest: see :func:`stated_flac_digest`
    """

    file: Any
    sample_rate: int
    num_channels: int
    digest: bytes | None = None

    def blocks(self) -> Iterator[np.ndarray]:
        """
        The samples, once: the average of the channels, resampled (soxr, its high-quality setting), with the precision
        of 16 bits. So they are those that ``returnn-common prepare`` would store.

        :return: {time}, float32, in [-1, 1], 16 kHz; some seconds each, none of them empty
        :raises BrokenAudioError: see there; also at the very end. The message is the reason, without the path
        :raises EmptyAudioError: see there
        """
        num_samples = 0
        for block in self._resample(mix_down(block) for block in self._read()):
            if len(block):
                num_samples += len(block)
                yield quantize(block).astype("float32") / _FULL_SCALE
        if not num_samples:
            raise EmptyAudioError("it has no samples at 16 kHz")

    def _read(self) -> Iterator[np.ndarray]:
        """:return: {time, channel}, int16, or float64 in [-1, 1]"""
        declared, num_samples = self.file.frames, 0
        is_int16 = self.file.subtype == "PCM_16"
        digest = hashlib.md5() if is_int16 and self.digest is not None else None
        while True:
            with _decoding():
                block = self.file.read(
                    self.sample_rate * _BLOCK_SECONDS, dtype="int16" if is_int16 else "float64", always_2d=True
                )
            if not len(block):
                break
            if not np.isfinite(block).all():
                raise BrokenAudioError("has samples that are infinite or not a number")
            if digest is not None:
                digest.update(block.astype("<i2").tobytes())
            num_samples += len(block)
            yield block
        if not num_samples:
            raise EmptyAudioError("it has no samples")
        if num_samples != declared:
            raise BrokenAudioError(f"cut off or damaged: {declared} samples declared, {num_samples} decoded")
        if digest is not None and digest.digest() != self.digest:
            raise BrokenAudioError("damaged: its samples do not have the checksum that it states")

    def _resample(self, blocks: Iterator[np.ndarray]) -> Iterator[np.ndarray]:
        if self.sample_rate == SAMPLE_RATE:
            yield from blocks
            return
        import soxr

        stream = soxr.ResampleStream(self.sample_rate, SAMPLE_RATE, 1, dtype="float64", quality="HQ")
        for block in blocks:
            yield stream.resample_chunk(block)
        yield stream.resample_chunk(np.zeros(0), last=True)


@contextlib.contextmanager
def open_recording(path: str | os.PathLike[str]) -> Iterator[Recording]:
    """
    :param path: anything that libsndfile decodes, by its content: WAV, FLAC, Ogg (Vorbis, Opus), MP3, AIFF, ...
    :raises BrokenAudioError: if it cannot be decoded, or was cut off
    :raises EmptyAudioError: if the file is empty
    :raises OSError: if it cannot be read
    """
    import soundfile

    with open(path, "rb") as raw:
        size = raw.seek(0, os.SEEK_END)
        if not size:
            raise EmptyAudioError("the file is empty")
        raw.seek(max(size - TAIL_BYTES, 0))
        tail = raw.read()
        raw.seek(0)
        head = raw.read(_HEAD_BYTES)
        check_container(head, tail=tail, size=size)
        raw.seek(0)
        with _decoding():
            file = soundfile.SoundFile(raw)
        with file:
            if file.frames > MAX_SAMPLES:
                raise BrokenAudioError("its header does not state its length (encode it again)")
            digest = stated_flac_digest(head) if file.format == "FLAC" else None
            yield Recording(file, file.samplerate, file.channels, digest)


@contextlib.contextmanager
def _decoding() -> Iterator[None]:
    import soundfile

    try:
        yield
    except (soundfile.SoundFileError, RuntimeError, TypeError) as error:  # the last for what is called .raw
        raise BrokenAudioError(f"cannot be decoded ({str(error).split(': ', 1)[-1].strip(' .')})") from error


def mix_down(samples: np.ndarray) -> np.ndarray:
    """
    :param samples: {time, channel}, int16, or float64 in [-1, 1]
    :return: {time}, float64, the average of the channels, with 2**15 for full scale
    """
    return (samples.astype("float64") * (1.0 if samples.dtype == np.int16 else float(_FULL_SCALE))).mean(axis=1)


def quantize(samples: np.ndarray) -> np.ndarray:
    """
    :param samples: of :func:`mix_down`
    :return: {time}, int16
    """
    return np.clip(np.rint(samples), -_FULL_SCALE, _FULL_SCALE - 1).astype("int16")


def check_container(head: bytes, *, tail: bytes, size: int) -> None:
    """
    libsndfile reads WAV and Ogg files that were cut off as if they ended there; their containers tell.

    :param head: the file's first bytes, 8 or more
    :param tail: its last ones, ``TAIL_BYTES`` or more if there are so many
    :param size: of the file, in bytes
    :raises BrokenAudioError: if it was cut off
    """
    if head[:4] == b"RIFF" and len(head) >= 8:
        declared = int.from_bytes(head[4:8], "little")
        # 0 and 2**32 - 1 stand for an unknown size, as programs write that cannot seek.
        if declared not in (0, 2**32 - 1) and declared + 8 > size + 1:  # some leave out the last padding byte
            raise BrokenAudioError(f"cut off: {declared + 8} bytes declared, {size} present")
    elif head[:4] == b"OggS":
        last_page = tail.rfind(b"OggS")
        header = tail[last_page : last_page + 27] if last_page >= 0 else b""
        num_segments = header[26] if len(header) == 27 else 0
        table = tail[last_page + 27 : last_page + 27 + num_segments]
        complete = len(header) == 27 and len(tail) >= last_page + 27 + num_segments + sum(table)
        if not complete or not header[5] & 4:  # flag of the last page of a stream, RFC 3533
            raise BrokenAudioError("cut off: the Ogg stream has no end")


def stated_flac_digest(content: bytes) -> bytes | None:
    """
    :param content: of a FLAC file, or its first part
    :return: the MD5 of its samples that it states (RFC 9639, section 8.2); None if it states none
    """
    start = content.find(b"fLaC")
    digest = content[start + 26 : start + 42]
    return digest if start >= 0 and any(digest) else None
