"""
Ogg streams that are the same for the same samples.
"""

from __future__ import annotations

import zlib

__all__ = ["set_serial"]

_REVERSED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))


def set_serial(content: bytes, serial: int) -> bytes:
    """
    Encoders give each stream a random serial number (RFC 3533, section 6), which is of no use for a file of its own.

    :param content: of an Ogg file
    :param serial: in [0, 2**32), for all of its pages
    :return: content with that number, and the pages' checksums of it
    :raises ValueError: if it is no Ogg file
    """
    pages = bytearray(content)
    position = 0
    while position < len(pages):
        if pages[position : position + 4] != b"OggS" or position + 27 > len(pages):
            raise ValueError(f"Ogg: expected a page at byte {position} of {len(pages)}")
        num_segments = pages[position + 26]
        end = position + 27 + num_segments + sum(pages[position + 27 : position + 27 + num_segments])
        pages[position + 14 : position + 18] = serial.to_bytes(4, "little")
        pages[position + 22 : position + 26] = bytes(4)
        pages[position + 22 : position + 26] = _checksum(bytes(pages[position:end])).to_bytes(4, "little")
        position = end
    return bytes(pages)


def _checksum(page: bytes) -> int:
    """The polynomial of zlib's checksum, but the highest bit first, and nothing inverted."""
    inverted = zlib.crc32(page.translate(_REVERSED), 0xFFFFFFFF) ^ 0xFFFFFFFF
    return int(f"{inverted:032b}"[::-1], 2)
