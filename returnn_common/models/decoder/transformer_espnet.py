"""
Differs from returnn_common/models/decoder/transformer.py in two points, in which it is as ESPnet's
(https://github.com/espnet/espnet), so that its trained weights fit (:mod:`returnn_common.training.import_espnet`):
sines and cosines take turns in the positions' encoding, and the output layer isn't the embedding and has a bias.
"""

from __future__ import annotations

import math

from ... import nn
from ...nn.causal_attention import CausalSelfAttention
from ...nn.checks import check_at_least, check_probability
from ...nn.transformer_decoder import TransformerDecoder

__all__ = ["make_espnet_transformer_decoder"]


def make_espnet_transformer_decoder(
    encoder_dim: int | nn.Dim,
    vocab_dim: int | nn.Dim,
    *,
    num_layers: int = 6,
    model_dim: int | nn.Dim = 512,
    num_heads: int = 8,
    ff_dim: int | nn.Dim = 2048,
    dropout: float = 0.1,
) -> TransformerDecoder:
    """
    ESPnet's ``transformer`` decoder. The defaults are its LibriSpeech recipe's (Guo et al. 2021,
    https://arxiv.org/abs/2010.13956, table 1). It follows :class:`returnn_common.nn.Decoder`.

    :param encoder_dim: of the encoder's output; in ESPnet, always that of the model
    :param vocab_dim: ``vocab_size``; in ESPnet, blank is the first of them, and the last begins and ends a sentence
    :param num_layers: ``num_blocks``
    :param model_dim: a multiple of ``num_heads``
    :param num_heads: ``attention_heads``
    :param ff_dim: ``linear_units``
    :param dropout: after each block, in it, on the attention weights and on the embedding
    :return: decoder, ``{batch, labels} -> {batch, labels, vocab}``
    :raises ValueError: for a size that doesn't fit
    """
    owner = "espnet_transformer_decoder"
    model_dim = nn.as_dim(model_dim, name="decoder")
    size = model_dim.dimension
    assert size is not None
    check_at_least(owner, 1, num_layers=num_layers, num_heads=num_heads)
    check_probability(owner, dropout=dropout)
    if size % num_heads or size % 2:
        raise ValueError(f"{owner}: expected an even model_dim, a multiple of num_heads {num_heads}, got {size}")
    return nn.fuse(
        TransformerDecoder(
            nn.as_dim(encoder_dim, name="encoder"),
            nn.as_dim(vocab_dim, name="labels"),
            model_dim,
            num_layers=num_layers,
            num_heads=num_heads,
            ff_dim=nn.as_dim(ff_dim, name="decoder-ff"),
            pos_enc=_interleaved_sinusoids,
            dropout=dropout,
            att_dropout=dropout,
            share_embedding=False,
            logits_with_bias=True,
            input_embedding_scale=size**0.5,
            input_dropout=dropout,
            layer_opts={"self_att": CausalSelfAttention},
        )
    )


def _interleaved_sinusoids(*, spatial_dim: nn.Dim, feat_dim: nn.Dim, offset: nn.Tensor | int = 0) -> nn.Tensor:
    """
    Vaswani et al. 2017 (https://arxiv.org/abs/1706.03762), section 3.5, as it stands there:
    ``sin(pos / 10000^(2i/d))`` is feature 2i, and the cosine feature 2i+1.

    :return: ``{time, feat_dim}``, or ``{feat_dim}`` for a single step
    """
    feature = nn.range_over_dim(feat_dim, dtype="float32")
    pair = nn.floor(feature * 0.5)
    is_cosine = feature - 2.0 * pair
    rate = nn.exp(pair * (-2.0 * math.log(1e4) / feat_dim.dimension))
    if spatial_dim == nn.single_step_dim:
        position = nn.convert_to_tensor(offset)
    else:
        position = nn.range_over_dim(spatial_dim) + offset
    angle = nn.combine_bc(nn.cast(position, "float32"), "*", rate)
    encoding = nn.cast(nn.sin(angle + is_cosine * (math.pi / 2)), nn.get_default_float_dtype())
    encoding.feature_dim = feat_dim
    return encoding
