"""
Normalisation of features over time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

__all__ = ["normalize_over_time"]


def normalize_over_time(
    raw: torch.Tensor, padding: torch.Tensor | None, *, prior_frames: int, epsilon: float
) -> torch.Tensor:
    """
    :func:`returnn_common.models.features.normalize_features` on PyTorch.

    :param raw: ``{..., time, feature}``
    :param padding: True on padding, ``{..., time}`` (broadcast); None if there is none
    :param prior_frames: see there
    :param epsilon: see there
    :return: like raw, 0 on padding
    """
    import torch

    # No number: a single frame has no variance, so that a share in double precision would be seen in the result.
    num_frames = raw.new_full((), raw.shape[-2])
    if padding is not None:
        padding = padding[..., None]
        raw = raw.masked_fill(padding, 0.0)
        num_frames = (~padding).sum(dim=-2, keepdim=True).to(raw.dtype)

    def average(x: torch.Tensor) -> torch.Tensor:
        return x.mean(dim=-2, keepdim=True) if padding is None else x.sum(dim=-2, keepdim=True) / num_frames

    mean = average(raw)
    if prior_frames:
        share = num_frames / (num_frames + prior_frames)
        mean = share * mean + (1.0 - share) * mean.mean(dim=-1, keepdim=True)
    centred = raw - mean
    if padding is not None:
        centred = centred.masked_fill_(padding, 0.0)
    variance = average(centred.square())
    if prior_frames:
        variance = variance.mean(dim=-1, keepdim=True)
    return centred * torch.rsqrt(variance + epsilon)
