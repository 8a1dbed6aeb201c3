"""
Self-attention in chunks, over a whole sequence with a mask, or chunk after chunk with a cache; both are the same.

Each frame attends to its own chunk and to a bounded number of chunks before it (Chen et al. 2021,
https://arxiv.org/abs/2010.11395; Zhang et al. 2020, https://arxiv.org/abs/2012.05481).
Positions are rotary (Su et al. 2021, https://arxiv.org/abs/2104.09864, eq. 34): only distances count, so that the cache
needs to know nothing about the time that has passed.

Shapes: left is the time of the cache, keys the time of what is attended to; heads, d: attention heads, their features.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import returnn.frontend as rf
from returnn.tensor import Dim, Tensor

from .causal_conv import prepend_context
from .rotary import rotate

__all__ = ["ChunkView", "ChunkedSelfAttention"]


@dataclass(frozen=True)
class ChunkView:
    """
    Which frames see which others. All layers share it.

    time: of the queries. keys_time: of keys and values. mask: ``{batch, time, keys}``, whether a frame sees another.
    positions: of the queries ``{time}``, in frames since the first key. key_positions: ``{keys}``
    """

    time: Dim
    keys_time: Dim
    mask: Tensor
    positions: Tensor
    key_positions: Tensor

    @staticmethod
    def of_sequence(time: Dim, *, chunk_size: int, left_chunks: int, device: str | None = None) -> ChunkView:
        """
        :param time: of a whole sequence
        :param chunk_size: in frames
        :param left_chunks: how many chunks before its own a frame sees
        :param device: of the mask
        """
        lengths = rf.cast(time.get_size_tensor(device=device), "float32")
        positions = rf.range_over_dim(time, dtype="float32", device=device)
        key_positions, keys_time = rf.replace_dim(positions, in_dim=time)
        mask = _mask(positions, key_positions, lengths, chunk_size=chunk_size, left_chunks=left_chunks)
        return ChunkView(time, keys_time, mask, positions, key_positions)

    @staticmethod
    def of_next_frames(
        time: Dim, valid: Tensor, *, left: Dim, chunk_size: int, left_chunks: int, device: str | None = None
    ) -> tuple[ChunkView, Tensor]:
        """
        :param time: of frames that follow on those in the cache, from the beginning of a chunk on
        :param valid: ``{batch, left}``, 1 where there is a frame in the cache, else 0
        :param left: ``chunk_size * left_chunks``
        :param chunk_size: in frames
        :param left_chunks: how many chunks before its own a frame sees
        :param device: of the mask
        :return: view; and valid for the frames that follow
        """
        ones = rf.ones([time], dtype="float32", device=device)
        # Not left + time itself: to the net dict, a dim that comes from another one is the same beside it.
        keys_time = Dim(None, name="keys")
        valid, _, new_valid = prepend_context(ones, valid, axis=time, context_dim=left, out_dim=keys_time)
        num_left = float(left.dimension or 0)
        lengths = rf.cast(time.get_size_tensor(device=device), "float32") + num_left
        positions = rf.range_over_dim(time, dtype="float32", device=device) + num_left
        earlier = rf.range_over_dim(left, dtype="float32", device=device)
        key_positions, _, _ = prepend_context(positions, earlier, axis=time, context_dim=left, out_dim=keys_time)
        mask = _mask(positions, key_positions, lengths, chunk_size=chunk_size, left_chunks=left_chunks)
        mask = rf.logical_and(mask, valid > 0.5)
        return ChunkView(time, keys_time, mask, positions, key_positions), new_valid


class ChunkedSelfAttention(rf.SelfAttentionBase):
    """
    :param in_dim: of the source; the further arguments are those of RETURNN's attention, as are the parameters
    :param proj_dim: of the output
    :param key_dim_total: of all heads together, a multiple of ``num_heads``; per head an even number
    :param value_dim_total: likewise
    :param num_heads:
    :param left_dim: left, the frames in the cache: ``chunk_size * left_chunks``, or None if there are none
    :param att_dropout: of the attention weights
    """

    def __init__(
        self,
        in_dim: Dim,
        proj_dim: Dim | None,
        *,
        key_dim_total: Dim,
        value_dim_total: Dim,
        num_heads: int | Dim,
        left_dim: Dim | None,
        att_dropout: float = 0.1,
    ):
        super().__init__(
            in_dim,
            proj_dim,
            key_dim_total=key_dim_total,
            value_dim_total=value_dim_total,
            num_heads=num_heads,
            att_dropout=att_dropout,
            att_dropout_broadcast=False,
        )
        self.left_dim = left_dim

    def initial_state(self, *, batch_dims: Sequence[Dim]) -> rf.State:
        """:return: ``key, value``: ``{batch, left, heads, d}``; empty without left context"""
        if self.left_dim is None:
            return rf.State()
        return rf.State(
            key=rf.zeros([*batch_dims, self.left_dim, self.num_heads, self.key_dim_per_head]),
            value=rf.zeros([*batch_dims, self.left_dim, self.num_heads, self.value_dim_per_head]),
        )

    def __call__(
        self, source: Tensor, *, view: ChunkView, state: rf.State | None = None
    ) -> tuple[Tensor, rf.State | None]:
        """
        :param source: ``{batch, time, in_dim}``
        :param view: which frames see which
        :param state: of the frames before; None for a whole sequence
        :return: ``{batch, time, proj_dim}``; new state, None for a whole sequence
        """
        queries, keys, values = self.forward_qkv(source)
        if state and self.left_dim is not None:
            options = {"axis": view.time, "context_dim": self.left_dim, "out_dim": view.keys_time}
            keys, _, new_keys = prepend_context(keys, state.key, **options)
            values, _, new_values = prepend_context(values, state.value, **options)
            state = rf.State(key=new_keys, value=new_values)
        else:
            keys, _ = rf.replace_dim(keys, in_dim=view.time, out_dim=view.keys_time)
            values, _ = rf.replace_dim(values, in_dim=view.time, out_dim=view.keys_time)
        queries = rotate(queries, positions=view.positions, feature_dim=self.key_dim_per_head)
        keys = rotate(keys, positions=view.key_positions, feature_dim=self.key_dim_per_head)
        return self._attend(queries, keys, values, view=view), state

    def _attend(self, queries: Tensor, keys: Tensor, values: Tensor, *, view: ChunkView) -> Tensor:
        queries = queries * self.key_dim_per_head.dimension**-0.5
        energies = rf.matmul(queries, keys, reduce=self.key_dim_per_head)
        # No frame sees nothing, so that there is something to sum up in each softmax.
        energies = rf.where(view.mask, energies, float("-inf"))
        weights = rf.softmax(energies, axis=view.keys_time, use_mask=False)
        weights = rf.dropout(weights, self.att_dropout, axis=False)
        result = rf.matmul(weights, values, reduce=view.keys_time, use_mask=False)
        result, _ = rf.merge_dims(result, dims=(self.num_heads, self.value_dim_per_head), out_dim=self.value_dim_total)
        return self.proj(result) if self.proj else result


def _mask(positions: Tensor, key_positions: Tensor, lengths: Tensor, *, chunk_size: int, left_chunks: int) -> Tensor:
    """
    :param lengths: ``{batch}``, number of keys
    :return: ``{batch, time, keys}``
    """
    distance = rf.combine_bc(positions, "-", key_positions)
    own = rf.logical_and(distance > -0.5, distance < 0.5)
    # A frame in the padding sees itself, so that no frame sees nothing. Others see valid frames only.
    valid = rf.compare_bc(key_positions, "<", lengths)
    valid = rf.combine_bc(own, "logical_or", valid)
    # The half keeps away from the edges of chunks, whichever way an engine divides.
    chunk, key_chunk = (rf.floor((x + 0.5) * (1.0 / chunk_size)) for x in (positions, key_positions))
    distance = rf.combine_bc(chunk, "-", key_chunk)
    return rf.logical_and(valid, rf.logical_and(distance > -0.5, distance < left_chunks + 0.5))
