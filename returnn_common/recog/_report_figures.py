"""
Figures of the report, as SVG text to be put into HTML.

They are drawn with marker colours, which are then replaced by the page's CSS variables, so that the figures follow its
theme; likewise, their text takes the page's font.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from .report import Points, ReportExample

__all__ = [
    "NUM_COLORS",
    "SERIES",
    "TEXT",
    "draw_curves",
    "draw_example",
    "draw_spectrogram",
    "to_printable",
    "to_svg",
]

NUM_COLORS = 8

TEXT, _MUTED, _GRID = "#010203", "#010204", "#010205"
SERIES = [f"#0302{index:02x}" for index in range(NUM_COLORS)]
_VARIABLES = {TEXT: "--text", _MUTED: "--muted", _GRID: "--line"}
_VARIABLES |= {color: f"--series-{index}" for index, color in enumerate(SERIES)}

_MAX_LABELS = 12  # lines of posteriors that can be told apart, unless more are the most probable somewhere


def draw_curves(curves: Mapping[str, Points], *, y_label: str, height: float = 3.2) -> str:
    """
    :param curves: name to (epoch, value); the curve at position i has the colour ``--series-<i modulo NUM_COLORS>``
    :param y_label: what the values are
    :param height: inches, for a width of 10
    :return: SVG; a logarithmic axis where the values span more than a factor of 30
    """
    finite = [value for points in curves.values() for _, value in points if np.isfinite(value)]

    def draw(figure: Any) -> None:
        axes = figure.add_subplot()
        for index, points in enumerate(curves.values()):
            epochs = [epoch for epoch, _ in points]
            values = [value if np.isfinite(value) else np.nan for _, value in points]
            marker = "o" if len(points) <= 40 else ""
            axes.plot(epochs, values, color=SERIES[index % NUM_COLORS], linewidth=1.8, marker=marker, markersize=3)
        if finite and min(finite) > 0 and max(finite) > 30 * min(finite):
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter("{x:g}")
        elif finite and 0 <= 2 * min(finite) < max(finite):
            axes.set_ylim(0, 1.05 * max(finite))
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.set_xlabel("epoch")
        axes.set_ylabel(y_label)

    return to_svg(draw, height=height, salt=y_label)


def draw_example(example: ReportExample) -> str:
    """
    :param example: checked
    :return: SVG; above the spectrogram, below the posteriors of the most probable labels, on one time axis
    """
    spectrogram = np.asarray(example.spectrogram, float)
    posteriors = np.asarray(example.posteriors, float)
    seconds = max(len(spectrogram) * example.frame_shift, len(posteriors) * example.posterior_shift)

    def draw(figure: Any) -> None:
        upper, lower = figure.subplots(2, 1, sharex=True, gridspec_kw={"height_ratios": [3, 2]})
        draw_spectrogram(upper, spectrogram, shift=example.frame_shift)
        _draw_posteriors(lower, posteriors, example)
        lower.set_ylabel("probability")
        lower.set_xlabel("seconds")
        lower.set_xlim(0, seconds or 1)
        lower.set_ylim(0, 1.25)
        lower.set_yticks([0, 0.5, 1])

    return to_svg(draw, height=5.4, salt="example")


def draw_spectrogram(axes: Any, spectrogram: np.ndarray, *, shift: float) -> None:
    """
    :param axes: of a figure
    :param spectrogram: {time, mel}
    :param shift: seconds from one frame to the next
    """
    if spectrogram.size:
        extent = (0, len(spectrogram) * shift, -0.5, spectrogram.shape[1] - 0.5)
        image = np.ma.masked_invalid(spectrogram.T)
        low, high = np.percentile(image.compressed(), [1, 99.5]) if image.count() else (0, 1)
        axes.imshow(image, origin="lower", aspect="auto", extent=extent, cmap="magma", vmin=low, vmax=high)
    axes.set_ylabel("mel filter")
    axes.grid(False)


def to_printable(text: str) -> str:
    """
    :param text: from anywhere
    :return: the text with a replacement for control characters, which are not valid in HTML, not even escaped
    """
    return "".join(char if char.isprintable() or char in " \t\n" else "\ufffd" for char in text)


def _draw_posteriors(axes: Any, posteriors: np.ndarray, example: ReportExample) -> None:
    if not posteriors.size:
        return
    blank = example.blank % len(example.labels)
    times = (np.arange(len(posteriors)) + 0.5) * example.posterior_shift
    axes.plot(times, posteriors[:, blank], color=_MUTED, linewidth=1, linestyle=":")
    filled = np.nan_to_num(posteriors, nan=0.0)
    spikes = _find_spikes(filled, blank)
    peaks = filled.max(axis=0)
    probable = [int(label) for label in np.argsort(-peaks, kind="stable") if label != blank and peaks[label] >= 0.05]
    for index, label in enumerate(sorted({label for _, label in spikes} | set(probable[:_MAX_LABELS]))):
        color = SERIES[index % NUM_COLORS]
        axes.plot(times, posteriors[:, label], color=color, linewidth=1.6)
        axes.fill_between(times, 0, posteriors[:, label], color=color, alpha=0.15, linewidth=0)
    names = [to_printable(str(example.labels[label])) for _, label in spikes]
    crowded = len(spikes) > 25
    style: dict[str, Any] = {
        "fontsize": 8 if crowded else 10,
        "rotation": 90 if crowded and max(map(len, names)) > 1 else 0,
        "parse_math": False,  # "$" is a character like others
        "clip_on": True,
    }
    for (frame, label), name in zip(spikes, names, strict=True):
        axes.text(times[frame], filled[frame, label] + 0.04, name, ha="center", va="bottom", color=TEXT, **style)


def _find_spikes(posteriors: np.ndarray, blank: int) -> list[tuple[int, int]]:
    """:return: (frame, label): the peak of each run of frames in which a label other than blank is the most probable"""
    best = posteriors.argmax(axis=1)
    starts = np.flatnonzero(np.diff(best, prepend=-1))
    spikes = []
    for start, end in zip(starts, [*starts[1:], len(best)], strict=True):
        label = int(best[start])
        if label != blank and posteriors[start:end, label].max() > 0:
            spikes.append((int(start + posteriors[start:end, label].argmax()), label))
    return spikes


def to_svg(draw: Callable[[Any], None], *, height: float, salt: str) -> str:
    """
    :param draw: gets a figure of matplotlib
    :param height: inches, for a width of 10
    :param salt: another one for each figure of a page
    """
    try:
        import matplotlib
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure
    except ImportError as exc:
        raise ModuleNotFoundError(
            "the report's figures need the package matplotlib: pip install 'returnn_common[demo]'"
        ) from exc
    style: Any = {
        "svg.fonttype": "none",
        "svg.hashsalt": salt,  # the same names of clips and markers each time, others in each figure
        "font.size": 10,
        "axes.labelcolor": _MUTED,
        "axes.edgecolor": _GRID,
        "axes.facecolor": "none",
        "axes.grid": True,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "grid.color": _GRID,
        "grid.linewidth": 0.6,
        "xtick.color": _MUTED,
        "ytick.color": _MUTED,
        "xtick.major.size": 0,
        "ytick.major.size": 0,
        "ytick.minor.size": 0,
    }
    out = io.StringIO()
    # A clean state, whatever the user's matplotlibrc says; no pyplot, which would choose a window system.
    with matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(style)
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # the browser's font is another one
        figure = Figure(figsize=(10, height), layout="constrained", facecolor="none")
        FigureCanvasSVG(figure)
        draw(figure)
        figure.savefig(out, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    return _adapt(out.getvalue())


def _adapt(svg: str) -> str:
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = re.sub(r' xmlns(:xlink)?="[^"]*"| version="[^"]*"', "", svg).replace("xlink:href", "href")
    svg = re.sub(r"<svg [^>]*?(viewBox=\"[^\"]*\")[^>]*>", r'<svg \1 aria-hidden="true">', svg, count=1)
    svg = re.sub(r' id="(?![pm][0-9a-f]{8})[^"]*"', "", svg)  # the same in each figure; nothing refers to them
    svg = re.sub(r"font-family: [^;\"]*; ", "", svg)
    svg = re.sub(r"font: ([\d.]+px) [^;\"]*", r"font-size: \1", svg)  # of older versions
    return re.sub("#0[13]02[0-9a-f]{2}", lambda match: f"var({_VARIABLES.get(match.group(), '--text')})", svg)
