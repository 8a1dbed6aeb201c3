"""
The options of a search: what a recipe says, and whether they fit its model.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...nn.config_dict import read_dict
from ...recog.components import LENGTH_EXPONENT
from ...recog.fusion import fusion_of, part_names, part_scales
from ...recog.search_options import FUSED_OPTIONS, LANGUAGE_MODELS, parse_search_options
from ...training.language_model import add_language_models
from ..errors import CommandError
from ..run.finished import TrainedRun
from ..run.folder import read_json

if TYPE_CHECKING:
    from ..run_model import RunModel

__all__ = [
    "TEXT_OPTIONS",
    "check_search",
    "made_model_of",
    "make_model_of",
    "parse_option",
    "recipe_search_options",
    "search_options_of",
]

TEXT_OPTIONS = ("phrases", "word_list")  # texts, or a file of such


def search_options_of(run: TrainedRun) -> dict[str, Any]:
    """
    :return: those of the recipe; in the place of ``tune``, the scales that the run has found so far
    :raises CommandError: if they are no dict
    """
    options = recipe_search_options(run.config, run.settings, path=run.recipe.path)
    if options.pop("tune", None) is not None:
        options.update((read_json(run.folder.path / "state.json") or {}).get("tuned", {}))
    return options


def recipe_search_options(namespace: Mapping[str, Any], settings: Mapping[str, str], *, path: Path) -> dict[str, Any]:
    """
    :param namespace: the recipe's globals
    :param settings: its options, as text
    :param path: of the recipe, for the message
    :return: its ``search_options``
    :raises CommandError: if they are no dict
    """
    from returnn.config import Config

    value = namespace.get("search_options")
    if "search_options" in settings and "search_options" not in namespace["options"].defaults:
        value = settings["search_options"]
    try:
        return read_dict(Config({"search_options": value}), "search_options")
    except ValueError as error:
        raise CommandError(f"recipe {path}: {error}") from None


def parse_option(name: str, text: str) -> Any:
    """
    :param name: of an option of the search
    :param text: as on the command line
    :return: its value; a text that is none of Python, such as a path, is itself
    """
    if name in (*LANGUAGE_MODELS, *TEXT_OPTIONS) and text != "None" and not text.startswith("["):
        return text
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def make_model_of(run: TrainedRun) -> Any:
    """
    :return: the model of a run in this process, untrained
    :raises CommandError: if it fails, or PyTorch is not installed
    """
    return made_model_of(run).model


def made_model_of(run: TrainedRun) -> RunModel:
    """:return: the same, with the config that made it"""
    from ..run_model import make_model

    corpus = {} if run.corpus is None else {"corpus": str(run.corpus)}
    return make_model(run.folder.config, {**run.settings, **corpus})


def check_search(
    made: RunModel,
    options: Mapping[str, Any],
    *,
    what: str,
    scales: Mapping[str, Any] | None = None,
    scored: bool = False,
):
    """
    Before any work: makes all that the search needs.

    :param made: the recipe's model, in this process, untrained
    :param options: ``search_options``
    :param what: whose, for the message
    :param scales: the options that say the scales; None: the same
    :param scored: language models may be without scale, for only their scores are needed
    :raises CommandError: for unknown options, what does not fit the model, and weights of what there is not
    """
    from returnn.config import Config

    config = Config()
    config.typed_dict = {**made.config.typed_dict, "search_options": dict(options)}
    config.dict = {name: value for name, value in made.config.dict.items() if name != "search_options"}
    if scored:
        config.typed_dict["recog_components_file"] = "none"
    try:
        read = parse_search_options(options, needs_scale=not scored)
        add_language_models(made.model, config, backend="torch")
        fusion_of(made.model, read, config)
        if not hasattr(made.model, "part_scales"):
            return
        of_scales = read if scales is None else parse_search_options(scales, needs_scale=not scored)
        found = part_scales(made.model, of_scales)
    except (ValueError, TypeError) as error:
        raise CommandError(f"{what}: {error}") from None
    known = (*part_names(made.model, read), LENGTH_EXPONENT)
    missing = [name for name, scale in found.items() if scale and name not in known]
    if missing:
        given = ", ".join(f"{name} {value}" for name, value in options.items() if name not in FUSED_OPTIONS)
        raise CommandError(f"{what}: the model has no {' and no '.join(missing)} for {given}")
