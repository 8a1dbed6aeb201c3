"""
What a recognition is asked for, checked before any work is done.
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...recog.search_options import LANGUAGE_MODELS, SearchOptions, make_paths_absolute, parse_search_options
from ...training.language_model import TrainedLanguageModel
from ..errors import CommandError
from ..run.finished import TrainedRun, choose_checkpoint, find_data, load_run
from .options import TEXT_OPTIONS, check_search, made_model_of, parse_option, search_options_of

__all__ = ["Asked", "Request", "check_request", "checkpoint_name", "choose_splits"]

_OF_LISTS = ("beam_size", "nbest", "mbr", "rescore")


@dataclass(frozen=True)
class Asked:
    """
    The arguments of the command. What is None is as the recipe's ``search_options`` say.

    :param splits: to recognise, "dev" and "test" stand for all such splits; none: all test splits
    :param beam: size of the beam
    :param lm: folder of the run of a language model, or an ARPA file
    :param options: of the search, as text; "None" takes one of the recipe's away
    :param nbest: hypotheses to write; None: all in the beam, if the recipe does not say
    :param checkpoint: see :func:`choose_checkpoint`
    :param backend: of RETURNN; None: the one that has trained
    :param name: of the recognition; None: made from the rest
    :param rescore: the language model only scores what the search without it finds
    :param tuned: scales are still to be found; a language model without one, or with 0, is not in the search
    """

    splits: Sequence[str] = ()
    beam: int | None = None
    lm: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    nbest: int | None = None
    checkpoint: str | None = None
    backend: str | None = None
    name: str | None = None
    rescore: bool | None = None
    tuned: bool = False


@dataclass(frozen=True)
class Request:
    """
    The same, checked and complete.

    :param run: of the recogniser
    :param backend: of RETURNN
    :param splits: to recognise
    :param data: the prepared corpus; None: the recipe needs none
    :param checkpoint: of the recogniser
    :param options: of the search, and of its lists
    :param given: the same, by name, those that are there
    :param tuned: see :class:`Asked`
    :param name: of the recognition
    """

    run: TrainedRun
    backend: str
    splits: list[str]
    data: Path | None
    checkpoint: Path
    options: SearchOptions
    given: Mapping[str, Any]
    tuned: bool
    name: str

    @property
    def beam(self) -> int:
        """size of the beam"""
        return self.options.beam_size

    @property
    def nbest(self) -> int:
        """hypotheses to write; 0: all"""
        return self.options.nbest

    @property
    def search_options(self) -> dict[str, Any]:
        """for the search in RETURNN, whose lists are the search's own"""
        found = {name: value for name, value in self.given.items() if name not in _OF_LISTS}
        for lm, scale in LANGUAGE_MODELS.items():
            is_scored = self.options.rescore or self.tuned
            if self.options.rescore or not found.get(scale):
                found.pop(scale, None)
                if not is_scored:
                    found.pop(lm, None)
        return found

    @property
    def settings(self) -> dict[str, Any]:
        """what makes this recognition another than others; plain data"""
        search = self.search_options
        lms: dict[str, Any] = {}
        for name in LANGUAGE_MODELS:
            path = search.pop(name, None)
            if name == "lm" or path is not None:
                is_run = path is not None and not Path(path).is_file()
                checkpoint = TrainedLanguageModel(path, option=name).last_checkpoint() if is_run else None
                lms.update({name: path, f"{name}_checkpoint": checkpoint})
        files = {name: search[name] for name in TEXT_OPTIONS if isinstance(search.get(name), str)}
        hashes = {f"{name}_sha256": hashlib.sha256(Path(file).read_bytes()).hexdigest() for name, file in files.items()}
        return {
            "checkpoint": str(self.checkpoint),
            "backend": self.backend,
            "beam": self.beam,
            "nbest": self.nbest,
            **lms,
            "search": search,
            **hashes,
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
    splits = choose_splits(run, asked.splits or ["test"])
    given = _merge_options(search_options_of(run), asked)
    if "beam_size" not in given:
        given["beam_size"] = run.config.get("beam_size", 1)
    try:
        options = parse_search_options(given, needs_scale=not asked.tuned)
    except ValueError as error:
        raise CommandError(str(error)) from None
    if options.nbest > options.beam_size:
        raise CommandError(f"--nbest {options.nbest}: the beam has only {options.beam_size}; give a larger --beam")
    checkpoint = choose_checkpoint(run, asked.checkpoint)
    request = Request(
        run=run,
        backend=asked.backend or run.backend,
        splits=splits,
        data=find_data(run),
        checkpoint=checkpoint,
        options=options,
        given=given,
        tuned=asked.tuned,
        name=asked.name or "",
    )
    if request.search_options and importlib.util.find_spec("torch") is not None:
        made = made_model_of(run)
        scored = options.rescore or asked.tuned
        check_search(made, request.search_options, scales=given, scored=scored, what=str(run.folder.path))
    return Request(**{**vars(request), "name": _check_name(asked.name) if asked.name else _make_name(request)})


def _merge_options(of_recipe: Mapping[str, Any], asked: Asked) -> dict[str, Any]:
    """:return: without what is None, paths absolute"""
    options = {**of_recipe, **{name: parse_option(name, text) for name, text in asked.options.items()}}
    if asked.beam is not None:
        options["beam_size"] = _check_int("--beam", asked.beam)
    if asked.nbest is not None:
        options["nbest"] = _check_int("--nbest", asked.nbest)
    if asked.rescore is not None:
        options["rescore"] = asked.rescore
    if asked.lm is not None:
        options["lm"] = asked.lm
    elif "lm_scale" in asked.options and options.get("lm_scale") and options.get("lm") is None:
        raise CommandError(f"--lm-scale {asked.options['lm_scale']} needs --lm")
    options = {name: value for name, value in options.items() if value is not None}
    how = " --rescore" if asked.rescore else ""
    if asked.rescore and not options.keys() & LANGUAGE_MODELS.keys():
        raise CommandError("--rescore needs --lm")
    if asked.lm is not None and not Path(asked.lm).exists():
        raise CommandError(f"--lm {asked.lm}: no such folder or file")
    if asked.lm is not None and "lm_scale" not in options and not asked.tuned:
        raise CommandError(f"--lm {asked.lm}{how} needs --lm-scale (or --tune)")
    return make_paths_absolute(options)


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
    """:return: such as average-beam12-lm_scale0.4-LM"""
    search = request.search_options
    lm = search.pop("lm", None)
    parts = [checkpoint_name(request), f"beam{request.beam}"]
    parts += [f"nbest{request.nbest}"] if request.nbest else []
    for name, value in sorted(search.items()):
        if name in (*LANGUAGE_MODELS, *TEXT_OPTIONS):
            value = f"-{Path(value).stem}" if isinstance(value, str) else len(value)
        parts.append(f"{name}{value}")
    parts += [Path(lm).stem] if lm is not None else []
    parts += [request.backend] if request.backend != request.run.backend else []
    return re.sub(r"[^\w.,=+-]+", "_", "-".join(parts))
