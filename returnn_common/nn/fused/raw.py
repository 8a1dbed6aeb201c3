"""
Between the frontend's tensors and PyTorch's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import returnn.frontend as rf
from returnn.tensor import Dim, Tensor

if TYPE_CHECKING:
    import torch

__all__ = ["is_on_torch", "kept", "raw_of", "tensor_of", "padding_of", "parameter_of", "use_mask"]


def is_on_torch(source: Tensor, parameter: Tensor | None = None) -> bool:
    """
    :param source: of a module
    :param parameter: of it
    :return: whether it is one of PyTorch's tensors (and not a packed one), of the parameter's type or to be cast to it
    """
    if source._raw_backend is None or source._raw_backend.name != "torch":
        return False
    if parameter is None or source.dtype == parameter.dtype:
        return True
    import torch

    return torch.is_autocast_enabled(source.raw_tensor.device.type)


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
    :return: factors: 0, or ``1 / (1 - rate)``
    """
    import torch

    shape = raw.shape[-1:] if broadcast else raw.shape
    return (torch.rand(shape, device=raw.device) >= rate).to(raw.dtype).mul_(1.0 / (1.0 - rate))


def use_mask(what: str) -> bool:
    """:return: whether RETURNN's operation of this name masks its input, in this config"""
    return bool(rf.use_mask_default(default=True, default_false_for_behavior_version_up_to=22, func_name=what))
