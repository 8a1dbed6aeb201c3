"""
Between the frontend's tensors and PyTorch's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar

import returnn.frontend as rf
from returnn.tensor import Dim, Tensor

if TYPE_CHECKING:
    import torch

__all__ = [
    "drop",
    "has_autocast",
    "is_exactly",
    "is_on_torch",
    "is_traced",
    "kept",
    "raw_of",
    "tensor_of",
    "padding_of",
    "parameter_of",
    "use_mask",
]

ModuleT = TypeVar("ModuleT", bound=rf.Module)


def is_on_torch(source: Tensor, parameter: Tensor | None = None) -> bool:
    """
    :param source: of a module
    :param parameter: of it
    :return: whether it is one of PyTorch's tensors (and not a packed one), of the parameter's type or to be cast to it,
        and computed rather than traced (for ONNX, say): a graph holds for other lengths only with RETURNN's operations
    """
    if source._raw_backend is None or source._raw_backend.name != "torch" or is_traced():
        return False
    if parameter is None or source.dtype == parameter.dtype:
        return True
    return source.dtype != "float64" and has_autocast(source.raw_tensor.device)


def is_traced() -> bool:
    """:return: whether PyTorch records operations as a graph, where sizes are no numbers"""
    import torch

    return torch.jit.is_tracing()  # type: ignore[attr-defined]


def has_autocast(device: torch.device) -> bool:
    """:return: whether PyTorch casts what is computed there to half precision"""
    import torch

    return device.type != "meta" and torch.is_autocast_enabled(device.type)


def is_exactly(module: Any, cls: type[ModuleT]) -> TypeGuard[ModuleT]:
    """
    :return: whether a call of this module does what the class says, so that its part can be done without it: it is of
        no subclass (a parametrised module is), and has no hooks
    """
    return type(module) is cls and "__call__" not in vars(module)


def raw_of(source: Tensor, *last: Dim) -> tuple[torch.Tensor, tuple[Dim, ...]]:
    """
    :param source: on PyTorch
    :param last: the dims that come last
    :return: raw tensor, all the other dims
    """
    dims = source.dims
    if dims[-len(last) :] != last:
        source = source.copy_transpose([dim for dim in dims if dim not in last] + list(last))
        dims = source.dims
    return source.raw_tensor, dims[: -len(last)]


def tensor_of(raw: torch.Tensor, *dims: Dim) -> Tensor:
    """
    :param raw: its last dim is the features'
    :param dims: of it
    :return: the way back
    """
    dtype = str(raw.dtype)[len("torch.") :]
    return Tensor("fused", dims=dims, dtype=dtype, feature_dim_axis=len(dims) - 1, raw_tensor=raw)


def parameter_of(parameter: Tensor | None, *dims: Dim) -> Any:
    """:return: raw tensor of a parameter, with its dims in this order; None for none"""
    if parameter is None:
        return None
    if len(dims) == 1 or parameter.dims == dims:
        return parameter.raw_tensor
    return parameter.copy_compatible_to_dims_raw(dims)


def padding_of(dim: Dim, dims: Sequence[Dim], *, device: str | None) -> torch.Tensor | None:
    """
    :param dim: one of
    :param dims: in this order
    :return: True on padding, ``{dims}`` (broadcast); None if there is none
    """
    if not dim.need_masking():
        return None
    sizes = dim.dyn_size_ext.raw_tensor
    if sizes.device.type == "cpu" and sizes.numel() and not rf.is_static_traceable():
        if sizes.numel() == 1 or bool((sizes == sizes.max()).all()):
            return None
    return ~dim.get_mask(device=device).copy_compatible_to_dims_raw(dims)


def kept(raw: torch.Tensor, rate: float, *, broadcast: bool) -> torch.Tensor:
    """
    :param raw: what dropout is applied to
    :param rate: probability of 0
    :param broadcast: over all but the last dim
    :return: 0 or 1, to be multiplied by ``1 / (1 - rate)``
    :raises ValueError: for a rate below 0 or from 1 on
    """
    import torch

    if not 0.0 <= rate < 1.0:
        raise ValueError(f"dropout: expected a rate >= 0 and < 1, got {rate}")
    shape = raw.shape[-1:] if broadcast else raw.shape
    drawn = torch.rand(shape, device=raw.device).ge_(rate)
    return drawn if drawn.dtype == raw.dtype else drawn.to(raw.dtype)


def drop(raw: torch.Tensor, rate: float, *, broadcast: bool) -> torch.Tensor:
    """
    :param raw: any
    :param rate: probability of 0
    :param broadcast: over all but the last dim
    :return: with dropout, if it is to be applied now
    """
    if not rate or not rf.get_run_ctx().is_train_flag_enabled(func=rf.dropout):
        return raw
    return raw * kept(raw, rate, broadcast=broadcast).mul_(1.0 / (1.0 - rate))


def use_mask(what: str) -> bool:
    """:return: whether RETURNN's operation of this name masks its input, in this config"""
    return bool(rf.use_mask_default(default=True, default_false_for_behavior_version_up_to=22, func_name=what))
