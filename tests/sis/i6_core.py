"""
What i6_core's ``ReturnnConfig`` does with its arguments, as its users know it; for where it is not installed.
"""

from __future__ import annotations

import inspect
import pprint
from typing import Any

from tests.sis.sisyphus import DelayedBase, Path, sis_hash_helper

__all__ = ["ReturnnConfig"]


class ReturnnConfig:
    """
    Writes the prolog, then each option by its ``repr``, laid out by pprint, in the order of their names.
    """

    def __init__(self, config: dict[str, Any], post_config: dict[str, Any] | None = None, *, python_prolog: Any = None):
        self.config, self.post_config, self.python_prolog = config, post_config or {}, python_prolog

    def serialize(self) -> str:
        """:return: text of the config file"""
        options = _undelayed({**self.config, **self.post_config})
        printer = pprint.PrettyPrinter(indent=2, width=150)
        lines = []
        for name, value in sorted(options.items()):
            assert pprint.isreadable(value), f"{name} = {value!r}"
            lines.append(f"{name} = {printer.pformat(value)}")
        return "\n\n".join(["#!rnn.py", self._prolog(self.python_prolog), "\n".join(lines), "config = {}\n"])

    def _prolog(self, code: Any) -> str:
        if code is None:
            return ""
        if isinstance(code, str):
            return code
        if isinstance(code, (tuple, list)):
            return "\n".join(map(self._prolog, code))
        if isinstance(code, dict):
            return "\n".join(map(self._prolog, code.values()))
        assert inspect.isfunction(code) or inspect.isclass(code), f"Could not serialize {code}"
        return inspect.getsource(code)

    def _sis_hash(self) -> bytes:
        return sis_hash_helper({"returnn_config": self.config, "python_prolog_hash": self.python_prolog})


def _undelayed(value: Any) -> Any:
    if isinstance(value, DelayedBase) and type(value) is not Path:
        return value.get()  # type: ignore[attr-defined]
    if type(value) is list:
        return [_undelayed(part) for part in value]
    if type(value) is dict:
        return {key: _undelayed(part) for key, part in value.items()}
    return value
