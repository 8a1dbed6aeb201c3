"""
Transformer decoder (Vaswani et al. 2017, https://arxiv.org/abs/1706.03762), wired from RETURNN's own modules,
so that parameter names are RETURNN's and existing checkpoints load.
"""

from __future__ import annotations

from ... import nn
from ...nn.causal_attention import CausalSelfAttention
from ...nn.checks import check_at_least, check_probability
from ...nn.transformer_decoder import TransformerDecoder

__all__ = ["make_transformer_decoder"]


def make_transformer_decoder(
    encoder_dim: int | nn.Dim,
    vocab_dim: int | nn.Dim,
    *,
    num_layers: int = 6,
    model_dim: int | nn.Dim = 512,
    num_heads: int = 8,
    ff_dim: int | nn.Dim | None = None,
    positions: str = "absolute",
    share_embedding: bool = True,
    dropout: float = 0.1,
) -> TransformerDecoder:
    """
    The defaults are the paper's base model (table 3), but with normalisation before each block instead of after it
    (Xiong et al. 2020, https://arxiv.org/abs/2002.04745, figure 1), and once more before the output.

    It follows :class:`returnn_common.nn.Decoder`. ``default_initial_state`` also takes ``capacity``: the number of
    steps at most, so that no shape in the state ever changes; and ``beam_dim``, with which the hypotheses of a beam
    search share what they have in common.

    :param encoder_dim: of the encoder's output, normalised already
    :param vocab_dim: of the labels
    :param num_heads: of each attention, divides ``model_dim``
    :param ff_dim: inside of the feed-forward blocks; None: 4 times ``model_dim``
    :param positions: "absolute": sinusoids added to the embedding (section 3.5 of the paper); "rotary": queries and
        keys of the self-attention are turned (Su et al. 2021, https://arxiv.org/abs/2104.09864)
    :param share_embedding: the labels' embedding is that of the output layer as well (section 3.4 of the paper). At
        first, such a decoder repeats the label before, which a small one takes long to unlearn.
    :param dropout: after each block, in it, on the attention weights and on the embedding
    :return: decoder, ``{batch, labels} -> {batch, labels, vocab}``
    :raises ValueError: for a size that doesn't fit, or another ``positions``
    """
    model_dim = nn.as_dim(model_dim, name="decoder")
    size = model_dim.dimension
    assert size is not None
    check_at_least("transformer decoder", 1, num_layers=num_layers, num_heads=num_heads)
    check_probability("transformer decoder", dropout=dropout)
    if size % num_heads:
        raise ValueError(f"transformer decoder: model_dim {size} is not a multiple of num_heads {num_heads}")
    if positions not in ("absolute", "rotary"):
        raise ValueError(f"transformer decoder: expected positions 'absolute' or 'rotary', got {positions!r}")
    return nn.fuse(
        TransformerDecoder(
            nn.as_dim(encoder_dim, name="encoder"),
            nn.as_dim(vocab_dim, name="labels"),
            model_dim,
            num_layers=num_layers,
            num_heads=num_heads,
            ff_dim=nn.as_dim(4 * size if ff_dim is None else ff_dim, name="decoder-ff"),
            pos_enc=nn.sinusoidal_positional_encoding if positions == "absolute" else None,
            dropout=dropout,
            att_dropout=dropout,
            share_embedding=share_embedding,
            input_embedding_scale=size**0.5,
            input_dropout=dropout,
            layer_opts={"self_att": CausalSelfAttention, "self_att_opts": {"rotary": positions == "rotary"}},
        )
    )
