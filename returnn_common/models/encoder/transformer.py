"""
Transformer encoder (Vaswani et al. 2017, https://arxiv.org/abs/1706.03762) for speech and for text, wired from
RETURNN's own layers. Its norms stand before each block, and one at the end, which trains more steadily than the
original order (Xiong et al. 2020, https://arxiv.org/abs/2002.04745).
"""

from __future__ import annotations

from typing import Any

from returnn.frontend.decoder.transformer import FeedForward
from returnn.frontend.encoder.transformer import TransformerEncoderLayer

from ... import nn
from ...nn.checks import check_at_least, check_num_heads, check_probability

__all__ = ["TransformerEncoder", "make_transformer_encoder", "make_transformer_text_encoder"]

# Absolute: sinusoids, added to the input. Relative: Dai et al. 2019 (https://arxiv.org/abs/1901.02860), as in the
# Conformer. Rotary: Su et al. 2021 (https://arxiv.org/abs/2104.09864).
_SELF_ATTENTION = {
    "absolute": nn.SelfAttention,
    "relative": nn.RelPosSelfAttention,
    "rotary": nn.RotarySelfAttention,
}


def make_transformer_encoder(
    in_dim: int | nn.Dim,
    *,
    num_layers: int = 12,
    out_dim: int | nn.Dim = 512,
    num_heads: int = 8,
    positions: str = "relative",
    subsampling: int = 4,
    subsampling_channels: int = 64,
    dropout: float = 0.1,
    layer_drop: float = 0.0,
) -> TransformerEncoder:
    """
    For speech. The sizes are ESPnet's for LibriSpeech (Karita et al. 2019, https://arxiv.org/abs/1909.06317), whose
    positions are absolute. The feed-forward dim is 4 times ``out_dim``, with ReLU.

    :param in_dim: of the features, e.g. 80 log-mels
    :param out_dim: of the model: even, and a multiple of ``num_heads`` (rotary: of ``2 * num_heads``)
    :param positions: "relative", "absolute" or "rotary"; none of them has a longest length
    :param subsampling: 4 or 6, see :func:`nn.make_conv_subsampling`, or 1: one linear layer and the same length
    :param subsampling_channels: of its second convolution; the first has half as many
    :param dropout: everywhere
    :param layer_drop: chance that a layer is left out, drawn for each batch in training (Fan et al. 2019,
        https://arxiv.org/abs/1909.11556)
    :return: encoder, ``{batch, time, in_dim} -> {batch, time / subsampling, out_dim}``
    :raises ValueError: for a size that doesn't fit
    """
    in_dim = nn.as_dim(in_dim, name="features")
    out_dim = nn.as_dim(out_dim, name="transformer")
    if subsampling not in (1, 4, 6):
        raise ValueError(f"transformer: expected subsampling 1, 4 or 6, got {subsampling!r}")
    input_layer = None
    if subsampling != 1:
        input_layer = nn.make_conv_subsampling(in_dim, subsampling, channels=subsampling_channels, owner="transformer")
    return nn.fuse(
        TransformerEncoder(
            in_dim,
            input_layer=input_layer,
            layers=_make_layers(out_dim, num_layers, num_heads, positions, dropout, layer_drop),
            out_dim=out_dim,
            absolute_positions=positions == "absolute",
            input_dropout=dropout,
        )
    )


def make_transformer_text_encoder(
    vocab_dim: int | nn.Dim,
    *,
    num_layers: int = 6,
    out_dim: int | nn.Dim = 512,
    num_heads: int = 8,
    positions: str = "absolute",
    dropout: float = 0.1,
    layer_drop: float = 0.0,
) -> TransformerEncoder:
    """
    For text. The defaults are the base model of Vaswani et al. 2017 (table 3); with them, parameter names and numbers
    are those of RETURNN's own ``TransformerEncoder``, so that checkpoints fit both.

    :param vocab_dim: of the labels
    :return: encoder, labels ``{batch, time}`` over vocab_dim to ``{batch, time, out_dim}``, with the same time
    :raises ValueError: for a size that doesn't fit

    The other arguments are those of :func:`make_transformer_encoder`.
    """
    vocab_dim = nn.as_dim(vocab_dim, name="vocab")
    out_dim = nn.as_dim(out_dim, name="transformer")
    return nn.fuse(
        TransformerEncoder(
            vocab_dim,
            input_layer=nn.Embedding(vocab_dim, out_dim),
            layers=_make_layers(out_dim, num_layers, num_heads, positions, dropout, layer_drop),
            out_dim=out_dim,
            absolute_positions=positions == "absolute",
            input_dropout=dropout,
        )
    )


def _make_layers(
    out_dim: nn.Dim, num_layers: int, num_heads: int, positions: str, dropout: float, layer_drop: float
) -> nn.Sequential:
    check_at_least("transformer", 1, num_layers=num_layers)
    check_num_heads("transformer", num_heads, out_dim=out_dim)
    check_probability("transformer", dropout=dropout, layer_drop=layer_drop)
    size = out_dim.dimension
    if size is None or size < 4 or size % 2:
        raise ValueError(f"transformer: expected an even out_dim of at least 4, got {size}")  # sines and cosines
    if positions not in _SELF_ATTENTION:
        raise ValueError(f"transformer: expected positions 'relative', 'absolute' or 'rotary', got {positions!r}")
    layers = [
        TransformerEncoderLayer(
            out_dim,
            ff=FeedForward(out_dim, ff_dim=nn.FeatureDim("transformer-ff", 4 * size), dropout=dropout),
            dropout=dropout,
            num_heads=num_heads,
            self_att=_SELF_ATTENTION[positions],
            att_dropout=dropout,
        )
        for _ in range(num_layers)
    ]
    return nn.StochasticDepth(layers, drop_probs=[layer_drop] * num_layers)


class TransformerEncoder(nn.Module):
    """
    Input layer, linear layer to ``out_dim`` where the dims differ, positions, dropout, layers, norm.
    The input is multiplied by ``sqrt(out_dim)`` if it is an embedding (Vaswani et al. 2017, section 3.4), or if
    positions are added to it, which else would outweigh it.

    :param in_dim: of the source: features, or labels if the input layer is an embedding
    :param input_layer: None: none; an ``nn.Embedding``; or what takes ``(source, in_spatial_dim=time)``, returns
        ``(out, time')`` and has ``out_dim`` and ``downsample_factor``, e.g. of :func:`nn.make_conv_subsampling`
    :param layers: of ``(source, spatial_dim=time)`` each; take ``collected_outputs`` together, as ``nn.Sequential``
    :param out_dim: of each layer
    :param absolute_positions: add sinusoids
    :param input_dropout: on what goes to the first layer
    """

    def __init__(
        self,
        in_dim: nn.Dim,
        *,
        input_layer: Any,
        layers: nn.Sequential,
        out_dim: nn.Dim,
        absolute_positions: bool = False,
        input_dropout: float = 0.1,
    ):
        super().__init__()
        self.in_dim = in_dim
        self.out_dim = out_dim
        is_embedding = isinstance(input_layer, nn.Embedding)
        # The names are those of RETURNN's encoders.
        self.input_embedding = input_layer if is_embedding else None
        self.input_layer = None if is_embedding else input_layer
        layer_dim = input_layer.out_dim if input_layer is not None else in_dim
        self.input_projection = nn.Linear(layer_dim, out_dim, with_bias=False) if layer_dim != out_dim else None
        self.input_scale = out_dim.dimension**0.5 if is_embedding or absolute_positions else 1.0
        self.absolute_positions = absolute_positions
        self.input_dropout = input_dropout
        self.layers = layers
        self.final_layer_norm = nn.LayerNorm(out_dim)

    @property
    def downsample_factor(self) -> int:
        """of the time"""
        return self.input_layer.downsample_factor if self.input_layer is not None else 1

    def __call__(
        self, source: nn.Tensor, *, in_spatial_dim: nn.Dim, collected_outputs: dict[str, nn.Tensor] | None = None
    ) -> tuple[nn.Tensor, nn.Dim]:
        """
        :param source: features ``{batch, time, in_dim}``; with an embedding labels ``{batch, time}`` over in_dim
        :param in_spatial_dim: time
        :param collected_outputs: is filled with the output of each layer, by its number from "0" on, without the last
            norm
        :return: ``{batch, time', out_dim}``, and the dim time'
        :raises ValueError: if the source doesn't have in_dim
        """
        if self.input_embedding is not None and source.sparse_dim != self.in_dim:
            raise ValueError(f"TransformerEncoder: expected labels over {self.in_dim}, got {source}")
        if self.input_embedding is None and self.in_dim not in source.dims:
            raise ValueError(f"TransformerEncoder: expected features with {self.in_dim}, got {source}")
        x, spatial_dim = source, in_spatial_dim
        if self.input_embedding is not None:
            x = self.input_embedding(x)
        elif self.input_layer is not None:
            x, spatial_dim = self.input_layer(x, in_spatial_dim=spatial_dim)
        if self.input_projection is not None:
            x = self.input_projection(x)
        if self.input_scale != 1.0:
            x = x * self.input_scale
        if self.absolute_positions:
            encoding = nn.sinusoidal_positional_encoding(spatial_dim=spatial_dim, feat_dim=self.out_dim)
            x = x + nn.cast(encoding, x.dtype)
        x = nn.dropout(x, self.input_dropout)
        x = self.layers(x, spatial_dim=spatial_dim, collected_outputs=collected_outputs)
        return self.final_layer_norm(x), spatial_dim
