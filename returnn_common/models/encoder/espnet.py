"""
Differs from returnn_common/models/encoder/conformer.py and e_branchformer.py in what stands around the layers, which is
as in ESPnet (https://github.com/espnet/espnet), so that its trained weights fit
(:mod:`returnn_common.training.import_espnet`): the front end isn't padded, has as many channels as the model, and a
linear layer with a bias; a norm follows on the last layer.

ESPnet also multiplies what goes to the first layer by ``sqrt(out_dim)``. Here, imported weights contain that factor.
Its batch norm counts padding in training; ours doesn't.
"""

from __future__ import annotations

from returnn.frontend.encoder.conformer import ConformerConvSubsample, ConformerEncoderLayer
from returnn.frontend.encoder.e_branchformer import EBranchformerLayer, FeedForwardConvGated

from ... import nn
from ...nn.checks import check_at_least, check_num_heads, check_probability
from .transformer import TransformerEncoder

__all__ = ["EspnetSubsampling", "make_espnet_conformer_encoder", "make_espnet_e_branchformer_encoder"]

_MIN_FRAMES = 7  # of which one is left


def make_espnet_conformer_encoder(
    in_dim: int | nn.Dim,
    *,
    num_layers: int = 12,
    out_dim: int | nn.Dim = 512,
    num_heads: int = 8,
    ff_dim: int | nn.Dim = 2048,
    conv_kernel_size: int = 31,
    dropout: float = 0.1,
) -> TransformerEncoder:
    """
    ESPnet's ``conformer`` encoder with ``input_layer: conv2d``, ``rel_pos_type: latest``, ``macaron_style: true``. The
    defaults are its LibriSpeech recipe's (Guo et al. 2021, https://arxiv.org/abs/2010.13956, table 1).

    :param in_dim: ``input_size``: of the features, at least 7
    :param num_layers: ``num_blocks``
    :param out_dim: ``output_size``: of the model, even and a multiple of ``num_heads``
    :param num_heads: ``attention_heads``
    :param ff_dim: ``linear_units``
    :param conv_kernel_size: ``cnn_module_kernel``, odd
    :param dropout: everywhere
    :return: encoder, ``{batch, time, in_dim} -> {batch, time', out_dim}``, see :class:`EspnetSubsampling`
    :raises ValueError: for a size that doesn't fit
    """
    owner = "espnet_conformer"
    in_dim, out_dim = nn.as_dim(in_dim, name="features"), nn.as_dim(out_dim, name="conformer")
    _check_sizes(owner, out_dim, num_layers=num_layers, num_heads=num_heads, dropout=dropout)
    _check_odd(owner, conv_kernel_size=conv_kernel_size)
    layers = [
        ConformerEncoderLayer(
            out_dim,
            ff_dim=nn.as_dim(ff_dim, name="conformer-ff"),
            num_heads=num_heads,
            conv_kernel_size=conv_kernel_size,
            conv_norm=nn.BatchNorm(out_dim),
            dropout=dropout,
            att_dropout=dropout,
        )
        for _ in range(num_layers)
    ]
    return _make_encoder(owner, in_dim, out_dim, layers, dropout=dropout)


def make_espnet_e_branchformer_encoder(
    in_dim: int | nn.Dim,
    *,
    num_layers: int = 17,
    out_dim: int | nn.Dim = 512,
    num_heads: int = 8,
    ff_dim: int | nn.Dim = 1024,
    cgmlp_dim: int | nn.Dim = 3072,
    conv_kernel_size: int = 31,
    merge_kernel_size: int = 31,
    dropout: float = 0.1,
) -> TransformerEncoder:
    """
    ESPnet's ``e_branchformer`` encoder with ``input_layer: conv2d``, ``use_ffn: true``, ``macaron_ffn: true``. The
    defaults are those of its LibriSpeech recipe's large model (Kim et al. 2022, https://arxiv.org/abs/2210.00077).

    :param in_dim: ``input_size``: of the features, at least 7
    :param num_layers: ``num_blocks``
    :param out_dim: ``output_size``: of the model, even and a multiple of ``num_heads``
    :param num_heads: ``attention_heads``
    :param ff_dim: ``linear_units``
    :param cgmlp_dim: ``cgmlp_linear_units``, even: one half gates the other
    :param conv_kernel_size: ``cgmlp_conv_kernel``, odd
    :param merge_kernel_size: ``merge_conv_kernel``, odd
    :param dropout: everywhere
    :return: encoder, ``{batch, time, in_dim} -> {batch, time', out_dim}``, see :class:`EspnetSubsampling`
    :raises ValueError: for a size that doesn't fit
    """
    owner = "espnet_e_branchformer"
    in_dim, out_dim = nn.as_dim(in_dim, name="features"), nn.as_dim(out_dim, name="e-branchformer")
    cgmlp_dim = nn.as_dim(cgmlp_dim, name="e-branchformer-cgmlp")
    _check_sizes(owner, out_dim, num_layers=num_layers, num_heads=num_heads, dropout=dropout)
    _check_odd(owner, conv_kernel_size=conv_kernel_size, merge_kernel_size=merge_kernel_size)
    if cgmlp_dim.dimension is None or cgmlp_dim.dimension % 2:
        raise ValueError(f"{owner}: expected an even cgmlp_dim, got {cgmlp_dim.dimension}")
    gate_dim = nn.FeatureDim("e-branchformer-gate", cgmlp_dim.dimension // 2)
    layers = [
        EBranchformerLayer(
            out_dim,
            ff_dim=nn.as_dim(ff_dim, name="e-branchformer-ff"),
            num_heads=num_heads,
            cgmlp=FeedForwardConvGated(out_dim, ff_dim=gate_dim, kernel_size=conv_kernel_size, dropout=dropout),
            merge_conv_kernel=merge_kernel_size,
            dropout=dropout,
            att_dropout=dropout,
        )
        for _ in range(num_layers)
    ]
    return _make_encoder(owner, in_dim, out_dim, layers, dropout=dropout)


class EspnetSubsampling(nn.Module):
    """
    ESPnet's ``Conv2dSubsampling``: two convolutions over time and frequency, 3x3, stride 2, unpadded, with ReLU, and a
    linear layer. Of ``time`` frames, ``((time - 1) // 2 - 1) // 2`` are left. That would be none of less than 7, which
    ESPnet refuses; here, zeros are appended to them, so that one is left.

    :param in_dim: features, at least 7
    :param out_dim: channels of both convolutions, and of the linear layer
    """

    def __init__(self, in_dim: nn.Dim, out_dim: nn.Dim):
        super().__init__()
        self.in_dim = in_dim
        self.out_dim = out_dim
        self.downsample_factor = 4
        channels = [nn.FeatureDim(f"conv-{i}", out_dim.dimension) for i in (1, 2)]
        self.conv = ConformerConvSubsample(
            in_dim, out_dims=channels, filter_sizes=[3, 3], strides=[2, 2], padding="valid"
        )
        self.linear = nn.Linear(self.conv.out_dim, out_dim)

    def __call__(self, source: nn.Tensor, *, in_spatial_dim: nn.Dim) -> tuple[nn.Tensor, nn.Dim]:
        """
        :param source: ``{batch, time, in_dim}``
        :param in_spatial_dim: time
        :return: ``{batch, time', out_dim}``, and the dim time'
        """
        sizes = in_spatial_dim.get_size_tensor()
        out_spatial_dim = nn.Dim(nn.maximum((sizes - 3) // 4, 1), name="subsampled")
        source = nn.where(nn.sequence_mask(in_spatial_dim, device=source.device), source, 0.0)
        # Padded as a block, as padding behind each sequence's own end isn't there on the net dict.
        padding = [(0, _MIN_FRAMES - 1)]
        source, (block,) = nn.pad(source, axes=[in_spatial_dim], padding=padding, value=0.0, handle_dynamic_dims=False)
        out, block = self.conv(source, in_spatial_dim=block)
        out = nn.gather(out, axis=block, indices=nn.range_over_dim(out_spatial_dim, device=out.device))
        return self.linear(out), out_spatial_dim


def _check_sizes(owner: str, out_dim: nn.Dim, *, num_layers: int, num_heads: int, dropout: float) -> None:
    check_at_least(owner, 1, num_layers=num_layers)
    check_num_heads(owner, num_heads, out_dim=out_dim)
    check_probability(owner, dropout=dropout)
    if out_dim.dimension is None or out_dim.dimension % 2:  # sines and cosines
        raise ValueError(f"{owner}: expected an even out_dim, got {out_dim.dimension}")


def _check_odd(owner: str, **kernel_sizes: int) -> None:
    """An even kernel can't be padded alike on both sides."""
    check_at_least(owner, 1, **kernel_sizes)
    for name, size in kernel_sizes.items():
        if size % 2 == 0:
            raise ValueError(f"{owner}: expected an odd {name}, got {size}")


def _make_encoder(
    owner: str, in_dim: nn.Dim, out_dim: nn.Dim, layers: list[nn.Module], *, dropout: float
) -> TransformerEncoder:
    if in_dim.dimension is None or in_dim.dimension < _MIN_FRAMES:  # frequencies, of which one must be left
        raise ValueError(f"{owner}: expected in_dim >= {_MIN_FRAMES}, got {in_dim.dimension}")
    return TransformerEncoder(
        in_dim,
        input_layer=EspnetSubsampling(in_dim, out_dim),
        layers=nn.Sequential(layers),
        out_dim=out_dim,
        input_dropout=dropout,
    )
