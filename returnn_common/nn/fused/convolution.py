"""
Depthwise convolution over time, and the Conformer's module around it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import returnn.frontend as rf
from returnn.frontend.encoder.conformer import ConformerConvBlock
from returnn.tensor import Dim, Tensor

from .batch_norm import FusedBatchNorm
from .frames import Frames
from .layers import FusedLayerNorm, FusedLinear
from .raw import is_exactly, is_on_torch, parameter_of, raw_of, tensor_of, use_mask

if TYPE_CHECKING:
    import torch

__all__ = ["FusedConv1d", "FusedConvBlock"]


class FusedConv1d(rf.Conv1d):
    """On the CPU: depthwise convolution without moving the features in memory. Any other is RETURNN's."""

    def __call__(
        self, source: Tensor, *, in_spatial_dim: Dim, out_spatial_dim: Dim | None = None
    ) -> tuple[Tensor, Dim]:
        """see :class:`returnn.frontend.Conv1d`"""
        if out_spatial_dim is not None or not self._can_fuse(source, in_spatial_dim):
            return super()._call_nd1(source, in_spatial_dim=in_spatial_dim, out_spatial_dim=out_spatial_dim)
        rows, frames = Frames.of(source, in_spatial_dim, self.in_dim)
        return frames.tensor(self.on_rows(rows, frames), self.out_dim), in_spatial_dim

    def fits(self, frames: Frames) -> bool:
        """see :mod:`.frames`"""
        return self._is_depthwise() and frames.fit(self.filter) and frames.device == "cpu"

    def on_rows(self, rows: torch.Tensor, frames: Frames) -> torch.Tensor:
        """
        :param rows: raw, ``{rows, in_dim}``
        :param frames: whose they are
        :return: like rows
        """
        import torch

        length, features = frames.length, rows.shape[-1]
        raw = rows.view(-1, length, features)
        if frames.padding is not None and use_mask("conv"):
            raw = raw.masked_fill(frames.padding[..., None], 0.0)
        (size,) = (int(dim.dimension) for dim in self.filter_size)
        weight = parameter_of(self.filter, self.out_dim, self.filter_in_dim, *self.filter_size)
        # {batch, features, time, 1}, with the features side by side in memory: as they are, and as oneDNN wants them
        image = raw[:, :, None].permute(0, 3, 1, 2)
        # Zeros: of an even size, more of them behind; and oneDNN's gradient takes 5 times as long if time is shorter
        # than the filter.
        before = (size - 1) // 2 if size % 2 == 0 else 0
        behind = size // 2 if size % 2 == 0 else 0
        if torch.is_grad_enabled():
            behind = max(behind, size - length)
        if before or behind:
            image = torch.nn.functional.pad(image, (0, 0, before, behind))
        out = torch.conv2d(
            image,
            weight[..., None],
            parameter_of(self.bias, self.out_dim),
            padding=(size // 2 if size % 2 else 0, 0),
            groups=features,
        )
        return out[:, :, :length].permute(0, 2, 3, 1).reshape(rows.shape)

    def _can_fuse(self, source: Tensor, in_spatial_dim: Dim) -> bool:
        return (
            self._is_depthwise()
            and is_on_torch(source, self.filter)
            and in_spatial_dim in source.dims
            and self.in_dim in source.dims
            and source.raw_tensor.device.type == "cpu"  # on a GPU, RETURNN has kernels of its own
        )

    def _is_depthwise(self) -> bool:
        is_plain = self.padding == "same" and self.strides in (None, [1]) and self.dilation_rate in (None, 1)
        return is_plain and self.groups == self.in_dim.dimension == self.out_dim.dimension


class FusedConvBlock(ConformerConvBlock):
    """The gate in one."""

    def __call__(self, inp: Tensor, *, spatial_dim: Dim) -> Tensor:
        """see RETURNN's ``ConformerConvBlock``"""
        if not is_on_torch(inp) or spatial_dim not in inp.dims:
            return super().__call__(inp, spatial_dim=spatial_dim)
        import torch

        raw, dims = raw_of(self.positionwise_conv1(inp), 2 * self.out_dim)
        x = tensor_of(torch.nn.functional.glu(raw), *dims, self.out_dim)
        x, _ = self.depthwise_conv(x, in_spatial_dim=spatial_dim)  # type: ignore[call-arg]
        x = self.norm(x, **({"spatial_dim": spatial_dim} if self._norm_wants_spatial_dim else {}))
        raw, dims = raw_of(x, self.out_dim)
        return self.positionwise_conv2(tensor_of(torch.nn.functional.silu(raw), *dims, self.out_dim))

    def fits(self, frames: Frames) -> bool:
        """see :mod:`.frames`"""
        first, last, conv, norm = self.positionwise_conv1, self.positionwise_conv2, self.depthwise_conv, self.norm
        return (
            is_exactly(first, FusedLinear)
            and is_exactly(last, FusedLinear)
            and is_exactly(conv, FusedConv1d)
            and (is_exactly(norm, FusedBatchNorm) or is_exactly(norm, FusedLayerNorm))
            and all(part.fits(frames) for part in (first, last, conv, norm))
        )

    def on_rows(self, rows: torch.Tensor, frames: Frames) -> torch.Tensor:
        """
        :param rows: raw, ``{rows, out_dim}``
        :param frames: whose they are
        :return: like rows
        """
        import torch

        first, last, conv, norm = self.positionwise_conv1, self.positionwise_conv2, self.depthwise_conv, self.norm
        assert isinstance(first, FusedLinear) and isinstance(last, FusedLinear) and isinstance(conv, FusedConv1d)
        rows = conv.on_rows(torch.nn.functional.glu(first.on_rows(rows)), frames)
        if isinstance(norm, FusedBatchNorm):
            rows = norm.on_rows(rows, frames.dims)
        else:
            assert isinstance(norm, FusedLayerNorm)
            rows = norm.on_rows(rows)
        return last.on_rows(torch.nn.functional.silu(rows))
