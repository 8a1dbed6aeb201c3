"""
Normalisation of features that needs nothing of the future.
"""

from __future__ import annotations

from collections.abc import Sequence

import returnn.frontend as rf
from returnn.tensor import Dim, Tensor

__all__ = ["CausalNormalization"]


class CausalNormalization(rf.Module):
    """
    Differs from :func:`returnn_common.models.features.normalize_features` in that mean and variance are those of the
    frames up to each one, itself included, as in Kaldi's online mean and variance normalisation
    (https://kaldi-asr.org/doc/online_decoding.html, "Neural net based online decoding"; there, of the last 6 seconds).
    With prior frames, likewise, of which the first frames need some.

    :param feature_dim: features
    :param prior_frames: see there
    :param epsilon: see there
    """

    def __init__(self, feature_dim: Dim, *, prior_frames: int, epsilon: float = 1e-5):
        super().__init__()
        self.feature_dim = feature_dim
        self.prior_frames = prior_frames
        self.epsilon = epsilon

    def initial_state(self, *, batch_dims: Sequence[Dim]) -> rf.State:
        """:return: of no frames: ``count {batch}``, ``mean`` and ``variance`` ``{batch, feature}``"""
        dims = [*batch_dims, self.feature_dim]
        return rf.State(
            count=rf.zeros(batch_dims, dtype="float32"),
            mean=rf.zeros(dims, dtype="float32"),
            variance=rf.zeros(dims, dtype="float32"),
        )

    def __call__(self, source: Tensor, *, spatial_dim: Dim, state: rf.State | None = None) -> tuple[Tensor, rf.State]:
        """
        :param source: ``{batch, time, feature}``, the next frames
        :param spatial_dim: time
        :param state: of the frames before; None: there are none
        :return: like ``source``; state after the last frame of each sequence
        """
        if state is None:
            state = self.initial_state(batch_dims=source.remaining_dims([spatial_dim, self.feature_dim]))
        # Sums of differences from the mean so far, which stay small however many frames there are.
        x = rf.combine_bc(rf.cast(source, "float32"), "-", state.mean)
        counts = rf.range_over_dim(spatial_dim, dtype="float32", device=source.device) + 1.0
        counts = rf.combine_bc(state.count, "+", counts)
        total = rf.combine_bc(state.variance, "*", state.count)
        average = rf.cumsum(x, spatial_dim=spatial_dim) / counts
        square = rf.combine_bc(total, "+", rf.cumsum(x * x, spatial_dim=spatial_dim)) / counts
        mean = average
        if self.prior_frames:
            share = counts / (counts + float(self.prior_frames))
            overall = rf.reduce_mean(rf.combine_bc(average, "+", state.mean), axis=self.feature_dim)
            mean = share * average + (1.0 - share) * rf.combine_bc(overall, "-", state.mean)
        variance = square + mean * (mean - 2.0 * average)
        if self.prior_frames:
            variance = rf.reduce_mean(variance, axis=self.feature_dim)
        # What is constant can come out below 0 by rounding.
        out = rf.cast((x - mean) * rf.rsqrt(rf.relu(variance) + self.epsilon), source.dtype)
        out.feature_dim = source.feature_dim
        return out, self._after(x, total, spatial_dim=spatial_dim, state=state)

    def _after(self, x: Tensor, total: Tensor, *, spatial_dim: Dim, state: rf.State) -> rf.State:
        """
        :param x: frames without ``state.mean``
        :param total: squares of the frames before, without their mean
        """
        lengths = rf.cast(spatial_dim.get_size_tensor(device=x.device), "float32")
        count = rf.combine_bc(state.count, "+", lengths)
        some = rf.maximum(count, 1.0)
        average = rf.reduce_sum(x, axis=spatial_dim) / some
        square = rf.combine_bc(total, "+", rf.reduce_sum(x * x, axis=spatial_dim)) / some
        return rf.State(count=count, mean=state.mean + average, variance=rf.relu(square - average * average))
