"""
Values that are known only later, such as the variables and paths of Sisyphus' jobs.
"""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np

__all__ = ["is_delayed", "is_later", "plain_value"]


def is_delayed(value: Any) -> bool:
    """whether it is a value of Sisyphus' that is known later, such as a variable, but no path"""
    if inspect.isclass(value) or not callable(getattr(value, "get", None)):
        return False
    names = [cls.__name__ for cls in type(value).__mro__]
    return "Variable" in names or ("DelayedBase" in names and not callable(getattr(value, "get_path", None)))


def is_later(value: Any) -> bool:
    """whether it is such a value or a path of that kind"""
    return is_delayed(value) or callable(getattr(value, "get_path", None))


def plain_value(value: Any) -> Any:
    """:return: NumPy's scalars as Python's, and what is delayed as what it is now"""
    if isinstance(value, np.generic) and not isinstance(value, np.datetime64 | np.timedelta64 | np.void):
        return value.item()
    return plain_value(value.get()) if is_delayed(value) else value  # type: ignore[union-attr]
