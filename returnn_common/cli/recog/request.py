"""
What a recognition is asked for, checked before any work is done.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...recog.components import LENGTH_EXPONENT
from ...recog.search_options import check_search_options
from ..errors import CommandError
from ..run.finished import TrainedRun, choose_checkpoint, find_data, load_run
from ..run.recipe import Recipe
from .lm import RecogLm, find_lm

__all__ = [
    "Asked",
    "Request",
    "check_recipe_search",
    "check_request",
    "checkpoint_name",
    "choose_splits",
    "make_model_of",
]


@dataclass(frozen=True)
class Asked:
    """
    The arguments of the command.

    :param splits: to recognise, "dev" and "test" stand for all such splits; none: all test splits
    :param beam: size of the beam; None: that of the recipe
    :param lm: folder of the run of a language model, or an ARPA file
    :param options: of the search, as text; those of the recipe apply where they are not given
    :param nbest: hypotheses to write; None: all in the beam
    :param checkpoint: see :func:`choose_checkpoint`
    :param backend: of RETURNN; None: the one that has trained
    :param name: of the recognition; None: made from the rest
    :param lm_in_search: else, the language model only scores what the search without it finds
    :param lm_needs_scale: else, its scale is still to be found
    """

    splits: Sequence[str] = ()
    beam: int | None = None
    lm: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    nbest: int | None = None
    checkpoint: str | None = None
    backend: str | None = None
    name: str | None = None
    lm_in_search: bool = True
    lm_needs_scale: bool = True


@dataclass(frozen=True)
class Request:
    """
    The same, checked and complete.

    :param run: of the recogniser
    :param backend: of RETURNN
    :param splits: to recognise
    :param data: the prepared corpus; None: the recipe needs none
    :param checkpoint: of the recogniser
    :param beam: size of the beam
    :param nbest: hypotheses to write; 0: all
    :param lm: None: none
    :param options: of the search, without the language model's
    :param lm_scale: of the language model; None: it is in no score
    :param lm_in_search: see :class:`Asked`
    :param name: of the recognition
    """

    run: TrainedRun
    backend: str
    splits: list[str]
    data: Path | None
    checkpoint: Path
    beam: int
    nbest: int
    lm: RecogLm | None
    options: dict[str, Any]
    lm_scale: float | None
    lm_in_search: bool
    name: str

    @property
    def search_options(self) -> dict[str, Any]:
        """for the search, with the language model's scale"""
        in_search = self.lm_scale is not None and self.lm_in_search
        return {**self.options, **({"lm_scale": self.lm_scale} if in_search else {})}

    @property
    def settings(self) -> dict[str, Any]:
        """what makes this recognition another than others; plain data"""
        return {
            "checkpoint": str(self.checkpoint),
            "backend": self.backend,
            "beam": self.beam,
            "nbest": self.nbest,
            "lm": None if self.lm is None else str(self.lm.path),
            "lm_checkpoint": None if self.lm is None or self.lm.checkpoint is None else str(self.lm.checkpoint),
            "search": self.search_options,
        }


def check_request(out: str, asked: Asked) -> Request:
    """
    :param out: folder of the run
    :param asked: the arguments
    :raises CommandError: if it cannot work
    """
    run = load_run(out, backend=asked.backend)
    if run.recipe.evaluation != "wer":
        raise CommandError(f"{out}: {run.name} is a language model, which recognises nothing")
    backend = asked.backend or run.backend
    splits = choose_splits(run, asked.splits or ["test"])
    beam = _check_int("--beam", run.config.get("beam_size", 1) if asked.beam is None else asked.beam)
    nbest = 0 if asked.nbest is None else _check_int("--nbest", asked.nbest)
    if nbest > beam:
        raise CommandError(f"--nbest {nbest}: the beam has only {beam}; give a larger --beam")
    checkpoint = choose_checkpoint(run, asked.checkpoint)
    given = _parse_dict(run.config.get("search_options"), path=run.recipe.path)
    options = {**given, **{key: _parse(text) for key, text in asked.options.items()}}
    lm_scale = options.pop("lm_scale", None)
    if lm_scale is not None and (isinstance(lm_scale, bool) or not isinstance(lm_scale, (int, float))):
        raise CommandError(f"--lm-scale {lm_scale}: expected a number")
    if lm_scale and asked.lm is None:
        raise CommandError(f"--lm-scale {lm_scale} needs --lm")
    if asked.lm is not None and lm_scale is None and asked.lm_needs_scale:
        how = "" if asked.lm_in_search else " --rescore"
        raise CommandError(f"--lm {asked.lm}{how} needs --lm-scale (or --tune)")
    lm = None if asked.lm is None else find_lm(asked.lm, run=run, backend=backend)
    if lm_scale == 0 and asked.lm_in_search:
        lm = lm_scale = None
    request = Request(
        run=run,
        backend=backend,
        splits=splits,
        data=find_data(run),
        checkpoint=checkpoint,
        beam=beam,
        nbest=nbest,
        lm=lm,
        options=options,
        lm_scale=lm_scale,
        lm_in_search=asked.lm_in_search,
        name=asked.name or "",
    )
    if request.search_options and importlib.util.find_spec("torch") is not None:
        _check_options(request)
    return Request(**{**vars(request), "name": _check_name(asked.name) if asked.name else _make_name(request)})


def make_model_of(run: TrainedRun) -> Any:
    """
    :return: the model of a run in this process, untrained
    :raises CommandError: if it fails, or PyTorch is not installed
    """
    from ..run_model import make_model

    corpus = {} if run.corpus is None else {"corpus": str(run.corpus)}
    return make_model(run.folder.config, {**run.settings, **corpus}).model


def _check_options(request: Request):
    parts = ["lm"] if request.lm is not None else []
    _check_search(make_model_of(request.run), request.search_options, parts=parts, what=str(request.run.folder.path))


def check_recipe_search(path: Path, recipe: Recipe, settings: Mapping[str, str]):
    """
    Before a training: the recipe's option ``search_options``, which is only used after it.

    :param path: of the recipe
    :param recipe: as loaded
    :param settings: its options, as text
    :raises CommandError: if it is no dict, or the model's search does not take it
    """
    from ..run_model import make_model

    options = _parse_dict(recipe.options.get("search_options"), path=path)
    if options and importlib.util.find_spec("torch") is not None:
        _check_search(make_model(path, settings).model, options, parts=[], what=f"recipe {path}")


def _check_search(model: Any, options: Mapping[str, Any], *, parts: Sequence[str], what: str):
    """Unknown options, and weights of what the model does not have."""
    try:
        check_search_options(model, options)
        if not hasattr(model, "part_scales"):
            return
        taken = inspect.signature(model.part_scales).parameters
        scales = model.part_scales(**{name: value for name, value in options.items() if name in taken})
    except (ValueError, TypeError) as error:
        raise CommandError(f"{what}: {error}") from None
    known = (*model.part_names, *parts, LENGTH_EXPONENT)
    missing = [name for name, scale in scales.items() if scale and name not in known]
    if missing:
        given = ", ".join(f"{name} {value}" for name, value in options.items() if name in taken)
        raise CommandError(f"{what}: the model has no {' and no '.join(missing)} for {given}")


def choose_splits(run: TrainedRun, names: Sequence[str], *, what: str = "--split") -> list[str]:
    """
    :param names: of splits; "dev" and "test" stand for all such
    :param what: where they are from, for the message
    :raises CommandError: if there is none of that name
    """
    dataset, known = run.recipe.dataset, run.recipe.splits
    groups = {"dev": dataset.dev_splits, "test": dataset.test_splits}
    splits: list[str] = []
    for name in names:
        if name in known:
            splits.append(name)
        elif groups.get(name):
            splits.extend(groups[name])
        else:
            raise CommandError(f"{what} {name}: no such split, {run.name} has {', '.join(known)}")
    return list(dict.fromkeys(splits))


def _parse_dict(value: Any, *, path: Path) -> dict[str, Any]:
    """:return: the search options that a recipe has"""
    value = _parse(value) if value and isinstance(value, str) else value or {}
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise CommandError(
            f"recipe {path}: search_options: expected a dict such as {{'length_exponent': 0.5}}, got {value!r}"
        )
    return dict(value)


def _parse(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _check_int(what: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise CommandError(f"{what} {value}: expected an integer of at least 1")
    return value


def _check_name(name: str) -> str:
    if not re.fullmatch(r"\w[\w.,=+-]*", name):
        raise CommandError(f"--name {name}: expected letters, digits and . , = + - _")
    return name


def checkpoint_name(request: Request) -> str:
    """:return: such as average, epoch012"""
    first, *rest = request.checkpoint.name.split(".")
    return re.sub(r"[^\w.,=+-]+", "_", first + ("" if first == "average" else "".join(rest[:1])))


def _make_name(request: Request) -> str:
    """:return: such as average-beam12-lm_scale0.4"""
    parts = [checkpoint_name(request), f"beam{request.beam}"]
    parts += [f"nbest{request.nbest}"] if request.nbest else []
    parts += [f"{name}{value}" for name, value in sorted(request.search_options.items())]
    parts += [request.lm.path.stem] if request.lm is not None else []
    parts += [request.backend] if request.backend != request.run.backend else []
    return re.sub(r"[^\w.,=+-]+", "_", "-".join(parts))
