"""
Self-attention with relative positions.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import returnn.frontend as rf
from returnn.tensor import Tensor

from .frames import Frames
from .heads import SelfAttentionOnRows, split_heads, weighted_values
from .layers import FusedLinear
from .positions import relative_positions
from .raw import has_autocast, is_exactly, parameter_of

if TYPE_CHECKING:
    import torch

__all__ = ["FusedRelPosSelfAttention"]

_projected: WeakKeyDictionary[rf.Module, tuple[tuple, torch.Tensor]] = WeakKeyDictionary()


class FusedRelPosSelfAttention(SelfAttentionOnRows, rf.RelPosSelfAttention):
    """
    Content and positions are added where the scores are computed, and the shift of the positions is a view.
    """

    def fits(self, frames: Frames) -> bool:
        """see :mod:`.frames`"""
        linears = [self.qkv, self.linear_pos, self.proj] if self.proj else [self.qkv, self.linear_pos]
        return (
            all(is_exactly(linear, FusedLinear) and linear.fits(frames) for linear in linears)
            and self.learned_pos_emb is None
            and self.separate_pos_emb_per_head
            and self.pos_bias_u is not None
            and not isinstance(self.pos_emb_dropout, Tensor)
            and not self.pos_emb_dropout
            and frames.length > 0
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

        assert isinstance(self.qkv, FusedLinear) and isinstance(self.linear_pos, FusedLinear)
        qkv = self.qkv.on_rows(rows)
        positions = self._positions(frames.length, dtype=getattr(torch, frames.dtype), device=rows.device)
        query, key, value = split_heads(self, qkv, frames)
        heads, batch, length, size = query.shape
        bias_u, bias_v = (
            parameter_of(x, self.num_heads, self.key_dim_per_head).to(qkv.dtype)[:, None, None]
            for x in (self.pos_bias_u, self.pos_bias_v)
        )
        positions = positions.to(qkv.dtype).view(-1, heads, size).permute(1, 2, 0)  # {heads, d, 2 T - 1}
        by_position = torch.bmm((query + bias_v).reshape(heads, batch * length, size), positions)
        by_position = _shift(by_position.view(heads * batch, length, -1))
        scores = torch.baddbmm(
            by_position,
            (query + bias_u).reshape(heads * batch, length, size),
            key.reshape(heads * batch, length, size).transpose(1, 2),
            beta=size**-0.5,
            alpha=size**-0.5,
        )
        out = weighted_values(scores, value, frames, dropout=self.att_dropout)
        return self.proj.on_rows(out) if isinstance(self.proj, FusedLinear) else out

    def _positions(self, num_frames: int, **options) -> torch.Tensor:
        """:return: of the distances, ``{2 num_frames - 1, keys}``; without gradients, what was computed last is kept"""
        import torch

        linear = self.linear_pos
        assert isinstance(linear, FusedLinear)
        weight = linear.weight.raw_tensor
        key = None
        if not torch.is_grad_enabled() and weight.device.type == "cpu" and not has_autocast(weight.device):
            key = num_frames, *options.values(), _fingerprint(weight)
            known = _projected.get(self)
            if known is not None and known[0] == key:
                return known[1]
        size = int(self.pos_emb_feat_dim.dimension)
        distances = relative_positions(num_frames, size, **options)
        positions = linear.on_rows(distances)
        if key is not None and not positions.is_inference():
            _projected[self] = key, positions
        return positions


def _fingerprint(weight: torch.Tensor) -> float:
    """:return: another number for other values. (PyTorch's own counter of changes misses those through ``data``.)"""
    import torch

    numbers = weight.detach().reshape(-1).to(torch.promote_types(weight.dtype, torch.float32))
    return float(numbers.dot(_random_numbers(len(numbers), numbers.dtype)))


@lru_cache(maxsize=16)
def _random_numbers(num: int, dtype: torch.dtype) -> torch.Tensor:
    import torch

    with torch.inference_mode(False):
        return torch.rand(num, dtype=dtype, generator=torch.Generator().manual_seed(1)) + 0.5


def _shift(x):
    """
    :param x: ``{rows, T, 2 T - 1}``, by query and distance from -(T - 1) to T - 1, contiguous
    :return: ``{rows, T, T}``, by query and key: of query i the distances from -i on (a view)
    """
    rows, frames, distances = x.shape
    return x.as_strided((rows, frames, frames), (frames * distances, distances - 1, 1), x.storage_offset() + frames - 1)
