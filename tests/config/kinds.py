"""
Functions, classes and objects for configs.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import math as mathematics
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from returnn_common import nn

if TYPE_CHECKING:
    from pathlib import Path


def without_addresses(value: Any) -> str:
    """:return: for the names of tests, which have to be the same in each process of pytest-xdist"""
    return re.sub(" at 0x[0-9a-f]+", "", str(value))


FACTOR = 3
LABELS = {"a": 1, "b": [2, 3]}
labels_dim = nn.FeatureDim("words", 7)


class Color(enum.Enum):
    RED = 1
    GREEN = "green"


class Permission(enum.Flag):
    READ = 1
    WRITE = 2


Point = collections.namedtuple("Point", ["x", "y"])


@dataclasses.dataclass(frozen=True)
class Settings:
    size: int
    names: tuple[str, ...] = ("a",)
    point: Point = Point(0, 0)


class Plain:
    """keeps its arguments under their names, or with an underscore"""

    def __init__(self, low: float, *rest: int, high: float = 2.0, **more: Any):
        self._low, self.rest, self.high, self.more = low, rest, high, more
        self._cache = None

    def warm_up(self) -> Plain:
        self._cache = [1]
        return self


class Loop:
    """contains itself"""

    def __init__(self, inner: Any = None):
        self.inner = self if inner is None else inner


class Hidden:
    """doesn't tell its argument"""

    def __init__(self, secret: int):
        self._double = 2 * secret


class Base:
    factor = FACTOR

    def scale(self, x: float) -> float:
        return self.factor * x


class Child(Base):
    """uses its base, a decorator, and what the module has"""

    @functools.cached_property
    def size(self) -> int:
        return int(mathematics.sqrt(16)) + len(LABELS)

    def scale(self, x: float) -> float:
        return super().scale(x) + self.size

    class Inner:
        value = FACTOR

    @staticmethod
    def double(x: float) -> float:
        return 2 * x


def twice(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @functools.wraps(function)
    def _twice(x: Any) -> Any:
        return function(function(x))

    return _twice


def add(x: Any, *, factor: int = FACTOR, path: Path | None = None) -> Any:
    """with a default, an annotation that is never evaluated, and a text of lines

      that are indented
    less
    """
    return x + factor * LABELS["a"]


@twice
def add_twice(x: Any) -> Any:
    return add(x)


def even(n: int) -> bool:
    return n == 0 or odd(n - 1)


def odd(n: int) -> bool:
    return n > 0 and even(n - 1)


def make_adder(n: int) -> Callable[[Any], Any]:
    def adder(x: Any) -> Any:
        return x + n

    return adder


def make_shadow() -> Callable[[Any], Any]:
    FACTOR = 10

    def shadow(x: Any) -> Any:
        return x * FACTOR

    return shadow


def uses_dim() -> int | None:
    return labels_dim.dimension


def makes_array() -> np.ndarray:
    return np.zeros(FACTOR)


lambdas = [lambda x, n=n: x + n * FACTOR for n in range(2)]
