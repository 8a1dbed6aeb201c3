"""
Convolutional subsampling in front of an encoder.
"""

from __future__ import annotations

from returnn.frontend.encoder.conformer import ConformerConvSubsample
from returnn.tensor import Dim

from .checks import check_at_least
from .dims import FeatureDim

__all__ = ["make_conv_subsampling"]

# factor -> (filter size, stride) of each convolution, the same in time and frequency
_CONVOLUTIONS = {4: [(3, 2), (3, 2)], 6: [(3, 2), (5, 3)]}


def make_conv_subsampling(
    in_dim: Dim, factor: int, *, channels: int = 64, owner: str = "subsampling"
) -> ConformerConvSubsample:
    """
    Two convolutions over time and frequency with ReLU. The strides are those of ESPnet's ``Conv2dSubsampling`` and
    ``Conv2dSubsampling6``; unlike there they are padded, so that no frame is lost and a single one is enough.

    :param in_dim: features
    :param factor: 4 (3x3, stride 2, twice) or 6 (3x3, stride 2, and 5x5, stride 3): of ``time`` frames
        ``ceil(ceil(time / 2) / 2)`` or ``ceil(ceil(time / 2) / 3)`` remain
    :param channels: of the second convolution; the first has half as many
    :param owner: whose arguments, for the messages of errors
    :return: ``{batch, time, in_dim} -> {batch, time / factor, ceil(in_dim / factor) * channels}``;
        called as ``(source, *, in_spatial_dim) -> (out, out_spatial_dim)``
    :raises ValueError: for another factor, or fewer than 2 channels
    """
    if factor not in _CONVOLUTIONS:
        raise ValueError(f"{owner}: expected subsampling 4 or 6, got {factor!r}")
    check_at_least(owner, 2, subsampling_channels=channels)
    return ConformerConvSubsample(
        in_dim,
        out_dims=[FeatureDim("conv-1", channels // 2), FeatureDim("conv-2", channels)],
        filter_sizes=[size for size, _ in _CONVOLUTIONS[factor]],
        strides=[stride for _, stride in _CONVOLUTIONS[factor]],
        padding="same",
    )
