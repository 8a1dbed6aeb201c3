"""
From Python objects to RETURNN configs, and back.
"""

from __future__ import annotations

from .difference import ConfigDiff, diff
from .net_dict import NetDict, make_net_dict
from .options import Options
from .python_code import to_python
from .reading import read
from .staged import StagedNetDict, make_staged_net_dict

__all__ = [
    "ConfigDiff",
    "NetDict",
    "Options",
    "StagedNetDict",
    "diff",
    "make_net_dict",
    "make_staged_net_dict",
    "read",
    "to_python",
]
