"""
Differs from returnn_common/models/encoder/conformer.py in the positions, which are rotary instead of relative
(RoFormer, Su et al. 2021, https://arxiv.org/abs/2104.09864; in a Conformer: Li et al. 2021,
https://arxiv.org/abs/2107.05907). There are no parameters for positions, and no matrix of distances.
"""

from __future__ import annotations

from returnn.frontend.encoder.conformer import ConformerEncoder

from ... import nn
from ...nn.checks import check_at_least, check_probability
from ...nn.norms import make_norm

__all__ = ["make_rotary_conformer_encoder"]


def make_rotary_conformer_encoder(
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
    The defaults are those of :func:`.conformer.make_conformer_encoder`.

    :param in_dim: of the features, e.g. 80 log-mels
    :param out_dim: of the model, a multiple of ``2 * num_heads``; the feed-forward dim is 4 times as large
    :param subsampling: 4 or 6, as in the Conformer
    :param subsampling_channels: of the second of the two convolutions for it; the first has half as many
    :param conv_kernel_size: of the depthwise convolution, in frames after subsampling
    :param conv_norm: in the convolution module: "batch" or "layer"
    :param dropout: everywhere
    :return: encoder, ``{batch, time, in_dim} -> {batch, time / subsampling, out_dim}``
    :raises ValueError: for a size that doesn't fit
    """
    in_dim = nn.as_dim(in_dim, name="features")
    out_dim = nn.as_dim(out_dim, name="conformer")
    check_at_least("conformer", 1, num_layers=num_layers, num_heads=num_heads, conv_kernel_size=conv_kernel_size)
    check_probability("conformer", dropout=dropout)
    if out_dim.dimension % (2 * num_heads):
        raise ValueError(f"conformer: out_dim {out_dim.dimension} is not a multiple of 2 * num_heads {num_heads}")
    input_layer = nn.make_conv_subsampling(in_dim, subsampling, channels=subsampling_channels, owner="conformer")
    encoder = ConformerEncoder(
        in_dim,
        out_dim,
        num_layers=num_layers,
        input_layer=input_layer,
        input_dropout=dropout,
        encoder_layer_opts={
            "self_att": nn.RotarySelfAttention,
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
