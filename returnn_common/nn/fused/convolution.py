"""
Depthwise convolution over time, and the Conformer's module around it.
"""

from __future__ import annotations

import returnn.frontend as rf
from returnn.frontend.encoder.conformer import ConformerConvBlock
from returnn.tensor import Dim, Tensor

from .raw import is_on_torch, padding_of, parameter_of, raw_of, tensor_of, use_mask

__all__ = ["FusedConv1d", "FusedConvBlock"]


class FusedConv1d(rf.Conv1d):
    """On the CPU: depthwise convolution without moving the features in memory. Any other is RETURNN's."""

    def __call__(
        self, source: Tensor, *, in_spatial_dim: Dim, out_spatial_dim: Dim | None = None
    ) -> tuple[Tensor, Dim]:
        """see :class:`returnn.frontend.Conv1d`"""
        if out_spatial_dim is not None or not self._can_fuse(source, in_spatial_dim):
            return super()._call_nd1(source, in_spatial_dim=in_spatial_dim, out_spatial_dim=out_spatial_dim)
        import torch

        raw, batch_dims = raw_of(source, in_spatial_dim, self.in_dim)
        dims = *batch_dims, in_spatial_dim
        padding = padding_of(in_spatial_dim, dims, device=source.device) if use_mask("conv") else None
        if padding is not None:
            raw = raw.masked_fill(padding[..., None], 0.0)
        (size,) = (int(dim.dimension) for dim in self.filter_size)
        weight = parameter_of(self.filter, self.out_dim, self.filter_in_dim, *self.filter_size)
        # {batch, features, time, 1}, with the features side by side in memory: as they are, and as oneDNN wants them
        image = raw.reshape(-1, raw.shape[-2], 1, raw.shape[-1]).permute(0, 3, 1, 2)
        if size % 2 == 0:
            image = torch.nn.functional.pad(image, (0, 0, (size - 1) // 2, size // 2))
        out = torch.nn.functional.conv2d(
            image,
            weight[..., None],
            parameter_of(self.bias, self.out_dim),
            padding=(size // 2 if size % 2 else 0, 0),
            groups=raw.shape[-1],
        )
        return tensor_of(out.permute(0, 2, 3, 1).reshape(raw.shape), *dims, self.out_dim), in_spatial_dim

    def _can_fuse(self, source: Tensor, in_spatial_dim: Dim) -> bool:
        is_plain = self.padding == "same" and self.strides in (None, [1]) and self.dilation_rate in (None, 1)
        return (
            is_plain
            and self.groups == self.in_dim.dimension == self.out_dim.dimension
            and is_on_torch(source, self.filter)
            and in_spatial_dim in source.dims
            and self.in_dim in source.dims
            and source.raw_tensor.device.type == "cpu"  # on a GPU, RETURNN has kernels of its own
        )


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
