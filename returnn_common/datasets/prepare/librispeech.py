"""
From a corpus in the LibriSpeech layout to the files that RETURNN reads.
"""

from __future__ import annotations

import collections
import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from .audio import SAMPLE_RATE, BrokenAudioError, ConvertedAudio, EmptyAudioError, convert_recording
from .oggzip import (
    Manifest,
    OggZipWriter,
    exclusive_folder,
    manifest_path,
    read_manifest,
    source_digest,
    write_manifest,
)
from .report import PrepareReport, Problem, SplitSummary
from .scan import SplitSource, Utterance, describe_problems, scan_corpus

__all__ = ["prepare_librispeech"]

ProgressCallback = Callable[[int, int, str], None]


def prepare_librispeech(
    src: str | os.PathLike[str],
    dest: str | os.PathLike[str],
    *,
    num_workers: int = 2,
    on_progress: ProgressCallback | None = None,
) -> PrepareReport:
    """
    Writes ``dest/SPLIT.zip`` (see :mod:`.oggzip`) for each split of a corpus, as
    :class:`returnn_common.datasets.Librispeech` expects them. The layout is that of LibriSpeech,
    https://www.openslr.org/12.

    Whatever cannot be used is skipped and listed in the report. The call may be interrupted at any moment: each file
    is complete or not there, and the next call goes on with the split that was not finished. Splits whose recordings
    and transcripts have not changed since are not done again.

    :param src: the corpus: ``SPLIT/SPEAKER/CHAPTER/*.flac`` with ``*.trans.txt``, anywhere below it; or one split.
        The recordings may also be .wav or .ogg, and have other sample rates (resampled to 16 kHz) or several channels
        (averaged).
    :param dest: folder to write to, made where it is missing
    :param num_workers: how many recordings are decoded at a time. The result does not depend on it.
    :param on_progress: called with the number of utterances done, of all, and the name of the split that is being done
    :raises FileNotFoundError: ``src`` is not there or has no recordings. Nothing was written then.
    :raises NotADirectoryError: ``dest`` is a file
    :raises ValueError: a split has nothing usable. The other splits are complete then.
    :raises RuntimeError: another process is writing to ``dest``
    """
    if isinstance(num_workers, bool) or not isinstance(num_workers, int) or num_workers < 1:
        raise ValueError(f"num_workers: expected an integer of at least 1, got {num_workers!r}")
    src, dest = Path(src), Path(dest)
    splits = scan_corpus(src)
    if dest.exists() and not dest.is_dir():
        raise NotADirectoryError(f"destination: expected a folder, but {dest} is a file")

    report = PrepareReport()
    unusable = []
    done, total = 0, sum(len(split.utterances) for split in splits)
    with exclusive_folder(dest):
        for split in splits:
            path = dest / f"{split.name}.zip"
            source = source_digest(split, root=src.resolve())
            manifest = read_manifest(path)
            if manifest is not None and manifest.source == source:
                report.up_to_date.append(split.name)
            else:
                progress = None if on_progress is None else _offset_progress(on_progress, done, total, split.name)
                manifest = _prepare_split(split, path, source=source, num_workers=num_workers, on_progress=progress)
            done += len(split.utterances)
            if on_progress is not None:
                on_progress(done, total, split.name)
            if manifest is None:
                unusable.append(split)
                continue
            report.splits[split.name] = manifest.summary
            report.problems.extend(manifest.problems)
    if unusable:
        raise ValueError(
            f"corpus {src}: nothing usable in "
            + "; ".join(f"split {split.name!r} ({describe_problems(split.problems)})" for split in unusable)
        )
    return report


def _offset_progress(on_progress: ProgressCallback, offset: int, total: int, name: str) -> Callable[[int], None]:
    return lambda done: on_progress(offset + done, total, name)


def _prepare_split(
    split: SplitSource, path: Path, *, source: str, num_workers: int, on_progress: Callable[[int], None] | None
) -> Manifest | None:
    """
    :return: the record of the zip, or None if there was nothing to write (the reasons are in ``split.problems``)
    """
    num_utterances = num_samples = num_resampled = num_mixed_down = 0
    with OggZipWriter(path) as writer:
        for done, (utterance, audio) in enumerate(_convert_all(split.utterances, num_workers=num_workers), start=1):
            if isinstance(audio, ConvertedAudio):
                seconds = audio.num_samples / SAMPLE_RATE
                writer.add(utterance.name, text=utterance.text, flac=audio.flac, seconds=seconds)
                num_utterances += 1
                num_samples += audio.num_samples
                num_resampled += audio.resampled
                num_mixed_down += audio.mixed_down
            else:
                kind = "empty-recording" if isinstance(audio, EmptyAudioError) else "broken"
                split.problems.append(Problem(kind, f"{split.name}/{utterance.name}", str(audio)))
            if on_progress is not None:
                on_progress(done)
        split.problems.sort()
        manifest_path(path).unlink(missing_ok=True)  # it describes the file that is replaced or removed now
        if not num_utterances:
            path.unlink(missing_ok=True)
            return None
        writer.finish()
    summary = SplitSummary(num_utterances, num_samples / SAMPLE_RATE, num_resampled, num_mixed_down)
    manifest = Manifest(source, path.stat().st_size, summary, split.problems)
    write_manifest(path, manifest)
    return manifest


def _convert_all(
    utterances: Iterable[Utterance], *, num_workers: int
) -> Iterator[tuple[Utterance, ConvertedAudio | Exception]]:
    """
    Converts with several threads (decoding, resampling and encoding run outside of Python's lock), yields in order, and
    holds only a few recordings at a time.
    """
    utterances = iter(utterances)
    pending: collections.deque[tuple[Utterance, Future[ConvertedAudio | Exception]]] = collections.deque()
    pool = ThreadPoolExecutor(num_workers)
    try:
        for utterance in itertools.chain(utterances, itertools.repeat(None)):
            if utterance is not None:
                pending.append((utterance, pool.submit(_convert, utterance.path)))
                if len(pending) <= 2 * num_workers:
                    continue
            elif not pending:
                break
            first, future = pending.popleft()
            yield first, future.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _convert(path: Path) -> ConvertedAudio | Exception:
    try:
        return convert_recording(path)
    except (BrokenAudioError, EmptyAudioError) as error:
        return error
    except OSError as error:
        return BrokenAudioError(f"cannot be read ({error.strerror})")
