"""
Shows how far a run is: a bar on a terminal, a line for each epoch elsewhere.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...training.averaging import read_scores
from .log import Step, parse_step, split_score_name

__all__ = ["CountProgress", "ForwardProgress", "TrainProgress", "epoch_losses", "format_seconds"]


class _Bar:
    """
    A bar in a context.

    :param console: of rich
    :param text: at the left
    :param columns: further ones of rich
    :param announce: printed instead of the bar where there is no terminal
    """

    def __init__(self, console: Any, text: str, *columns: Any, announce: bool = True):
        from rich.progress import BarColumn, Progress, TextColumn

        self.console = console
        self.on_terminal = console.is_terminal
        self._announce = text if announce else None
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            *columns,
            console=console,
            transient=True,
            disable=not self.on_terminal,
        )
        self._task = self._progress.add_task(text, total=1.0, note="starting RETURNN")

    def __enter__(self):
        if not self.on_terminal and self._announce:
            self._print(self._announce)
        self._progress.start()
        return self

    def __exit__(self, *_exc: object):
        self._progress.stop()

    def _update(self, **values: Any):
        self._progress.update(self._task, **values)

    def _print(self, line: str):
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)


class TrainProgress(_Bar):
    """
    Epoch, step, loss and the time left of a training, from RETURNN's log. To be used in a ``with`` statement.

    :param console: of rich
    :param num_epochs: of the training
    :param learning_rates: RETURNN's learning-rate file, which has the scores of finished epochs
    :param clock: seconds
    """

    def __init__(
        self, console: Any, *, num_epochs: int, learning_rates: Path, clock: Callable[[], float] = time.monotonic
    ):
        from rich.progress import TextColumn

        super().__init__(console, "training", TextColumn("{task.fields[note]}", markup=False), announce=False)
        self._num_epochs = num_epochs
        self._learning_rates = learning_rates
        self._clock = clock
        self._start: tuple[float, float] | None = None  # time and epochs done at the first step
        self._last: Step | None = None
        self._steps_per_epoch: int | None = None  # of the last epoch, for the engine that does not say how far it is

    def on_line(self, line: str):
        """
        :param line: of RETURNN's log
        """
        step = parse_step(line)
        if step is None or step.what != "train":
            return
        if self._last is not None and step.epoch != self._last.epoch:
            self._steps_per_epoch = self._last.step + 1
            self._end_of_epoch(self._last.epoch)
        self._last = step
        done = self._epochs_done(step)
        if self._start is None:
            self._start = (self._clock(), done)
        losses = ", ".join(f"{name} {value:.3f}" for name, value in list(step.losses.items())[:1])
        parts = [f"epoch {step.epoch}/{self._num_epochs}", f"step {step.step + 1}", losses, self._time_left(done)]
        self._update(completed=done / self._num_epochs, note=", ".join(filter(None, parts)))

    def finish(self):
        """To be called when the training is complete."""
        if self._last is not None:
            self._end_of_epoch(self._last.epoch)

    def _epochs_done(self, step: Step) -> float:
        part = step.complete
        if part is None and self._steps_per_epoch:
            part = min((step.step + 1) / self._steps_per_epoch, 1.0)
        return step.epoch - 1 + (part or 0.0)

    def _time_left(self, done: float) -> str:
        assert self._start is not None
        seconds, epochs = self._clock() - self._start[0], done - self._start[1]
        if epochs <= 0 or seconds <= 0:
            return ""
        return f"{format_seconds(seconds / epochs * (self._num_epochs - done))} left"

    def _end_of_epoch(self, epoch: int):
        if self.on_terminal:
            return
        losses = ", ".join(
            # Such as the count of impossible targets, which is mostly zero.
            f"{name} {value:.3f}"
            for name, value in epoch_losses(self._learning_rates, epoch).items()
            if value
        )
        parts = [f"epoch {epoch}/{self._num_epochs}", losses, self._time_left(float(epoch))]
        self._print(", ".join(filter(None, parts)))


class ForwardProgress(_Bar):
    """
    How far a recognition is, from RETURNN's log. To be used in a ``with`` statement.

    :param console: of rich
    :param text: what is done
    """

    def __init__(self, console: Any, text: str):
        from rich.progress import TimeRemainingColumn

        super().__init__(console, text, TimeRemainingColumn())

    def on_line(self, line: str):
        """
        :param line: of RETURNN's log
        """
        step = parse_step(line)
        if step is not None and step.complete is not None:
            self._update(completed=step.complete)


class CountProgress(_Bar):
    """
    So many of so many things. To be used in a ``with`` statement.

    :param console: of rich
    :param text: what is done
    """

    def __init__(self, console: Any, text: str):
        from rich.progress import MofNCompleteColumn, TimeRemainingColumn

        super().__init__(console, text, MofNCompleteColumn(), TimeRemainingColumn())

    def __call__(self, done: int, total: int, *_what: object):
        self._update(completed=done, total=total)


def epoch_losses(learning_rates: Path, epoch: int) -> dict[str, float]:
    """
    :param learning_rates: RETURNN's learning-rate file
    :param epoch: from 1
    :return: losses of that epoch as "DATASET LOSS", "train" first, without totals where there are single ones;
        nothing where the file cannot be read
    """
    try:
        scores = read_scores(learning_rates).get(epoch, {})
    except (OSError, ValueError):
        return {}
    named = {key: value for name, value in scores.items() if (key := split_score_name(name)) is not None}
    named = {key: named[key] for key in sorted(named, key=lambda key: key[0] != "train")}
    datasets = {dataset for dataset, loss in named if loss}
    return {
        f"{dataset} {loss}".strip(): value
        for (dataset, loss), value in named.items()
        if loss or dataset not in datasets
    }


def format_seconds(seconds: float) -> str:
    """:return: as 1:02:03"""
    seconds = max(round(seconds), 0)
    return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"
