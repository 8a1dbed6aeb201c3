"""
Transcripts as text, JSON, CTM and SRT.
"""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Sequence
from typing import Any

from ...recog.times import WordTime
from .pipeline import Result

__all__ = ["FORMATS", "WITH_TIMES", "dump_json", "json_entry", "srt_text", "text_line"]

FORMATS = {"text": ".txt", "json": ".json", "ctm": ".ctm", "srt": ".srt"}  # with the suffix of their files
WITH_TIMES = ("json", "ctm", "srt")

# Of subtitles, as is usual.
_CUE_SECONDS = 7.0
_CUE_MIN_SECONDS = 1.0
_CUE_PAUSE_SECONDS = 1.0  # a longer one begins a new cue
_LINE_CHARACTERS = 42
_CUE_LINES = 2


def text_line(result: Result, *, with_name: bool) -> str:
    """:return: ``TEXT``, or ``NAME<tab>TEXT``, without line break"""
    text = " ".join(result.transcript.text.split())
    return f"{result.source.name}\t{text}" if with_name else text


def json_entry(result: Result) -> dict[str, Any]:
    """:return: plain data; times in seconds"""
    transcript = result.transcript
    entry: dict[str, Any] = {
        "file": result.source.name,
        "duration": round(transcript.end, 3),
        "sample_rate": result.sample_rate,
        "channels": result.num_channels,
        "text": transcript.text,
        "score": _score(transcript.score),
    }
    if transcript.words is not None:
        entry["words"] = [
            {
                "word": word.text,
                "start": round(word.start, 3),
                "end": round(word.end, 3),
                "confidence": round(word.confidence or 0.0, 4),
            }
            for word in transcript.words
        ]
    entry["segments"] = [
        {"start": round(part.start, 3), "end": round(part.end, 3), "text": part.text, "score": _score(part.score)}
        for part in result.segments
    ]
    return entry


def dump_json(entry: dict[str, Any]) -> str:
    """:return: one line"""
    return json.dumps(entry, ensure_ascii=False)


def srt_text(result: Result) -> str:
    """:return: SubRip subtitles: cues of up to 7 seconds and two lines, of which each lasts a second if it can"""
    transcript = result.transcript
    cues = _make_cues(transcript.words or ())
    parts = []
    for i, words in enumerate(cues):
        limit = cues[i + 1][0].start if i + 1 < len(cues) else transcript.end
        start, end = words[0].start, max(words[-1].end, min(words[0].start + _CUE_MIN_SECONDS, limit))
        lines = _wrap(words)
        parts.append(f"{i + 1}\n{_timecode(start)} --> {_timecode(end)}\n" + "\n".join(lines) + "\n")
    return "\n".join(parts)


def _make_cues(words: Sequence[WordTime]) -> list[list[WordTime]]:
    cues: list[list[WordTime]] = []
    for word in words:
        cue = cues[-1] if cues else []
        if (
            not cue
            or word.start - cue[-1].end > _CUE_PAUSE_SECONDS
            or word.end - cue[0].start > _CUE_SECONDS
            or len(_wrap([*cue, word])) > _CUE_LINES
        ):
            cues.append([word])
        else:
            cue.append(word)
    return cues


def _wrap(words: Sequence[WordTime]) -> list[str]:
    text = " ".join(word.text for word in words)
    return textwrap.wrap(text, _LINE_CHARACTERS, break_long_words=False, break_on_hyphens=False)


def _timecode(seconds: float) -> str:
    milliseconds = round(seconds * 1000)
    return (
        f"{milliseconds // 3_600_000:02}:{milliseconds // 60_000 % 60:02}:{milliseconds // 1000 % 60:02}"
        f",{milliseconds % 1000:03}"
    )


def _score(score: float) -> float | None:
    return round(score, 4) if math.isfinite(score) else None
