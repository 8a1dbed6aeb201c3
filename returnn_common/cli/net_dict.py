"""
The command ``returnn-common net-dict``: a config's model as RETURNN's TensorFlow layers, in a config of its own.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path
from typing import Any

from .errors import CommandError
from .recipes import find_recipe

__all__ = ["add_config_arguments", "add_parser", "find_config", "main", "read"]


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """
    :param subparsers: what ``ArgumentParser.add_subparsers`` gives
    :return: the parser of this command, which is added there; its ``func`` is :func:`main`
    """
    parser = subparsers.add_parser(
        "net-dict",
        help="a config's model as RETURNN's TensorFlow layers",
        description="Writes a RETURNN config with the network as a dict of layers, its data and dims, and the other "
        "options that are plain data. It needs RETURNN alone, and has parameters of the same names.",
    )
    add_config_arguments(parser)
    parser.add_argument("-o", "--output", metavar="FILE", help="write it there; default: print it")
    parser.add_argument("--epoch", metavar="N", type=int, default=1, help="for which get_model is called; default: 1")
    parser.set_defaults(func=main)
    return parser


def add_config_arguments(parser: argparse.ArgumentParser) -> None:
    """:param parser: gets CONFIG and --set"""
    parser.add_argument("config", metavar="CONFIG", help="path of a RETURNN config, or name of a recipe")
    parser.add_argument(
        "--set",
        metavar="OPTION=VALUE",
        action="append",
        default=[],
        help="as RETURNN's ++OPTION VALUE; can be repeated",
    )


def read(args: argparse.Namespace, *, backend: str) -> dict[str, Any]:
    """
    :param args: see :func:`add_config_arguments`
    :param backend: option of that name
    :return: the config
    :raises CommandError: if it's not there, or can't be executed, or an option has another form
    """
    from ..config.sources import read_config
    from .quiet import stderr_to

    options = {"backend": backend}
    for setting in args.set:
        name, equals, value = setting.partition("=")
        if not name or not equals:
            raise CommandError(f"--set {setting}: expected OPTION=VALUE")
        options[name] = value
    path = find_config(args.config)
    try:
        with stderr_to():
            return read_config(path, options=options)
    except (Exception, SystemExit) as error:
        raise CommandError(f"config {path}: {type(error).__name__}: {error}") from error


def find_config(name: str) -> Path:
    """
    :param name: path of a config, or name of a recipe
    :raises CommandError: if there is none
    """
    path = Path(name)
    if path.exists() and not path.is_dir():
        return path
    if path.exists() or path.suffix or len(path.parts) > 1:
        raise CommandError(f"config {name}: no such file")
    return find_recipe(name)


def main(args: argparse.Namespace) -> int:
    """
    :param args: ``config``, ``set``, ``output``, ``epoch``
    :return: exit status
    :raises CommandError: if the config has no such model, or TensorFlow is not installed
    """
    from .quiet import stderr_to

    if args.epoch < 1:
        raise CommandError(f"--epoch: expected at least 1, got {args.epoch}")
    if importlib.util.find_spec("tensorflow") is None:
        raise CommandError("needs tensorflow, not installed: pip install 'returnn_common[tensorflow]'")
    config = read(args, backend="tensorflow-net-dict")
    from ..config import make_net_dict

    if "get_model" not in config and (found := {"network", "get_network"} & config.keys()):
        raise CommandError(f"config {args.config}: expected get_model, but it has layers already ({min(found)})")
    try:
        with stderr_to():
            code = make_net_dict(config, epoch=args.epoch).code
    except Exception as error:
        raise CommandError(f"config {args.config}: {type(error).__name__}: {error}") from error
    if args.output is None:
        sys.stdout.write(code)
    else:
        Path(args.output).write_text(code, "utf8")
    return 0
