"""
Makes the vocabularies in ``data/`` again: ``python -m returnn_common.datasets.vocab.bundled TEXT DEST``.
"""

from __future__ import annotations

import gzip
import os
import string
import sys
from collections.abc import Sequence
from pathlib import Path

from .training import add_byte_pieces, train_bpe, train_sentencepiece

__all__ = ["build", "main"]

_CHARACTERS = string.ascii_uppercase + "' "


def build(lines: Sequence[str], *, sizes: tuple[int, ...] = (1000, 5000), num_merges: int = 1000) -> dict[str, bytes]:
    """
    :param lines: text in the style of LibriSpeech's transcripts: A to Z, apostrophe, single spaces
    :param sizes: of the SentencePiece models
    :param num_merges: of the BPE
    :return: name -> content of all files
    :raises ValueError: if the text has other characters
    """
    others = sorted({char for line in lines for char in line} - set(_CHARACTERS))
    if others:
        raise ValueError(
            f"text: expected the characters A to Z, apostrophe and space, got {', '.join(map(repr, others))}"
        )
    files = {"librispeech.chars": "".join(f"{char}\n" for char in _CHARACTERS).encode()}
    bpe = train_bpe(lines, num_merges=num_merges)
    name = f"bpe{_short(num_merges)}"
    files |= {f"{name}.codes": bpe.codes.encode(), f"{name}.vocab": bpe.vocab.encode()}
    for size in sizes:
        model = train_sentencepiece(lines, vocab_size=size)
        files |= {f"spm{_short(size)}.model": model, f"spm{_short(size)}-bytes.model": add_byte_pieces(model)}
    return files


def _short(number: int) -> str:
    return str(number) if number % 1000 else f"{number // 1000}k"


def main(arguments: Sequence[str]) -> int:
    """
    :param arguments: file of the text (UTF-8, or gzip of it), folder to write to
    :return: exit status
    """
    if len(arguments) != 2:
        print(f"usage: python -m {__spec__.name} TEXT DEST", file=sys.stderr)
        return 2
    source, dest = arguments
    opened = gzip.open if source.endswith(".gz") else open
    with opened(source, "rt", encoding="utf8") as file:
        lines = file.read().splitlines()
    os.makedirs(dest, exist_ok=True)
    for name, content in build(lines).items():
        (Path(dest) / name).write_bytes(content)
        print(name, len(content))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
