"""
A picture of how the word error rate depends on the scales.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .tuning import TunedPoint

__all__ = ["draw_tuning", "lowest_by"]

_MAX_CELLS = 60  # values of a scale in the map; more are of a random search


def lowest_by(tuned: Sequence[TunedPoint], names: Sequence[str]) -> dict[tuple[float, ...], float]:
    """
    :param tuned: all points
    :param names: of some of their scales
    :return: for each choice of these scales, in order, the lowest WER over the others
    """
    lowest: dict[tuple[float, ...], float] = {}
    for one in tuned:
        key = tuple(one.point[name] for name in names)
        lowest[key] = min(one.wer, lowest.get(key, one.wer))
    return dict(sorted(lowest.items()))


def draw_tuning(tuned: Sequence[TunedPoint], path: str | os.PathLike[str]):
    """
    A panel for each scale: all points, the lowest WER over the other scales as a line, and the best point; for two
    scales and more, a map of the first two as well.

    :param tuned: all points, the best first
    :param path: of the file, .png or .svg
    :raises ModuleNotFoundError: without matplotlib
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    names = list(tuned[0].point)
    grid = len({one.point[name] for one in tuned for name in names[:1]}) <= _MAX_CELLS
    with_map = grid and len(names) > 1
    figure = Figure(figsize=(4.2 * (len(names) + with_map), 3.4), layout="constrained")
    FigureCanvasAgg(figure)
    all_axes = figure.subplots(1, len(names) + with_map, squeeze=False)[0]
    for axes, name in zip(all_axes, names, strict=False):
        axes.scatter([one.point[name] for one in tuned], [one.wer for one in tuned], s=6, color="0.75")
        if grid:
            lowest = lowest_by(tuned, [name])
            axes.plot([value for (value,) in lowest], list(lowest.values()), marker="o", markersize=3)
        axes.scatter([tuned[0].point[name]], [tuned[0].wer], marker="*", s=90, color="C3", zorder=3)
        axes.set_xlabel(name)
        axes.set_ylabel("WER [%]")
    if with_map:
        _draw_map(figure, all_axes[-1], tuned, names[:2])
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def _draw_map(figure: Any, axes: Any, tuned: Sequence[TunedPoint], names: list[str]):
    lowest = lowest_by(tuned, names)
    xs, ys = (sorted({key[i] for key in lowest}) for i in range(2))
    values = np.array([[lowest.get((x, y), np.nan) for x in xs] for y in ys])
    image = axes.imshow(values, origin="lower", aspect="auto", cmap="viridis_r")
    for axis, ticks in (axes.xaxis, xs), (axes.yaxis, ys):
        shown = range(0, len(ticks), len(ticks) // 8 + 1)
        axis.set_ticks(list(shown), [f"{ticks[i]:g}" for i in shown])
    axes.scatter(
        [xs.index(tuned[0].point[names[0]])], [ys.index(tuned[0].point[names[1]])], marker="*", s=90, color="C3"
    )
    axes.set_xlabel(names[0])
    axes.set_ylabel(names[1])
    figure.colorbar(image, ax=axes, label="lowest WER [%]")
