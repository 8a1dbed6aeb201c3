"""
The statistics of a prepared corpus as one self-contained HTML page.
"""

from __future__ import annotations

import html
import math
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from ..datasets.prepare.statistics import Extreme, SplitStatistics
from ..recog.report import REPORT_STYLE

__all__ = ["HEAD", "RATED", "summary_row", "write_statistics"]

HEAD = ["split", "utterances", "hours", "speakers", "words", "different", "seconds", "words/s"]
RATED = ("fastest", "slowest")  # extremes whose value is not their duration
_STYLE = """
.grid { display: grid; grid-template-columns: repeat(auto-fill, minmax(17rem, 1fr)); gap: 1rem 1.5rem; }
.grid figure { margin: 0; }
.bar { fill: var(--series-0); }
.bar:hover { fill: var(--series-1); }
.axis { stroke: var(--line); }
svg text { fill: var(--muted); font-size: 11px; font-family: system-ui, sans-serif; }
table.extremes td:nth-child(-n + 3) { white-space: nowrap; font-variant-numeric: tabular-nums; }
table.extremes td:last-child { overflow-wrap: anywhere; width: 60%; }
h3 { margin-top: 1.1rem; }
"""
_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 320, 150, 8, 18
_NUM_BINS = 40
_MAX_TEXT = 300


def summary_row(split: SplitStatistics) -> list[str]:
    """:return: what belongs below :data:`HEAD`; the seconds are the least, the median, and the most"""
    total = split.seconds.sum()
    return [
        split.name,
        f"{len(split.seconds):,}",
        f"{total / 3600:.2f}",
        f"{len(split.speaker_seconds):,}" if split.speaker_seconds else "",
        f"{split.words.sum():,}",
        f"{split.num_different_words:,}",
        f"{split.seconds.min():.1f}, {np.median(split.seconds):.1f}, {split.seconds.max():.1f}",
        f"{split.words.sum() / max(total, 1e-9):.2f}",
    ]


def write_statistics(path: str | os.PathLike[str], splits: Sequence[SplitStatistics], *, title: str):
    """
    Writes the page. It refers to nothing outside itself; the same statistics give the same bytes.

    :param path: file to write, at once: never half of it
    :param splits: shown in this order
    :param title: heading
    """
    sections = [
        _section("Splits", _table("numbers", HEAD, map(summary_row, splits))),
        *(_split(split) for split in splits),
    ]
    page = f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{_text(title)}</title>
<style>{REPORT_STYLE}{_STYLE}</style>
</head>
<body>
<main>
<h1>{_text(title)}</h1>
{"".join(sections)}</main>
</body>
</html>
"""
    path = Path(path)
    part = path.with_name(f".{path.name}.part")
    part.write_text(page, "utf8")
    os.replace(part, path)


def _split(split: SplitStatistics) -> str:
    figures = "".join(_histogram(name, values) for name, values in split.quantities.items() if len(values))
    tables = "".join(
        f"<h3>The {kind}</h3>\n{_extremes(kind, found)}" for kind, found in split.extremes.items() if found
    )
    counts = sorted(split.character_counts.items(), key=lambda item: (-item[1], item[0]))
    characters = ", ".join(f"{'space' if char == ' ' else char} {count:,}" for char, count in counts)
    return _section(
        split.name,
        f'<div class="grid">{figures}</div>\n{tables}<h3>{len(counts)} characters</h3>\n'
        f'<p class="note">{_text(characters)}</p>',
    )


def _extremes(kind: str, extremes: Sequence[Extreme]) -> str:
    with_rate = kind in RATED
    head = ["utterance", "seconds", *(["characters/s"] if with_rate else []), "transcript"]
    rows = []
    for one in extremes:
        text = one.text if len(one.text) <= _MAX_TEXT else one.text[:_MAX_TEXT] + " ..."
        rows.append([one.name, f"{one.seconds:.2f}", *([f"{one.value:.1f}"] if with_rate else []), text])
    return _table("extremes", head, rows)


def _histogram(name: str, values: np.ndarray) -> str:
    """:return: bars from 0 to the largest value, each with its numbers as a tooltip"""
    ticks = _ticks(float(values.max()))
    edges = _edges(values, top=max(ticks[-1], values.max()))
    counts, _ = np.histogram(values, bins=edges)
    scale_x, scale_y = (_WIDTH - 2 * _LEFT) / edges[-1], (_HEIGHT - _BOTTOM - 4) / counts.max()
    base = _HEIGHT - _BOTTOM
    whole = np.issubdtype(values.dtype, np.integer)
    bars = "".join(
        f'<rect class="bar" x="{_LEFT + low * scale_x:.1f}" y="{base - count * scale_y:.1f}" '
        f'width="{max((high - low) * scale_x - 0.5, 0.5):.1f}" height="{count * scale_y:.1f}">'
        f"<title>{low:g} to {high - whole:g}: {count:,}</title></rect>"
        for count, low, high in zip(counts, edges[:-1], edges[1:], strict=True)
        if count
    )
    labels = "".join(
        f'<text x="{_LEFT + tick * scale_x:.1f}" y="{_HEIGHT - 4}" text-anchor="middle">{tick:g}</text>'
        for tick in ticks
    )
    axis = f'<line class="axis" x1="{_LEFT}" x2="{_WIDTH - _LEFT}" y1="{base}" y2="{base}"/>'
    caption = f"{name}: mean {values.mean():.2f}, median {np.median(values):.2f}, at most {values.max():.2f}"
    return (
        f'<figure><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="histogram: {_text(name)}">'
        f"{bars}{axis}{labels}</svg><figcaption>{_text(caption)}</figcaption></figure>\n"
    )


def _edges(values: np.ndarray, *, top: float) -> np.ndarray:
    """:return: of the bins, from 0; each has as many whole numbers if the values are whole"""
    if np.issubdtype(values.dtype, np.integer):
        width = math.ceil(top / _NUM_BINS)
        return np.arange(0, top + width + 1, width)
    return np.linspace(0, top, _NUM_BINS + 1)


def _ticks(largest: float) -> list[float]:
    """:return: up to 6 round numbers from 0, the last one not below ``largest``"""
    if largest <= 0:
        return [0.0, 1.0]
    power = 10.0 ** math.floor(math.log10(largest / 5))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power * 5 >= largest * (1 - 1e-9))
    return [step * i for i in range(math.ceil(largest / step * (1 - 1e-9)) + 1)]


def _section(title: str, content: str) -> str:
    return f"<section>\n<h2>{_text(title)}</h2>\n{content}\n</section>\n"


def _table(kind: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    def _row(cells: Sequence[str], tag: str) -> str:
        return f"<tr>{''.join(f'<{tag}>{_text(cell)}</{tag}>' for cell in cells)}</tr>"

    body = "".join(_row(row, "td") for row in rows)
    table = f'<table class="{kind}"><thead>{_row(head, "th")}</thead><tbody>{body}</tbody></table>'
    return f'<div class="scroll">{table}</div>'


def _text(text: str) -> str:
    """Transcripts may hold anything that is UTF-8."""
    return html.escape("".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text))
