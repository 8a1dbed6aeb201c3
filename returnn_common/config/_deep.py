"""Room for code of RETURNN's that calls itself deeply: once per layer of a network."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import TypeVar

__all__ = ["call_deep"]

Result = TypeVar("Result")

_CALLS = 100_000
_STACK = 512 * 2**20  # bytes; only what is used of it takes memory


def call_deep(func: Callable[[], Result]) -> Result:
    """
    :param func: is called in a thread of its own, with much stack and a high recursion limit
    :return: what it returns
    """
    results: list[Result] = []
    errors: list[BaseException] = []

    def run():
        try:
            results.append(func())
        except BaseException as error:
            errors.append(error)

    limit, stack = sys.getrecursionlimit(), threading.stack_size(_STACK)
    sys.setrecursionlimit(max(limit, _CALLS))
    try:
        thread = threading.Thread(target=run, name="call_deep")
        thread.start()
        thread.join()
    finally:
        sys.setrecursionlimit(limit)
        threading.stack_size(stack)
    if errors:
        raise errors[0]
    return results[0]
