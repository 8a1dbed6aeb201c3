"""
What the config says about a model's search.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from returnn.config import Config

__all__ = ["check_search_options", "list_search_options", "read_dict", "read_search_options"]

_OF_THE_STEP = ("source", "in_spatial_dim", "beam_size", "lm")  # what recog_step itself gives to the search


def read_search_options(config: Config, model: Any) -> dict[str, Any]:
    """
    ``search_options`` of the config, a dict (or its text), and with ``lm_scale`` in it what ``model.recog_lm`` adds:
    ``lm``, and ``bos`` and ``eos`` of searches that take them.

    :param config:
    :param model: with a method ``search``
    :return: keyword arguments for it
    :raises ValueError: for options that it does not take, or ``lm_scale`` without a language model
    """
    options = read_dict(config, "search_options")
    check_search_options(model, options)
    lm = getattr(model, "recog_lm", None)
    if not options.get("lm_scale"):
        if lm is not None and not config.value("recog_components_file", None):
            raise ValueError("recog_step: expected lm_scale in search_options, for there is a language model")
        return options
    if lm is None:
        raise ValueError(f"recog_step: lm_scale {options['lm_scale']} expects a language model, there is none")
    options["lm"] = lm.scorer()
    taken = inspect.signature(model.search).parameters
    for name in ("bos", "eos"):
        if name in taken:
            options.setdefault(name, getattr(lm, name))
    return options


def list_search_options(search: Callable[..., Any]) -> list[str] | None:
    """
    :param search: a model's
    :return: the options that it takes; None: any
    """
    parameters = inspect.signature(search).parameters.values()
    if any(parameter.kind == parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return [parameter.name for parameter in parameters if parameter.name not in ("self", *_OF_THE_STEP)]


def check_search_options(model: Any, options: Mapping[str, Any]):
    """
    :param model: with a method ``search``, or its class
    :param options: for it
    :raises ValueError: if it does not take one of them
    """
    known = list_search_options(model.search)
    name = model.__name__ if isinstance(model, type) else type(model).__name__
    for option in options:
        if known is not None and option not in known:
            raise ValueError(
                f"search option {option!r}: {name}.search has no such option, it has {', '.join(known) or 'none'}"
            )


def read_dict(config: Config, name: str) -> dict[str, Any]:
    """
    :param config:
    :param name: of an option that is a dict with names as keys, or its text
    :return: empty if there is none
    :raises ValueError: if it is something else
    """
    value = config.typed_value(name) if name in config.typed_dict else config.value(name, None)
    if value in (None, ""):
        return {}
    if isinstance(value, str):
        try:
            value = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            raise ValueError(f"{name}: expected a dict such as {{'lm_scale': 0.3}}, got {value!r}") from None
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise ValueError(f"{name}: expected a dict with names as keys, got {value!r}")
    return dict(value)
