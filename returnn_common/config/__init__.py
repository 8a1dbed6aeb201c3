"""
From Python objects to RETURNN configs.
"""

from __future__ import annotations

from .options import Options

__all__ = ["Options"]
