"""
What kinds of self-attention share, on rows.

Glossary of the shapes: ``rows``: batch and time, see :mod:`.frames`; ``T``: time; ``d``: of a head.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import returnn.frontend as rf
from returnn.tensor import Dim, Tensor

from .frames import Frames
from .raw import drop, is_on_torch

if TYPE_CHECKING:
    import torch

__all__ = ["SelfAttentionOnRows", "split_heads", "weighted_values"]


class SelfAttentionOnRows(rf.Module):
    """In front of a kind of self-attention: calls ``on_rows`` where it ``fits``, see :mod:`.frames`."""

    in_dim: Dim
    value_dim_total: Dim
    qkv: Any
    proj: Any
    fits: Any
    on_rows: Any

    def __call__(self, source: Tensor, *, axis: Dim, **kwargs: Any) -> Tensor:
        """see the self-attention"""
        if is_on_torch(source, self.qkv.weight) and axis in source.dims and self.in_dim in source.dims:
            rows, frames = Frames.of(source, axis, self.in_dim)
            if self.fits(frames):
                out_dim = self.proj.out_dim if self.proj else self.value_dim_total
                return frames.tensor(self.on_rows(rows, frames), out_dim)
        return super().__call__(source, axis=axis, **kwargs)


def split_heads(module: rf.RelPosSelfAttention | rf.SelfAttention, qkv: torch.Tensor, frames: Frames):
    """
    :param module: whose sizes these are
    :param qkv: ``{rows, heads * (2 d + values)}``
    :param frames: whose rows
    :return: query, key, value: views, ``{heads, batch, T, d}``
    """
    heads, size = int(module.num_heads.dimension), int(module.key_dim_per_head.dimension)
    parts = qkv.view(-1, frames.length, heads, qkv.shape[-1] // heads).permute(2, 0, 1, 3)
    return parts.split([size, size, parts.shape[-1] - 2 * size], dim=-1)


def weighted_values(scores: torch.Tensor, value: torch.Tensor, frames: Frames, *, dropout: float) -> torch.Tensor:
    """
    :param scores: ``{heads * batch, T, T}``, by query and key; changed in place
    :param value: ``{heads, batch, T, d}``
    :param frames: whose padding no query sees
    :param dropout: on the weights
    :return: ``{rows, heads * d}``
    """
    import torch

    heads, batch, length, size = value.shape
    if frames.padding is not None:
        lowest = torch.finfo(scores.dtype).min
        scores.view(heads, batch, length, length).masked_fill_(frames.padding[None, :, None], lowest)
    weights = drop(torch.softmax(scores, dim=-1), dropout, broadcast=False)
    out = torch.bmm(weights, value.reshape(heads * batch, length, size))
    return out.view(heads, batch, length, size).permute(1, 2, 0, 3).reshape(batch * length, heads * size)
