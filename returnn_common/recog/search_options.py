"""
What a config says about the search, its dict ``search_options``: what there is beside the model, the options of the
model's own ``search``, and in which order its hypotheses are written.
"""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from returnn.config import Config

from ..nn.config_dict import read_dict

__all__ = [
    "FUSED_OPTIONS",
    "LANGUAGE_MODELS",
    "LIST_OPTIONS",
    "SearchOptions",
    "change_search_options",
    "check_search_options",
    "list_search_options",
    "make_paths_absolute",
    "parse_search_options",
    "read_search_options",
]

LANGUAGE_MODELS = {"lm": "lm_scale", "transcript_lm": "transcript_lm_scale"}  # option -> that with its scale
FUSED_OPTIONS = (*LANGUAGE_MODELS, *LANGUAGE_MODELS.values(), "phrases", "phrase_bonus", "word_list")
LIST_OPTIONS = ("beam_size", "nbest", "rescore", "mbr", "tune")
_PATHS = (*LANGUAGE_MODELS, "phrases", "word_list")
_OF_THE_STEP = ("source", "in_spatial_dim", "beam_size", "lm", "lm_scale")  # what is no option of the model alone


@dataclass(frozen=True)
class SearchOptions:
    """
    The keys of ``search_options`` that are not the model's. None: there is no such thing.

    :param beam_size: of the search
    :param lm: folder that ``returnn-common run`` has written for a language model, or an ARPA file
    :param lm_scale: its weight
    :param transcript_lm: another one, of the transcripts in training, which is subtracted (density ratio); or a trained
        internal language model
    :param transcript_lm_scale: its weight, a positive number
    :param phrases: texts that are expected, see :class:`returnn_common.search.PhraseBias`; or the path of a file with
        one in each line
    :param phrase_bonus: for each of them, natural log
    :param word_list: words, no others can be recognised, see :class:`returnn_common.search.LexiconScorer`; or the path
        of a file with one in each line
    :param nbest: hypotheses to write of each utterance; 0: all in the beam
    :param rescore: the language models are not in the search, but order its hypotheses anew
    :param mbr: scale of the scores for minimum Bayes risk, by which the hypotheses are ordered
    :param tune: ``returnn-common run`` finds these scales on dev before it recognises, each as
        ``OPTION=LOW:HIGH:STEP`` or ``OPTION=VALUE,VALUE,...``; in ``search_options``, a dict of ranges or lists of
        values, or True: all scales in usual ranges
    :param of_model: further arguments of the model's ``search``
    """

    beam_size: int = 1
    lm: str | None = None
    lm_scale: float | None = None
    transcript_lm: str | None = None
    transcript_lm_scale: float | None = None
    phrases: str | tuple[str, ...] | None = None
    phrase_bonus: float | None = None
    word_list: str | tuple[str, ...] | None = None
    nbest: int = 0
    rescore: bool = False
    mbr: float | None = None
    tune: tuple[str, ...] | None = None
    of_model: Mapping[str, Any] = field(default_factory=dict)

    def language_models(self, *, scored: bool = False) -> dict[str, tuple[str, float]]:
        """
        :param scored: also what is in no search, but is to score its hypotheses
        :return: "lm", "transcript_lm": path, and the scale with which it is added
        """
        found = {}
        for name, scale_name in LANGUAGE_MODELS.items():
            path, scale = getattr(self, name), getattr(self, scale_name) or 0.0
            if path is not None and (scale or scored or self.rescore):
                found[name] = (path, scale if name == "lm" else -scale)
        return found


def read_search_options(config: Config) -> SearchOptions:
    """
    ``search_options`` of the config, a dict (or its text), and ``beam_size``, where the dict has none. ``recog_nbest``
    of the config goes before its ``nbest``.

    :param config:
    :raises ValueError: for a value that cannot be; what the model's search takes is not known here
    """
    options = read_dict(config, "search_options")
    scored = bool(config.value("recog_components_file", None))
    read = parse_search_options(options, needs_scale=not scored)
    if read.tune is not None:
        raise ValueError("search_options: tune is done by 'returnn-common run', here the scales themselves are needed")
    if "beam_size" not in options:
        read = replace(read, beam_size=_check("beam_size", config.int("beam_size", 1)))
    if config.has("recog_nbest"):
        read = replace(read, nbest=_check("nbest", config.int("recog_nbest", 0)))
    return read


def parse_search_options(options: Mapping[str, Any], *, needs_scale: bool = True) -> SearchOptions:
    """
    :param options: by name; what is None is not there
    :param needs_scale: else, or with ``tune``, a language model without scale only scores hypotheses
    :raises ValueError: for a value that cannot be
    """
    options = {name: value for name, value in options.items() if value is not None}
    ours = {name: options.pop(name) for name in (*FUSED_OPTIONS, *LIST_OPTIONS) if name in options}
    read = SearchOptions(**{name: _check(name, value) for name, value in ours.items()}, of_model=options)
    needs_scale = needs_scale and read.tune is None
    for name, other in (*LANGUAGE_MODELS.items(), ("phrases", "phrase_bonus")):
        if getattr(read, name) is not None and getattr(read, other) is None and (needs_scale or name == "phrases"):
            raise ValueError(f"search_options: {name} {_short(getattr(read, name))} needs {other}")
    for name, other in (("transcript_lm_scale", "transcript_lm"), ("phrase_bonus", "phrases")):
        if getattr(read, name) and getattr(read, other) is None:
            raise ValueError(f"search_options: {name} {getattr(read, name)} needs {other}")
    if read.rescore and not read.language_models():
        raise ValueError("search_options: rescore needs lm, or transcript_lm")
    return read


def _check(name: str, value: Any) -> Any:
    expected, convert = _KINDS[name]
    converted = convert(value)
    if converted is None:
        raise ValueError(f"search_options: {name}, expected {expected}, got {_short(value)}")
    return converted


def _short(value: Any) -> str:
    return value if isinstance(value, str) and value else f"{value!r:.80}"


def _int(value: Any, *, at_least: int) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= at_least else None


def _number(value: Any, *, at_least: float = -math.inf) -> float | int | None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return value if is_number and math.isfinite(value) and value >= at_least else None


def _path(value: Any) -> str | None:
    return os.fspath(value) if isinstance(value, (str, os.PathLike)) and os.fspath(value) else None


def _texts(value: Any) -> str | tuple[str, ...] | None:
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        is_ok = all(isinstance(text, str) and text.strip() for text in value)
        return tuple(value) if value and is_ok else None
    return _path(value)


def _ranges(value: Any) -> tuple[str, ...] | None:
    if value is True:
        return ()
    if not isinstance(value, dict) or not value:
        return None
    texts = {name: ",".join(map(str, x)) if isinstance(x, (list, tuple)) else x for name, x in value.items()}
    return tuple(f"{name}={text}" for name, text in texts.items())


_TEXTS = "the path of a file, or a list with at least one text"
_KINDS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "beam_size": ("an integer of at least 1", lambda value: _int(value, at_least=1)),
    "nbest": ("an integer of at least 0", lambda value: _int(value, at_least=0)),
    "rescore": ("True or False", lambda value: value if isinstance(value, bool) else None),
    "mbr": ("a number of at least 0, the scale of the scores", lambda value: _number(value, at_least=0)),
    "tune": ("True, or a dict such as {'lm_scale': '0:1:0.1', 'ctc_scale': [0.2, 0.3]}", _ranges),
    "lm": ("the folder of a run, or an ARPA file", _path),
    "lm_scale": ("a number", _number),
    "transcript_lm": ("the folder of a run, or an ARPA file", _path),
    "transcript_lm_scale": ("a number of at least 0", lambda value: _number(value, at_least=0)),
    "phrases": (_TEXTS, _texts),
    "phrase_bonus": ("a number", _number),
    "word_list": (_TEXTS, _texts),
}


def change_search_options(options: SearchOptions, values: Mapping[str, Any]) -> SearchOptions:
    """:return: with other values, by the names in ``search_options``"""
    ours = {name: value for name, value in values.items() if name in (*FUSED_OPTIONS, *LIST_OPTIONS)}
    others = {name: value for name, value in values.items() if name not in ours}
    return replace(options, **ours, of_model={**options.of_model, **others})


def make_paths_absolute(options: Mapping[str, Any]) -> dict[str, Any]:
    """:return: the same ``search_options``, for another working directory"""
    return {
        name: str(Path(value).resolve())
        if name in _PATHS and isinstance(value, (str, os.PathLike)) and value
        else value
        for name, value in options.items()
    }


def list_search_options(search: Callable[..., Any]) -> list[str] | None:
    """
    :param search: a model's
    :return: the options that it takes, without :data:`FUSED_OPTIONS` and :data:`LIST_OPTIONS`; None: any
    """
    parameters = inspect.signature(search).parameters.values()
    if any(parameter.kind == parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return [parameter.name for parameter in parameters if parameter.name not in ("self", *_OF_THE_STEP)]


def check_search_options(model: Any, options: SearchOptions):
    """
    :param model: with a method ``search``, or its class
    :param options: for it
    :raises ValueError: if it does not take one of them
    """
    known = list_search_options(model.search)
    name = model.__name__ if isinstance(model, type) else type(model).__name__
    for option in options.of_model:
        if known is not None and option not in known:
            raise ValueError(
                f"search option {option!r}: {name}.search has no such option, it has {', '.join(known) or 'none'}; "
                f"and there are {', '.join((*FUSED_OPTIONS, *LIST_OPTIONS))}"
            )
