"""
Dims as RETURNN's layers backend leaves them carry its work with them: which dims it found to be the same, templates of
lengths, caches. Here they become dims that say no more than what they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from returnn.tensor import Dim, Tensor, batch_dim, single_step_dim
from returnn.tensor.marked_dim import MarkedDim

from .dims_code import derive_dim

__all__ = ["CleanDims", "map_dims", "restore_dim_math"]


class CleanDims:
    """
    To be made while it's known which dims are the same; the clean dims are then made when that is forgotten.

    :param own: stay as they are, and also stand for all that are the same as one of them
    :param used: all dims that are to be replaced, with those that they're derived from
    """

    def __init__(self, own: Iterable[Dim], used: Iterable[Dim]):
        own = list(own)
        self._used = list(used)  # as long as their ids are in use
        representatives: dict[Dim, Dim] = {}
        for dim in own:
            representatives.setdefault(dim, dim)
        self._canonical = {id(dim): representatives.setdefault(dim, dim.get_same_base()) for dim in self._used}
        self._canonical.update((id(dim), dim) for dim in own)
        self._clean: dict[int, Dim] = {id(dim): dim for dim in own}
        self._kinds: dict[str, Any] = {dim.name or "unnamed": _kind(dim) for dim in own}

    def clean(self, dim: Dim) -> Dim:
        """
        :param dim: one of those which are used
        :return: the same for all that are the same. Static dims stay as they are.
        """
        if dim.is_batch_dim():
            return batch_dim
        if dim == single_step_dim or dim.special:
            return dim
        canonical = self._canonical[id(dim)]
        if id(canonical) not in self._clean:
            self._clean[id(canonical)] = self._with_name(self._make(canonical))
        clean = self._clean[id(canonical)]
        return clean.copy(match_priority=dim.match_priority) if dim.match_priority else clean

    def _with_name(self, dim: Dim) -> Dim:
        """
        :return: the dim; or another one of another name, if it has none, or if another dim has it which is of another
            kind. RETURNN could not sort them when it builds the layers.
        """
        name, number = dim.name or "unnamed", 1
        while self._kinds.setdefault(name, _kind(dim)) != _kind(dim):
            number += 1
            name = f"{dim.name or 'unnamed'}_{number}"
        if name == dim.name:
            return dim
        made = Dim(dim.dimension if dim.is_static() else dim.dyn_size_ext, name=name, kind=dim.kind)
        if dim._extra is not None:
            made._make_extra().derived_from_op = dim.derived_from_op
        return made

    def _make(self, dim: Dim) -> Dim:
        operation = dim.derived_from_op
        if dim.is_static() and (operation is None or all(x.is_static() for x in operation.inputs)):
            return dim
        if operation is not None:
            inputs = [x.dimension if x.is_constant_static_dim() else self.clean(x) for x in operation.inputs]
            made = derive_dim(operation.kind, inputs)
            if made is not None and all(made is not other for other in self._clean.values()):
                return made
            from returnn.tensor._dim_extra import Op

            inputs = [x if isinstance(c, int) else c for x, c in zip(operation.inputs, inputs, strict=True)]
            return Dim(dim.dimension, name=dim.name, kind=dim.kind, derived_from_op=Op(operation.kind, inputs))
        lengths = dim.dyn_size_ext
        if lengths is not None:
            is_default = list(lengths.dims) == [batch_dim]
            lengths = None if is_default else Tensor(lengths.name, [self.clean(d) for d in lengths.dims], lengths.dtype)
        made = Dim(lengths, name=dim.name, kind=dim.kind, auto_generated=dim.auto_generated)
        if dim.derived_from_tag is not None:
            made._make_extra().derived_from_tag = self.clean(dim.derived_from_tag)
        return made


def _kind(dim: Dim) -> tuple[Any, bool]:
    return dim.kind, dim.is_static()


def map_dims(value: Any, func: Callable[[Dim], Dim]) -> Any:
    """
    :param value: dims in containers
    :param func: dim -> what it is replaced by
    :return: the same with these; containers are copied
    """
    if isinstance(value, Dim):
        return func(value)
    if isinstance(value, MarkedDim):
        return type(value)(func(value.tag))
    if isinstance(value, Mapping):
        return {map_dims(k, func): map_dims(v, func) for k, v in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(map_dims(x, func) for x in value))
    if isinstance(value, (list, tuple, set, frozenset)):
        return type(value)(map_dims(x, func) for x in value)
    return value


def restore_dim_math(dims: Iterable[Dim]) -> None:
    """
    RETURNN remembers what has been derived from a dim, so that ``channels // 4`` is the same dim the next time, and its
    layers count on that. Pickling forgets it.

    :param dims: of which some may be derived from others. Those that weren't pickled stay as they are.
    """
    from returnn.tensor._dim_extra import _CacheDimMath

    dims = list(dims)
    lost: set[int] = set()
    for dim in dims:
        for one in [dim, *(dim.derived_from_op.inputs if dim.derived_from_op else [])]:
            if one._extra is not None and not isinstance(one._extra.cache_dim_math, _CacheDimMath):
                one._extra.cache_dim_math = _CacheDimMath()
                lost.add(id(one))
    for dim in dims:
        operation = dim.derived_from_op
        if operation is None or operation.kind == "constant" or len(operation.inputs) != 2:
            continue
        left, right = operation.inputs
        if left.is_constant_static_dim():
            owner, key = right, (f"{operation.kind}_left", left.dimension)
        else:
            owner, key = left, (operation.kind, right.dimension if right.is_constant_static_dim() else right)
        if id(owner) in lost:
            owner._make_extra().cache_dim_math.setdefault(key, dim)
