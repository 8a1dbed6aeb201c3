"""
Differs from returnn_common/models/encoder/conformer.py in the subsampling, which is 8-fold and depthwise-separable,
and in the kernels, which are small: Fast Conformer (Rekesh et al. 2023, https://arxiv.org/abs/2305.05084, section 2).
"""

from __future__ import annotations

from returnn.frontend.encoder.conformer import ConformerEncoder

from ... import nn
from ...nn.checks import check_at_least, check_num_heads, check_probability
from ...nn.norms import make_norm

__all__ = ["DepthwiseSeparableSubsample", "make_fast_conformer_encoder", "fast_conformer_l"]


def make_fast_conformer_encoder(
    in_dim: int | nn.Dim,
    *,
    num_layers: int = 17,
    out_dim: int | nn.Dim = 512,
    num_heads: int = 8,
    subsampling_channels: int = 256,
    conv_kernel_size: int = 9,
    conv_norm: str = "batch",
    dropout: float = 0.1,
) -> ConformerEncoder:
    """
    The defaults are the paper's large model: 8-fold subsampling with 256 channels, kernel 9 (section 2), and otherwise
    the large Conformer. The feed-forward dim is 4 times ``out_dim``.

    :param in_dim: of the features, e.g. 80 log-mels
    :param out_dim: of the model, a multiple of ``num_heads``
    :param subsampling_channels: of each of the three convolutions of stride 2 in :class:`DepthwiseSeparableSubsample`
    :param conv_kernel_size: of the depthwise convolution in each layer, in frames after subsampling
    :param conv_norm: in the convolution module: "batch" (as published; statistics over valid frames only) or "layer"
    :param dropout: everywhere
    :return: encoder, ``{batch, time, in_dim} -> {batch, ceil(time / 8), out_dim}``
    :raises ValueError: for a size that doesn't fit
    """
    in_dim = nn.as_dim(in_dim, name="features")
    out_dim = nn.as_dim(out_dim, name="conformer")
    check_at_least("conformer", 1, num_layers=num_layers, conv_kernel_size=conv_kernel_size)
    check_at_least("conformer", 1, subsampling_channels=subsampling_channels)
    check_num_heads("conformer", num_heads, out_dim=out_dim)
    check_probability("conformer", dropout=dropout)
    input_layer = DepthwiseSeparableSubsample(in_dim, channels=nn.FeatureDim("channels", subsampling_channels))
    encoder = ConformerEncoder(
        in_dim,
        out_dim,
        num_layers=num_layers,
        input_layer=input_layer,
        input_dropout=dropout,
        encoder_layer_opts={
            "ff_dim": nn.FeatureDim("conformer-ff", 4 * out_dim.dimension),
            "dropout": dropout,
            "att_dropout": dropout,
            "num_heads": num_heads,
            "conv_kernel_size": conv_kernel_size,
            "conv_norm": make_norm(conv_norm, out_dim, owner="conformer", argument="conv_norm"),
        },
    )
    encoder.downsample_factor = input_layer.downsample_factor  # RETURNN declares it, and leaves it unset
    return nn.fuse(encoder)


def fast_conformer_l(in_dim: int | nn.Dim) -> ConformerEncoder:
    """
    Fast Conformer (Large): 17 layers, 512, 8 heads. 108.8 M parameters with 80 log-mels. The 114 M published with a
    transducer contain its LSTM and joiner of 640 over 1024 subwords as well: 5.3 M.
    """
    return make_fast_conformer_encoder(in_dim, num_layers=17, out_dim=512, num_heads=8)


class DepthwiseSeparableSubsample(nn.Module):
    """
    Three 3x3 convolutions of stride 2 over time and features, each followed by a ReLU. The first is a usual one; the
    others treat each channel on its own, and mix the channels afterwards. Padded by one on each side.

    :param in_dim: features
    :param channels: of each convolution
    """

    downsample_factor = 8

    def __init__(self, in_dim: nn.Dim, *, channels: nn.Dim):
        super().__init__()
        self.in_dim = in_dim
        self._image_dim = nn.FeatureDim("image", 1)
        self.conv_layers = nn.ModuleList(
            [
                nn.Conv2d(self._image_dim, channels, 3, strides=2, padding="same"),
                nn.Conv2d(channels, channels, 3, strides=2, padding="same", groups=channels.dimension),
                nn.Conv2d(channels, channels, 3, strides=2, padding="same", groups=channels.dimension),
            ]
        )
        self.pointwise_layers = nn.ModuleList([nn.Linear(channels, channels), nn.Linear(channels, channels)])
        self.channels = channels
        self._height = nn.FeatureDim("height", -(-in_dim.dimension // 8))
        self.out_dim = self._height * channels

    def __call__(self, source: nn.Tensor, *, in_spatial_dim: nn.Dim) -> tuple[nn.Tensor, nn.Dim]:
        """
        :param source: ``{batch, time, in_dim}``
        :param in_spatial_dim: time
        :return: ``{batch, time', out_dim}``, and the dim time': ``ceil(time / 8)``, whatever else is in the batch
        """
        x = nn.expand_dim(source, dim=self._image_dim)
        dims = [in_spatial_dim, self.in_dim]
        for conv, pointwise in zip(self.conv_layers, [None, *self.pointwise_layers], strict=True):
            x, dims = conv(x, in_spatial_dims=dims)
            x = nn.relu(pointwise(x) if pointwise else x)
        time, height = dims
        x, _ = nn.replace_dim(x, in_dim=height, out_dim=self._height)
        out, _ = nn.merge_dims(x, dims=[self._height, self.channels], out_dim=self.out_dim)
        return out, time
