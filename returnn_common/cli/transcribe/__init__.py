"""
The command ``returnn-common transcribe``: recordings to text, with a model that ``returnn-common run`` has trained.
"""

from __future__ import annotations

from .command import add_parser, main

__all__ = ["add_parser", "main"]
