"""
Self-attention with rotary positions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from returnn.tensor import Tensor

from ..rotary import RotarySelfAttention
from .frames import Frames
from .heads import SelfAttentionOnRows, split_heads, weighted_values
from .layers import FusedLinear
from .positions import rotations
from .raw import is_exactly

if TYPE_CHECKING:
    import torch

__all__ = ["FusedRotarySelfAttention"]


class FusedRotarySelfAttention(SelfAttentionOnRows, RotarySelfAttention):
    """On the CPU: queries and keys are turned in two products with what was computed once."""

    def fits(self, frames: Frames) -> bool:
        """see :mod:`.frames`"""
        return (
            all(is_exactly(linear, FusedLinear) and linear.fits(frames) for linear in (self.qkv, self.proj))
            and frames.length > 0
            and frames.device == "cpu"  # on a GPU, PyTorch has kernels of its own
            and not isinstance(self.att_dropout, Tensor)
            and not (self.att_dropout and self.att_dropout_broadcast)
        )

    def on_rows(self, rows: torch.Tensor, frames: Frames) -> torch.Tensor:
        """
        :param rows: raw, ``{rows, in_dim}``
        :param frames: whose they are
        :return: ``{rows, out_dim}``
        """
        import torch

        assert isinstance(self.qkv, FusedLinear) and isinstance(self.proj, FusedLinear)
        qkv = self.qkv.on_rows(rows)
        query, key, value = split_heads(self, qkv, frames)
        heads, batch, length, size = query.shape
        cosine, sine = rotations(length, size, dtype=qkv.dtype, device=qkv.device)
        query, key = (
            torch.addcmul(x * cosine, x.unflatten(-1, (-1, 2)).flip(-1).flatten(-2), sine).reshape(-1, length, size)
            for x in (query, key)
        )
        scores = torch.bmm(query * size**-0.5, key.transpose(1, 2))
        return self.proj.on_rows(weighted_values(scores, value, frames, dropout=self.att_dropout))
