"""
The Conformer's convolution module.
"""

from __future__ import annotations

import returnn.frontend as rf
from returnn.frontend.encoder.conformer import ConformerConvBlock
from returnn.tensor import Dim, Tensor

from .raw import is_on_torch, padding_of, parameter_of, raw_of, tensor_of, use_mask

__all__ = ["FusedConvBlock"]


class FusedConvBlock(ConformerConvBlock):
    """Gate, mask and depthwise convolution without moving the features in memory."""

    def __call__(self, inp: Tensor, *, spatial_dim: Dim) -> Tensor:
        """see RETURNN's ``ConformerConvBlock``"""
        conv = self.depthwise_conv
        can_fuse = is_on_torch(inp, conv.filter) and spatial_dim in inp.dims and _is_depthwise(conv)
        if not can_fuse or inp.raw_tensor.device.type != "cpu":  # on a GPU, RETURNN has kernels of its own
            return super().__call__(inp, spatial_dim=spatial_dim)
        import torch

        x = self.positionwise_conv1(inp)
        raw, batch_dims = raw_of(x, spatial_dim, 2 * conv.in_dim)
        gated = torch.nn.functional.glu(raw)
        padding = padding_of(spatial_dim, (*batch_dims, spatial_dim), device=x.device) if use_mask("conv") else None
        if padding is not None:
            gated = gated.masked_fill(padding[..., None], 0.0)
        (size,) = (int(dim.dimension) for dim in conv.filter_size)
        weight = parameter_of(conv.filter, conv.out_dim, conv.filter_in_dim, *conv.filter_size)
        # {batch, features, time, 1}, with the features side by side in memory: as they are, and as oneDNN wants them
        image = gated.reshape(-1, gated.shape[-2], 1, gated.shape[-1]).permute(0, 3, 1, 2)
        if size % 2 == 0:
            image = torch.nn.functional.pad(image, (0, 0, (size - 1) // 2, size // 2))
        out = torch.nn.functional.conv2d(
            image,
            weight[..., None],
            parameter_of(conv.bias, conv.out_dim),
            padding=(size // 2 if size % 2 else 0, 0),
            groups=gated.shape[-1],
        )
        out = out.permute(0, 2, 3, 1).reshape(gated.shape)
        x = tensor_of(out, *batch_dims, spatial_dim, conv.out_dim)
        x = self.norm(x, **({"spatial_dim": spatial_dim} if self._norm_wants_spatial_dim else {}))
        return self.positionwise_conv2(rf.swish(x))


def _is_depthwise(conv: rf.Conv1d) -> bool:
    """:return: whether it is as RETURNN's Conformer makes it"""
    is_plain = conv.padding == "same" and conv.strides in (None, [1]) and conv.dilation_rate in (None, 1)
    return is_plain and conv.bias is not None and conv.groups == conv.in_dim.dimension == conv.out_dim.dimension
