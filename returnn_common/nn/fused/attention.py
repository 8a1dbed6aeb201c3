"""
Self-attention with relative positions.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import returnn.frontend as rf
from returnn.tensor import Dim, Tensor

from .positions import relative_positions
from .raw import has_autocast, is_on_torch, kept, padding_of, parameter_of, raw_of, tensor_of

if TYPE_CHECKING:
    import torch

__all__ = ["FusedRelPosSelfAttention"]

_projected: WeakKeyDictionary[rf.Module, tuple[tuple, torch.Tensor]] = WeakKeyDictionary()


class FusedRelPosSelfAttention(rf.RelPosSelfAttention):
    """
    Content and positions are added where the scores are computed, and the shift of the positions is a view.
    """

    def __call__(self, source: Tensor, *, axis: Dim, **kwargs) -> Tensor:
        """see :class:`returnn.frontend.RelPosSelfAttention`"""
        if not self._can_fuse(source, axis):
            return super().__call__(source, axis=axis, **kwargs)
        import torch

        raw, batch_dims = raw_of(self.qkv(source), axis, self.qkv_dim_total)
        heads, size = int(self.num_heads.dimension), int(self.key_dim_per_head.dimension)
        frames, batch_shape = raw.shape[-2], raw.shape[:-2]
        positions = self._positions(frames, dtype=source.raw_tensor.dtype, device=raw.device)
        # {heads, batch, T, d} of each
        query, key, value = (
            raw.reshape(-1, frames, heads, raw.shape[-1] // heads)
            .permute(2, 0, 1, 3)
            .split([size, size, int(self.value_dim_per_head.dimension)], dim=-1)
        )
        batch = query.shape[1]
        bias_u, bias_v = (
            parameter_of(x, self.num_heads, self.key_dim_per_head).to(raw.dtype)[:, None, None]
            for x in (self.pos_bias_u, self.pos_bias_v)
        )
        positions = positions.to(raw.dtype).view(-1, heads, size).permute(1, 2, 0)  # {heads, d, 2 T - 1}
        by_position = torch.bmm((query + bias_v).reshape(heads, batch * frames, size), positions)
        by_position = _shift(by_position.view(heads * batch, frames, -1))
        scores = torch.baddbmm(
            by_position,
            (query + bias_u).reshape(heads * batch, frames, size),
            key.reshape(heads * batch, frames, size).transpose(1, 2),
            beta=size**-0.5,
            alpha=size**-0.5,
        )
        padding = padding_of(axis, (*batch_dims, axis), device=source.device)
        if padding is not None:
            padding = padding.expand(*batch_shape, frames).reshape(1, batch, 1, frames)
            scores.view(heads, batch, frames, frames).masked_fill_(padding, torch.finfo(scores.dtype).min)
        weights = torch.softmax(scores, dim=-1)
        value = value.reshape(heads * batch, frames, -1)
        if self.att_dropout and rf.get_run_ctx().is_train_flag_enabled(func=rf.dropout):
            weights = weights * kept(weights, self.att_dropout, broadcast=False)
        out = torch.bmm(weights, value).view(heads, batch, frames, -1).permute(1, 2, 0, 3)
        out = out.reshape(*batch_shape, frames, int(self.value_dim_total.dimension))
        result = tensor_of(out, *batch_dims, axis, self.value_dim_total)
        return self.proj(result) if self.proj else result

    def _positions(self, num_frames: int, **options) -> torch.Tensor:
        """:return: of the distances, ``{2 num_frames - 1, keys}``; without gradients, what was computed last is kept"""
        import torch

        linear = self.linear_pos
        assert linear is not None  # as _can_fuse makes sure
        weight = linear.weight.raw_tensor
        key = None
        if not torch.is_grad_enabled() and weight.device.type == "cpu" and not has_autocast(weight.device):
            key = num_frames, *options.values(), _fingerprint(weight)
            known = _projected.get(self)
            if known is not None and known[0] == key:
                return known[1]
        size = int(self.pos_emb_feat_dim.dimension)
        distances = relative_positions(num_frames, size, **options)
        distances = tensor_of(distances, Dim(len(distances), name="distance"), self.pos_emb_feat_dim)
        positions = linear(distances).raw_tensor
        if key is not None and not positions.is_inference():
            _projected[self] = key, positions
        return positions

    def _can_fuse(self, source: Tensor, axis: Dim) -> bool:
        return (
            is_on_torch(source, self.qkv.weight)
            and not isinstance(self.att_dropout, Tensor)
            and axis in source.dims
            and self.in_dim in source.dims
            and self.learned_pos_emb is None
            and self.linear_pos is not None
            and self.separate_pos_emb_per_head
            and self.pos_bias_u is not None
            and not isinstance(self.pos_emb_dropout, Tensor)
            and not self.pos_emb_dropout
            and axis.get_dim_value() > 0
            and not (self.att_dropout and self.att_dropout_broadcast)
        )


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
