"""
The Conformer's subsampling.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import returnn.frontend as rf
from returnn.frontend.conv import _should_use_consistent_same_padding
from returnn.frontend.encoder.conformer import ConformerConvSubsample
from returnn.tensor import Dim, Tensor

from .polyphase import convolve_twice
from .raw import is_exactly, is_on_torch, padding_of, parameter_of, raw_of, tensor_of, use_mask

if TYPE_CHECKING:
    import torch

__all__ = ["FusedConvSubsample"]

_MANY_FRAMES = 400


class FusedConvSubsample(ConformerConvSubsample):
    """
    Rectifies and masks in place. On the CPU, the first convolution, which sees a single channel, is a matrix product,
    and two of them in training are :func:`convolve_twice`.
    """

    def __call__(self, source: Tensor, *, in_spatial_dim: Dim) -> tuple[Tensor, Dim]:
        """see RETURNN's ``ConformerConvSubsample``"""
        if not self._can_fuse(source, in_spatial_dim):
            return super().__call__(source, in_spatial_dim=in_spatial_dim)
        raw, batch_dims = raw_of(source, in_spatial_dim, self.in_dim)
        convolutions = list(self.conv_layers)
        same = convolutions[0].padding == "same"
        padding = None
        if use_mask("conv"):
            padding = padding_of(in_spatial_dim, (*batch_dims, in_spatial_dim), device=source.device)
        dims = self._times(in_spatial_dim, all_of_them=padding is not None)
        paddings: list[torch.Tensor | None] = [None] * (len(convolutions) + 1)
        if padding is not None:
            # Without zeros around, no frame that counts sees padding; the first mask keeps NaN out of what comes after.
            later = dims[1:] if same else []
            paddings = [padding, *(padding_of(dim, (*batch_dims, dim), device=source.device) for dim in later)]
            paddings += [None] * (len(dims) - len(paddings))
            paddings = [None if x is None else x.expand(*raw.shape[:-2], -1).flatten(0, -2) for x in paddings]
        x = raw.reshape(-1, *raw.shape[-2:])
        if paddings[0] is not None:
            x = x.masked_fill(paddings[0][..., None], 0.0)
        weights = [conv.filter.raw_tensor for conv in convolutions]
        biases = [parameter_of(conv.bias, conv.out_dim) for conv in convolutions]
        strides = [tuple(conv.strides) for conv in convolutions]
        if len(convolutions) == 2 and _pays_off(x):
            valid = None if paddings[1] is None else (~paddings[1]).to(x.dtype)
            x = convolve_twice(x, valid, weights, biases, strides, same=same).relu()
        else:
            x = x[:, None]
            for weight, bias, step, padding in zip(weights, biases, strides, [*paddings[1:-1], None], strict=True):
                x = _convolve(x, weight, bias, step, padding, same=same)
            x = x.permute(0, 2, 3, 1)
        # {batch, time, frequency, channels}
        return tensor_of(x.reshape(*raw.shape[:-2], x.shape[1], -1), *batch_dims, dims[-1], self.out_dim), dims[-1]

    def _times(self, in_spatial_dim: Dim, *, all_of_them: bool) -> list[Dim]:
        """:return: before the first convolution, after each one; at least the first and the last of these"""
        convolutions = list(self.conv_layers)
        if not all_of_them and convolutions[0].padding == "same":  # the same dim as by one division after the other
            return [in_spatial_dim, in_spatial_dim.ceildiv_right(math.prod(conv.strides[0] for conv in convolutions))]
        dims = [in_spatial_dim]
        for conv in convolutions:
            dims += rf.make_conv_out_spatial_dims(
                dims[-1:], filter_size=conv.filter_size[0], strides=conv.strides[0], padding=conv.padding
            )
        return dims

    def _can_fuse(self, source: Tensor, in_spatial_dim: Dim) -> bool:
        convolutions = list(self.conv_layers)
        return (
            is_on_torch(source, convolutions[0].filter)
            and self.in_dim in source.dims
            and in_spatial_dim in source.dims
            and all(is_exactly(conv, rf.Conv2d) and conv.dilation_rate in (None, 1) for conv in self.conv_layers)
            and self.activation is rf.relu
            and not self.pool_sizes
            and all(conv.bias is not None and conv.strides is not None and not conv.groups for conv in convolutions)
            and (self._is_padded_alike(convolutions) or all(conv.padding == "valid" for conv in convolutions))
        )

    @staticmethod
    def _is_padded_alike(convolutions: Sequence[rf.Conv2d]) -> bool:
        """:return: whether each is padded by as much before as behind"""
        return (
            all(conv.padding == "same" for conv in convolutions)
            and all(dim.dimension % 2 for conv in convolutions for dim in conv.filter_size)
            and _should_use_consistent_same_padding()
        )


def _pays_off(x: torch.Tensor) -> bool:
    """:return: whether :func:`convolve_twice` is faster: in training on the CPU, in single precision, from 4 s on"""
    import torch

    is_single = x.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")
    return x.device.type == "cpu" and is_single and torch.is_grad_enabled() and x.shape[0] * x.shape[1] >= _MANY_FRAMES


def _convolve(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    strides: Sequence[int],
    padding: torch.Tensor | None,
    *,
    same: bool,
) -> torch.Tensor:
    """
    :param x: ``{batch, channels, time, frequency}``
    :param weight: ``{out, channels, height, width}``
    :param bias: ``{out}``
    :param padding: True where the result is to be 0, ``{batch, time'}``
    :param same: whether x is padded, else only whole patches count
    :return: rectified, ``{batch, out, time', frequency'}``
    """
    import torch

    size = weight.shape[2:]
    margins = [n // 2 if same else 0 for n in size]
    lengths = [
        (n + 2 * margin - k) // s + 1 for n, margin, k, s in zip(x.shape[2:], margins, size, strides, strict=True)
    ]
    shape = (x.shape[0], weight.shape[0], *lengths)
    if x.shape[1] > 1 or x.device.type != "cpu":
        if not torch.is_grad_enabled():  # both, else oneDNN gets a copy of one
            x, weight = (t.contiguous(memory_format=torch.channels_last) for t in (x, weight))
        out = torch.conv2d(x, weight, bias, stride=strides, padding=margins)
    else:
        patches = torch.nn.functional.unfold(x, size, padding=margins, stride=strides)  # {batch, patch, places}
        rows = weight.flatten(1)
        if torch.is_grad_enabled():
            out = torch.baddbmm(bias[:, None], rows.expand(x.shape[0], -1, -1), patches)
        else:  # with the channels side by side in memory
            out = torch.addmm(bias, patches.transpose(1, 2).flatten(0, 1), rows.t())
            out = out.view(shape[0], *shape[2:], shape[1]).permute(0, 3, 1, 2)
    if padding is None:
        return out.relu_().view(shape)
    padding = padding[:, None, :, None]
    if not torch.is_grad_enabled():
        return out.view(shape).relu_().masked_fill_(padding, 0.0)
    return _relu_masked().apply(out, padding, shape).view(shape)


@lru_cache
def _relu_masked() -> Any:
    """:return: the function below, made when PyTorch is there"""
    import torch

    class ReluMasked(torch.autograd.Function):
        """``max(x, 0)``, and 0 on padding, in the place of x. Where the result is 0, the gradient is 0."""

        @staticmethod
        def forward(ctx, x, padding, shape):
            """
            :param x: is overwritten
            :param padding: True where the result is to be 0, broadcast over x as
            :param shape: this
            """
            x.relu_().view(shape).masked_fill_(padding, 0.0)
            ctx.mark_dirty(x)
            ctx.save_for_backward(x)
            return x

        @staticmethod
        def backward(ctx, grad):
            """:return: gradient of x"""
            (x,) = ctx.saved_tensors
            if x.is_contiguous():  # then oneDNN takes less time for it in this order
                grad = grad.contiguous()
            return torch.ops.aten.threshold_backward(grad, x, 0), None, None

    return ReluMasked
