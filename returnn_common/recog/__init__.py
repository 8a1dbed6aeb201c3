"""
From a model to n-best lists and a word error rate.
"""

from __future__ import annotations

from .align_step import AlignCallback, align_callback, align_step
from .live import LiveTranscriber
from .nbest import read_nbest, write_nbest
from .recog_step import RecogCallback, recog_callback, recog_step
from .scoring import score_wer
from .segments import Segment, split_at_silence
from .times import WordTime, frame_shift, word_times
from .transcribe import Transcriber, Transcript

__all__ = [
    "recog_step",
    "recog_callback",
    "RecogCallback",
    "align_step",
    "align_callback",
    "AlignCallback",
    "read_nbest",
    "write_nbest",
    "score_wer",
    "WordTime",
    "frame_shift",
    "word_times",
    "Segment",
    "split_at_silence",
    "LiveTranscriber",
    "Transcriber",
    "Transcript",
]
