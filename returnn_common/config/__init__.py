"""
From Python objects to RETURNN configs, and back.
"""

from __future__ import annotations

from .difference import ConfigDiff, diff
from .options import Options
from .python_code import to_python
from .reading import read

__all__ = ["ConfigDiff", "Options", "diff", "read", "to_python"]
