"""
Normalisation of features that needs nothing of the future.
"""

from __future__ import annotations

from collections.abc import Sequence

from .. import nn

__all__ = ["CausalNormalization"]


class CausalNormalization(nn.Module):
    """
    Differs from :func:`.features.normalize_features` in that mean and variance are those of the frames up to each one,
    itself included, as in Kaldi's online mean and variance normalisation
    (https://kaldi-asr.org/doc/online_decoding.html, "Neural net based online decoding"; there, of the last 6 seconds).
    With prior frames, likewise, of which the first frames need some.

    :param feature_dim: features
    :param prior_frames: see there
    :param epsilon: see there
    """

    def __init__(self, feature_dim: nn.Dim, *, prior_frames: int, epsilon: float = 1e-5):
        super().__init__()
        self.feature_dim = feature_dim
        self.prior_frames = prior_frames
        self.epsilon = epsilon

    def initial_state(self, *, batch_dims: Sequence[nn.Dim]) -> nn.State:
        """:return: of no frames: ``count {batch}``, ``mean`` and ``variance`` ``{batch, feature}``"""
        dims = [*batch_dims, self.feature_dim]
        return nn.State(
            count=nn.zeros(batch_dims, dtype="float32"),
            mean=nn.zeros(dims, dtype="float32"),
            variance=nn.zeros(dims, dtype="float32"),
        )

    def __call__(
        self, source: nn.Tensor, *, spatial_dim: nn.Dim, state: nn.State | None = None
    ) -> tuple[nn.Tensor, nn.State]:
        """
        :param source: ``{batch, time, feature}``, the next frames
        :param spatial_dim: time
        :param state: of the frames before; None: there are none
        :return: like ``source``; state after the last frame of each sequence
        """
        if state is None:
            state = self.initial_state(batch_dims=source.remaining_dims([spatial_dim, self.feature_dim]))
        # Sums of differences from the mean so far, which stay small however many frames there are.
        x = nn.combine_bc(nn.cast(source, "float32"), "-", state.mean)
        counts = nn.range_over_dim(spatial_dim, dtype="float32", device=source.device) + 1.0
        counts = nn.combine_bc(state.count, "+", counts)
        total = nn.combine_bc(state.variance, "*", state.count)
        average = nn.cumsum(x, spatial_dim=spatial_dim) / counts
        square = nn.combine_bc(total, "+", nn.cumsum(x * x, spatial_dim=spatial_dim)) / counts
        mean = average
        if self.prior_frames:
            share = counts / (counts + float(self.prior_frames))
            overall = nn.reduce_mean(nn.combine_bc(average, "+", state.mean), axis=self.feature_dim)
            mean = share * average + (1.0 - share) * nn.combine_bc(overall, "-", state.mean)
        variance = square + mean * (mean - 2.0 * average)
        if self.prior_frames:
            variance = nn.reduce_mean(variance, axis=self.feature_dim)
        # What is constant can come out below 0 by rounding.
        out = nn.cast((x - mean) * nn.rsqrt(nn.relu(variance) + self.epsilon), source.dtype)
        out.feature_dim = source.feature_dim
        return out, self._after(x, total, spatial_dim=spatial_dim, state=state)

    def _after(self, x: nn.Tensor, total: nn.Tensor, *, spatial_dim: nn.Dim, state: nn.State) -> nn.State:
        """
        :param x: frames without ``state.mean``
        :param total: squares of the frames before, without their mean
        """
        lengths = nn.cast(spatial_dim.get_size_tensor(device=x.device), "float32")
        count = nn.combine_bc(state.count, "+", lengths)
        some = nn.maximum(count, 1.0)
        average = nn.reduce_sum(x, axis=spatial_dim) / some
        square = nn.combine_bc(total, "+", nn.reduce_sum(x * x, axis=spatial_dim)) / some
        return nn.State(count=count, mean=state.mean + average, variance=nn.relu(square - average * average))
