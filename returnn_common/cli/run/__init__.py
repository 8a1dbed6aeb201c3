"""
The command ``returnn-common run``: from a corpus and a recipe to a word error rate.
"""

from __future__ import annotations

from .command import add_parser, add_run_arguments, main, run_recipe

__all__ = ["add_parser", "add_run_arguments", "main", "run_recipe"]
