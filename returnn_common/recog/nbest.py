"""
N-best lists in the format that RETURNN's search jobs read.

A file is one Python dict literal, ``{seq_tag: [(score, text), ...], ...}``, one entry a line, best hypothesis first,
gzipped when its name ends in ``.gz``. The 1-best form ``{seq_tag: text}`` is read as well.
"""

from __future__ import annotations

import ast
import gzip
import math
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

__all__ = ["NBestWriter", "best_texts", "read_nbest", "write_nbest"]

NBest = dict[str, list[tuple[float, str]]]


class NBestWriter:
    """
    Writes an n-best file entry by entry, so that no list is kept in memory.

    To be used in a ``with`` statement. The lines go to a temporary file in the same folder, which gets its name
    ``path`` only when the block ends without an error; otherwise it is removed, and what was at ``path`` before stays.

    :param path: file to write; gzipped when the name ends in ``.gz``. The folder is made if missing.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.path = Path(path)
        self._temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}.tmp")
        self._raw: IO[bytes] | None = None
        self._out: IO[bytes] | None = None
        self._tags: set[str] = set()

    def __enter__(self) -> NBestWriter:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._raw = open(self._temporary, "wb")
        # Neither the time nor the temporary name goes into the gzip header: same lists, same bytes.
        compressed = self.path.name.endswith(".gz")
        self._out = gzip.GzipFile("", "wb", fileobj=self._raw, mtime=0) if compressed else self._raw  # type: ignore[assignment]
        self._write("{\n")
        return self

    def __exit__(self, exc_type: object, exc: object, traceback: object) -> None:
        assert self._raw and self._out
        try:
            if exc_type is None:
                self._write("}\n")
                if self._out is not self._raw:
                    self._out.close()
                self._raw.flush()
                os.fsync(self._raw.fileno())
                self._raw.close()
                os.replace(self._temporary, self.path)
        finally:
            self._raw.close()
            self._temporary.unlink(missing_ok=True)

    def add(self, seq_tag: str, hypotheses: Iterable[tuple[float, str]]) -> None:
        """
        :param seq_tag: name of the utterance
        :param hypotheses: (score, text), best (highest score) first; may be empty. ``inf`` and ``-inf`` are kept, as
            ``1e999`` and ``-1e999``, which any reader of Python literals takes for infinity.
        :raises TypeError: if the tag, a score or a text has the wrong type
        :raises ValueError: if a score is NaN, or the tag was there before
        """
        checked = _check_entry(seq_tag, list(hypotheses), where=str(self.path))
        if seq_tag in self._tags:
            raise ValueError(f"{self.path}: sequence tag {seq_tag!r} comes twice")
        self._tags.add(seq_tag)
        entries = ", ".join(f"({_score_code(score)}, {text!r})" for score, text in checked)
        self._write(f"{seq_tag!r}: [{entries}],\n")

    def _write(self, line: str) -> None:
        assert self._out is not None, "NBestWriter is used outside its with statement"
        self._out.write(line.encode("utf8"))


def write_nbest(path: str | os.PathLike[str], nbest: Mapping[str, Iterable[tuple[float, str]]]) -> None:
    """
    Write ``{seq_tag: [(score, text), ...]}``, in the mapping's order; see :class:`NBestWriter`.

    :param path: file to write, gzipped when the name ends in ``.gz``
    :param nbest: best first
    :raises TypeError: if a tag, a score or a text has the wrong type
    :raises ValueError: if a score is NaN
    """
    with NBestWriter(path) as writer:
        for seq_tag, hypotheses in nbest.items():
            writer.add(seq_tag, hypotheses)


def read_nbest(path: str | os.PathLike[str]) -> NBest:
    """
    Read an n-best or a 1-best file. It is parsed as a literal: nothing in it is executed.

    :param path: file to read; gzip is recognised by the content, not by the name
    :return: ``{seq_tag: [(score, text), ...]}``, best first. The text of a 1-best file gets the score 0.0.
    :raises FileNotFoundError: if there is no such file
    :raises ValueError: if the file is not of that form, names a tag twice, or a score is NaN
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"n-best file {path}: no such file")
    result: NBest = {}
    for tag_node, value_node in _iter_entries(_read_text(path), path):
        tag, value = _literal(tag_node, path), _literal(value_node, path)
        try:
            checked = _check_entry(tag, [(0.0, value)] if isinstance(value, str) else value, where=str(path))
        except TypeError as exc:  # the types of a file's content are a matter of its value
            raise ValueError(str(exc)) from None
        assert isinstance(tag, str)
        if tag in result:
            raise ValueError(f"{path}: sequence tag {tag!r} comes twice")
        result[tag] = checked
    return result


def best_texts(nbest: Mapping[str, Sequence[tuple[float, str]]]) -> dict[str, str]:
    """
    :param nbest: ``{seq_tag: [(score, text), ...]}``, best first as the search ranked them: where it normalises by the
        length, a later score can be the higher one
    :return: ``{seq_tag: text}`` of the first hypotheses. An utterance with an empty list is left out: it has none.
    """
    return {tag: hypotheses[0][1] for tag, hypotheses in nbest.items() if hypotheses}


def _check_entry(seq_tag: object, hypotheses: object, *, where: str) -> list[tuple[float, str]]:
    if not isinstance(seq_tag, str):
        raise TypeError(f"{where}: expected a sequence tag as str, got {seq_tag!r} ({type(seq_tag).__name__})")
    if not isinstance(hypotheses, (list, tuple)):
        raise TypeError(
            f"{where}: expected a list of (score, text) or a text for {seq_tag!r}, got {type(hypotheses).__name__}"
        )
    result: list[tuple[float, str]] = []
    for index, hypothesis in enumerate(hypotheses):
        if not isinstance(hypothesis, (list, tuple)) or len(hypothesis) != 2:
            raise TypeError(f"{where}: expected (score, text) as hypothesis {index} of {seq_tag!r}, got {hypothesis!r}")
        score, text = hypothesis
        # NumPy's scalars convert; bool and str must not.
        if isinstance(score, (bool, str, bytes)) or not hasattr(score, "__float__"):
            raise TypeError(f"{where}: expected a number as score {index} of {seq_tag!r}, got {score!r}")
        if not isinstance(text, str):
            raise TypeError(f"{where}: expected str as text {index} of {seq_tag!r}, got {text!r}")
        score = float(score)
        if math.isnan(score):
            raise ValueError(f"{where}: score {index} of {seq_tag!r} is NaN, which has no rank")
        result.append((score, str(text)))
    return result


def _score_code(score: float) -> str:
    return repr(score) if math.isfinite(score) else ("1e999" if score > 0 else "-1e999")


def _read_text(path: Path) -> str:
    try:
        content = path.read_bytes()
        if content[:2] == b"\x1f\x8b":
            content = gzip.decompress(content)
        return content.decode("utf8")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as exc:
        # gzip's own errors are OSError (header, checksum), EOFError (cut short) and zlib.error (damaged).
        raise ValueError(f"{path}: cannot be read as UTF-8 text, plain or gzip: {exc}") from exc


def _iter_entries(text: str, path: Path) -> Iterator[tuple[ast.expr, ast.expr]]:
    """
    :return: syntax trees of keys and values. Our own files are parsed line by line, which keeps the memory low (a
        syntax tree takes many times the space of its text); others as a whole.
    """
    lines = text.split("\n")
    done = 0
    if lines[0] == "{" and lines[-2:] == ["}", ""] and all(line.endswith("],") for line in lines[1:-2]):
        try:
            for line in lines[1:-2]:
                for item in _dict_items("{" + line + "}", path):
                    yield item
                    done += 1
            return
        except SyntaxError:
            pass  # an entry over several lines: parse the whole, and skip what was given out already
    try:
        yield from list(_dict_items(text, path))[done:]
    except (SyntaxError, RecursionError, MemoryError) as exc:
        raise ValueError(f"{path}: expected a Python dict {{seq_tag: [(score, text), ...]}}: {exc}") from exc


def _dict_items(code: str, path: Path) -> Iterator[tuple[ast.expr, ast.expr]]:
    if "\0" in code:  # a ValueError or a SyntaxError of the parser, depending on Python's version
        raise SyntaxError("there are null bytes in it")
    tree = ast.parse(code.strip(), mode="eval").body
    if not isinstance(tree, ast.Dict):
        raise ValueError(f"{path}: expected a Python dict {{seq_tag: [(score, text), ...]}}, got {code.strip()[:40]!r}")
    for key, value in zip(tree.keys, tree.values, strict=True):
        if key is None:
            raise ValueError(f"{path}: expected a dict of literals, got '**'")
        yield key, value


class _Infinity(ast.NodeTransformer):
    """Replaces the names that ``repr`` gives to floats without a literal, so that other writers' files can be read."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id in ("inf", "nan"):
            return ast.copy_location(ast.Constant(float(node.id)), node)
        return node


def _literal(node: ast.expr, path: Path) -> object:
    try:
        return ast.literal_eval(_Infinity().visit(node))
    except (ValueError, TypeError):
        raise ValueError(
            f"{path}: expected only literals (str, number, list, tuple), got {ast.unparse(node)[:60]!r}"
        ) from None
