"""
Rotary positions (RoFormer, Su et al. 2021, https://arxiv.org/abs/2104.09864) without causality, on every engine.

Differs from :class:`returnn.frontend.RotaryPosSelfAttention` in that it is composed of operations which the net dict
has as well, and in that half precision stays half precision. Parameter names and numbers are the same, so that
checkpoints fit both.
"""

from __future__ import annotations

import math

import returnn.frontend as rf
from returnn.tensor import Dim, Tensor

__all__ = ["RotarySelfAttention", "rotate"]


class RotarySelfAttention(rf.SelfAttention):
    """
    Self-attention over a whole sequence, where the score of positions i and j depends on the contents and on ``j - i``:
    ``softmax_j((R_i q_i) . (R_j k_j) / sqrt(d)) v_j``, equation 16 of the paper. :func:`rotate` is ``R``.

    :param in_dim: of the source
    :param proj_dim: of the output, by a last linear layer
    :param key_dim_total: of keys and queries, over all heads; per head an even number
    :param value_dim_total: of values, over all heads
    :param num_heads: divides both
    :param att_dropout: on the attention weights, in training
    :raises ValueError: if the keys of a head don't have an even dim
    """

    def __init__(
        self,
        in_dim: Dim,
        proj_dim: Dim,
        *,
        key_dim_total: Dim,
        value_dim_total: Dim,
        num_heads: int,
        att_dropout: float = 0.1,
    ):
        if key_dim_total.dimension % (2 * num_heads):
            raise ValueError(
                f"RotarySelfAttention: expected an even key dim per head, got {key_dim_total} for {num_heads} heads"
            )
        super().__init__(
            in_dim,
            proj_dim,
            key_dim_total=key_dim_total,
            value_dim_total=value_dim_total,
            num_heads=num_heads,
            att_dropout=att_dropout,
        )

    def __call__(self, source: Tensor, *, axis: Dim) -> Tensor:
        """
        :param source: ``{batch, time, in_dim}``
        :param axis: time
        :return: ``{batch, time, proj_dim}``
        """
        query, key, value = self.forward_qkv(source)
        positions = rf.range_over_dim(axis, device=source.device)
        query = rotate(query, positions=positions, feature_dim=self.key_dim_per_head)
        key = rotate(key, positions=positions, feature_dim=self.key_dim_per_head)
        kv_axis = Dim(None, name=f"{axis.name}-kv", bounded_by=axis)
        key, _ = rf.replace_dim(key, in_dim=axis, out_dim=kv_axis)
        value, _ = rf.replace_dim(value, in_dim=axis, out_dim=kv_axis)
        return self.attention(query, key, value, kv_axis=kv_axis)


def rotate(source: Tensor, *, positions: Tensor, feature_dim: Dim) -> Tensor:
    """
    Each pair of neighbouring features ``(x_2i, x_2i+1)``, as a complex number, times ``exp(1j * position * theta_i)``
    with ``theta_i = 10000 ** (-2 i / d)``: equations 15 and 34 of the paper.

    :param source: ``{..., feature_dim}``, e.g. queries or keys of each head
    :param positions: integers ``{...}``, e.g. ``{time}``, or ``{}`` for a single step; all its dims are in the source
    :param feature_dim: with an even size d
    :return: same shape and dtype as the source
    :raises ValueError: if d is odd
    """
    size = feature_dim.dimension
    if size is None or size % 2:
        raise ValueError(f"rotate: expected a feature dim of even size, got {feature_dim}")
    half_dim, pair_dim = Dim(size // 2, name="rotary-half"), Dim(2, name="rotary-pair")
    # Angles in single precision whatever the model computes in: half precision can't tell large positions apart.
    theta = rf.exp(rf.range_over_dim(half_dim, dtype="float32", device=source.device) * (-2.0 * math.log(1e4) / size))
    angle = rf.combine_bc(rf.cast(positions, "float32"), "*", theta)
    cos, sin = rf.cast(rf.cos(angle), source.dtype), rf.cast(rf.sin(angle), source.dtype)

    pairs = rf.split_dims(source, axis=feature_dim, dims=(half_dim, pair_dim))
    one_dims = Dim(1, name="rotary-real"), Dim(1, name="rotary-imaginary")
    real, imaginary = (
        rf.squeeze(part, axis=dim)
        for part, dim in zip(rf.split(pairs, axis=pair_dim, out_dims=one_dims), one_dims, strict=True)
    )
    rotated = real * cos - imaginary * sin, real * sin + imaginary * cos
    # Not `stack`, which the net dict doesn't have.
    pairs, _ = rf.concat(
        *((rf.expand_dim(part, dim=dim), dim) for part, dim in zip(rotated, one_dims, strict=True)), out_dim=pair_dim
    )
    result, _ = rf.merge_dims(pairs, dims=(half_dim, pair_dim), out_dim=feature_dim)
    return result
