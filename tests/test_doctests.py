"""
Runs the examples in docstrings, of the package as it is imported here: from the clone, or installed.
"""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

import returnn_common

PACKAGE = Path(returnn_common.__file__).resolve().parent
MODULES = sorted(
    ".".join(["returnn_common", *path.relative_to(PACKAGE).with_suffix("").parts]).removesuffix(".__init__")
    for path in PACKAGE.rglob("*.py")
    if ">>> " in path.read_text("utf8")
)


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    result = doctest.testmod(importlib.import_module(name), report=True)
    assert result.attempted > 0
    assert result.failed == 0


def test_there_are_examples():
    assert "returnn_common.nn.dims" in MODULES
