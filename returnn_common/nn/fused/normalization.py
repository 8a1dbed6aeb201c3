"""
Normalisation of features over time.
"""

from __future__ import annotations

from returnn.tensor import Dim, Tensor

from .raw import padding_of, raw_of, tensor_of

__all__ = ["normalize_over_time"]


def normalize_over_time(
    source: Tensor, *, spatial_dim: Dim, feature_dim: Dim, prior_frames: int, epsilon: float
) -> Tensor:
    """:func:`returnn_common.models.features.normalize_features` on PyTorch; 0 on padding"""
    import torch

    raw, batch_dims = raw_of(source, spatial_dim, feature_dim)
    padding = padding_of(spatial_dim, (*batch_dims, spatial_dim), device=source.device)
    if padding is None:
        num_frames = torch.tensor(float(raw.shape[-2]), dtype=raw.dtype, device=raw.device)
    else:
        padding = padding[..., None]
        raw = raw.masked_fill(padding, 0.0)
        num_frames = (~padding).sum(dim=-2, keepdim=True).to(raw.dtype)
    mean = raw.sum(dim=-2, keepdim=True) / num_frames
    if prior_frames:
        share = num_frames / (num_frames + prior_frames)
        mean = share * mean + (1.0 - share) * mean.mean(dim=-1, keepdim=True)
    centred = raw - mean
    if padding is not None:
        centred = centred.masked_fill_(padding, 0.0)
    variance = centred.square().sum(dim=-2, keepdim=True) / num_frames
    if prior_frames:
        variance = variance.mean(dim=-1, keepdim=True)
    return tensor_of(centred * torch.rsqrt(variance + epsilon), *batch_dims, spatial_dim, feature_dim)
