"""
Conformer encoder (Gulati et al. 2020, https://arxiv.org/abs/2005.08100), wired from RETURNN's own modules,
so that parameter names are RETURNN's and existing checkpoints load.
"""

from __future__ import annotations

from returnn.frontend.encoder.conformer import ConformerEncoder

from ... import nn
from ...nn.checks import check_at_least, check_num_heads, check_probability
from ...nn.norms import make_norm

__all__ = ["make_conformer_encoder", "conformer_s", "conformer_m", "conformer_l"]


def make_conformer_encoder(
    in_dim: int | nn.Dim,
    *,
    num_layers: int = 12,
    out_dim: int | nn.Dim = 512,
    num_heads: int = 8,
    subsampling: int = 4,
    subsampling_channels: int = 64,
    conv_kernel_size: int = 31,
    conv_norm: str = "batch",
    dropout: float = 0.1,
) -> ConformerEncoder:
    """
    The defaults are ESPnet's LibriSpeech Conformer (Guo et al. 2021, https://arxiv.org/abs/2010.13956, table 1).
    The feed-forward dim is 4 times ``out_dim``.

    :param in_dim: of the features, e.g. 80 log-mels
    :param out_dim: of the model, a multiple of ``num_heads``
    :param subsampling: 4 or 6, by two convolutions, 3x3 (4: stride 2, 2) or 3x3 and 5x5 (6: stride 2, 3),
        padded, so that the output has ``ceil(ceil(time / 2) / 2)`` or ``ceil(ceil(time / 2) / 3)`` frames
    :param subsampling_channels: of the second of these convolutions; the first has half as many
    :param conv_kernel_size: of the depthwise convolution, in frames after subsampling
    :param conv_norm: in the convolution module: "batch" (as published; statistics over valid frames only) or "layer"
    :param dropout: everywhere
    :return: encoder, ``{batch, time, in_dim} -> {batch, time / subsampling, out_dim}``
    :raises ValueError: for a size that doesn't fit
    """
    in_dim = nn.as_dim(in_dim, name="features")
    out_dim = nn.as_dim(out_dim, name="conformer")
    check_at_least("conformer", 1, num_layers=num_layers, conv_kernel_size=conv_kernel_size)
    check_num_heads("conformer", num_heads, out_dim=out_dim)
    check_probability("conformer", dropout=dropout)
    input_layer = nn.make_conv_subsampling(in_dim, subsampling, channels=subsampling_channels, owner="conformer")
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


def conformer_s(in_dim: int | nn.Dim) -> ConformerEncoder:
    """Conformer (S), table 1 of the paper: 16 layers, 144, 4 heads; 10.3 M parameters there, with its decoder."""
    return make_conformer_encoder(in_dim, num_layers=16, out_dim=144, num_heads=4, conv_kernel_size=32)


def conformer_m(in_dim: int | nn.Dim) -> ConformerEncoder:
    """Conformer (M), table 1 of the paper: 16 layers, 256, 4 heads; 30.7 M parameters there, with its decoder."""
    return make_conformer_encoder(in_dim, num_layers=16, out_dim=256, num_heads=4, conv_kernel_size=32)


def conformer_l(in_dim: int | nn.Dim) -> ConformerEncoder:
    """Conformer (L), table 1 of the paper: 17 layers, 512, 8 heads; 118.8 M parameters there, with its decoder."""
    return make_conformer_encoder(in_dim, num_layers=17, out_dim=512, num_heads=8, conv_kernel_size=32)
