"""
Norms by name.
"""

from __future__ import annotations

import returnn.frontend as rf
from returnn.tensor import Dim

from .batch_norm import BatchNorm

__all__ = ["make_norm"]


def make_norm(name: str, dim: Dim, *, owner: str, argument: str = "norm") -> rf.Module:
    """
    :param name: "batch" (over valid frames only, see :class:`BatchNorm`) or "layer" (each frame on its own)
    :param dim: features
    :param owner: whose argument, and
    :param argument: its name, for the message
    :return: norm, ``{..., dim} -> {..., dim}``
    :raises ValueError: for another name
    """
    if name == "batch":
        return BatchNorm(dim)
    if name == "layer":
        return rf.LayerNorm(dim)
    raise ValueError(f"{owner}: expected {argument} 'batch' or 'layer', got {name!r}")
