"""
Alignments in the report: pictures of where the labels of an utterance are, above them its spectrogram.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ._report_figures import NUM_COLORS, SERIES, TEXT, draw_spectrogram, to_printable, to_svg

__all__ = ["ReportAlignment", "check_alignment", "draw_alignment"]


@dataclass(frozen=True)
class ReportAlignment:
    """
    The labels of an utterance over its frames, either the best path (``starts``, ``ends``), or ``soft``.

    :param seq_tag: name of the utterance
    :param labels: names, in order
    :param num_frames: of the model
    :param frame_shift: seconds from one of them to the next
    :param starts: first frame of each label; None: ``soft`` says it
    :param ends: the frame behind the last one of each label
    :param soft: how probable each label is in each frame {time, label}
    :param spectrogram: log-mel features {time', mel}; None: there is none
    :param spectrogram_shift: seconds from one of its frames to the next
    """

    seq_tag: str
    labels: list[str]
    num_frames: int
    frame_shift: float
    starts: list[int] | None = None
    ends: list[int] | None = None
    soft: np.ndarray | None = None
    spectrogram: np.ndarray | None = None
    spectrogram_shift: float = 0.01


def check_alignment(alignment: ReportAlignment) -> None:
    """:raises ValueError: if its parts do not fit together"""
    what = f"alignment of {alignment.seq_tag!r} in the report"
    starts, ends, size = alignment.starts, alignment.ends, len(alignment.labels)
    if (alignment.soft is None) == (starts is None) or (starts is None) != (ends is None):
        raise ValueError(f"{what}: expected either starts and ends, or soft")
    if starts is not None and ends is not None and not len(starts) == len(ends) == size:
        raise ValueError(f"{what}: expected starts and ends of {size} labels, got {len(starts)} and {len(ends)}")
    if alignment.soft is not None and np.shape(alignment.soft) != (alignment.num_frames, size):
        raise ValueError(
            f"{what}: expected soft {{time, label}} for {alignment.num_frames} frames and {size} labels, "
            f"got the shape {np.shape(alignment.soft)}"
        )
    if not alignment.frame_shift > 0 or not alignment.spectrogram_shift > 0:
        shifts = f"{alignment.frame_shift} and {alignment.spectrogram_shift}"
        raise ValueError(f"{what}: expected frame_shift and spectrogram_shift of more than 0 seconds, got {shifts}")


def draw_alignment(alignment: ReportAlignment) -> str:
    """
    :param alignment: checked
    :return: SVG; with a spectrogram, that is above, on the same time axis
    """
    seconds = alignment.num_frames * alignment.frame_shift
    spectrogram = alignment.spectrogram
    if spectrogram is not None:
        seconds = max(seconds, len(spectrogram) * alignment.spectrogram_shift)

    def draw(figure: Any) -> None:
        lower = figure
        if spectrogram is not None:
            upper, lower = figure.subplots(2, 1, sharex=True, gridspec_kw={"height_ratios": [3, 2]})
            draw_spectrogram(upper, np.asarray(spectrogram, float), shift=alignment.spectrogram_shift)
        else:
            lower = figure.add_subplot()
        _draw_labels(lower, alignment)
        lower.set_ylabel("probability")
        lower.set_xlabel("seconds")
        lower.set_xlim(0, seconds or 1)
        lower.set_ylim(0, 1.25)
        lower.set_yticks([0, 0.5, 1])

    return to_svg(draw, height=4.6 if spectrogram is not None else 2.0, salt=f"alignment {alignment.seq_tag}")


def _draw_labels(axes: Any, alignment: ReportAlignment) -> None:
    """A curve for each label, and its name where that is highest."""
    probs = np.zeros([alignment.num_frames, len(alignment.labels)])
    if alignment.soft is not None:
        probs = np.asarray(alignment.soft, float)
    elif alignment.starts is not None and alignment.ends is not None:
        for i, (start, end) in enumerate(zip(alignment.starts, alignment.ends, strict=True)):
            probs[start:end, i] = 1.0
    edges = np.arange(len(probs) + 1) * alignment.frame_shift
    crowded = len(alignment.labels) > 25
    style: dict[str, Any] = {"fontsize": 8 if crowded else 10, "parse_math": False, "clip_on": True, "color": TEXT}
    names = [to_printable(name) for name in alignment.labels]
    style["rotation"] = 90 if crowded and max(map(len, names), default=0) > 1 else 0
    for i, name in enumerate(names):
        color = SERIES[i % NUM_COLORS]
        axes.stairs(probs[:, i], edges, color=color, linewidth=1.6)
        axes.stairs(probs[:, i], edges, color=color, alpha=0.15, fill=True)
        if len(probs):
            best = np.flatnonzero(probs[:, i] >= probs[:, i].max() - 1e-6)
            middle = (edges[best[0]] + edges[best[-1] + 1]) / 2
            axes.text(middle, min(probs[:, i].max(), 1.0) + 0.04, name, ha="center", va="bottom", **style)
