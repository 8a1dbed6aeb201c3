"""
SpecAugment (Park et al. 2019, https://arxiv.org/abs/1904.08779): masks and time warping on log-mel features.

Differs from :func:`returnn.frontend.specaugment` in that the published policies have their names, widths and positions
follow the paper's section 2 (uniform, within the utterance's own length), and the same code runs on all four engines.
"""

from __future__ import annotations

from dataclasses import dataclass

from .. import nn

__all__ = ["SpecAugmentPolicy", "POLICIES", "SpecAugment"]


@dataclass(frozen=True)
class SpecAugmentPolicy:
    """
    The paper's parameters (table 1).

    :param time_warp: W, largest shift of the warped point, in frames; 0: no warping
    :param frequency_width: F, largest width of a frequency mask, in filters, inclusive
    :param num_frequency_masks: m_F
    :param time_width: T, largest width of a time mask, in frames, inclusive
    :param time_fraction: p (p_S of Park et al. 2020), no time mask is wider than this fraction of the utterance
    :param num_time_masks: m_T
    """

    time_warp: int
    frequency_width: int
    num_frequency_masks: int
    time_width: int
    time_fraction: float
    num_time_masks: int


# LB, LD, SM, SS: table 1 of Park et al. 2019. "conformer": Gulati et al. 2020, section 3.2
# (F = 27, ten time masks of at most 5 % of the utterance, from the policy of Park et al. 2020, no time warping).
POLICIES: dict[str, SpecAugmentPolicy] = {
    "LB": SpecAugmentPolicy(80, 27, 1, 100, 1.0, 1),
    "LD": SpecAugmentPolicy(80, 27, 2, 100, 1.0, 2),
    "SM": SpecAugmentPolicy(40, 15, 2, 70, 0.2, 2),
    "SS": SpecAugmentPolicy(40, 27, 2, 70, 0.2, 2),
    "conformer": SpecAugmentPolicy(0, 27, 2, 1_000_000, 0.05, 10),
}


class SpecAugment(nn.Module):
    """
    Acts in training only; in evaluation and search it returns its input.

    :param policy: a name of :data:`POLICIES`, or a policy of your own
    :param start_step: training steps before which nothing is masked
    :param full_step: training steps from which the policy holds in full;
        between the two, all widths grow linearly
    :raises ValueError: for an unknown name, or ``full_step < start_step``
    """

    def __init__(self, policy: str | SpecAugmentPolicy = "LD", *, start_step: int = 0, full_step: int = 0):
        super().__init__()
        if isinstance(policy, str):
            if policy not in POLICIES:
                raise ValueError(f"SpecAugment: unknown policy {policy!r}, expected one of {', '.join(POLICIES)}")
            policy = POLICIES[policy]
        if not 0 <= start_step <= full_step:
            raise ValueError(f"SpecAugment: expected 0 <= start_step <= full_step, got {start_step} and {full_step}")
        self.policy = policy
        self.start_step = start_step
        self.full_step = full_step

    def __call__(self, source: nn.Tensor, *, spatial_dim: nn.Dim, feature_dim: nn.Dim) -> nn.Tensor:
        """
        :param source: ``{batch, time, feature}``, with mean 0 (masked values become 0)
        :param spatial_dim: time
        :param feature_dim: feature
        :return: like ``source``
        """
        train_flag = nn.get_run_ctx().is_train_flag_enabled(func=SpecAugment.__call__)
        return nn.cond(
            train_flag,
            lambda: self._augment(source, spatial_dim=spatial_dim, feature_dim=feature_dim),
            lambda: source,
        )

    def _augment(self, source: nn.Tensor, *, spatial_dim: nn.Dim, feature_dim: nn.Dim) -> nn.Tensor:
        policy = self.policy
        ramp = self._ramp()
        batch_dims = [dim for dim in source.dims if dim not in (spatial_dim, feature_dim)]
        lengths = _lengths(spatial_dim, like=source)
        if policy.time_warp:
            source = _time_warp(
                source,
                batch_dims=batch_dims,
                spatial_dim=spatial_dim,
                lengths=lengths,
                max_shift=float(policy.time_warp) * ramp,
            )
        if policy.num_time_masks and policy.time_width and policy.time_fraction:
            max_width = nn.minimum(lengths * policy.time_fraction, float(policy.time_width)) * ramp
            masked = _random_masks(
                batch_dims, axis=spatial_dim, size=lengths, max_width=max_width, num=policy.num_time_masks, like=source
            )
            source = nn.where(masked, 0.0, source)
        if policy.num_frequency_masks and policy.frequency_width:
            size = nn.convert_to_tensor(float(feature_dim.dimension), dtype=source.dtype)
            max_width = nn.minimum(size, float(policy.frequency_width) * ramp)
            masked = _random_masks(
                batch_dims,
                axis=feature_dim,
                size=size,
                max_width=max_width,
                num=policy.num_frequency_masks,
                like=source,
            )
            source = nn.where(masked, 0.0, source)
        return source

    def _ramp(self):
        """0 before start_step, 1 from full_step on."""
        if not self.full_step:
            return 1.0
        step = nn.cast(nn.get_run_ctx().get_step_tensor(), "float32")
        # Float arithmetic alone, since net dict layers don't take integer constants.
        ramp = (step - (self.start_step - 1.0)) * (1.0 / (self.full_step - self.start_step + 1.0))
        return nn.minimum(nn.maximum(ramp, 0.0), 1.0)


def _lengths(spatial_dim: nn.Dim, *, like: nn.Tensor) -> nn.Tensor:
    size = spatial_dim.get_size_tensor(device=like.device)
    return nn.cast(size, like.dtype)


def _uniform(dims: list[nn.Dim], *, like: nn.Tensor) -> nn.Tensor:
    return nn.random_uniform(dims, minval=0.0, maxval=1.0, dtype=like.dtype, device=like.device)


def _random_masks(
    batch_dims: list[nn.Dim], *, axis: nn.Dim, size: nn.Tensor, max_width: nn.Tensor, num: int, like: nn.Tensor
) -> nn.Tensor:
    """
    :param size: number of valid positions
    :param max_width: inclusive
    :return: bool, ``{batch, axis}``, the union of ``num`` masks
    """
    masks_dim = nn.Dim(num, name="masks")
    dims = [*batch_dims, masks_dim]
    # uniform over the integers 0..floor(max_width); the minimum guards against a draw that rounds to 1
    max_width = nn.floor(max_width)
    width = nn.minimum(nn.floor(_uniform(dims, like=like) * (max_width + 1.0)), max_width)
    start = nn.floor(_uniform(dims, like=like) * (size - width + 1.0))
    start = nn.minimum(start, size - width)
    position = nn.cast(nn.range_over_dim(axis, device=like.device), like.dtype)
    inside = nn.logical_and(nn.compare_bc(position, ">=", start), nn.compare_bc(position, "<", start + width))
    return nn.reduce_any(inside, axis=masks_dim)


def _time_warp(
    source: nn.Tensor,
    *,
    batch_dims: list[nn.Dim],
    spatial_dim: nn.Dim,
    lengths: nn.Tensor,
    max_shift: nn.Tensor | float,
) -> nn.Tensor:
    """
    Moves a random point by up to ``max_shift`` frames, and stretches both sides linearly, ends fixed (section 2, 1.).
    Utterances too short for it (not longer than twice the shift) are shifted by less.
    """
    # The point lies in (W, length - W), so a shift by less than W keeps the order of time.
    max_shift = nn.minimum(max_shift, nn.maximum((lengths - 1.0) * 0.25, 0.0))
    point = max_shift + _uniform(batch_dims, like=source) * nn.maximum(lengths - 1.0 - 2.0 * max_shift, 0.0)
    target = point + (2.0 * _uniform(batch_dims, like=source) - 1.0) * max_shift
    position = nn.cast(nn.range_over_dim(spatial_dim, device=source.device), source.dtype)
    position = nn.expand_dims(position, batch_dims)
    before = position * (point / nn.maximum(target, 1e-3))
    rest = lengths - 1.0 - target
    after = point + (position - target) * ((lengths - 1.0 - point) / nn.maximum(rest, 1e-3))
    origin = nn.where(position <= target, before, after)
    origin = nn.maximum(nn.minimum(origin, lengths - 1.0), 0.0)
    left = nn.floor(origin)
    right = nn.minimum(left + 1.0, lengths - 1.0)
    weight = origin - left
    return (1.0 - weight) * _gather(source, left, spatial_dim) + weight * _gather(source, right, spatial_dim)


def _gather(source: nn.Tensor, position: nn.Tensor, spatial_dim: nn.Dim) -> nn.Tensor:
    indices = nn.cast(position, "int32")
    indices.sparse_dim = spatial_dim
    return nn.gather(source, indices=indices, axis=spatial_dim)
