"""
The command ``returnn-common``: parses the command line, and hands over to the command's own module.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from .. import __version__
from .errors import CommandError

__all__ = ["main"]

# In the order of the help text. A command's module, which has `add_parser`, is only imported when it is asked for:
# some of them import what takes a second or two.
_COMMANDS = {
    "demo": "train and evaluate a small recogniser of spoken digits",
    "run": "train a recipe on a corpus and evaluate it",
    "recog": "recognise with a run's model, in other ways than the run did",
    "align": "in which frames the labels of utterances are",
    "transcribe": "recordings to text, subtitles, ...",
    "recipes": "list, show and copy recipes",
    "prepare": "make a corpus ready for training",
    "vocab": "train, apply and show vocabularies",
    "score": "word error rate of hypotheses",
    "checkpoint": "show, convert and average checkpoints",
    "config": "compare configs",
    "net-dict": "a config's model as RETURNN's TensorFlow layers",
    "params": "the parameters of a config's model",
    "engines": "which engines are installed, and what runs on them",
}


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def main(argv: Sequence[str] | None = None) -> int:
    """
    :param argv: the arguments; None: those of this process
    :return: exit status: 0 all is well, 1 something failed, 2 the call cannot work, 130 interrupted
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    command = argv[0] if argv and argv[0] in _COMMANDS else None
    args = _make_parser(command).parse_args(argv)
    try:
        status = args.func(args)
        sys.stdout.flush()
        return status
    except CommandError as error:
        print(f"returnn-common {command}: {error}", file=sys.stderr)
        return error.exit_status
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        return 130
    except BrokenPipeError:  # whoever reads our output, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:  # such as a full disk
        print(f"returnn-common {command}: {error}", file=sys.stderr)
        return 1


def _make_parser(command: str | None) -> argparse.ArgumentParser:
    """
    :param command: the only one whose own arguments are needed
    """
    parser = _Parser(prog="returnn-common", description="Speech recognition with RETURNN: recipes, data, evaluation.")
    parser.add_argument("--version", action="version", version=f"returnn-common {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, description in _COMMANDS.items():
        if name == command:
            importlib.import_module(f".{name.replace('-', '_')}", __package__).add_parser(subparsers)
        else:
            subparsers.add_parser(name, help=description)
    return parser
