"""
Python expressions as trees, and how they are laid out in lines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

__all__ = ["WIDTH", "Brackets", "Expression", "Late", "call", "items", "layout", "one_line", "quote", "quote_bytes"]

WIDTH = 120  # of a line


@dataclass(frozen=True)
class Brackets:
    """
    Something in brackets, with commas between.

    :param before: up to the opening bracket, which is its last character
    :param parts: each is what stands before it (such as ``"name": ``, or nothing), and the expression
    :param after: the closing bracket
    :param needs_comma: also behind a single part, as a tuple does
    """

    before: str
    parts: tuple[tuple[str, Expression], ...]
    after: str
    needs_comma: bool = False


@dataclass(frozen=True)
class Late:
    """
    Something whose code is known when it is laid out, such as a path that a job will make.

    :param value:
    :param code: makes the code of the value
    """

    value: Any
    code: Callable[[Any], str]


Expression = str | Brackets | Late


def items(before: str, parts: Iterable[Expression], after: str, *, needs_comma: bool = False) -> Brackets:
    """such as a list"""
    return Brackets(before, tuple(("", part) for part in parts), after, needs_comma)


def call(function: str, args: Iterable[Expression] = (), options: Iterable[tuple[str, Expression]] = ()) -> Brackets:
    """
    :param function: code
    :param args: positional ones
    :param options: name and value
    """
    parts = [*(("", arg) for arg in args), *((f"{name}=", value) for name, value in options)]
    return Brackets(f"{function}(", tuple(parts), ")")


def one_line(expression: Expression) -> str:
    """:return: code"""
    if isinstance(expression, str):
        return expression
    if isinstance(expression, Late):
        return expression.code(expression.value)
    inner = ", ".join(before + one_line(part) for before, part in expression.parts)
    comma = "," if expression.needs_comma and len(expression.parts) == 1 else ""
    return f"{expression.before}{inner}{comma}{expression.after}"


def layout(
    expression: Expression, *, before: str = "", indent: int = 0, after: str = "", width: int = WIDTH, fill: bool = True
) -> str:
    """
    :param expression: what is written
    :param before: what stands before it, such as ``name = ``
    :param indent: of its first line, in spaces
    :param after: what stands behind it, such as a comma
    :param width: characters of a line
    :param fill: whether many numbers share lines; else each has its own, as ruff and black have it
    :return: lines of at most that width where that can be: what is too long has each of its parts in lines of its own
    """
    lines: list[str] = []
    _Layout(lines, width, fill).add(expression, before, indent, after)
    return "\n".join(lines)


@dataclass(frozen=True)
class _Layout:
    lines: list[str]
    width: int
    fill: bool

    def add(self, expression: Expression, before: str, indent: int, after: str):
        room = self.width - indent - len(before) - len(after)
        if not isinstance(expression, Brackets) or not expression.parts or _length(expression, room) <= room:
            self.lines.append(f"{' ' * indent}{before}{one_line(expression)}{after}")
            return
        self.lines.append(f"{' ' * indent}{before}{expression.before}")
        if self.fill and len(expression.parts) > 8 and all(_is_short(name, part) for name, part in expression.parts):
            self._fill([one_line(part) for _, part in expression.parts], indent + 4)
        else:
            for name, part in expression.parts:
                self.add(part, name, indent + 4, ",")
        self.lines.append(f"{' ' * indent}{expression.after}{after}")

    def _fill(self, parts: list[str], indent: int):
        """lines with as many of them as there is room for, as with numbers"""
        line = " " * indent + parts[0] + ","
        for part in parts[1:]:
            if len(line) + len(part) + 2 <= self.width:
                line += f" {part},"
            else:
                self.lines.append(line)
                line = " " * indent + part + ","
        self.lines.append(line)


def _length(expression: Expression, limit: int) -> int:
    """:return: of one line; anything above the limit if it's longer, or has to have several lines"""
    if not isinstance(expression, Brackets):
        code = one_line(expression)
        return len(code) if "\n" not in code else limit + 1
    length = len(expression.before) + len(expression.after) + 2 * max(0, len(expression.parts) - 1)
    length += expression.needs_comma and len(expression.parts) == 1
    for before, part in expression.parts:
        if length > limit:
            break
        length += len(before) + _length(part, limit - length - len(before))
    return length


def _is_short(name: str, part: Expression) -> bool:
    return not name and isinstance(part, str) and len(part) <= 40 and "\n" not in part


def quote(text: str) -> str:
    """:return: a literal, in double quotes, unless single ones need fewer backslashes"""
    return _double_quoted(repr(text))


def quote_bytes(data: bytes) -> str:
    """:return: as :func:`quote`"""
    return "b" + _double_quoted(repr(data)[1:])


def _double_quoted(literal: str) -> str:
    """
    :param literal: as ``repr`` writes it
    :return: with other quotes, if that is not longer
    """
    if literal[0] == '"':
        return literal
    other = '"' + literal[1:-1].replace("\\'", "'").replace('"', '\\"') + '"'
    return other if len(other) <= len(literal) else literal
