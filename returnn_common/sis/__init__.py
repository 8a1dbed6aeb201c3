"""
For users of Sisyphus, https://github.com/rwth-i6/sisyphus: hashes that stay, and our parts in i6_core's configs.

See ``docs/sisyphus.md``. Nothing here needs Sisyphus.
"""

from __future__ import annotations

from .code_wrapper import CodeWrapper
from .hashing import Hashed, stable_hash
from .returnn_config import returnn_config

__all__ = ["CodeWrapper", "Hashed", "returnn_config", "stable_hash"]
