"""
The stages of a run. Each one does nothing where the run's folder says that it is done.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import CommandError
from ..quiet import stderr_to
from .distributed import Processes, failure
from .folder import RunFolder
from .log import parse_num_parameters
from .process import Runner, process_log
from .progress import CountProgress, ForwardProgress, TrainProgress
from .recipe import Recipe

__all__ = ["Run", "average", "count_parameters", "is_prepared", "prepare", "recognise", "train"]

_SECONDS_BETWEEN_RECORDS = 5.0


@dataclass
class Run:
    """
    What the stages work on.

    :param name: of the recipe
    :param folder: of the run, open
    :param recipe: as loaded
    :param settings: its options that were given, as on RETURNN's command line
    :param backend: of RETURNN
    :param console: of rich
    :param runner: starts RETURNN, see :func:`.process.run_python`
    :param processes: that train; None: one, in the ordinary way
    """

    name: str
    folder: RunFolder
    recipe: Recipe
    settings: dict[str, str]
    backend: str
    console: Any
    runner: Runner
    processes: Processes | None = None

    def returnn(
        self,
        *arguments: str,
        log: Path,
        module: str = "returnn",
        corpus: Path | None,
        processes: Processes | None = None,
        **callbacks: Any,
    ):
        """
        Runs RETURNN on the recipe.

        :param arguments: ``++key``, value, ...
        :raises CommandError: if it fails
        """
        options = {**self.settings, "backend": self.backend}
        if corpus is not None:
            options["corpus"] = str(corpus)
        if processes is not None:
            options["distributed"] = processes.mode
            callbacks["num_processes"] = processes.num
        given = [part for name, value in options.items() for part in (f"++{name}", value)]
        log.parent.mkdir(exist_ok=True)
        logs = [process_log(log, rank) for rank in range(processes.num if processes else 1)]
        starts = [path.stat().st_size if path.is_file() else 0 for path in logs]
        status = self.runner(
            ["-m", module, str(self.folder.config), *map(_escape, given), *map(_escape, arguments)],
            cwd=self.folder.path,
            log=log,
            keep_open=self.folder.lock_file,
            **callbacks,
        )
        if status:
            raise failure(status, logs, starts)


def _escape(argument: str) -> str:
    # RETURNN takes what begins with "-" for another option, unless there is a "+" before it.
    return f"+{argument}" if argument.startswith("-") else argument


def prepare(run: Run, corpus: Path) -> Path:
    """
    Makes the corpus ready, unless it is so already, and checks that the recipe can use it.

    :param corpus: in the layout of LibriSpeech, or prepared; or text
    :return: folder of the prepared corpus; or the text
    :raises CommandError: if there is nothing in it, a split is missing, or transcripts do not fit the vocabulary
    """
    if run.recipe.evaluation == "perplexity":
        return _check_text(run, corpus)
    prepared = is_prepared(run.recipe, corpus)
    data = corpus if prepared else run.folder.data
    if run.folder.state.get("prepared"):
        return data
    if not prepared:
        _prepare_librispeech(run, corpus, data)
    dataset = run.recipe.dataset
    dataset.path = str(data)
    missing = [split for split in run.recipe.splits if not (data / f"{split}.zip").is_file()]
    if missing:
        found = ", ".join(sorted(path.stem for path in data.glob("*.zip"))) or "none"
        raise CommandError(f"corpus {corpus}: the recipe needs the split {', '.join(missing)}, there are {found}")
    try:
        dataset.check()
    except (ValueError, OSError) as error:
        raise CommandError(f"corpus {corpus}: {error}") from error
    run.folder.update(prepared=True)
    return data


def _check_text(run: Run, corpus: Path) -> Path:
    """Text is used as it is."""
    if not run.folder.state.get("prepared"):
        run.recipe.dataset.path = str(corpus)
        try:
            run.recipe.dataset.check()
        except (ValueError, OSError) as error:
            raise CommandError(f"corpus {corpus}: {error}") from error
        run.folder.update(prepared=True)
    return corpus


def is_prepared(recipe: Recipe, corpus: Path) -> bool:
    """:return: whether a folder holds what ``returnn-common prepare`` makes, not recordings"""
    return any((corpus / f"{split}.zip").is_file() for split in recipe.splits)


def _prepare_librispeech(run: Run, corpus: Path, data: Path):
    from ...datasets.prepare import prepare_librispeech

    try:
        with CountProgress(run.console, "preparing the corpus") as on_progress:
            report = prepare_librispeech(corpus, data, on_progress=on_progress)
    except (ValueError, OSError, RuntimeError) as error:
        raise CommandError(str(error)) from error
    lines = [*report.missing, *report.notes(), *(f"skipped: {p.name}: {p.message} [{p.kind}]" for p in report.problems)]
    for line in lines:
        run.console.print(line, markup=False, highlight=False, soft_wrap=True)


def train(run: Run, data: Path | None):
    """
    Trains through RETURNN, from the last checkpoint where there is one.

    :param data: the prepared corpus; None: the recipe needs none
    :raises CommandError: if RETURNN fails
    :raises KeyboardInterrupt: after RETURNN was ended
    """
    folder = run.folder
    if folder.state.get("trained"):
        return
    folder.checkpoints.mkdir(exist_ok=True)
    before = folder.state.get("train_seconds", 0.0)
    if before and run.backend in ("tensorflow", "tensorflow-net-dict") and not run.recipe.exact_resume:
        run.console.print(
            "Going on after an interruption: with TensorFlow, RETURNN keeps no state of the optimizer, "
            "so that the result differs a little from that of an undisturbed run.",
            highlight=False,
        )
    start = recorded = time.monotonic()

    def _on_wait():
        nonlocal recorded
        if time.monotonic() - recorded > _SECONDS_BETWEEN_RECORDS:
            recorded = time.monotonic()
            folder.update(train_seconds=round(before + recorded - start, 1))

    progress = TrainProgress(run.console, num_epochs=run.recipe.num_epochs, learning_rates=folder.learning_rates)
    try:
        with progress:
            run.returnn(
                *("++task", "train"),
                *("++model", str(folder.checkpoints / "epoch")),
                *("++learning_rate_file", str(folder.learning_rates)),
                *("++log_verbosity", "5"),
                log=folder.train_log,
                corpus=data,
                processes=run.processes,
                on_line=progress.on_line,
                on_wait=_on_wait,
            )
            progress.finish()
    finally:
        folder.update(train_seconds=round(before + time.monotonic() - start, 1))
    folder.update(trained=True)


def average(run: Run) -> Path:
    """
    Averages the parameters of the last epochs.

    :return: the checkpoint, without suffix
    :raises CommandError: if a checkpoint is missing or does not fit the others
    """
    from ...training import average_checkpoints
    from ...training.checkpoints import find_checkpoint

    # RETURNN takes the number at the end of the name for the epoch.
    out = run.folder.checkpoints / f"average.{run.recipe.num_epochs:03d}"
    if run.folder.state.get("averaged"):
        try:
            find_checkpoint(out)
            return out
        except FileNotFoundError:
            pass
    # By number, not by what the learning-rate file lists: some engines write an epoch's scores after its checkpoint, so
    # that those of an epoch after which the training was interrupted may be missing.
    last = run.recipe.num_epochs
    epochs = range(last - run.recipe.num_average + 1, last + 1)
    try:
        with stderr_to(run.folder.checkpoints / "average.log"):
            average_checkpoints([run.folder.checkpoints / f"epoch.{epoch:03d}" for epoch in epochs], out)
    except (ValueError, OSError) as error:
        raise CommandError(str(error), exit_status=1) from error
    run.folder.update(averaged=True)
    return out


def recognise(run: Run, data: Path | None, checkpoint: Path):
    """
    Writes the n-best lists of all dev and test splits, and the probabilities of the labels for the report; or the
    perplexities.

    :param data: the prepared corpus; None: the recipe needs none
    :param checkpoint: without suffix
    :raises CommandError: if RETURNN fails
    """
    is_lm = run.recipe.evaluation == "perplexity"
    for split in run.recipe.eval_splits:
        done = run.folder.state.get("recognised", {})
        output = run.folder.perplexity(split) if is_lm else run.folder.nbest(split)
        if split in done and output.is_file():
            continue
        module = "returnn_common.recog.net_dict" if run.backend == "tensorflow-net-dict" else "returnn"
        arguments = ["++recog_output_file", str(output)]
        if split == run.recipe.eval_splits[0] and run.recipe.needs_corpus and not is_lm:
            arguments += ["++recog_posteriors_file", str(run.folder.posteriors)]
        run.folder.recog.mkdir(exist_ok=True)
        start = time.monotonic()
        with ForwardProgress(run.console, f"{'evaluating' if is_lm else 'recognising'} {split}") as progress:
            run.returnn(
                *("++task", "forward"),
                *("++load", str(checkpoint)),
                *("++recog_split", split),
                *("++log_verbosity", "5"),
                *arguments,
                log=run.folder.recog / f"{split}.log",
                module=module,
                corpus=data,
                on_line=progress.on_line,
            )
        if not output.is_file():
            raise CommandError(f"recognition has not written {output}", exit_status=1)
        run.folder.update(recognised={**done, split: round(time.monotonic() - start, 1)})


def count_parameters(run: Run, checkpoint: Path) -> int:
    """
    :param checkpoint: without suffix
    :return: how many parameters the model has, as RETURNN logs it; for TensorFlow layers, where that includes the state
        of random generators, as many as are in the checkpoint
    """
    from ...training.checkpoints import read_checkpoint

    if run.folder.train_log.is_file() and run.backend != "tensorflow-net-dict":
        with open(run.folder.train_log, encoding="utf8", errors="replace") as file:
            found = parse_num_parameters(file)
        if found:
            return found
    return sum(value.size for value in read_checkpoint(checkpoint).floats.values())
