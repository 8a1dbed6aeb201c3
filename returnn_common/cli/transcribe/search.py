"""
Options of the search for a transcription, and its language model in this process.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Sequence
from typing import Any

from ...recog.search_options import read_search_options
from ..errors import CommandError
from ..recog.lm import find_lm, labels_of
from ..run_model import RunModel, load_run_model

__all__ = ["choose_search"]


def choose_search(
    run: RunModel, *, beam: int | None, lm: str | None, lm_scale: float | None, settings: Sequence[str]
) -> dict[str, Any]:
    """
    :param run: of the recogniser
    :param beam: size of the beam; None: the recipe's
    :param lm: folder of the run of a language model, or ARPA file; None: none
    :param lm_scale: its weight
    :param settings: further options, each as ``OPTION=VALUE``; those of the recipe apply where they are not given
    :return: keyword arguments for the search
    :raises CommandError: for options that it does not take, or a language model that does not fit
    """
    config = copy.copy(run.config)
    try:
        config.typed_dict = {**run.config.typed_dict, "search_options": _read_settings(run, settings, lm_scale)}
        model = run.model
        if lm is not None and lm_scale:
            model = copy.copy(model)  # with an attribute more
            model.recog_lm = _load_lm(lm, run)
        options = read_search_options(config, model)
    except ValueError as error:
        raise CommandError(str(error)) from error
    return {"beam_size": run.config.int("beam_size", 1) if beam is None else beam, **options}


def _read_settings(run: RunModel, settings: Sequence[str], lm_scale: float | None) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals or not name:
            raise CommandError(f"--set {setting}: expected OPTION=VALUE")
        if name in given:
            raise CommandError(f"--set {setting}: {name!r} is given twice")
        if name in ("beam_size", "lm", "lm_scale"):
            raise CommandError(f"--set {setting}: use --{name.removesuffix('_size').replace('_', '-')}")
        given[name] = _parse(text)
    if lm_scale is not None:
        given["lm_scale"] = lm_scale
    recipe = run.config.typed_dict.get("search_options") or {}
    return {**(_parse(recipe) if isinstance(recipe, str) else recipe), **given}


def _parse(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _load_lm(name: str, run: RunModel) -> Any:
    """:return: with ``scorer()``, ``bos``, ``eos``"""
    from ...models.ngram_lm import NgramLm
    from ...search import read_arpa

    assert run.run is not None
    found = find_lm(name, run=run.run, backend="torch")
    if found.run is not None:
        return load_run_model(name, device=run.device).model
    return NgramLm(read_arpa(str(found.path)), run.model, labels=labels_of(run.run))
