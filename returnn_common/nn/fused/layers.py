"""
Linear transformation and the norms.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import returnn.frontend as rf
from returnn.frontend.decoder.transformer import FeedForward
from returnn.frontend.encoder.conformer import ConformerPositionwiseFeedForward
from returnn.tensor import Dim, Tensor

from ..batch_norm import BatchNorm
from .raw import is_exactly, is_on_torch, kept, padding_of, parameter_of, raw_of, tensor_of

if TYPE_CHECKING:
    import torch

__all__ = ["FusedConformerFeedForward", "FusedFeedForward", "FusedLinear", "FusedLayerNorm", "FusedBatchNorm"]

_ACTIVATIONS = {rf.swish: "silu", rf.silu: "silu", rf.relu: "relu", rf.gelu: "gelu"}


class FusedLinear(rf.Linear):
    """Matrix product and bias in one."""

    def __call__(self, source: Tensor) -> Tensor:
        """see :class:`returnn.frontend.Linear`"""
        if not self.can_fuse(source):
            return super().__call__(source)
        raw, dims = raw_of(source, self.in_dim)
        rows = self.on_rows(raw.reshape(-1, raw.shape[-1]))
        return tensor_of(rows.view(*raw.shape[:-1], rows.shape[-1]), *dims, self.out_dim)

    def can_fuse(self, source: Tensor) -> bool:
        """:return: whether it is one matrix product"""
        if type(self) is not FusedLinear:  # parametrised: whoever asks for the weight twice gets two
            return False
        is_matrix = len(self.weight.dims) == 2 and self.weight.dims[1] == self.out_dim
        if not is_matrix or not is_on_torch(source, self.weight) or self.in_dim not in source.dims:
            return False
        return self.out_dim not in source.dims or self.out_dim == self.in_dim

    def on_rows(self, rows: torch.Tensor) -> torch.Tensor:
        """
        :param rows: raw, ``{rows, in_dim}``
        :return: ``{rows, out_dim}``
        """
        import torch

        # Not `linear`, whose gradient of the weight would be laid out in memory the other way round than the weight.
        if self.bias is None:
            return torch.mm(rows, self.weight.raw_tensor)
        return torch.addmm(self.bias.raw_tensor, rows, self.weight.raw_tensor)


class FusedFeedForward(FeedForward):
    """Both linear transformations, and what is between them, without the frontend's part in between."""

    def __call__(self, inp: Tensor) -> Tensor:
        """see RETURNN's ``FeedForward``"""
        first, second = self.linear_ff, self.linear_out
        if (
            not is_exactly(first, FusedLinear)
            or not is_exactly(second, FusedLinear)
            or isinstance(self.dropout, Tensor)
            or self.activation not in _ACTIVATIONS
            or first.out_dim != second.in_dim
            or not first.can_fuse(inp)
        ):
            return super().__call__(inp)
        import torch

        raw, dims = raw_of(inp, first.in_dim)
        rows = first.on_rows(raw.reshape(-1, raw.shape[-1]))
        rows = getattr(torch.nn.functional, _ACTIVATIONS[self.activation])(rows)
        if self.dropout and rf.get_run_ctx().is_train_flag_enabled(func=rf.dropout):
            rows = rows * kept(rows, self.dropout, broadcast=self.dropout_broadcast)
        rows = second.on_rows(rows)
        return tensor_of(rows.view(*raw.shape[:-1], rows.shape[-1]), *dims, second.out_dim)


class FusedConformerFeedForward(FusedFeedForward, ConformerPositionwiseFeedForward):
    """same, of the Conformer"""


class FusedLayerNorm(rf.LayerNorm):
    """Mean, variance, scale and bias in one; sums in single precision whatever the input's."""

    def __call__(self, x: Tensor) -> Tensor:
        """see :class:`returnn.frontend.LayerNorm`"""
        dim = self.in_dim
        if not isinstance(dim, Dim) or dim not in x.dims or not is_on_torch(x, self.scale):
            return super().__call__(x)
        import torch

        raw, dims = raw_of(x, dim)
        scale, bias = parameter_of(self.scale, dim), parameter_of(self.bias, dim)
        out = torch.nn.functional.layer_norm(raw, (raw.shape[-1],), scale, bias, self.eps)
        return tensor_of(out.to(raw.dtype), *dims, dim)


class FusedBatchNorm(BatchNorm):
    """On the CPU: the valid frames are put side by side, and normalised in one."""

    def __call__(self, source: Tensor) -> Tensor:
        """see :class:`returnn_common.nn.BatchNorm`"""
        if (
            self.in_dim not in source.dims
            or not is_on_torch(source, self.gamma)
            or source.raw_tensor.device.type != "cpu"
        ):
            return super().__call__(source)
        import torch

        raw, dims = raw_of(source, self.in_dim)
        gamma, beta = parameter_of(self.gamma, self.in_dim), parameter_of(self.beta, self.in_dim)
        if not rf.get_run_ctx().is_train_flag_enabled(func=BatchNorm.__call__):
            mean = parameter_of(self.running_mean, self.in_dim)
            scale = torch.rsqrt(parameter_of(self.running_variance, self.in_dim) + self.eps) * gamma
            out = torch.addcmul(beta - mean * scale, raw, scale)
            return tensor_of(out.to(raw.dtype), *dims, self.in_dim)
        frames = raw.reshape(-1, raw.shape[-1])
        valid = valid_rows(dims)
        picked = frames if valid is None else frames.index_select(0, valid)
        if not len(picked):
            return super().__call__(source)
        out, mean, inverse = torch.native_batch_norm(picked, gamma, beta, None, None, True, 0.0, self.eps)
        variance = inverse.detach() ** -2 - self.eps
        self._update(self.running_mean, tensor_of(mean.detach(), self.in_dim), True)
        self._update(self.running_variance, tensor_of(variance, self.in_dim), True)
        if valid is not None:
            out = torch.zeros_like(frames).index_copy(0, valid, out.to(frames.dtype))
        return tensor_of(out.view(raw.shape), *dims, self.in_dim)


def valid_rows(dims: Sequence[Dim]) -> torch.Tensor | None:
    """
    :return: of all entries of these dims, the indices of those that are no padding, ``{rows}``; None for all
    """
    paddings = [padding_of(dim, dims, device="cpu") for dim in dims]
    paddings = [x for x in paddings if x is not None]
    if not paddings:
        return None
    import torch

    padding = torch.zeros([int(dim.get_dim_value()) for dim in dims], dtype=torch.bool)
    for x in paddings:
        padding = padding | x
    return (~padding).view(-1).nonzero().squeeze(1)
