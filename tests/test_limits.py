"""What RETURNN cannot do on one of its engines still fails in the way that tests/limits.py says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import returnn_common
from tests.engines import ENGINES
from tests.limits import LIMITS, Limit, check, limits_table

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def checked() -> dict[str, str]:
    """in one child, of which the memory is limited: a net dict that fails can take all there is"""
    for package in ("torch", "tensorflow", "jax"):
        pytest.importorskip(package)
    result = subprocess.run(
        [sys.executable, "-m", "tests.limits", "--check"], cwd=ROOT, text=True, capture_output=True, timeout=600
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return dict(json.loads(line) for line in result.stdout.splitlines() if line.startswith('["'))


@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: limit.id)
def test_it_still_fails(limit: Limit, checked: dict[str, str]):
    assert not checked[limit.id], checked[limit.id]


def test_each_is_listed_once_and_explained():
    assert len({limit.id for limit in LIMITS}) == len(LIMITS)
    for limit in LIMITS:
        assert limit.engine in ENGINES and limit.engine != "torch"
        assert all((limit.name, limit.reason, limit.affects, limit.way_round)), limit.id
        assert bool(limit.error) == bool(limit.message), limit.id


def test_ways_round_exist():
    """the files they name"""
    package = Path(returnn_common.__file__).parent
    for limit in LIMITS:
        for word in limit.way_round.split():
            if word.endswith(".py"):
                assert (package / word).is_file(), f"{limit.id}: {word}"


def test_table():
    lines = limits_table().splitlines()
    rows = [line for line in lines if line.startswith("|")]
    assert len(rows) == len(LIMITS) + 2 and len({line.count("|") for line in rows}) == 1
    for limit in LIMITS:
        assert any(f"| {limit.name} | {limit.engine} |" in row for row in rows)


def _limit(reproduce, error: str = "ValueError", message: str = "too deep") -> Limit:
    return Limit("digging", "jax", reproduce, error, message, "because", "miners", "a bridge")


def _fail(engine: str):
    raise ValueError(f"too deep on {engine}")


class _Values(dict):
    outputs = {"y": None}


def test_check():
    """what is reported when an entry is out of date"""
    import numpy

    assert check(_limit(_fail)) == "" and check(_limit(_fail, message="in _fail")) == ""
    assert "expected ValueError with 'too wide', got ValueError: too deep on jax" in check(
        _limit(_fail, message="too wide")
    )
    assert "fails on jax otherwise than listed" in check(_limit(_fail, error="TypeError"))
    assert "fails on jax otherwise than listed" in check(_limit(_fail, error="", message=""))
    now = "RETURNN can do digging on jax now: remove the limit"
    assert check(_limit(lambda engine: None)).startswith(now)
    same, other = (lambda engine, d=d: _Values(y=numpy.full(2, d * len(engine))) for d in (0.0, 1.0))
    assert check(_limit(same, error="", message="")).startswith(now)
    assert check(_limit(other, error="", message="")) == ""


def test_command_refuses_other_arguments():
    with pytest.raises(SystemExit, match="usage: python -m tests.limits .* got --chek"):
        from tests.limits import _main

        _main(["--chek"])
