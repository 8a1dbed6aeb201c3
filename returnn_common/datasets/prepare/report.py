"""What came out of preparing a corpus."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["PrepareReport", "Problem", "SplitSummary"]


@dataclass(frozen=True, order=True)
class Problem:
    """
    Something in a corpus that was skipped.

    :param kind: ``broken``, ``empty-recording``, ``empty-transcript``, ``unlisted-recording`` (no transcript has it),
        ``missing-recording`` (a transcript without one), ``malformed-line``, ``duplicate-recording`` (two files with
        one name), ``duplicate-transcript`` or ``unusable-name`` (in a table; no file could be called so)
    :param name: ``SPLIT/UTTERANCE``, or path and number of a transcript's line
    :param message: the reason
    """

    kind: str
    name: str
    message: str


@dataclass(frozen=True)
class SplitSummary:
    """
    A prepared split.

    :param num_utterances: recordings with transcripts that were written
    :param seconds: their duration altogether
    :param num_resampled: those of them that had another sample rate than 16 kHz
    :param num_mixed_down: those of them that had more than one channel
    """

    num_utterances: int
    seconds: float
    num_resampled: int = 0
    num_mixed_down: int = 0


@dataclass
class PrepareReport:
    """
    :param splits: by name
    :param problems: everything that was skipped, in all splits, sorted by split, kind and name
    :param up_to_date: names of the splits that an earlier call had prepared and whose recordings and transcripts have
        not changed since; their problems are listed again
    :param missing: what official splits of LibriSpeech should have, and these have not; sentences
    """

    splits: dict[str, SplitSummary] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    up_to_date: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    @property
    def num_resampled(self) -> int:
        """recordings, over all splits, that had another sample rate than 16 kHz"""
        return sum(split.num_resampled for split in self.splits.values())

    @property
    def num_mixed_down(self) -> int:
        """recordings, over all splits, that had more than one channel"""
        return sum(split.num_mixed_down for split in self.splits.values())

    def notes(self) -> list[str]:
        """What was changed in the audio, a sentence each; empty when all of it was 16 kHz mono."""
        notes = []
        if self.num_resampled:
            notes.append(f"{_recordings(self.num_resampled)} resampled to 16 kHz from other sample rates.")
        if self.num_mixed_down:
            notes.append(f"{_recordings(self.num_mixed_down)} with several channels, which were averaged.")
        return notes


def _recordings(number: int) -> str:
    return f"{number} recording" + "s" * (number != 1)
