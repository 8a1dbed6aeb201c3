"""
N-gram language models from files in the ARPA format, as SRILM, KenLM and others write them
(http://www.speech.sri.com/projects/srilm/manpages/ngram-format.5.html).
"""

from __future__ import annotations

import codecs
import dataclasses
import gzip
import math
import os
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy

__all__ = ["NgramModel", "read_arpa"]

LOG_ZERO = -99.0  # how SRILM writes the logarithm of zero


def read_arpa(path: str) -> NgramModel:
    """
    :param path: ARPA file of any order, UTF-8, as it is or with gzip
    :return: the model, with natural logarithms
    :raise FileNotFoundError: there is no such file
    :raise ValueError: it is no ARPA file, or a broken one, with the number of the line: counts other than in its
        header, an n-gram with a word that is no 1-gram, one that comes twice, a log prob above zero, ...
    """
    if not os.path.isfile(path):
        raise FileNotFoundError(f"read_arpa: expected an ARPA file, but there is no file {path}")
    with open(path, "rb") as file:
        is_gzip = file.read(2) == b"\x1f\x8b"
    try:
        with gzip.open(path, "rb") if is_gzip else open(path, "rb") as file:
            return _Reader(path, enumerate(file, 1)).read()
    except (EOFError, zlib.error, gzip.BadGzipFile) as exc:
        raise ValueError(f"read_arpa: {path}: expected a whole gzip file, got: {exc}") from exc


@dataclass
class _Level:
    """
    n-grams of one length

    :param words: {M, n}
    :param log_probs: {M}, natural log; NaN: as backing off gives it
    :param backoffs: {M}
    :param lines: {M}
    """

    words: numpy.ndarray
    log_probs: numpy.ndarray
    backoffs: numpy.ndarray
    lines: numpy.ndarray


class _Reader:
    def __init__(self, path: str, lines: Iterator[tuple[int, bytes]]):
        self.path = path
        self.lines = lines
        self.number = 0  # of the current line
        self.ids: dict[bytes, int] = {}
        self.words: list[str] = []

    def error(self, message: str, line: int | None = None) -> ValueError:
        return ValueError(f"read_arpa: {self.path}, line {self.number if line is None else line}: {message}")

    def next(self) -> bytes:
        """:return: next line that isn't empty, without white space around it; at the end of the file b''"""
        for number, line in self.lines:
            self.number = number
            if number == 1:
                line = line.removeprefix(codecs.BOM_UTF8)
            if line := line.strip():
                return line
        return b""

    def read(self) -> NgramModel:
        while (line := self.next()) != b"\\data\\":
            if not line:
                raise self.error("expected \\data\\, got the end of the file")
        counts, line = [], self.next()
        while match := re.fullmatch(rb"ngram\s+(\d+)\s*=\s*(\d+)", line):
            if int(match[1]) != len(counts) + 1:
                raise self.error(f"expected the number of {len(counts) + 1}-grams, got {_text(line)}")
            counts.append(int(match[2]))
            line = self.next()
        if not counts:
            raise self.error(f"expected 'ngram 1=' and their number, got {_text(line)}")
        levels = []
        for n, count in enumerate(counts, 1):
            if line != b"\\%d-grams:" % n:
                raise self.error(f"expected \\{n}-grams:, got {_text(line)}")
            level, line = self._section(n, count, is_last=n == len(counts))
            levels.append(level)
        if line != b"\\end\\":
            raise self.error(f"expected \\end\\, got {_text(line)}")
        return _make_model(self, levels)

    def _section(self, n: int, count: int, *, is_last: bool) -> tuple[_Level, bytes]:
        """:return: the n-grams, and the line behind them"""
        words, log_probs, backoffs, lines = [], [], [], []
        while (line := self.next()) and not line.startswith(b"\\"):
            if len(lines) == count:
                raise self.error(f"expected {count} {n}-grams, as the header says, got more: {_text(line)}")
            parts = line.split()
            if len(parts) not in (n + 1, n + 2):
                raise self.error(f"expected a log prob, {n} words, and maybe a backoff weight, got {_text(line)}")
            log_prob, backoff = self._number(parts[0]), self._number(parts[n + 1]) if len(parts) == n + 2 else 0.0
            if log_prob > 0:
                raise self.error(f"expected a log prob of at most 0, got {_text(line)}")
            if is_last and backoff:
                raise self.error(f"expected no backoff weight of the longest n-grams, got {_text(line)}")
            words.append(self._ids(parts[1 : n + 1], n))
            log_probs.append(max(log_prob, LOG_ZERO))
            backoffs.append(max(backoff, LOG_ZERO))
            lines.append(self.number)
        if len(lines) != count:
            raise self.error(f"expected {count} {n}-grams, as the header says, got {len(lines)}")
        log_10 = math.log(10)
        level = _Level(
            words=numpy.array(words, "int64").reshape(count, n),
            log_probs=numpy.array(log_probs, "float64") * log_10,
            backoffs=numpy.array(backoffs, "float64") * log_10,
            lines=numpy.array(lines, "int64"),
        )
        return level, line

    def _number(self, text: bytes) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not value < math.inf:  # NaN as well
            raise self.error(f"expected a number, got {_text(text)}")
        return value

    def _ids(self, parts: Sequence[bytes], n: int) -> list[int]:
        if n == 1:
            if parts[0] in self.ids:
                raise self.error(f"expected each 1-gram once, got {_text(parts[0])} again")
            try:
                self.words.append(parts[0].decode("utf8"))
            except UnicodeDecodeError as exc:
                raise self.error(f"expected UTF-8, got {parts[0]!r}") from exc
            self.ids[parts[0]] = len(self.words) - 1
        try:
            return [self.ids[part] for part in parts]
        except KeyError as exc:
            raise self.error(f"expected words that are 1-grams, got {_text(exc.args[0])}") from None


def _text(line: bytes) -> str:
    return repr(line.decode("utf8", errors="replace")) if line else "the end of the file"


@dataclass
class NgramModel:
    """
    A back-off model as an automaton.

    The states are the contexts: 0 is the empty one, the others come sorted by their length. An arc is an n-gram: from
    its first n - 1 words, by its last word, to the longest context that it ends in. Arc `i` goes to state `i + 1`,
    but for the longest n-grams. The arcs are sorted by state and word.

    :param order: length of the longest n-grams
    :param words: the 1-grams
    :param length: {states}, of the context
    :param suffix: {states}, the longest other context that it ends in
    :param backoff: {states}, natural log
    :param arc_state: {arcs}
    :param arc_word: {arcs}
    :param arc_next: {arcs}
    :param arc_log_prob: {arcs}, natural log
    """

    order: int
    words: list[str]
    length: numpy.ndarray
    suffix: numpy.ndarray
    backoff: numpy.ndarray
    arc_state: numpy.ndarray
    arc_word: numpy.ndarray
    arc_next: numpy.ndarray
    arc_log_prob: numpy.ndarray

    @cached_property
    def _keys(self) -> numpy.ndarray:
        return self.arc_state * len(self.words) + self.arc_word

    def find_arc(self, states: numpy.ndarray, words: numpy.ndarray) -> tuple[numpy.ndarray, numpy.ndarray]:
        """
        :param states: {N}
        :param words: {N}, indices
        :return: the arc of the longest suffix of each context that has one for that word {N}; sum of the backoff
            weights on the way there {N}
        """
        keys = self._keys
        states, weights = numpy.array(states, "int64"), numpy.zeros(len(states))
        while True:
            wanted = states * len(self.words) + words
            arcs = numpy.minimum(numpy.searchsorted(keys, wanted), len(keys) - 1)
            missing = keys[arcs] != wanted
            if not missing.any():
                return arcs, weights
            weights[missing] += self.backoff[states[missing]]
            states[missing] = self.suffix[states[missing]]

    def log_prob(self, words: Sequence[str]) -> float:
        """
        :param words: of a sentence, without `<s>` and `</s>`
        :return: natural log, end of sentence included; what is no 1-gram counts as `<unk>`
        :raise KeyError: such a word, in a model without `<unk>`
        """
        ids = {word: i for i, word in enumerate(self.words)}
        state, total = 0, 0.0
        if "<s>" in ids:
            state = int(self.find_arc(numpy.array([0]), numpy.array([ids["<s>"]]))[0][0]) + 1 if self.order > 1 else 0
        for word in [*words, "</s>"]:
            index = ids[word] if word in ids else ids[self.unknown_word or word]
            arcs, weights = self.find_arc(numpy.array([state]), numpy.array([index]))
            total += float(self.arc_log_prob[arcs[0]] + weights[0])
            state = int(self.arc_next[arcs[0]])
        return total

    @property
    def unknown_word(self) -> str | None:
        """`<unk>` or `<UNK>`, if there is one"""
        return next((word for word in ("<unk>", "<UNK>") if word in self.words), None)


def _make_model(reader: _Reader, levels: list[_Level]) -> NgramModel:
    size, order = len(reader.words), len(levels)
    if not size:
        raise reader.error("expected at least one 1-gram, got none")
    for n in range(order - 1, 1, -1):  # from the longest on, as those that get in have prefixes themselves
        _add_missing_prefixes(levels[n - 1], levels[n].words[:, :-1], size)
    zero, empty = numpy.zeros(1, "int64"), numpy.zeros(0, "int64")
    model = NgramModel(order, reader.words, zero, zero, numpy.zeros(1), empty, empty, empty, numpy.zeros(0))
    for n, level in enumerate(levels, 1):
        states = numpy.zeros(len(level.words), "int64")
        for column in range(n - 1):
            states = model.find_arc(states, level.words[:, column])[0] + 1
        words = level.words[:, -1]
        sort = numpy.lexsort((words, states))
        twice = (numpy.diff(states[sort]) == 0) & (numpy.diff(words[sort]) == 0)
        if twice.any():
            index = int(sort[1:][twice].max())
            ngram = " ".join(reader.words[i] for i in level.words[index])
            raise reader.error(f"expected each {n}-gram once, got {ngram!r} again", line=int(level.lines[index]))
        states, words, log_probs = states[sort], words[sort], level.log_probs[sort]
        if n == 1:
            suffix = numpy.zeros(len(words), "int64")
        else:
            arcs, weights = model.find_arc(model.suffix[states], words)
            suffix = model.arc_next[arcs]
            backed_off = model.backoff[states] + weights + model.arc_log_prob[arcs]
            log_probs = numpy.where(numpy.isnan(log_probs), backed_off, log_probs)
        new = {"arc_state": states, "arc_word": words, "arc_next": suffix, "arc_log_prob": log_probs}
        if n < order:
            new["arc_next"] = len(model.length) + numpy.arange(len(words))
            new |= {"length": numpy.full(len(words), n), "suffix": suffix, "backoff": level.backoffs[sort]}
        new = {name: numpy.append(getattr(model, name), values) for name, values in new.items()}
        model = dataclasses.replace(model, **new)
    return model


def _add_missing_prefixes(level: _Level, prefixes: numpy.ndarray, num_words: int):
    """A pruned model may lack them as n-grams: with what backing off gives for them, nothing changes."""
    rows = numpy.concatenate([level.words, prefixes])
    ids = numpy.zeros(len(rows), "int64")
    for column in range(rows.shape[1]):
        _, ids = numpy.unique(ids * num_words + rows[:, column], return_inverse=True)
    known, wanted = ids[: len(level.words)], ids[len(level.words) :]
    _, where = numpy.unique(wanted, return_index=True)
    missing = prefixes[where[~numpy.isin(wanted[where], known)]]
    level.words = numpy.concatenate([level.words, missing])
    level.log_probs = numpy.append(level.log_probs, numpy.full(len(missing), numpy.nan))
    level.backoffs = numpy.append(level.backoffs, numpy.zeros(len(missing)))
    level.lines = numpy.append(level.lines, numpy.zeros(len(missing), "int64"))
