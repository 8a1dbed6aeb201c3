"""
Keeps quiet what engines tell past Python.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

__all__ = ["stderr_to"]


@contextlib.contextmanager
def stderr_to(path: str | os.PathLike[str] = os.devnull) -> Iterator[None]:
    """
    Of the whole process: TensorFlow tells at length, past Python, that it has found no GPU.

    :param path: file to which it is appended
    """
    before = os.dup(2)
    try:
        with open(path, "ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)
