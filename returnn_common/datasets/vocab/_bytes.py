"""
Labels for bytes, beside others.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

__all__ = ["BYTE_LABELS", "join_bytes"]

BYTE_LABELS = tuple(f"<0x{byte:02X}>" for byte in range(256))  # as SentencePiece names them


def join_bytes(labels: Iterable[str]) -> str:
    """
    :param labels: some of them ``BYTE_LABELS``
    :return: them as a text; bytes that are no UTF-8, as a model can give them, become U+FFFD
    """
    parts = (bytes([int(label[3:5], 16)]) if _is_byte(label) else label.encode("utf8") for label in labels)
    return b"".join(parts).decode("utf8", errors="replace")


def _is_byte(label: str) -> bool:
    return bool(re.fullmatch("<0x[0-9A-F]{2}>", label))
