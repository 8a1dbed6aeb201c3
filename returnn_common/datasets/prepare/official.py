"""
What the official splits of LibriSpeech hold, and what is missing in a copy.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from .report import SplitSummary
from .scan import SplitSource

__all__ = ["OFFICIAL_SPLITS", "OfficialSplit", "find_missing"]


@dataclass(frozen=True)
class OfficialSplit:
    """
    :param num_utterances: all of them
    :param hours: their duration
    :param num_speakers: who read them
    :param md5: of the official archive, https://www.openslr.org/resources/12/md5sum.txt
    """

    num_utterances: int
    hours: float
    num_speakers: int
    md5: str


# Utterances and hours as counted; table 1 of Panayotov et al. (2015) has the hours of dev-other and test-other swapped.
OFFICIAL_SPLITS = {
    "dev-clean": OfficialSplit(2703, 5.39, 40, "42e2234ba48799c1f50f24a7926300a1"),
    "dev-other": OfficialSplit(2864, 5.12, 33, "c8d0bcc9cca99d4f8b62fcc847357931"),
    "test-clean": OfficialSplit(2620, 5.40, 40, "32fa31d27d2e1cad72775fee3f4849a9"),
    "test-other": OfficialSplit(2939, 5.34, 33, "fb5a50374b501bb3bac4815ee91d3135"),
    "train-clean-100": OfficialSplit(28539, 100.6, 251, "2a93770f6d5c6c964bc36631d331a522"),
    "train-clean-360": OfficialSplit(104014, 363.6, 921, "c0e676e450a7ff2f54aeade5171606fa"),
    "train-other-500": OfficialSplit(148688, 496.8, 1166, "d1a0fd59409feb2c614ce4d30c387708"),
}

_HOURS_TOLERANCE = 0.01
_NAME = re.compile(r"(\d+)-(\d+)-(\d+)")
_MAX_NAMED = 20


def find_missing(split: SplitSource, names: Iterable[str], summary: SplitSummary) -> list[str]:
    """
    Compares with the known numbers. Which utterances are missing follows from gaps in the numbers of a chapter, which
    has none officially, and which speakers and chapters do from ``CHAPTERS.TXT``, where it is there.

    :param split: also one that LibriSpeech does not have, about which there is nothing to say
    :param names: of the utterances that were prepared
    :param summary: of these
    :return: sentences; empty if all is there
    """
    official = OFFICIAL_SPLITS.get(split.name)
    if official is None:
        return []
    hours = summary.seconds / 3600
    if summary.num_utterances == official.num_utterances:
        if abs(hours - official.hours) <= _HOURS_TOLERANCE * official.hours:
            return []
        return [
            f"{split.name}: {hours:.2f} hours, where the official split has {official.hours}: is it another corpus?"
        ]
    chapters: dict[tuple[str, str], set[int]] = defaultdict(set)
    for name in names:
        if (match := _NAME.fullmatch(name)) is not None:
            chapters[match[1], match[2]].add(int(match[3]))
    num_speakers = len({speaker for speaker, _ in chapters})
    counts = (
        f"{split.name}: {summary.num_utterances} of {official.num_utterances} utterances, {hours:.2f} of "
        f"{official.hours} hours, {num_speakers} of {official.num_speakers} speakers of the official split"
    )
    if summary.num_utterances > official.num_utterances:
        return [f"{counts}: is it another corpus?"]
    return [f"{counts}.", *_missing_chapters(split, set(chapters)), *_gaps(split.name, chapters)]


def _missing_chapters(split: SplitSource, found: set[tuple[str, str]]) -> list[str]:
    listed = set()
    for line in (split.chapters or "").splitlines():
        fields = [field.strip() for field in line.split("|")]
        if not line.startswith(";") and len(fields) >= 4 and fields[3] == split.name:
            listed.add((fields[1], fields[0]))
    missing = listed - found
    speakers = {speaker for speaker, _ in missing} - {speaker for speaker, _ in found}
    chapters = {f"{speaker}/{chapter}" for speaker, chapter in missing if speaker not in speakers}
    sentences = []
    if speakers:
        sentences.append(f"{split.name}: nothing of the speakers {_some(sorted(speakers, key=_numbers))}.")
    if chapters:
        sentences.append(f"{split.name}: nothing of the chapters {_some(sorted(chapters, key=_numbers))}.")
    return sentences


def _gaps(split_name: str, chapters: dict[tuple[str, str], set[int]]) -> list[str]:
    missing = [
        f"{speaker}-{chapter}-{number:04}"
        for (speaker, chapter), numbers in sorted(chapters.items(), key=lambda item: _numbers("/".join(item[0])))
        for number in range(max(numbers))
        if number not in numbers
    ]
    return [f"{split_name}: missing between others: {_some(missing)}."] if missing else []


def _numbers(name: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", name)]


def _some(names: list[str]) -> str:
    more = f", and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return ", ".join(names[:_MAX_NAMED]) + more
