"""
Reads a recipe in this process, without loading a backend: its options, its dataset, how long it trains.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import CommandError

__all__ = ["BACKENDS", "RUN_OPTIONS", "Recipe", "describe_recipe", "execute_recipe", "load_recipe", "parse_settings"]

# Backend -> the package that it needs.
BACKENDS = {"torch": "torch", "tensorflow": "tensorflow", "tensorflow-net-dict": "tensorflow", "jax": "jax"}

# Options of recipes that the command sets by itself -> the argument that does so.
RUN_OPTIONS = {"corpus": "--corpus", "backend": "--backend", "distributed": "--distributed", "recog_split": None}


@dataclass(frozen=True)
class Recipe:
    """
    :param path: the file
    :param defaults: of its options
    :param options: values of its options
    :param dataset: its :class:`returnn_common.datasets.Librispeech`, or another that is used alike
    :param num_epochs: of the training
    :param exact_resume: whether it uses :func:`returnn_common.training.resume.exact_resume`
    """

    path: Path
    defaults: Mapping[str, Any]
    options: Mapping[str, Any]
    dataset: Any
    num_epochs: int
    exact_resume: bool = False

    @property
    def needs_corpus(self) -> bool:
        """whether its data comes from files; else it makes it itself"""
        return getattr(self.dataset, "needs_corpus", True)

    @property
    def evaluation(self) -> str:
        """what comes out: "wer", of a recogniser, or "perplexity", of a language model"""
        return getattr(self.dataset, "evaluation", "wer")

    @property
    def num_average(self) -> int:
        """of how many epochs, the last ones, the parameters are averaged"""
        return min(int(self.options.get("num_average", 1)), self.num_epochs)

    @property
    def splits(self) -> list[str]:
        """all that it needs"""
        return list(dict.fromkeys([*self.dataset.train_splits, *self.eval_splits]))

    @property
    def eval_splits(self) -> list[str]:
        """what it recognises, dev first"""
        return list(dict.fromkeys([*self.dataset.dev_splits, *self.dataset.test_splits]))


def execute_recipe(path: Path, *, options: Mapping[str, str] | None = None) -> tuple[Any, dict[str, Any]]:
    """
    Runs the file as RETURNN would do it with ``++NAME VALUE`` for each of the options.

    :param path: the file
    :param options: as text, by name
    :return: RETURNN's config, which has only these options, and the file's globals
    :raises CommandError: if the file fails
    """
    from returnn.config import Config, global_config_ctx

    config = Config()
    config.dict = {name: [value] for name, value in (options or {}).items()}
    namespace: dict[str, Any] = {"__file__": str(path), "__name__": "recipe", "config": config}
    try:
        with global_config_ctx(config):
            exec(compile(path.read_text("utf8"), str(path), "exec"), namespace)
    except (Exception, SystemExit) as error:
        raise CommandError(f"recipe {path}: {type(error).__name__}: {error}") from error
    return config, namespace


def load_recipe(path: Path, *, options: Mapping[str, str] | None = None) -> Recipe:
    """
    :param path: the file, see :func:`execute_recipe`
    :param options: as text, by name
    :raises CommandError: if the file fails, or has no ``options``, ``dataset`` or ``num_epochs``
    """
    _, namespace = execute_recipe(path, options=options)
    return describe_recipe(path, namespace)


def describe_recipe(path: Path, namespace: Mapping[str, Any]) -> Recipe:
    """
    :param path: the file
    :param namespace: its globals
    :raises CommandError: if there is no ``options``, ``dataset`` or ``num_epochs``
    """
    from ...config import Options

    kinds = {"options": Options, "dataset": object, "num_epochs": int}
    for name, kind in kinds.items():
        if namespace.get(name) is None or not isinstance(namespace[name], kind):
            raise CommandError(
                f"recipe {path}: expected a global {name!r}" + f" of type {kind.__name__}" * (kind is not object)
            )
    dataset = namespace["dataset"]
    missing = [name for name in ("train_splits", "dev_splits", "test_splits", "check") if not hasattr(dataset, name)]
    if missing:
        raise CommandError(
            f"recipe {path}: expected a dataset as returnn_common.datasets.Librispeech, "
            f"got {type(dataset).__name__} without {', '.join(missing)}"
        )
    read = namespace["options"]
    values = {"num_epochs": namespace["num_epochs"], "num_average": read.as_dict().get("num_average", 1)}
    for name, value in values.items():
        if value < 1:
            raise CommandError(f"recipe {path}: expected {name} of at least 1, got {value}")
    exact_resume = str(getattr(namespace.get("startup_callback"), "__module__", "")).endswith("training.resume")
    return Recipe(path, read.defaults, read.as_dict(), dataset, namespace["num_epochs"], exact_resume)


def parse_settings(settings: Sequence[str], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """
    :param settings: ``OPTION=VALUE``
    :param defaults: of the recipe's options
    :return: values by name
    :raises CommandError: for another form, an unknown option, one that is given twice, or a value of a wrong type
    """
    from ...config.options import parse_value

    values: dict[str, Any] = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals or not name:
            raise CommandError(f"--set {setting}: expected OPTION=VALUE")
        if name in RUN_OPTIONS:
            use = RUN_OPTIONS[name]
            raise CommandError(f"--set {setting}: " + (f"use {use}" if use else f"the command sets {name} by itself"))
        if name not in defaults:
            known = ", ".join(name for name in defaults if name not in RUN_OPTIONS)
            raise CommandError(f"--set {setting}: unknown option {name!r}, there are {known}")
        if name in values:
            raise CommandError(f"--set {setting}: {name!r} is given twice")
        try:
            values[name] = parse_value(name, text, defaults[name])
        except ValueError as error:
            raise CommandError(f"--set {setting}: {error}") from None
    return values
