"""
The command ``returnn-common recipes``, and how the commands find and read recipes.
"""

from __future__ import annotations

import argparse
import ast
import os
import shutil
from pathlib import Path
from typing import Any

from .errors import CommandError

__all__ = ["add_parser", "find_recipe", "first_doc_line", "list_recipes", "main"]

_FOLDER = Path(__file__).resolve().parents[1] / "recipes"


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """
    :param subparsers: what ``ArgumentParser.add_subparsers`` gives
    :return: the parser of this command, which is added there; its ``func`` is :func:`main`
    """
    parser = subparsers.add_parser(
        "recipes",
        help="list, show and copy recipes",
        description="Without NAME: list the recipes. With NAME: show its options and their defaults, which "
        "'returnn-common run NAME --set OPTION=VALUE' changes.",
    )
    parser.add_argument("name", metavar="NAME", nargs="?", help="of a recipe")
    parser.add_argument("--copy", metavar="FILE", help="copy the recipe there, to change it; an existing file is kept")
    parser.set_defaults(func=main)
    return parser


def main(args: argparse.Namespace) -> int:
    """
    :param args: ``name``, ``copy``
    :return: exit status
    :raises CommandError: for bad arguments
    """
    if args.name is None:
        if args.copy is not None:
            raise CommandError("--copy needs the name of a recipe")
        _print_list()
    elif args.copy is not None:
        _copy(find_recipe(args.name), Path(args.copy))
    else:
        _print_options(find_recipe(args.name))
    return 0


def list_recipes() -> dict[str, Path]:
    """:return: the package's recipes, by name"""
    return {path.stem: path for path in sorted(_FOLDER.glob("*.py")) if not path.stem.startswith("_")}


def find_recipe(name: str) -> Path:
    """
    :param name: of one of the package's recipes, or the path of a file that ends in .py
    :return: its file
    :raises CommandError: if there is none
    """
    recipes = list_recipes()
    if name in recipes:
        return recipes[name]
    if name.endswith(".py"):
        if not os.path.isfile(name):
            raise CommandError(f"recipe {name}: no such file")
        return Path(name).resolve()
    raise CommandError(f"unknown recipe {name!r}: there are {', '.join(recipes)}, or give the path of a .py file")


def first_doc_line(path: Path) -> str:
    """:return: the first line of a Python file's docstring"""
    doc = ast.get_docstring(ast.parse(path.read_text("utf8"))) or ""
    return doc.partition("\n")[0]


def _print_list():
    from rich.console import Console
    from rich.table import Table

    table = Table("recipe", "")
    for name, path in list_recipes().items():
        table.add_row(name, first_doc_line(path))
    Console().print(table)


def _print_options(path: Path):
    from rich.console import Console
    from rich.table import Table

    from .run.recipe import RUN_OPTIONS, load_recipe

    console = Console(highlight=False)
    console.print(f"{path.stem}: {first_doc_line(path)}", markup=False, soft_wrap=True)
    table = Table("option", "default")
    for name, value in load_recipe(path).defaults.items():
        if name not in RUN_OPTIONS:
            table.add_row(name, repr(value))
    console.print(table)


def _copy(recipe: Path, dest: Path):
    if dest.is_dir():
        dest = dest / recipe.name
    try:
        with open(recipe, "rb") as source, open(dest, "xb") as target:
            shutil.copyfileobj(source, target)
    except FileExistsError:
        raise CommandError(f"{dest} is there already; choose another name") from None
    except OSError as error:
        raise CommandError(f"{dest} cannot be written: {error.strerror}") from None
    print(dest)
