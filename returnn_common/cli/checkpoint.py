"""
The command ``returnn-common checkpoint``: shows, converts and averages checkpoints of any of RETURNN's engines.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
from collections import Counter
from typing import Any

from .errors import CommandError
from .quiet import stderr_to
from .recipes import find_recipe

__all__ = ["add_parser", "main"]

# What reads and writes the files of each -> the extra of our package that brings it.
_NEEDED = {
    "torch": ("torch", "torch"),
    "tensorflow": ("tensorflow", "tensorflow"),
    "tensorflow-net-dict": ("tensorflow", "tensorflow"),
    "jax": ("orbax", "jax"),
}
_SUFFIXES = {"torch": ".pt", "tensorflow": ".index", "tensorflow-net-dict": ".index", "jax": ".orbax"}
_HELP = "path with or without suffix (.pt, .index, .orbax)"


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """
    :param subparsers: what ``ArgumentParser.add_subparsers`` gives
    :return: the parser of this command, which is added there; its ``func`` is :func:`main`
    """
    parser = subparsers.add_parser(
        "checkpoint",
        help="show, convert and average checkpoints",
        description="A checkpoint is named as RETURNN names it, by its path without suffix, such as model/epoch.010.",
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    show = actions.add_parser("show", help="names, shapes and numbers of parameters", description=_show.__doc__)
    show.add_argument("checkpoint", metavar="CHECKPOINT", help=_HELP)
    show.add_argument("--json", action="store_true", help="print JSON")

    convert = actions.add_parser(
        "convert",
        help="for another engine",
        description="Parameters, epoch and step are kept; the state of the optimizer is not, so that a training that "
        "goes on from OUT begins with a fresh one. Where RETURNN takes the epoch from the name, it is a number at its "
        "end, as in epoch.010.",
    )
    convert.add_argument("checkpoint", metavar="CHECKPOINT", help=_HELP)
    convert.add_argument("--to", metavar="BACKEND", required=True, choices=list(_NEEDED), help=", ".join(_NEEDED))
    convert.add_argument("out", metavar="OUT", help="path to write, with or without suffix")
    convert.add_argument(
        "--recipe",
        metavar="RECIPE",
        help="name or path of a .py file whose model the checkpoint must fit; needed for tied parameters to torch",
    )
    convert.add_argument(
        "--set", metavar="OPTION=VALUE", action="append", default=[], help="change an option of the recipe"
    )

    average = actions.add_parser("average", help="mean of the parameters of several", description=_average.__doc__)
    average.add_argument("checkpoint", metavar="CHECKPOINT", nargs="+", help=_HELP)
    average.add_argument("--out", metavar="OUT", required=True, help="path to write, with or without suffix")

    for action, function in (show, _show), (convert, _convert), (average, _average):
        if function is not _show:
            action.add_argument("--force", action="store_true", help="replace OUT if it is there")
        action.set_defaults(run=function)
    parser.set_defaults(func=main)
    return parser


def main(args: argparse.Namespace) -> int:
    """
    :param args: ``run``, one of the functions below, and what it takes
    :return: exit status
    :raises CommandError: for bad arguments
    """
    try:
        args.run(args)
    except (ValueError, OSError) as error:
        raise CommandError(" ".join(str(error).split())) from error
    except ImportError as error:
        raise CommandError(f"{error}: its engine is not installed") from error
    return 0


def _show(args: argparse.Namespace):
    """Parameters of a checkpoint; without a terminal, as lines of fields separated by tabs."""
    from ..training.convert import read_parameters

    with stderr_to():
        parameters = read_parameters(args.checkpoint)
    rows = [(name, list(value.shape), parameters.dtypes[name]) for name, value in sorted(parameters.values.items())]
    sizes = {name: value.size for name, value in parameters.values.items()}
    modules = Counter()
    for name, size in sorted(sizes.items()):
        modules[name.partition(".")[0]] += size
    head = {"backend": parameters.backend, "epoch": parameters.epoch, "step": parameters.step}
    if args.json:
        listed = {name: {"shape": shape, "dtype": dtype} for name, shape, dtype in rows}
        content = {**head, "parameters": listed, "modules": modules, "total": modules.total()}
        print(json.dumps(content, indent=2))
        return
    from rich.console import Console

    console = Console(highlight=False)
    texts = [(name, "x".join(map(str, shape)) or "scalar", dtype, f"{sizes[name]:,}") for name, shape, dtype in rows]
    totals = [*((name, f"{size:,}") for name, size in modules.items()), ("total", f"{modules.total():,}")]
    unknown = {key: "unknown" if value is None else value for key, value in head.items()}
    if console.is_terminal:
        _print_tables(console, texts, totals, title=", ".join(f"{key} {value}" for key, value in unknown.items()))
    else:
        for fields in [*unknown.items(), *texts, *totals]:
            print(*fields, sep="\t")


def _print_tables(console: Any, rows: list[tuple[str, ...]], totals: list[tuple[str, str]], *, title: str):
    from rich.table import Table

    console.print(title)
    for columns, content in (("parameter", "shape", "type", "numbers"), rows), (("module", "numbers"), totals):
        table = Table(*columns)
        table.columns[-1].justify = "right"
        for row in content:
            table.add_row(*row, end_section=row == totals[-2])
        console.print(table)


def _convert(args: argparse.Namespace):
    from ..training.convert import convert_checkpoint
    from .run.recipe import load_recipe, parse_settings
    from .run_model import make_model

    if args.set and args.recipe is None:
        raise CommandError("--set needs --recipe")
    _check_installed(args.to)
    _check_free(args.out, backend=args.to, force=args.force)
    model = None
    if args.recipe is not None:
        _check_installed("torch")
        path = find_recipe(args.recipe)
        options = parse_settings(args.set, load_recipe(path).defaults)
        model = make_model(path, {key: str(value) for key, value in options.items()}).model
    with stderr_to():
        out = convert_checkpoint(args.checkpoint, args.out, backend=args.to, model=model)
    print(out)


def _average(args: argparse.Namespace):
    """Floating-point parameters are averaged; all else comes from the checkpoint with the highest step."""
    from ..training import average_checkpoints
    from ..training.checkpoints import find_checkpoint

    _check_free(args.out, backend=find_checkpoint(args.checkpoint[0])[0], force=args.force)
    with stderr_to():
        out = average_checkpoints(args.checkpoint, args.out)
    print(out)


def _check_installed(backend: str):
    package, extra = _NEEDED[backend]
    if importlib.util.find_spec(package) is None:
        raise CommandError(f"--to {backend} needs {package}, not installed: pip install 'returnn_common[{extra}]'")


def _check_free(out: str, *, backend: str, force: bool):
    from ..training.checkpoints import strip_suffix

    path = strip_suffix(out) + _SUFFIXES[backend]
    if os.path.exists(path) and not force:
        raise CommandError(f"{path} is there already; choose another name, or --force")
