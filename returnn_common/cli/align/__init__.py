"""
The command ``returnn-common align``: in which frames the labels of utterances are, by the model of a run.
"""

from __future__ import annotations

from .command import add_parser, align_run, main

__all__ = ["add_parser", "align_run", "main"]
