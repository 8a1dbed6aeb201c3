"""
The command ``returnn-common config``.
"""

from __future__ import annotations

import argparse
from typing import Any

from .errors import CommandError
from .net_dict import find_config

__all__ = ["add_parser", "main"]


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """
    :param subparsers: what ``ArgumentParser.add_subparsers`` gives
    :return: the parser of this command, which is added there; its ``func`` is :func:`main`
    """
    parser = subparsers.add_parser("config", help="compare configs", description="Works on RETURNN configs.")
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    diff = actions.add_parser(
        "diff",
        help="what changed between two configs",
        description="Prints what changed from config A to config B: '+' what is new, '-' what has gone, and what has "
        "another value. Both are executed. Exits with 0 if nothing changed, 1 if something did, 2 for trouble.",
    )
    for name in "ab":
        diff.add_argument(name, metavar=name.upper(), help="path of a RETURNN config, or name of a recipe")
    parser.set_defaults(func=main)
    return parser


def main(args: argparse.Namespace) -> int:
    """
    :param args: ``a``, ``b``
    :return: exit status: 0 if both are the same, else 1
    :raises CommandError: if one is not there, or can't be executed
    """
    from ..config import diff
    from .quiet import stderr_to

    try:
        with stderr_to():
            changes = diff(find_config(args.a), find_config(args.b))
    except (ValueError, OSError) as error:
        raise CommandError(str(error)) from error
    if changes:
        print(changes)
    return int(bool(changes))
