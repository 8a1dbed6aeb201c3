"""
Options of the search for a transcription, and its language models in this process.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from ...recog.fusion import fusion_of
from ...recog.search_options import make_paths_absolute, read_search_options
from ...training.language_model import add_language_models
from ..errors import CommandError
from ..recog.options import parse_option, search_options_of
from ..run_model import RunModel

__all__ = ["choose_search"]

_ARGUMENTS = {"beam_size": "--beam", "lm": "--lm", "lm_scale": "--lm-scale"}


def choose_search(
    run: RunModel, *, beam: int | None, lm: str | None, lm_scale: float | None, settings: Sequence[str]
) -> tuple[dict[str, Any], float | None]:
    """
    :param run: of the recogniser
    :param beam: size of the beam; None: the recipe's
    :param lm: folder of the run of a language model, or ARPA file; None: the recipe's
    :param lm_scale: its weight
    :param settings: further options, each as ``OPTION=VALUE``; those of the recipe apply where they are not given
    :return: keyword arguments for the search, and the scale for minimum Bayes risk, if that is to choose
    :raises CommandError: for options that it does not take, or a language model that does not fit
    """
    from returnn.config import Config

    assert run.run is not None
    given = {"beam_size": beam, "lm": lm, "lm_scale": lm_scale}
    options = {**search_options_of(run.run), **_read_settings(settings)}
    options.update({name: value for name, value in given.items() if value is not None})
    if lm is not None and options.get("lm_scale") is None:
        raise CommandError(f"--lm {lm} needs --lm-scale")
    if lm_scale and options.get("lm") is None:
        raise CommandError(f"--lm-scale {lm_scale:g} needs --lm")
    config = Config()  # a copy would be pickled
    config.typed_dict = {**run.config.typed_dict, "search_options": make_paths_absolute(options)}
    config.dict = {name: value for name, value in run.config.dict.items() if name != "search_options"}
    model = copy.copy(run.model)  # with attributes more
    try:
        read = read_search_options(config)
        if read.rescore:
            raise CommandError(
                "search_options: rescore is for 'returnn-common recog'; take it away by --set rescore=None"
            )
        _load_language_models(model, config, device=run.device)
        arguments = fusion_of(model, read, config).arguments
    except ValueError as error:
        raise CommandError(str(error)) from error
    return {"beam_size": read.beam_size, **arguments}, read.mbr


def _read_settings(settings: Sequence[str]) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals or not name:
            raise CommandError(f"--set {setting}: expected OPTION=VALUE")
        if name in given:
            raise CommandError(f"--set {setting}: {name!r} is given twice")
        if name in _ARGUMENTS and text != "None":
            raise CommandError(f"--set {setting}: use {_ARGUMENTS[name]}")
        given[name] = parse_option(name, text)
    return given


def _load_language_models(model: Any, config: Any, *, device: str):
    from returnn.config import global_config_ctx

    from ... import nn
    from ...training.convert import load_checkpoint
    from ..quiet import stderr_to

    with global_config_ctx(config), nn.set_default_device_ctx(device):
        added = add_language_models(model, config, backend="torch")
    for name, lm in added.items():
        try:
            with stderr_to():
                load_checkpoint(getattr(model, name), lm.last_checkpoint())
        except (OSError, ImportError) as error:
            raise CommandError(f"{lm.what}: {error}") from error
