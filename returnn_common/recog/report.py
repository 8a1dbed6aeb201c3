"""
One self-contained HTML page about a training run: learning curves, word error rates, the worst utterances, and what the
model sees and answers in one of them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ._report_alignments import ReportAlignment, check_alignment
from ._report_style import STYLE as REPORT_STYLE
from .scoring import WerResult

__all__ = ["REPORT_STYLE", "ReportAlignment", "ReportData", "ReportExample", "write_report"]

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class ReportExample:
    """
    What goes into a CTC model for one utterance, and what comes out.

    :param seq_tag: name of the utterance
    :param spectrogram: log-mel features {time, mel}
    :param frame_shift: seconds from one of its frames to the next
    :param posteriors: probabilities {time', label}, not their logarithms
    :param labels: a name for each label
    :param posterior_shift: seconds from one frame of the posteriors to the next
    :param blank: index of the blank label in ``labels``; the last one by default
    :param reference: text
    :param hypothesis: text
    """

    seq_tag: str
    spectrogram: np.ndarray
    frame_shift: float
    posteriors: np.ndarray
    labels: Sequence[str]
    posterior_shift: float
    blank: int = -1
    reference: str = ""
    hypothesis: str = ""


@dataclass(frozen=True)
class ReportData:
    """
    What the page shows. Parts that are empty or None are left out; values that are NaN or infinite are not drawn.

    :param title: heading
    :param settings: name to value, shown with ``str``
    :param learning_curves: name to (epoch, value) points, such as losses
    :param learning_rates: (epoch, value)
    :param wer: name of a split to its result
    :param tables: heading to rows of texts, the first of which is the table's head; such as perplexities. With some, an
        empty ``wer`` is left out.
    :param num_worst: so many utterances with the most errors are shown for each split, with their alignments
    :param example: an utterance to draw
    :param alignments: utterances of which the labels' places are drawn. With some, an empty ``wer`` and empty
        ``learning_curves`` are left out.
    :param num_parameters: of the model
    :param train_seconds: duration of the training
    :param recog_seconds: duration of the recognition
    :param audio_seconds: duration of what was recognised; for the real-time factor, recognition / audio
    """

    title: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    learning_curves: Mapping[str, Points] = field(default_factory=dict)
    learning_rates: Points = ()
    wer: Mapping[str, WerResult] = field(default_factory=dict)
    tables: Mapping[str, Sequence[Sequence[str]]] = field(default_factory=dict)
    num_worst: int = 8
    example: ReportExample | None = None
    alignments: Sequence[ReportAlignment] = ()
    num_parameters: int | None = None
    train_seconds: float | None = None
    recog_seconds: float | None = None
    audio_seconds: float | None = None


def write_report(path: str | os.PathLike[str], data: ReportData) -> None:
    """
    Write the page. It refers to nothing outside itself, and follows the reader's light or dark theme.

    :param path: file to write, at once: never half of it. The folder is made if missing.
    :param data: what to show
    :raises ValueError: if the example's arrays do not fit together, or its posteriors are not probabilities
    :raises ModuleNotFoundError: if there is something to draw, and matplotlib (extra ``demo``) is not installed
    """
    from ._report_page import render_page

    if data.example is not None:
        _check_example(data.example)
    for alignment in data.alignments:
        check_alignment(alignment)
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(render_page(data), encoding="utf8")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _check_example(example: ReportExample) -> None:
    what = f"example {example.seq_tag!r} of the report"
    if np.ndim(example.spectrogram) != 2:
        raise ValueError(f"{what}: expected a spectrogram {{time, mel}}, got the shape {np.shape(example.spectrogram)}")
    if np.ndim(example.posteriors) != 2 or np.shape(example.posteriors)[1] != len(example.labels):
        raise ValueError(
            f"{what}: expected posteriors {{time, label}} for {len(example.labels)} labels, "
            f"got the shape {np.shape(example.posteriors)}"
        )
    finite = np.asarray(example.posteriors)[np.isfinite(example.posteriors)]
    if finite.size and not (-1e-3 <= finite.min() and finite.max() <= 1 + 1e-3):
        raise ValueError(
            f"{what}: expected posteriors between 0 and 1, got {finite.min():g} to {finite.max():g}; "
            "are they logarithms?"
        )
    for name in ("frame_shift", "posterior_shift"):
        if not getattr(example, name) > 0:
            raise ValueError(f"{what}: expected {name} of more than 0 seconds, got {getattr(example, name)}")
    if len(example.labels) and not -len(example.labels) <= example.blank < len(example.labels):
        raise ValueError(
            f"{what}: expected blank among the indices of {len(example.labels)} labels, got {example.blank}"
        )
