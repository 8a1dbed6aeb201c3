"""
The command ``returnn-common demo``: ``run digits_ctc``, on a corpus that it makes itself where none is given.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from .errors import CommandError
from .run import add_run_arguments, run_recipe

__all__ = ["add_parser", "main"]


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """
    :param subparsers: what ``ArgumentParser.add_subparsers`` gives
    :return: the parser of this command, which is added there; its ``func`` is :func:`main`
    """
    parser = subparsers.add_parser(
        "demo",
        help="train and evaluate a small recogniser of spoken digits",
        description="'run digits_ctc' on a corpus that it makes itself: strings of digits, synthesised in many voices. "
        "--corpus takes real recordings instead. Run the same command again after an interruption, and it goes on.",
    )
    parser.add_argument(
        "--corpus", metavar="DIR", help="in the layout of LibriSpeech, with the splits train, dev, test"
    )
    parser.add_argument(
        "--out", metavar="DIR", default="returnn-common-demo", help="folder to write to (default: %(default)s)"
    )
    add_run_arguments(parser)
    parser.set_defaults(func=main)
    return parser


def main(args: argparse.Namespace) -> int:
    """
    :param args: ``corpus``, ``out``, ``backend``, ``set``
    :return: exit status
    :raises CommandError: if it cannot go on
    """
    return run_recipe(
        "digits_ctc",
        corpus=args.corpus,
        out=args.out,
        backend=args.backend,
        settings=args.set,
        make_corpus=make_corpus,
    )


def make_corpus(path: Path, console: Any):
    """
    Makes a corpus of spoken digits, unless it is there already.

    :param path: folder to make
    :param console: of rich
    :raises CommandError: if it cannot be made
    """
    from ..datasets.prepare.spoken_digits import make_spoken_digits
    from .run.progress import CountProgress

    try:
        with CountProgress(console, "making a corpus of spoken digits") as on_progress:
            make_spoken_digits(path, on_progress=on_progress)
    except (ValueError, OSError, ImportError, RuntimeError) as error:
        raise CommandError(f"{error} (or give recordings: --corpus DIR)") from error
