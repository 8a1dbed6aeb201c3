"""
Batch normalisation (Ioffe and Szegedy 2015, https://arxiv.org/abs/1502.03167) over valid frames only, on every engine.

Differs from :class:`returnn.frontend.BatchNorm` in that it is composed of operations which all four engines have, and
assigns the running statistics so that it works everywhere: RETURNN's with a mask doesn't build on the net dict, without
one not on TensorFlow (low-level).
Parameter names and numbers are the same, so that checkpoints fit both.
"""

from __future__ import annotations

import returnn.frontend as rf
from returnn.tensor import Dim, Tensor

from ._assign import assign_add

__all__ = ["BatchNorm"]


class BatchNorm(rf.Module):
    """
    ``(x - mean) / sqrt(variance + eps) * gamma + beta``: with the batch's statistics in training,
    with the running ones in evaluation. Padding counts in neither.

    :param in_dim: features, each normalised on its own
    :param momentum: share of the current batch in the running statistics
    :param eps: added to the variance
    """

    def __init__(self, in_dim: Dim, *, momentum: float = 0.1, eps: float = 1e-3):
        super().__init__()
        self.in_dim = in_dim
        self.momentum = momentum
        self.eps = eps
        self.running_mean = rf.Parameter([in_dim], auxiliary=True)
        self.running_mean.initial = 0.0
        self.running_variance = rf.Parameter([in_dim], auxiliary=True)
        self.running_variance.initial = 1.0
        self.gamma = rf.Parameter([in_dim])
        self.gamma.initial = 1.0
        self.beta = rf.Parameter([in_dim])
        self.beta.initial = 0.0

    def __call__(self, source: Tensor) -> Tensor:
        """
        :param source: ``{..., in_dim}``
        :return: same shape
        :raises ValueError: if the source has no in_dim
        """
        if self.in_dim not in source.dims:
            raise ValueError(f"BatchNorm: expected the dim {self.in_dim}, got {source}")
        train_flag = rf.get_run_ctx().is_train_flag_enabled(func=BatchNorm.__call__)
        if train_flag is False:
            return self._normalize(source, self.running_mean, self.running_variance)
        axes = [dim for dim in source.dims if dim != self.in_dim]
        mean = rf.reduce_mean(source, axis=axes)
        variance = rf.reduce_mean(rf.square(source - mean), axis=axes)
        self._update(self.running_mean, mean, train_flag)
        self._update(self.running_variance, variance, train_flag)
        if isinstance(train_flag, Tensor):  # decided when the graph runs
            mean = rf.where(train_flag, mean, self.running_mean)
            variance = rf.where(train_flag, variance, self.running_variance)
        return self._normalize(source, mean, variance)

    def _update(self, running: rf.Parameter, current: Tensor, train_flag: Tensor | bool) -> None:
        delta = (rf.stop_gradient(current) - running) * self.momentum
        # A batch without any valid frame has no statistics. (NaN is the only value which isn't equal to itself.)
        delta = rf.where(delta == delta, delta, 0.0)
        if isinstance(train_flag, Tensor):
            delta = rf.where(train_flag, delta, 0.0)
        assign_add(running, delta, module=self)

    def _normalize(self, source: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        return (source - mean) * (rf.rsqrt(variance + self.eps) * self.gamma) + self.beta
