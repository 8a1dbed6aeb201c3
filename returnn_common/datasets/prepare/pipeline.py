"""
From the utterances of a split to its zip, with several threads, and from where an interrupted call has stopped.
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from .audio import AUDIO_FORMATS, SAMPLE_RATE, BrokenAudioError, ConvertedAudio, EmptyAudioError, convert_content
from .manifest import Manifest, manifest_path, read_manifest, write_manifest
from .official import find_missing
from .oggzip import OggZipWriter
from .report import PrepareReport, SplitSummary
from .scan import SplitSource, Utterance, describe_problems

__all__ = ["PrepareJob", "ProgressCallback", "check_options"]

ProgressCallback = Callable[[int, int, str], None]


def check_options(*, audio_format: str, num_workers: int):
    """
    :raises ValueError: if one of them cannot be meant
    """
    if isinstance(num_workers, bool) or not isinstance(num_workers, int) or num_workers < 1:
        raise ValueError(f"num_workers: expected an integer of at least 1, got {num_workers!r}")
    if audio_format not in AUDIO_FORMATS:
        raise ValueError(f"audio_format: expected one of {', '.join(AUDIO_FORMATS)}, got {audio_format!r}")


class PrepareJob:
    """
    Prepares split after split.

    :param dest: folder to write to, which is there
    :param audio_format: see :func:`.audio.convert_content`
    :param num_workers: how many recordings are decoded at a time
    :param on_progress: called with the number of utterances done, of all that are known of, and the name of the split
    """

    def __init__(self, dest: Path, *, audio_format: str, num_workers: int, on_progress: ProgressCallback | None):
        self._dest = dest
        self._audio_format = audio_format
        self._num_workers = num_workers
        self._on_progress = on_progress or (lambda *_: None)
        self._manifests: dict[str, Manifest] = {}
        self._up_to_date: list[str] = []
        self._unusable: list[SplitSource] = []
        self._done = self._total = 0

    def expect(self, num_utterances: int):
        """
        :param num_utterances: that there are to do besides those that were known of
        """
        self._total += num_utterances

    def tell(self, what: str):
        """
        :param what: is done now, instead of a split
        """
        self._on_progress(self._done, self._total, what)

    def take(self, name: str, *, source: str) -> Manifest | None:
        """
        :param name: of a split
        :param source: digest of its source
        :return: the record, if the split is there and up to date
        """
        manifest = read_manifest(self._dest / f"{name}.zip")
        return manifest if manifest is not None and manifest.source == source else None

    def use(self, name: str, manifest: Manifest, *, num_utterances: int):
        """
        Takes a split as it is.

        :param name: of the split
        :param manifest: see :meth:`take`
        :param num_utterances: of those told to :meth:`expect`
        """
        self._manifests[name] = manifest
        self._up_to_date.append(name)
        self._done += num_utterances
        self.tell(name)

    def prepare(self, split: SplitSource, *, source: str, archive_splits: Iterable[str] = ()):
        """
        Writes a split, unless it is up to date.

        :param split: told to :meth:`expect`
        :param source: digest of it
        :param archive_splits: see :class:`.manifest.Manifest`
        """
        manifest = self.take(split.name, source=source)
        if manifest is not None:
            self.use(split.name, manifest, num_utterances=len(split.utterances))
            return
        manifest = self._write(split, source=source, archive_splits=list(archive_splits))
        self._done += len(split.utterances)
        self.tell(split.name)
        if manifest is None:
            self._unusable.append(split)
        else:
            self._manifests[split.name] = manifest

    def report(self, corpus: str) -> PrepareReport:
        """
        :param corpus: for messages
        :raises ValueError: if a split has nothing usable
        """
        if self._unusable:
            raise ValueError(
                f"corpus {corpus}: nothing usable in "
                + "; ".join(f"split {split.name!r} ({describe_problems(split.problems)})" for split in self._unusable)
            )
        report = PrepareReport(up_to_date=sorted(self._up_to_date))
        for name, manifest in sorted(self._manifests.items()):
            report.splits[name] = manifest.summary
            report.problems.extend(manifest.problems)
            report.missing.extend(manifest.missing)
        return report

    def _write(self, split: SplitSource, *, source: str, archive_splits: list[str]) -> Manifest | None:
        """
        :return: the record of the zip, or None if there was nothing to write (the reasons are in ``split.problems``)
        """
        path = self._dest / f"{split.name}.zip"
        used: dict[str, dict[str, Any]] = {}
        with OggZipWriter(path, source=source) as writer:
            outcomes = itertools.chain(writer.resumed, self._add_all(split, writer))
            for done, (name, outcome) in enumerate(outcomes, start=1):
                if "seconds" in outcome:
                    used[name] = outcome
                else:
                    split.add_problem(outcome["kind"], name, outcome["message"])
                self._on_progress(self._done + done, self._total, split.name)
            split.problems.sort()
            manifest_path(path).unlink(missing_ok=True)  # it describes the file that is replaced or removed now
            if not used:
                path.unlink(missing_ok=True)
                return None
            writer.finish()
        summary = SplitSummary(
            len(used),
            sum(outcome["samples"] for outcome in used.values()) / SAMPLE_RATE,
            sum(outcome["resampled"] for outcome in used.values()),
            sum(outcome["mixed_down"] for outcome in used.values()),
        )
        missing = find_missing(split, used, summary)
        manifest = Manifest(source, path.stat().st_size, summary, split.problems, missing, archive_splits)
        write_manifest(path, manifest)
        return manifest

    def _add_all(self, split: SplitSource, writer: OggZipWriter) -> Iterator[tuple[str, dict[str, Any]]]:
        """Adds what is not in the zip yet. Yields names and outcomes."""
        todo = split.utterances[len(writer.resumed) :]
        for utterance, audio in _convert_all(split, todo, self._audio_format, num_workers=self._num_workers):
            if isinstance(audio, ConvertedAudio):
                outcome: dict[str, Any] = {
                    "seconds": audio.num_samples / SAMPLE_RATE,
                    "samples": audio.num_samples,
                    "resampled": audio.resampled,
                    "mixed_down": audio.mixed_down,
                }
                if utterance.speaker is not None:
                    outcome["speaker"] = utterance.speaker
                file = f"{utterance.name}.{self._audio_format}"
                writer.add(utterance.name, text=utterance.text, file=file, content=audio.content, outcome=outcome)
            else:
                kind = "empty-recording" if isinstance(audio, EmptyAudioError) else "broken"
                outcome = {"kind": kind, "message": str(audio)}
                writer.skip(utterance.name, outcome=outcome)
            yield utterance.name, outcome


def _convert_all(
    split: SplitSource, utterances: list[Utterance], audio_format: str, *, num_workers: int
) -> Iterator[tuple[Utterance, ConvertedAudio | Exception]]:
    """
    Converts with several threads (decoding, resampling and encoding run outside of Python's lock), yields in order, and
    holds only a few recordings at a time.
    """
    loaders = zip(utterances, split.tree.loaders(utterance.path for utterance in utterances), strict=True)
    pending: collections.deque[tuple[Utterance, Future[ConvertedAudio | Exception]]] = collections.deque()
    pool = ThreadPoolExecutor(num_workers)
    try:
        for item in itertools.chain(loaders, itertools.repeat(None)):
            if item is not None:
                utterance, load = item
                pending.append((utterance, pool.submit(_convert, load, audio_format)))
                if len(pending) <= 2 * num_workers:
                    continue
            elif not pending:
                break
            first, future = pending.popleft()
            yield first, future.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _convert(load: Callable[[], bytes], audio_format: str) -> ConvertedAudio | Exception:
    try:
        return convert_content(load(), audio_format=audio_format)
    except (BrokenAudioError, EmptyAudioError) as error:
        return error
    except OSError as error:
        return BrokenAudioError(f"cannot be read ({error.strerror})")
