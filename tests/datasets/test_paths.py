"""Tests for paths in options."""

from __future__ import annotations

from pathlib import Path

import pytest

from returnn_common.datasets._paths import check_path, resolve_path, resolve_paths

from .reading import LaterPath


def test_resolve():
    assert resolve_path("a") == resolve_path(Path("a")) == resolve_path(LaterPath("a")) == "a"
    nested = {"x": [LaterPath("a"), ("b", 3, None)], "y": {"z": Path("c")}}
    assert resolve_paths(nested) == {"x": ["a", ("b", 3, None)], "y": {"z": "c"}}


def test_check():
    for path in ("a", Path("a"), LaterPath("a")):
        assert check_path("Data", path) is path
    with pytest.raises(TypeError, match="Data: path: expected a path, got int 3"):
        check_path("Data: path", 3)
