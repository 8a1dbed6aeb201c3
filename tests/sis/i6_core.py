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
    Writes the prolog, then each option by its ``repr``, laid out by pprint, in the order of their names, then the
    epilog.
    """

    def __init__(
        self,
        config: dict[str, Any],
        post_config: dict[str, Any] | None = None,
        *,
        python_prolog: Any = None,
        python_prolog_hash: Any = None,
        python_epilog: Any = "",
    ):
        self.config, self.post_config, self.python_prolog = config, post_config or {}, python_prolog
        self.python_prolog_hash = python_prolog if python_prolog_hash is None else python_prolog_hash
        self.python_epilog = python_epilog

    def update(self, other: ReturnnConfig):
        """Takes the other one's options, and its code behind its own."""
        self.config.update(other.config)
        self.post_config.update(other.post_config)
        for name in ("python_prolog", "python_prolog_hash", "python_epilog"):
            codes = [code for code in (getattr(self, name), getattr(other, name)) if code]
            is_text = len(codes) == 2 and all(isinstance(code, str) for code in codes)
            setattr(self, name, codes[0] + "\n" + codes[1] if is_text else codes[0] if len(codes) == 1 else codes)

    def serialize(self) -> str:
        """:return: text of the config file"""
        options = _undelayed({**self.config, **self.post_config})
        printer = pprint.PrettyPrinter(indent=2, width=150)
        lines = []
        for name, value in sorted(options.items()):
            assert pprint.isreadable(value), f"{name} = {value!r}"
            lines.append(f"{name} = {printer.pformat(value)}")
        prolog, epilog = self._prolog(self.python_prolog), self._prolog(self.python_epilog)
        return "\n\n".join(["#!rnn.py", prolog, "\n".join(lines), "config = {}\n", epilog])

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
        hashed = {"returnn_config": self.config, "python_prolog_hash": self.python_prolog_hash}
        return sis_hash_helper({**hashed, "python_epilog_hash": self.python_epilog})


def _undelayed(value: Any) -> Any:
    if isinstance(value, DelayedBase) and type(value) is not Path:
        return value.get()  # type: ignore[attr-defined]
    if type(value) is list:
        return [_undelayed(part) for part in value]
    if type(value) is dict:
        return {key: _undelayed(part) for key, part in value.items()}
    return value
