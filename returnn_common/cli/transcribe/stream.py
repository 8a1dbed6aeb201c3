"""
Recordings as if somebody spoke: read, recognised and shown piece by piece, one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ...datasets.audio import open_recording
from ...recog.live import LiveTranscriber
from ...recog.transcribe import Transcript
from .pipeline import Result, reading_errors
from .recordings import Source

__all__ = ["stream_recordings"]


def stream_recordings(
    sources: Sequence[Source],
    make_live: Callable[[], LiveTranscriber],
    *,
    piece: int,
    on_partial: Callable[[Source, Transcript], None],
) -> Iterator[Result]:
    """
    :param sources: recordings
    :param make_live: called for each recording
    :param piece: in samples
    :param on_partial: called with what is known so far, when it has changed
    :return: of each recording, in order, as soon as it is complete
    """
    for source in sources:
        result = Result(source)
        with reading_errors(result):
            result.segments.append(_stream(result, make_live(), piece=piece, on_partial=on_partial))
        yield result


def _stream(
    result: Result, live: LiveTranscriber, *, piece: int, on_partial: Callable[[Source, Transcript], None]
) -> Transcript:
    shown = ""
    with open_recording(result.source.path) as recording:
        result.sample_rate, result.num_channels = recording.sample_rate, recording.num_channels
        for block in recording.blocks():
            for start in range(0, len(block), piece):
                transcript = live.push(block[start : start + piece])
                if transcript.text != shown:
                    shown = transcript.text
                    on_partial(result.source, transcript)
    return live.finish()
