"""
What RETURNN's dims and parameters lose when they are pickled.
"""

from __future__ import annotations

import copyreg
from typing import Any

from returnn.frontend import Parameter
from returnn.tensor._dim_extra import _CacheDimMath

from ._contents import find_dims

__all__ = ["restore_derived_dims"]


def restore_derived_dims(value: Any):
    """
    RETURNN remembers which dims it has derived from others, but not in pickles: what is computed of the dims in there
    would be other dims than those in there.

    :param value: has been unpickled
    """
    dims = find_dims(value)
    for dim in dims:
        if dim._extra is not None and isinstance(dim._extra.cache_dim_math, dict):  # as it comes from a pickle
            dim._extra.cache_dim_math = _CacheDimMath()
    for dim in dims:
        operation = dim.derived_from_op
        if operation is None or operation.kind not in _OPERATIONS or len(operation.inputs) != 2:
            continue
        a, b = (x.dimension if x.is_constant_static_dim() else x for x in operation.inputs)
        if isinstance(a, int) and isinstance(b, int):
            continue
        made = _OPERATIONS[operation.kind](a, b)
        if made != dim:
            dim.declare_same_as(made)


_OPERATIONS: dict[str, Any] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "floordiv": lambda a, b: a // b,
    "truediv": lambda a, b: a / b,
    "truediv_left": lambda a, b: a.div_left(b),
    "ceildiv": lambda a, b: a.ceildiv_right(b),
    "ceildiv_left": lambda a, b: a.ceildiv_left(b),
}


def _reduce_parameter(parameter: Parameter) -> tuple[Any, ...]:
    # RETURNN only pickles what a tensor has, not what makes it a parameter.
    return _restore_parameter, (type(parameter), parameter.__getstate__(), dict(vars(parameter)))


def _restore_parameter(cls: type[Parameter], state: dict[str, Any], attributes: dict[str, Any]) -> Parameter:
    parameter = cls.__new__(cls)
    parameter.__setstate__(state)
    vars(parameter).update(attributes)
    return parameter


copyreg.pickle(Parameter, _reduce_parameter)
