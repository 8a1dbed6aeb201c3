"""
Code among the values of a config, for i6_core's ``ReturnnConfig``.
"""

from __future__ import annotations

from typing import Any

from ..config._layout import Expression, layout, one_line

__all__ = ["CodeWrapper"]


class CodeWrapper(str):
    """
    A text whose ``repr`` is itself: where others write a value's ``repr`` into a file, as i6_core does, it is code::

        ReturnnConfig({"network": CodeWrapper("make()")}, python_prolog=CodeWrapper("from a import make"))

    It can be copied and pickled, and keeps Sisyphus' paths in it until it is written.

    :param code: the text; or, from within this package, an expression that is laid out when it is written
    :param hashed: what its hash in Sisyphus is made of, as for :func:`.stable_hash`; None: the text
    :param paths: those of Sisyphus in the expression, which it looks for
    """

    _expression: Expression
    _hashed: Any
    _paths: tuple[Any, ...]

    def __new__(cls, code: str | Expression, *, hashed: Any = None, paths: tuple[Any, ...] = ()):
        # With paths, the text isn't known yet.
        self = super().__new__(cls, code if isinstance(code, str) else ("" if paths else one_line(code)))
        self._expression, self._hashed, self._paths = code, hashed, paths
        return self

    def __getnewargs_ex__(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """for copies and pickles"""
        return (self._expression,), {"hashed": self._hashed, "paths": self._paths}

    def __repr__(self) -> str:
        return layout(self._expression)

    def __str__(self) -> str:
        return repr(self)

    def __add__(self, other: str) -> CodeWrapper:
        """Joins code, as i6_core does with several prologs; each part counts as before."""
        return self._joined(self, other)

    def __radd__(self, other: str) -> CodeWrapper:
        return self._joined(other, self)

    @staticmethod
    def _joined(*parts: str) -> CodeWrapper:
        hashed = [p if getattr(p, "_hashed", None) is None else p._hashed for p in parts]  # type: ignore[attr-defined]
        return CodeWrapper("".join(map(str, parts)), hashed=hashed)

    def _sis_hash(self) -> bytes:
        """what Sisyphus asks for"""
        from .hashing import stable_hash

        return f"(CodeWrapper, {stable_hash(str(self) if self._hashed is None else self._hashed)})".encode()

    def __sis_state__(self) -> dict[str, Any]:
        """Where Sisyphus looks for paths."""
        return {"paths": list(self._paths)}
