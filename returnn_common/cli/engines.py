"""
The command ``returnn-common engines``: which of RETURNN's engines can run here, and what of the zoo runs on them.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
from collections.abc import Sequence
from typing import Any

from ..data import get_bundled_path

__all__ = ["ENGINES", "add_parser", "find_version", "main"]

# For each engine what it needs; of alternatives, one. All but the net dict load their data with PyTorch.
_TENSORFLOW = ("tensorflow", "tensorflow-cpu", "tensorflow-intel", "tensorflow-macos", "tf-nightly")
ENGINES: dict[str, Sequence[Sequence[str]]] = {
    "torch": [("torch",)],
    "tensorflow": [_TENSORFLOW, ("torch",)],
    "tensorflow-net-dict": [_TENSORFLOW],
    "jax": [("jax",), ("optax",), ("orbax-checkpoint",), ("torch",)],
}


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """
    :param subparsers: what ``ArgumentParser.add_subparsers`` gives
    :return: the parser of this command, which is added there; its ``func`` is :func:`main`
    """
    parser = subparsers.add_parser(
        "engines",
        help="which engines are installed, and what runs on them",
        description="RETURNN's engines: which are installed, in which version, and which models run on each of them, "
        "as the tests found with the RETURNN version that is named.",
    )
    parser.add_argument("--json", action="store_true", help="the same for programs")
    parser.set_defaults(func=main)
    return parser


def main(args: argparse.Namespace) -> int:
    """
    :param args: ``json``
    :return: exit status
    """
    installed = {engine: [_describe(names) for names in packages] for engine, packages in ENGINES.items()}
    with open(get_bundled_path("engines.json"), encoding="utf8") as file:
        tested = json.load(file)
    returnn = find_version(["returnn"])
    if args.json:
        engines = {
            engine: {"installed": all(found for _, found in packages), "packages": dict(packages)}
            for engine, packages in installed.items()
        }
        print(json.dumps({"returnn": returnn, "engines": engines, "tested": tested}, indent=1))
        return 0
    _print(installed, tested, returnn=returnn)
    return 0


def find_version(packages: Sequence[str]) -> str | None:
    """
    :param packages: alternatives
    :return: version of the first of them that is installed, without importing it; None: none is
    """
    for package in packages:
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def _describe(packages: Sequence[str]) -> tuple[str, str | None]:
    return packages[0], find_version(packages)


def _print(installed: dict[str, list[tuple[str, str | None]]], tested: dict[str, Any], *, returnn: str | None):
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    table = Table("engine", "installed", "packages", title=f"RETURNN {returnn}")
    for engine, packages in installed.items():
        described = ", ".join(f"{name} {version or '(missing)'}" for name, version in packages)
        table.add_row(engine, "yes" if all(version for _, version in packages) else "no", described)
    console.print(table)
    table = Table("builder", *ENGINES, title=f"What runs where, tested with RETURNN {tested['returnn']}")
    for name, where in tested["builders"].items():
        table.add_row(name.removeprefix("returnn_common.models."), *(where[engine] for engine in ENGINES))
    console.print(table)
