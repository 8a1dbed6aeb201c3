"""
Arguments of ``returnn-common run``, and the order of its stages.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...recog.search_options import make_paths_absolute, parse_search_options
from ..errors import CommandError
from ..recipes import find_recipe
from .distributed import MODES, choose_processes
from .folder import RunFolder
from .process import Runner, run_python
from .recipe import BACKENDS, RUN_OPTIONS, Recipe, execute_recipe, load_recipe, parse_settings

__all__ = ["add_parser", "add_run_arguments", "check_backend", "main", "run_recipe"]

_AUDIO = (".flac", ".wav", ".ogg")
_ARCHIVES = (".tar.gz", ".tgz", ".tar")


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """
    :param subparsers: what ``ArgumentParser.add_subparsers`` gives
    :return: the parser of this command, which is added there; its ``func`` is :func:`main`
    """
    parser = subparsers.add_parser(
        "run",
        help="train a recipe on a corpus and evaluate it",
        description="Prepare a corpus, train a recipe on it with RETURNN, average the last epochs, recognise dev and "
        "test, and report the word error rates (of a language model: the perplexities) in OUT/results.json and "
        "OUT/report.html. Run the same command again after an interruption, and it goes on.",
    )
    parser.add_argument("recipe", metavar="RECIPE", help="name (see 'returnn-common recipes') or path of a .py file")
    parser.add_argument(
        "--corpus",
        metavar="DIR",
        help="in the layout of LibriSpeech, or what 'prepare' has made of it; for language models, a text file or a "
        "folder of these; not for recipes that make their data",
    )
    parser.add_argument("--out", metavar="DIR", required=True, help="folder to write to")
    add_run_arguments(parser)
    parser.add_argument(
        "--distributed",
        nargs="?",
        const="grad",
        choices=MODES,
        help="train in several processes on this machine, with PyTorch: together in each step (grad, the default, and "
        "grad_explicit), or averaging their parameters now and then (param); see docs/distributed.md",
    )
    parser.add_argument(
        "--nproc", metavar="N", type=int, help="with --distributed: how many (default: as many as GPUs, or else 2)"
    )
    parser.set_defaults(func=main)
    return parser


def add_run_arguments(parser: argparse.ArgumentParser):
    """Adds ``--backend`` and ``--set``, which ``demo`` has as well."""
    parser.add_argument(
        "--backend", choices=list(BACKENDS), default="torch", help="engine of RETURNN (default: %(default)s)"
    )
    parser.add_argument(
        "--set", metavar="OPTION=VALUE", action="append", default=[], help="change an option of the recipe"
    )


def main(args: argparse.Namespace) -> int:
    """
    :param args: ``recipe``, ``corpus``, ``out``, ``backend``, ``set``, ``distributed``, ``nproc``
    :return: exit status
    :raises CommandError: if it cannot go on
    """
    return run_recipe(
        args.recipe,
        corpus=args.corpus,
        out=args.out,
        backend=args.backend,
        settings=args.set,
        distributed=(args.distributed, args.nproc),
    )


def run_recipe(
    name: str,
    *,
    corpus: str | None,
    out: str,
    backend: str = "torch",
    settings: Sequence[str] = (),
    distributed: tuple[str | None, int | None] = (None, None),
    make_corpus: Callable[[Path, Any], None] | None = None,
    runner: Runner = run_python,
) -> int:
    """
    :param name: of the recipe, or its path
    :param corpus: folder, or text file; None: ``make_corpus`` makes one, or the recipe needs none
    :param out: folder to write to
    :param backend: of RETURNN
    :param settings: options of the recipe, each as ``OPTION=VALUE``
    :param distributed: how several processes train, and how many, see :func:`.distributed.choose_processes`
    :param make_corpus: called with the folder to make and with rich's console
    :param runner: starts RETURNN
    :return: exit status
    :raises CommandError: if it cannot go on
    """
    from rich.console import Console

    path = find_recipe(name)
    defaults = load_recipe(path).defaults
    texts = {key: str(value) for key, value in parse_settings(settings, defaults).items()}
    processes = choose_processes(*distributed, recipe=name, defaults=defaults, backend=backend)
    texts_of_search = _search_settings(path, {**texts, "backend": backend})
    texts.update(texts_of_search)
    recipe = load_recipe(path, options={**texts, "backend": backend})
    check_backend(backend)
    _check_corpus_argument(name, corpus, recipe, can_be_made=make_corpus is not None)
    asked = {
        "recipe": name if not name.endswith(".py") else str(path),
        "backend": backend,
        "corpus": None if corpus is None else str(Path(corpus).resolve()),
        "options": {**texts_of_search, **{k: v for k, v in recipe.options.items() if k not in RUN_OPTIONS}},
        **({} if processes is None else {"distributed": processes.mode, "processes": processes.num}),
    }
    folder = RunFolder(Path(out).resolve())
    console = Console()
    try:
        with folder.open(asked, config=path.read_text("utf8")):
            from .stages import Run

            run = Run(path.stem, folder, recipe, texts, backend, console, runner, processes)
            if corpus is None and make_corpus is not None:
                corpus = str(folder.path / "corpus")
                if not folder.state.get("prepared"):
                    make_corpus(Path(corpus), console)
            _run_stages(run, None if corpus is None else Path(corpus).resolve())
    except KeyboardInterrupt:
        print("Interrupted; run the same command again to go on.", file=sys.stderr)
        return 130
    return 0


def _search_settings(path: Path, settings: Mapping[str, str]) -> dict[str, str]:
    """
    Checks the recipe's ``search_options``, which are only used after the training.

    :return: the setting, if it has paths that hold only in this working directory
    """
    from ..recog.options import check_search, recipe_search_options
    from ..recog.scales import check_tuning
    from ..run_model import make_model

    _, namespace = execute_recipe(path, options=settings)
    options = recipe_search_options(namespace, settings, path=path)
    absolute = make_paths_absolute(options)
    if options and importlib.util.find_spec("torch") is not None:
        made, what = make_model(path, settings), f"recipe {path}"
        tune = absolute.get("tune") is not None
        of_search = {name: value for name, value in absolute.items() if name != "tune"}
        check_search(made, of_search, what=what, scored=tune)
        if tune:
            check_tuning(made.model, absolute, what=what)
    return {} if absolute == options else {"search_options": repr(absolute)}


def _run_stages(run: Any, corpus: Path | None):
    from . import perplexities, results, stages
    from .report import write_report_page

    data = None
    if corpus is not None:
        data = stages.prepare(run, corpus)
        run.recipe.dataset.path = str(data)
    stages.train(run, data)
    checkpoint = stages.average(run)
    if run.recipe.evaluation == "wer":
        run.settings.update(_tuned_settings(run))
    stages.recognise(run, data, checkpoint)
    if run.recipe.evaluation == "perplexity":
        values = perplexities.read(run)
        content = perplexities.write_results(run, values, checkpoint=checkpoint)
        write_report_page(run, {}, content, tables=perplexities.tables(values))
        perplexities.show(run, values)
        return
    wer = results.score(run)
    content = results.write_results(run, wer, checkpoint=checkpoint)
    write_report_page(run, wer, content)
    results.show(run, wer)


def _tuned_settings(run: Any) -> dict[str, str]:
    """
    Finds the scales on dev that the recipe wants to be tuned, unless that is done.

    :return: the recipe's ``search_options`` with them, if there are such
    """
    from ..recog.command import tune_run
    from ..recog.options import recipe_search_options, search_options_of
    from .finished import load_run

    trained = load_run(run.folder.path, backend=run.backend)
    options = recipe_search_options(trained.config, trained.settings, path=trained.recipe.path)
    wanted = parse_search_options(options, needs_scale=False).tune
    if wanted is None:
        return {}
    if "tuned" not in run.folder.state:
        best = tune_run(trained, wanted, backend=run.backend, runner=run.runner, console=run.console)
        run.folder.update(tuned=best)
    return {"search_options": repr(search_options_of(trained))}


def check_backend(backend: str):
    """
    :param backend: of RETURNN
    :raises CommandError: if what it needs is not installed
    """
    package = BACKENDS[backend]
    # RETURNN's low-level TensorFlow engine and its JAX engine load their data with PyTorch.
    needed = [package] if backend in ("torch", "tensorflow-net-dict") else [package, "torch"]
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        raise CommandError(
            f"--backend {backend} needs {' and '.join(missing)}, not installed: pip install 'returnn_common[{package}]'"
        )


def _check_corpus_argument(name: str, corpus: str | None, recipe: Recipe, *, can_be_made: bool):
    if corpus is not None and not recipe.needs_corpus:
        raise CommandError(f"--corpus {corpus}: the recipe {name} makes its data itself")
    if corpus is not None:
        _check_corpus(Path(corpus), recipe)
    elif recipe.needs_corpus and not can_be_made:
        raise CommandError(f"the recipe {name} needs --corpus")


def _check_corpus(corpus: Path, recipe: Recipe):
    """Before the run's folder is made: what cannot work at all."""
    from .stages import is_prepared

    if recipe.evaluation == "perplexity":
        if not corpus.exists():
            raise CommandError(f"--corpus {corpus}: no such file or folder")
        return  # its dataset looks into it
    if not corpus.exists():
        raise CommandError(f"--corpus {corpus}: no such folder")
    if not corpus.is_dir():
        raise CommandError(f"--corpus {corpus}: expected a folder, but it is a file")
    if not is_prepared(recipe, corpus) and not _has_recordings(corpus):
        raise CommandError(f"--corpus {corpus}: no recordings ({', '.join(_AUDIO)}) in it")


def _has_recordings(folder: Path) -> bool:
    """in folders or in archives"""
    suffixes = (*_AUDIO, *_ARCHIVES)
    return any(name.lower().endswith(suffixes) for _, _, names in os.walk(folder, followlinks=True) for name in names)
