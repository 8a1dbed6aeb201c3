"""
Dropout in both notations.
"""

from __future__ import annotations

from collections.abc import Sequence

import returnn.frontend as rf
from returnn.tensor import Dim, Tensor

from .dims import any_feature_dim, resolve_feature_dim

__all__ = ["dropout"]


def dropout(
    source: Tensor,
    drop_prob: float | Tensor | None = None,
    *,
    dropout: float | Tensor | None = None,
    axis: Dim | Sequence[Dim] | bool | None = None,
    on_forward: bool = False,
) -> Tensor:
    """
    Sets entries to zero at random in training, and scales the others by ``1 / (1 - drop_prob)``.
    :func:`returnn.frontend.dropout`, which also takes ``dropout=`` and ``axis=nn.any_feature_dim``.

    :param source: any shape
    :param drop_prob: probability of an entry to be dropped, in [0, 1)
    :param dropout: the same under another name; exactly one of both must be given
    :param axis: the mask is drawn over these dims, and is the same along all others.
        None or False: over all dims of the source. ``nn.any_feature_dim``: the source's feature dim.
    :param on_forward: drop also when not in training
    :return: same shape as source
    :raises TypeError: if not exactly one of drop_prob and dropout is given
    :raises ValueError: if the axis is not in the source, or the probability not in [0, 1)
    """
    if (drop_prob is None) == (dropout is None):
        raise TypeError(f"dropout: expected either drop_prob or dropout, got drop_prob={drop_prob}, dropout={dropout}")
    prob = dropout if drop_prob is None else drop_prob
    assert prob is not None
    if isinstance(axis, Dim):
        axis = [axis]
    if isinstance(axis, Sequence):
        axis = [resolve_feature_dim(source) if dim is any_feature_dim else dim for dim in axis]
    return rf.dropout(source, prob, axis=axis, on_forward=on_forward)
