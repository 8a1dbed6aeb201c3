"""
The command ``returnn-common recog``: recognises with a model that ``returnn-common run`` has trained.
"""

from __future__ import annotations

from .command import add_parser, main, recognise_run

__all__ = ["add_parser", "main", "recognise_run"]
