"""
Dims as Python source: names from their descriptions, derived dims as expressions of others.

    time_dim = Dim(None, name="time", kind=Dim.Types.Spatial)
    time_ceildiv_2_dim = time_dim.ceildiv_right(2)
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from returnn.tensor import Dim, Tensor, batch_dim, single_step_dim
from returnn.tensor.marked_dim import MarkedDim

from ._layout import quote

__all__ = ["DimsCode", "derive_dim"]

_TENSOR = "from returnn.tensor import"
_MARKED = "from returnn.tensor.marked_dim import"
_MAX_NAME = 30  # beyond, a derived dim gets the name of what it is derived from, and a number

# kind of a dim's operation -> (format of the expression, word in the name)
_OPERATIONS = {
    "add": ("{} + {}", "plus"),
    "sub": ("{} - {}", "minus"),
    "mul": ("{} * {}", "times"),
    "floordiv": ("{} // {}", "div"),
    "truediv": ("{} / {}", "div"),
    "truediv_left": ("{}.div_left({})", "div"),
    "ceildiv": ("{}.ceildiv_right({})", "ceildiv"),
    "ceildiv_left": ("{}.ceildiv_left({})", "ceildiv"),
}


class DimsCode:
    """
    Collects dims and writes the code that makes them, in the order in which they were asked for::

        dims = DimsCode()
        dims.ref(time_dim)      # "time_dim"
        dims.ref(2 * out_dim)   # "out_times_2_dim"
        print("".join(line + "\\n" for line in [*dims.imports, "", *dims.lines]))

    Dims that RETURNN takes for the same (``same_as``) get one name. Each line is evaluated at once, to be sure that it
    makes a dim that is derived in the same way; where an expression would not, the operation is written out.

    :param reserved: names which no dim may get
    :param names: name -> dim, of dims that have a name already; they are declared first, in this order
    :param name_all: whether a dim without a name gets the one that it has in the code: RETURNN's layers need one
    :param sizes: whether the dims on which the lengths of a dynamic dim depend are written as well, where that is not
        the batch dim alone
    """

    def __init__(
        self,
        *,
        reserved: Iterable[str] = (),
        names: Mapping[str, Dim] | None = None,
        sizes: bool = True,
        name_all: bool = False,
    ):
        self.lines: list[str] = []
        self._sizes = sizes
        self._name_all = name_all
        self._reserved = {*reserved, *(names or {}), "batch_dim", "single_step_dim"}
        self._given = {dim: name for name, dim in (names or {}).items()}
        self._names: dict[Dim, str] = {}
        self._numbered: set[Dim] = set()
        self._imports: set[tuple[str, str]] = set()
        # what the lines make
        self._made: dict[str, Any] = {"__builtins__": {}, "Dim": Dim, "Tensor": Tensor, "batch_dim": batch_dim}
        for dim in self._given:
            self.ref(dim)

    def __setstate__(self, state: dict[str, Any]):
        from ._clean_dims import restore_dim_math

        self.__dict__.update(state)
        restore_dim_math(self._names)

    @property
    def imports(self) -> list[str]:
        """Lines that the code, and what refers to its dims, needs."""
        modules = sorted({module for module, _ in self._imports})
        return [f"{m} {', '.join(sorted(name for module, name in self._imports if module == m))}" for m in modules]

    @property
    def names(self) -> dict[str, Dim]:
        """name -> dim, as it was given"""
        return {name: dim for dim, name in self._names.items()}

    def reserve(self, name: str):
        """No dim gets this name from now on."""
        self._reserved.add(name)

    def ref(self, dim: Dim | MarkedDim) -> str:
        """
        :param dim: also marked ones such as ``ImplicitDynSizeDim(dim)``, and those with a match priority
        :return: code that refers to it: usually a name, which is defined by :attr:`lines`
        :raises TypeError: if it is something else
        :raises ValueError: if it is special (stands for other dims), or has a vocabulary that can't be written
        """
        if isinstance(dim, MarkedDim):
            self._imports.add((_MARKED, type(dim).__name__))
            return f"{type(dim).__name__}({self.ref(dim.tag)})"
        if not isinstance(dim, Dim):
            raise TypeError(f"expected a Dim, got {type(dim).__name__} {dim!r}")
        if dim.is_batch_dim():
            self._imports.add((_TENSOR, "batch_dim"))
            return "batch_dim"
        if dim == single_step_dim:
            self._imports.add((_TENSOR, "single_step_dim"))
            return "single_step_dim"
        if dim.special:
            raise ValueError(f"{dim} only stands for other dims: no code can be written for it")
        if dim.match_priority:
            return f"{self.ref(dim.copy(match_priority=0))}.copy(match_priority={dim.match_priority})"
        if dim not in self._names:
            self._add(dim)
        return self._names[dim]

    def _add(self, dim: Dim):
        base = dim.get_same_base()
        operation = dim.derived_from_op or base.derived_from_op
        if operation is None or operation.kind == "constant":
            name = self._given.get(dim) or self._unique_name(_clean(base.name))
            code = self._root(dim, base, default_name=name.removesuffix("_dim") if self._name_all else None)
        else:
            name, code = self._derived(dim, operation)
        self._names[dim] = name
        self.lines.append(f"{name} = {code}")
        self._made[name] = eval(code, self._made)  # noqa: S307 of what is written above

    def _root(self, dim: Dim, base: Dim, *, default_name: str | None) -> str:
        """:return: constructor of a dim that is not derived by an operation"""
        self._imports.add((_TENSOR, "Dim"))
        size: Any = base.dimension
        lengths = base.dyn_size_ext if base.dyn_size_ext is not None else dim.dyn_size_ext
        if size is None and self._sizes and lengths is not None and list(lengths.dims) != [batch_dim]:
            self._imports.add((_TENSOR, "Tensor"))
            over = ", ".join(self.ref(d) for d in lengths.dims)
            size = f'Tensor({quote(lengths.name)}, dims=[{over}], dtype="{lengths.dtype}")'
        dim_name = base.name or default_name
        options = {"name": quote(dim_name) if dim_name else None}
        options["kind"] = f"Dim.Types.{base.kind.name.capitalize()}" if base.kind else None
        options["capacity"] = str(base.capacity) if base.capacity not in (None, base.dimension) else None
        extra = base._extra
        options["auto_generated"] = "True" if extra and extra.auto_generated else None
        if extra and extra.vocab:
            raise ValueError(f"{dim} has a vocabulary: no code can be written for it")
        if extra and extra.derived_from_tag and not extra.derived_from_op:
            options["derived_from_tag"] = self.ref(extra.derived_from_tag)
        return f"Dim({', '.join([str(size), *(f'{key}={value}' for key, value in options.items() if value)])})"

    def _derived(self, dim: Dim, operation: Any) -> tuple[str, str]:
        """:return: name and code of a dim that is derived from others"""
        codes = [self._operand(x) for x in operation.inputs]
        expression, word = _OPERATIONS[operation.kind]
        name = self._given.get(dim) or self._unique_name(self._derived_name(dim, operation, word))
        inputs = [eval(code, self._made) for code in codes]  # noqa: S307 of what is written here
        made = derive_dim(operation.kind, inputs)
        if made is not None and all(made is not other for other in self._made.values()):
            code = codes[0]
            for x in codes[1:]:
                code = expression.format(code, x)
            return name, code
        return name, self._explicit(dim, operation, codes)

    def _operand(self, dim: Dim) -> str:
        if dim.is_constant_static_dim():
            return f"({dim.dimension})" if (dim.dimension or 0) < 0 else str(dim.dimension)
        return self.ref(dim)

    def _explicit(self, dim: Dim, operation: Any, codes: list[str]) -> str:
        from returnn.tensor._dim_extra import Op, _make_constant_static_dim

        private = "from returnn.tensor._dim_extra import"
        is_constant = [x.is_constant_static_dim() for x in operation.inputs]
        inputs = ", ".join(
            f"_make_constant_static_dim({code.strip('()')})" if constant else code
            for code, constant in zip(codes, is_constant, strict=True)
        )
        self._imports.update([(private, "Op"), (_TENSOR, "Dim")])
        if any(is_constant):
            self._imports.add((private, "_make_constant_static_dim"))
        self._made.update(Op=Op, _make_constant_static_dim=_make_constant_static_dim)
        name = f"name={quote(dim.name)}, " if dim.name else ""
        kind = f"kind=Dim.Types.{dim.kind.name.capitalize()}, " if dim.kind else ""
        return f'Dim({dim.dimension}, {name}{kind}derived_from_op=Op("{operation.kind}", [{inputs}]))'

    def _derived_name(self, dim: Dim, operation: Any, word: str) -> str:
        """:return: without its ending "_dim": what a person has called it, or else after the operation"""
        if dim.name and not re.search(r"[-+*/⌈ ()]", dim.name):
            return _clean(dim.name)
        parts = []
        for x in operation.inputs:
            if x.is_constant_static_dim():
                parts.append(str(x.dimension).replace("-", "minus_"))
            else:
                parts.append(self.ref(x).removesuffix("_dim"))
        if operation.kind in ("add", "mul"):  # time + 1 is named like 1 + time
            parts.sort(key=lambda part: part[:1].isdigit() or part.startswith("minus_"))
        if operation.kind == "add" and parts[-1].startswith("minus_"):
            word, parts[-1] = "minus", parts[-1].removeprefix("minus_")
        name = f"_{word}_".join(parts)
        if len(name) <= _MAX_NAME and self._numbered.isdisjoint(operation.inputs):
            return name
        self._numbered.add(dim)
        source = dim.derived_from_tag
        while source is not None and source.derived_from_tag is not None:
            source = source.derived_from_tag
        return _clean(source.name if source is not None else None)

    def _unique_name(self, name: str) -> str:
        candidate, number = f"{name}_dim", 1
        while candidate in self._reserved or keyword.iskeyword(candidate):
            number += 1
            candidate = f"{name}_{number}_dim"
        self._reserved.add(candidate)
        return candidate


def _clean(name: str | None) -> str:
    """:return: part of a Python name"""
    name = re.sub(r"\W+", "_", name or "", flags=re.ASCII).strip("_").lower()
    name = re.sub(r"(^|_)dim$", "", name) or "unnamed"
    return f"d{name}" if name[0].isdigit() else name


def derive_dim(kind: str, inputs: Sequence[Dim | int]) -> Dim | None:
    """
    :param kind: of an operation of RETURNN's on dims, such as "ceildiv"
    :param inputs: dims, constants as int
    :return: what the operation gives; None if RETURNN simplifies it to something else
    """
    names = {f"x{i}": x for i, x in enumerate(inputs)}
    expression, _ = _OPERATIONS[kind]
    code = "x0"
    for name in list(names)[1:]:
        code = expression.format(code, name)
    try:
        made = eval(code, dict(names))  # noqa: S307 of the formats above
    except Exception:  # what it can't do with a constant on the left
        return None
    found = made.derived_from_op if isinstance(made, Dim) else None
    if found is None or found.kind != kind or len(found.inputs) != len(inputs):
        return None
    for x, expected in zip(found.inputs, inputs, strict=True):
        if (x.dimension != expected or not x.is_constant_static_dim()) if isinstance(expected, int) else x != expected:
            return None
    return made
