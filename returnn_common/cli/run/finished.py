"""
Reads the folder of a run that has trained, or still trains, for what uses its model: recognition, transcription.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import CommandError
from .folder import RunFolder, read_json
from .recipe import Recipe, describe_recipe, execute_recipe

__all__ = ["TrainedRun", "choose_checkpoint", "find_data", "load_run"]


@dataclass(frozen=True)
class TrainedRun:
    """
    :param folder: of the run; not locked: a training that goes on in it is not disturbed
    :param name: of the recipe
    :param recipe: as the run has it, with the run's options
    :param config: all globals of the recipe
    :param settings: the run's options as text, for RETURNN's command line; without corpus and backend
    :param backend: the one that trains
    :param corpus: what ``--corpus`` was; None: none was given
    """

    folder: RunFolder
    name: str
    recipe: Recipe
    config: Mapping[str, Any]
    settings: Mapping[str, str]
    backend: str
    corpus: Path | None


def load_run(out: str | Path, *, backend: str | None = None) -> TrainedRun:
    """
    :param out: folder that ``returnn-common run`` has written
    :param backend: for which the recipe is read; None: the one that trains
    :raises CommandError: if it is no such folder, or its recipe fails
    """
    path = Path(out).resolve()
    if not path.exists():
        raise CommandError(f"{out}: no such folder")
    folder = RunFolder(path)
    asked = read_json(path / "run.json") if path.is_dir() else None
    if asked is None or not folder.config.is_file():
        raise CommandError(f"{out}: expected a folder that 'returnn-common run' has written, with run.json in it")
    try:
        settings = {name: str(value) for name, value in asked["options"].items()}
        name, trained_on, corpus = Path(asked["recipe"]).stem, asked["backend"], asked["corpus"]
    except (KeyError, AttributeError, TypeError):
        raise CommandError(f"{path / 'run.json'} is damaged: expected recipe, backend, corpus and options") from None
    _, config = execute_recipe(folder.config, options={**settings, "backend": backend or trained_on})
    recipe = describe_recipe(folder.config, config)
    return TrainedRun(folder, name, recipe, config, settings, trained_on, None if corpus is None else Path(corpus))


def choose_checkpoint(run: TrainedRun, which: str | None = None) -> Path:
    """
    :param which: "average", "last", the number of an epoch, or the path of any checkpoint; None: the average of the
        run's last epochs if it is there, else the last epoch
    :return: the checkpoint; without suffix, unless it is a path that was given with one
    :raises CommandError: if there is none
    """
    from ...training.checkpoints import find_checkpoint, find_last_checkpoint, list_epochs

    folder, num_epochs = run.folder.checkpoints, run.recipe.num_epochs
    if which not in (None, "average", "last") and not which.isdecimal():
        try:
            find_checkpoint(which)
            return Path(which)
        except FileNotFoundError:
            raise CommandError(
                f"--checkpoint {which}: expected average, last, the number of an epoch, or the path of a checkpoint"
            ) from None
        except ValueError as error:
            raise CommandError(f"--checkpoint {which}: {error}") from None
    if which in (None, "average"):
        try:
            found = Path(find_last_checkpoint(folder, num_epochs=num_epochs))
        except FileNotFoundError:
            found = None
        if found is not None and (which is None or found.name.startswith("average.")):
            return found
        if which:
            raise CommandError(f"--checkpoint average: the run {run.folder.path} has not come so far")
    epochs = list_epochs(folder)
    if not epochs:
        raise CommandError(f"{run.folder.path}: there is no checkpoint, its training has not finished an epoch")
    epoch = epochs[-1] if which == "last" else int(which or epochs[-1])
    if epoch not in epochs:
        raise CommandError(f"--checkpoint {which}: {folder} has epochs {', '.join(map(str, epochs))}")
    return folder / f"epoch.{epoch:03d}"


def find_data(run: TrainedRun) -> Path | None:
    """
    :return: the prepared corpus of the run; None: its recipe needs none
    :raises CommandError: if it is there no more
    """
    from .stages import is_prepared

    if not run.recipe.needs_corpus:
        return None
    candidates = [run.folder.data, *([run.corpus] if run.corpus else [])]
    for candidate in candidates:
        if is_prepared(run.recipe, candidate):
            return candidate
    raise CommandError(f"{run.folder.path}: its prepared corpus is in none of {', '.join(map(str, candidates))}")
