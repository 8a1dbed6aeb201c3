"""
Corpora as they are published, to the files that the datasets of this package read.
"""

from __future__ import annotations

from .audio import AUDIO_FORMATS
from .download import MIRRORS, DownloadError, download_librispeech
from .folder import prepare_folder
from .librispeech import prepare_librispeech
from .report import PrepareReport, Problem, SplitSummary

__all__ = [
    "AUDIO_FORMATS",
    "MIRRORS",
    "DownloadError",
    "PrepareReport",
    "Problem",
    "SplitSummary",
    "download_librispeech",
    "prepare_folder",
    "prepare_librispeech",
]
