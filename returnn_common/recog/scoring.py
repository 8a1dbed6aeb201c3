"""
Word error rate: errors over the whole corpus, with alignments.

WER = (substitutions + deletions + insertions) / words of all references, so that long utterances count for more than
short ones; never the mean of the utterances' rates. Words are what ``str.split()`` gives; case and punctuation are
compared as they are.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .nbest import best_texts, read_nbest

__all__ = [
    "Alignment",
    "UtteranceScore",
    "WerResult",
    "align_words",
    "format_alignment",
    "oracle_wer",
    "read_texts",
    "score_wer",
]

Alignment = list[tuple[str | None, str | None]]


@dataclass(frozen=True)
class UtteranceScore:
    """One utterance: its alignment, pairs of (reference word, hypothesis word), None where the side has no word."""

    seq_tag: str
    alignment: Alignment

    @property
    def substitutions(self) -> int:
        return sum(ref is not None and hyp is not None and ref != hyp for ref, hyp in self.alignment)

    @property
    def deletions(self) -> int:
        return sum(hyp is None for _, hyp in self.alignment)

    @property
    def insertions(self) -> int:
        return sum(ref is None for ref, _ in self.alignment)

    @property
    def errors(self) -> int:
        return self.substitutions + self.deletions + self.insertions

    @property
    def num_ref_words(self) -> int:
        return sum(ref is not None for ref, _ in self.alignment)

    @property
    def wer(self) -> float:
        """In percent; see :func:`score_wer` for an empty reference."""
        return _rate(self.errors, self.num_ref_words)


@dataclass(frozen=True)
class WerResult:
    """
    Counts over a corpus.

    ``utterances`` holds every reference, in the references' order. ``missing`` names the references without a
    hypothesis: their words are among the deletions. ``extra`` names the hypotheses without a reference: they are in no
    count.
    """

    substitutions: int
    deletions: int
    insertions: int
    num_ref_words: int
    utterances: list[UtteranceScore] = field(repr=False)
    missing: list[str] = field(default_factory=list)
    extra: list[str] = field(default_factory=list)

    @property
    def errors(self) -> int:
        return self.substitutions + self.deletions + self.insertions

    @property
    def num_utterances(self) -> int:
        return len(self.utterances)

    @property
    def wer(self) -> float:
        """In percent; can exceed 100."""
        return _rate(self.errors, self.num_ref_words)

    @property
    def warnings(self) -> list[str]:
        """What a reader of the rate should know: a sentence each for missing and for extra utterances."""
        result = []
        if self.missing:
            result.append(
                f"{len(self.missing)} of {self.num_utterances} references have no hypothesis; "
                f"all their words count as deletions: {_some(self.missing)}"
            )
        if self.extra:
            result.append(f"{len(self.extra)} hypotheses have no reference and are not counted: {_some(self.extra)}")
        return result

    def worst(self, num: int) -> list[UtteranceScore]:
        """
        :param num: at most so many
        :return: the utterances with errors, the one with the most errors first, then by rate, then by tag
        """
        wrong = [utterance for utterance in self.utterances if utterance.errors]
        return sorted(wrong, key=lambda u: (-u.errors, -u.wer, u.seq_tag))[: max(num, 0)]


def score_wer(hypotheses: Mapping[str, str], references: Mapping[str, str]) -> WerResult:
    """
    :param hypotheses: ``{seq_tag: text}``
    :param references: ``{seq_tag: text}``. Those without a hypothesis count as recognised as nothing. Against an empty
        reference, every hypothesis word is an insertion.
    :return: counts and alignments. Without any reference word, the WER is 0.0 if there is no error, else infinite.
    :raises TypeError: if a text is not a str (n-best lists: see :func:`.nbest.best_texts`)
    """
    for name, texts in [("hypothesis", hypotheses), ("reference", references)]:
        for tag, text in texts.items():
            if not isinstance(text, str):
                raise TypeError(f"{name} {tag!r}: expected a text (str), got {text!r:.80}")
    utterances = [
        UtteranceScore(tag, align_words(reference.split(), hypotheses.get(tag, "").split()))
        for tag, reference in references.items()
    ]
    return WerResult(
        substitutions=sum(utterance.substitutions for utterance in utterances),
        deletions=sum(utterance.deletions for utterance in utterances),
        insertions=sum(utterance.insertions for utterance in utterances),
        num_ref_words=sum(utterance.num_ref_words for utterance in utterances),
        utterances=utterances,
        missing=[tag for tag in references if tag not in hypotheses],
        extra=[tag for tag in hypotheses if tag not in references],
    )


def oracle_wer(nbest: Mapping[str, Sequence[tuple[float, str]]], references: Mapping[str, str]) -> WerResult:
    """
    The WER that a perfect choice from the lists would have: a lower bound for any rescoring of them.

    :param nbest: ``{seq_tag: [(score, text), ...]}``
    :param references: ``{seq_tag: text}``
    :return: the result for the hypothesis with the fewest errors of each list, the better scored one among equals. An
        utterance with an empty list counts as missing, one whose reference is missing as extra.
    """
    chosen = {}
    for tag, hypotheses in nbest.items():
        if hypotheses:
            reference = references.get(tag, "").split()
            errors = [UtteranceScore(tag, align_words(reference, text.split())).errors for _, text in hypotheses]
            chosen[tag] = hypotheses[errors.index(min(errors))][1]
    return score_wer(chosen, references)


def align_words(reference: Sequence[str], hypothesis: Sequence[str]) -> Alignment:
    """
    :param reference: words
    :param hypothesis: words
    :return: pairs (reference word or None, hypothesis word or None), with the fewest substitutions, deletions and
        insertions (each counts 1, Levenshtein distance). Computed by https://github.com/pzelasko/kaldialign.
    """
    import kaldialign

    # By number: no word can then be taken for the empty symbol, and None needs no order.
    numbers = {word: number for number, word in enumerate(dict.fromkeys([*reference, *hypothesis]))}
    words: list[str | None] = [*numbers, None]
    pairs = kaldialign.align(
        [numbers[word] for word in reference], [numbers[word] for word in hypothesis], eps_symbol=len(numbers)
    )
    return [(words[ref], words[hyp]) for ref, hyp in pairs]


def format_alignment(alignment: Alignment, *, width: int = 100) -> str:
    """
    :param alignment: see :func:`align_words`
    :param width: columns of a line; a longer alignment goes on in a further block
    :return: three lines a block: references, hypotheses, and S, D, or I under each error; ``*`` stands for no word

    >>> print(format_alignment([("ONE", "ONE"), ("TWO", "TEN"), (None, "SIX"), ("SEVEN", None)]))
    REF: ONE TWO *** SEVEN
    HYP: ONE TEN SIX *****
             S   I   D
    """
    blocks: list[list[str]] = []
    for ref, hyp in alignment:
        size = max(len(ref or ""), len(hyp or ""))
        mark = "I" if ref is None else "D" if hyp is None else "S" if ref != hyp else ""
        cells = [(ref or "*" * size).ljust(size), (hyp or "*" * size).ljust(size), mark.ljust(size)]
        if not blocks or len(blocks[-1][0]) + 1 + size > width:
            blocks.append(["REF:", "HYP:", "    "])
        blocks[-1] = [f"{line} {cell}" for line, cell in zip(blocks[-1], cells, strict=True)]
    return "\n\n".join("\n".join(line.rstrip() for line in block).rstrip() for block in blocks or [["REF:", "HYP:"]])


def read_texts(path: str | os.PathLike[str]) -> dict[str, str]:
    """
    Read texts by utterance, from lines ``UTT-ID TEXT`` (a ``.trans.txt`` of LibriSpeech; the text may be empty, blank
    lines are skipped) or from a Python dict: 1-best, or n-best, of which the first hypotheses are taken.

    :param path: file, in UTF-8; a dict may be gzipped
    :return: ``{seq_tag: text}``
    :raises FileNotFoundError: if there is no such file
    :raises ValueError: if it is not UTF-8 text, or names an utterance twice, or is a dict of another form
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"text file {path}: no such file")
    content = path.read_bytes()
    # gzip's magic number: only dicts come compressed
    if content[:2] == b"\x1f\x8b" or content.lstrip()[:1] == b"{":
        return best_texts(read_nbest(path))
    try:
        lines = content.decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as exc:
        raise ValueError(f"{path}: expected UTF-8 text, lines of 'UTT-ID TEXT': {exc}") from exc
    result: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        words = line.split(maxsplit=1)
        if not words:
            continue
        if words[0] in result:
            raise ValueError(f"{path}, line {number}: utterance {words[0]!r} comes twice")
        result[words[0]] = words[1].strip() if len(words) > 1 else ""
    return result


def _rate(errors: int, words: int) -> float:
    return 100.0 * errors / words if words else (math.inf if errors else 0.0)


def _some(tags: list[str], num: int = 5) -> str:
    return ", ".join(tags[:num]) + (f" and {len(tags) - num} more" if len(tags) > num else "")
