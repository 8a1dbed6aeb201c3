"""
E-Branchformer encoder (Kim et al. 2022, https://arxiv.org/abs/2210.00077), wired from RETURNN's own modules, so that
parameter names are RETURNN's and existing checkpoints load.

Each layer has two branches between its two half feed-forward blocks: self-attention with relative positions, and an MLP
which is gated by a convolution (cgMLP, Sakuma et al. 2021, https://openreview.net/forum?id=RA-zVvZLYIy). A depthwise
convolution over both merges them.

A layer computes what ESPnet's does, with its parameters in another order: in the cgMLP, the first half of the channels
is the gate, there the second; distances are ``j - i``, there ``i - j``; sines stand before cosines, there in turns.
ESPnet's encoder has one more norm at its end, and multiplies the input of the layers by ``sqrt(out_dim)``.
"""

from __future__ import annotations

from functools import partial

from returnn.frontend.encoder.conformer import ConformerEncoder
from returnn.frontend.encoder.e_branchformer import EBranchformerLayer, FeedForwardConvGated

from ... import nn
from ...nn.checks import check_at_least, check_num_heads, check_probability

__all__ = ["make_e_branchformer_encoder", "e_branchformer_b", "e_branchformer_l"]


def make_e_branchformer_encoder(
    in_dim: int | nn.Dim,
    *,
    num_layers: int = 17,
    out_dim: int | nn.Dim = 512,
    num_heads: int = 8,
    subsampling: int = 4,
    subsampling_channels: int = 64,
    conv_kernel_size: int = 31,
    dropout: float = 0.1,
    layer_drop: float = 0.1,
) -> ConformerEncoder:
    """
    The defaults are the paper's large model, as ESPnet trains it on LibriSpeech. As in both of the paper's sizes, the
    feed-forward dim is 2 times ``out_dim``, and the cgMLP has 6 times ``out_dim``, of which one half gates the other.

    :param in_dim: of the features, e.g. 80 log-mels
    :param out_dim: of the model, even and a multiple of ``num_heads``
    :param subsampling: 4 or 6, see :func:`nn.make_conv_subsampling`
    :param subsampling_channels: of its second convolution; the first has half as many
    :param conv_kernel_size: of the depthwise convolutions in the cgMLP and in the merge, in frames after subsampling
    :param dropout: everywhere
    :param layer_drop: chance that a layer is left out, drawn for each batch in training (Fan et al. 2019,
        https://arxiv.org/abs/1909.11556)
    :return: encoder, ``{batch, time, in_dim} -> {batch, time / subsampling, out_dim}``
    :raises ValueError: for a size that doesn't fit
    """
    in_dim = nn.as_dim(in_dim, name="features")
    out_dim = nn.as_dim(out_dim, name="e-branchformer")
    check_at_least("e_branchformer", 1, num_layers=num_layers, conv_kernel_size=conv_kernel_size)
    check_num_heads("e_branchformer", num_heads, out_dim=out_dim)
    check_probability("e_branchformer", dropout=dropout, layer_drop=layer_drop)
    if out_dim.dimension % 2:  # sines and cosines
        raise ValueError(f"e_branchformer: expected an even out_dim, got {out_dim.dimension}")
    input_layer = nn.make_conv_subsampling(in_dim, subsampling, channels=subsampling_channels, owner="e_branchformer")
    encoder = ConformerEncoder(
        in_dim,
        out_dim,
        num_layers=num_layers,
        input_layer=input_layer,
        input_dropout=dropout,
        encoder_layer=EBranchformerLayer(
            out_dim,
            ff_dim=nn.FeatureDim("e-branchformer-ff", 2 * out_dim.dimension),
            dropout=dropout,
            num_heads=num_heads,
            att_dropout=dropout,
            cgmlp=_make_cgmlp(out_dim, kernel_size=conv_kernel_size, dropout=dropout),
            merge_conv_kernel=conv_kernel_size,
        ),
        sequential=partial(nn.StochasticDepth, drop_probs=[layer_drop] * num_layers),
    )
    encoder.downsample_factor = input_layer.downsample_factor  # RETURNN declares it, and leaves it unset
    return nn.fuse(encoder)


def e_branchformer_b(in_dim: int | nn.Dim) -> ConformerEncoder:
    """
    E-Branchformer (B): 16 layers, 256, 4 heads; 26.3 M parameters with 80 log-mels. The 41.12 M of the paper contain a
    larger front end (1.2 M instead of 0.3 M, with 256 channels), and a decoder, CTC and 5000 subwords (13.3 M).
    """
    return make_e_branchformer_encoder(in_dim, num_layers=16, out_dim=256, num_heads=4)


def e_branchformer_l(in_dim: int | nn.Dim) -> ConformerEncoder:
    """
    E-Branchformer (L): 17 layers, 512, 8 heads; 109.3 M parameters with 80 log-mels. The 148.92 M of the paper contain
    a larger front end (7.3 M instead of 0.7 M, with 512 channels), and a decoder, CTC and 5000 subwords (32.9 M).
    """
    return make_e_branchformer_encoder(in_dim, num_layers=17, out_dim=512, num_heads=8)


def _make_cgmlp(out_dim: nn.Dim, *, kernel_size: int, dropout: float) -> FeedForwardConvGated:
    gate_dim = nn.FeatureDim("e-branchformer-gate", 3 * out_dim.dimension)
    cgmlp = FeedForwardConvGated(out_dim, ff_dim=gate_dim, kernel_size=kernel_size, dropout=dropout)
    # The gate begins as 1, so that training starts with a plain MLP (gMLP, Liu et al. 2021,
    # https://arxiv.org/abs/2105.08050, section 2.1). RETURNN's own initialisation begins anywhere around 0.
    cgmlp.conv.filter.initial = nn.init.Normal(stddev=1e-6)
    cgmlp.conv.bias.initial = 1.0
    return cgmlp
