"""Functions and objects that are hard to write as code."""

from __future__ import annotations

import functools
import math

FACTOR = 3


def plus_hundred(function):
    def wrapper(*args):
        return function(*args) + 100

    return wrapper


def plus_one(function):
    @functools.wraps(function)
    def wrapper(*args):
        return function(*args) + 1

    return wrapper


@plus_hundred
def without_wraps(x):
    return x * FACTOR


@plus_one
def with_wraps(x):
    return math.sqrt(x)


def plain(x):
    return max([x, FACTOR])


by_call = plus_one(plain)
cached_by_call = functools.lru_cache(plain)
updated = functools.update_wrapper(functools.partial(plain, 5), plain)
renamed = functools.partial(plain, 5)
renamed.title = "a partial function with an attribute"  # type: ignore[attr-defined]


def with_attributes(x):
    return x + with_attributes.rate


with_attributes.rate = 5


@functools.singledispatch
def dispatched(x):
    return x


@dispatched.register
def _(x: int):
    return -x


def first(x):
    return TABLE["second"](x) + 1


def second(x):
    return x if x > 3 else TABLE["first"](x + 1)


TABLE = {"first": first, "second": second}


class Registered:
    def get(self):
        return CLASSES["Registered"] is Registered


CLASSES = {"Registered": Registered}


def make_counter(start):
    def count(step):
        nonlocal start
        start += step
        return start

    return count


def needs_itself():
    functions = []

    def function():
        return functions

    functions.append(function)
    return function


def make_class(size):
    class Local:
        def __init__(self, more=0):
            self._more = more

        @property
        def size(self):
            return self._more

        @size.setter
        def size(self, value):
            self._more = value + size

    return Local


class Base:
    def __init__(self, x, *, y=2):
        self.x, self.y = x, y


class Child(Base):
    def __init__(self, x, **options):
        super().__init__(x, **options)


class Labels(dict):
    pass


class Word(str):
    pass


class OwnPartial(functools.partial):
    pass
