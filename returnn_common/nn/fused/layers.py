"""
Linear transformation, feed-forward, and layer norm.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import returnn.frontend as rf
from returnn.frontend.decoder.transformer import FeedForward
from returnn.frontend.encoder.conformer import ConformerPositionwiseFeedForward
from returnn.tensor import Dim, Tensor

from .frames import Frames
from .raw import drop, is_exactly, is_on_torch, parameter_of, raw_of, tensor_of

if TYPE_CHECKING:
    import torch

__all__ = ["FusedConformerFeedForward", "FusedFeedForward", "FusedLinear", "FusedLayerNorm"]

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
        if not self._is_matrix() or not is_on_torch(source, self.weight) or self.in_dim not in source.dims:
            return False
        return self.out_dim not in source.dims or self.out_dim == self.in_dim

    def fits(self, frames: Frames) -> bool:
        """see :mod:`.frames`"""
        return self._is_matrix() and frames.fit(self.weight)

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

    def _is_matrix(self) -> bool:
        dims = self.weight.dims
        return len(dims) == 2 and dims[1] == self.out_dim


class FusedFeedForward(FeedForward):
    """Both linear transformations, and what is between them, without the frontend's part in between."""

    def __call__(self, inp: Tensor) -> Tensor:
        """see RETURNN's ``FeedForward``"""
        linears = self._linears()
        if linears is None or not linears[0].can_fuse(inp):
            return super().__call__(inp)
        first, second = linears
        raw, dims = raw_of(inp, first.in_dim)
        rows = self.on_rows(raw.reshape(-1, raw.shape[-1]))
        return tensor_of(rows.view(*raw.shape[:-1], rows.shape[-1]), *dims, second.out_dim)

    def fits(self, frames: Frames) -> bool:
        """see :mod:`.frames`"""
        linears = self._linears()
        return (
            linears is not None
            and linears[0].in_dim == linears[1].out_dim == self.out_dim
            and all(linear.fits(frames) for linear in linears)
        )

    def on_rows(self, rows: torch.Tensor) -> torch.Tensor:
        """
        :param rows: raw, ``{rows, out_dim}``
        :return: same
        """
        import torch

        first, second = self.linear_ff, self.linear_out
        assert isinstance(first, FusedLinear) and isinstance(second, FusedLinear)
        rows = getattr(torch.nn.functional, _ACTIVATIONS[self.activation])(first.on_rows(rows))
        return second.on_rows(drop(rows, self.dropout, broadcast=self.dropout_broadcast))

    def _linears(self) -> tuple[FusedLinear, FusedLinear] | None:
        """:return: both linear transformations, if nothing stands in the way of doing without their calls"""
        first, second = self.linear_ff, self.linear_out
        if not is_exactly(first, FusedLinear) or not is_exactly(second, FusedLinear):
            return None
        if isinstance(self.dropout, Tensor) or self.activation not in _ACTIVATIONS or first.out_dim != second.in_dim:
            return None
        return first, second


class FusedConformerFeedForward(FusedFeedForward, ConformerPositionwiseFeedForward):
    """same, of the Conformer"""


class FusedLayerNorm(rf.LayerNorm):
    """Mean, variance, scale and bias in one; sums in single precision whatever the input's."""

    def __call__(self, x: Tensor) -> Tensor:
        """see :class:`returnn.frontend.LayerNorm`"""
        dim = self.in_dim
        if not isinstance(dim, Dim) or dim not in x.dims or not is_on_torch(x, self.scale):
            return super().__call__(x)
        raw, dims = raw_of(x, dim)
        return tensor_of(self.on_rows(raw), *dims, dim)

    def fits(self, frames: Frames) -> bool:
        """see :mod:`.frames`"""
        return isinstance(self.in_dim, Dim) and frames.fit(self.scale)

    def on_rows(self, rows: torch.Tensor) -> torch.Tensor:
        """
        :param rows: raw, ``{..., in_dim}``
        :return: same
        """
        import torch

        assert isinstance(self.in_dim, Dim)
        scale, bias = parameter_of(self.scale, self.in_dim), parameter_of(self.bias, self.in_dim)
        out = torch.layer_norm(rows, rows.shape[-1:], scale, bias, self.eps)
        return out if out.dtype == rows.dtype else out.to(rows.dtype)
