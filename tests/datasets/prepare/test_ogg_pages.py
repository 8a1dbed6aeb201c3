"""Tests for returnn_common/datasets/prepare/ogg_pages.py."""

from __future__ import annotations

import pytest

from returnn_common.datasets.prepare.ogg_pages import set_serial

from .corpus import encode, tone


def _checksum(page: bytes) -> int:
    """RFC 3533: the polynomial 0x04c11db7, the highest bit first, from 0; bit by bit"""
    value = 0
    for byte in page[:22] + bytes(4) + page[26:]:
        value ^= byte << 24
        for _ in range(8):
            value = (value << 1) ^ (0x04C11DB7 if value & 0x80000000 else 0)
            value &= 0xFFFFFFFF
    return value


def _pages(content: bytes) -> list[bytes]:
    return [b"OggS" + page for page in content.split(b"OggS")[1:]]


def test_serial_and_checksums():
    content = encode(tone(2.0), format="OGG", subtype="VORBIS")
    assert int.from_bytes(_pages(content)[0][22:26], "little") == _checksum(_pages(content)[0])  # as libogg has it
    changed = set_serial(content, 77)
    assert len(_pages(changed)) == len(_pages(content)) > 2
    for before, after in zip(_pages(content), _pages(changed), strict=True):
        assert int.from_bytes(after[14:18], "little") == 77
        assert int.from_bytes(after[22:26], "little") == _checksum(after)
        assert before[:14] == after[:14] and before[18:22] == after[18:22] and before[26:] == after[26:]
    assert set_serial(changed, int.from_bytes(content[14:18], "little")) == content


@pytest.mark.parametrize("content", [b"RIFF" * 20, encode(tone(), format="OGG", subtype="VORBIS") + b"Ogg"])
def test_no_ogg(content):
    with pytest.raises(ValueError, match="Ogg: expected a page at byte"):
        set_serial(content, 1)
