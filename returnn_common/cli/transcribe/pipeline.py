"""
From recordings to transcripts: reads, splits, recognises in batches, puts together.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from ...datasets.audio import SAMPLE_RATE, BrokenAudioError, EmptyAudioError, open_recording
from ...recog.segments import Segment, split_at_silence
from ...recog.transcribe import Transcriber, Transcript, join
from .recordings import Source

__all__ = ["Result", "reading_errors", "transcribe_recordings"]


@dataclass
class Result:
    """
    Of one recording.

    :param source: which
    :param segments: transcripts of its parts, in order; of a whole recording that is not long, one
    :param sample_rate: of the file
    :param num_channels: of the file
    :param error: why it has no transcript
    """

    source: Source
    segments: list[Transcript] = field(default_factory=list)
    sample_rate: int = 0
    num_channels: int = 0
    error: str | None = None

    @property
    def transcript(self) -> Transcript:
        """of the whole"""
        return join(self.segments)


@dataclass
class _Queue:
    """What is read and not yet recognised: no more than a batch."""

    transcriber: Transcriber
    waiting: list[tuple[Result, Segment]] = field(default_factory=list)

    def add(self, result: Result, segment: Segment):
        self.waiting.append((result, segment))
        if sum(len(segment.samples) for _, segment in self.waiting) >= self.transcriber.batch_seconds * SAMPLE_RATE:
            self.flush()

    def flush(self):
        results, segments = [result for result, _ in self.waiting], [segment for _, segment in self.waiting]
        for result, transcript in zip(results, self.transcriber.recognise(segments), strict=True):
            result.segments.append(transcript)
        self.waiting.clear()

    def drop(self, result: Result):
        self.waiting = [entry for entry in self.waiting if entry[0] is not result]

    def has(self, result: Result) -> bool:
        return any(entry[0] is result for entry in self.waiting)


@contextlib.contextmanager
def reading_errors(result: Result) -> Iterator[None]:
    """:param result: is told why its recording cannot be read, if so"""
    try:
        yield
    except (BrokenAudioError, EmptyAudioError) as error:
        result.error = str(error)
    except OSError as error:
        result.error = error.strerror or str(error)


def transcribe_recordings(
    sources: Sequence[Source], transcriber: Transcriber, *, on_progress: Callable[[float], None] = lambda done: None
) -> Iterator[Result]:
    """
    :param sources: recordings
    :param transcriber: its ``batch_seconds`` and ``max_seconds`` say how much is in memory at a time
    :param on_progress: called with the number of recordings that are read; with the part of one that is
    :return: of each recording, in order, as soon as it is complete
    """
    queue, open_results = _Queue(transcriber), deque[Result]()
    for index, source in enumerate(sources):
        result = Result(source)
        with reading_errors(result):
            for part in _read_into(queue, result, max_seconds=transcriber.max_seconds):
                on_progress(index + part)
        if result.error is not None:
            queue.drop(result)
        open_results.append(result)
        on_progress(index + 1)
        while open_results and not queue.has(open_results[0]):
            yield open_results.popleft()
    queue.flush()
    yield from open_results


def _read_into(queue: _Queue, result: Result, *, max_seconds: float) -> Iterator[float]:
    """:return: how much of the recording is read, at times"""
    with open_recording(result.source.path) as recording:
        result.sample_rate, result.num_channels = recording.sample_rate, recording.num_channels
        seconds = recording.file.frames / recording.sample_rate
        for segment in split_at_silence(recording.blocks(), max_seconds=max_seconds):
            queue.add(result, segment)
            yield min(segment.offset / max(seconds, 1e-6), 1.0)
