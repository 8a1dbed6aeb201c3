"""
Transformer language model (Irie et al. 2019, https://arxiv.org/abs/1905.04226): a decoder without encoder,
wired from RETURNN's own modules.
"""

from __future__ import annotations

from ... import nn
from ...nn.causal_attention import CausalSelfAttention
from ...nn.checks import check_at_least, check_probability
from ...nn.transformer_decoder import TransformerDecoder

__all__ = ["make_transformer_lm"]


def make_transformer_lm(
    vocab_dim: int | nn.Dim,
    *,
    num_layers: int = 24,
    model_dim: int | nn.Dim = 1024,
    num_heads: int = 8,
    ff_dim: int | nn.Dim | None = None,
    embed_dim: int | nn.Dim | None = None,
    positions: str = "none",
    dropout: float = 0.0,
) -> TransformerDecoder:
    """
    The defaults are the paper's model over 10k subwords of LibriSpeech: 24 layers of width 1024 with 8 heads and
    feed-forward blocks of 4096, no dropout, and no encoding of positions, without which the paper's models were better.
    Normalisation comes before each block, as there, and once more before the output.

    It follows :class:`returnn_common.nn.Decoder`. ``default_initial_state`` also takes ``capacity``: the number of
    steps at most, so that no shape in the state ever changes; and ``beam_dim``, with which the hypotheses of a beam
    search share what they have in common.

    :param vocab_dim: of the labels
    :param num_heads: divides ``model_dim``
    :param ff_dim: inside of the feed-forward blocks; None: 4 times ``model_dim``
    :param embed_dim: of the labels' embedding, which a linear layer takes to ``model_dim`` (the paper: 128);
        None: the embedding has ``model_dim``, and is that of the output layer as well
    :param positions: "none"; "absolute": sinusoids added to the embedding; "rotary": queries and keys are turned
        (Su et al. 2021, https://arxiv.org/abs/2104.09864)
    :param dropout: after each block, in it, on the attention weights and on the embedding
    :return: language model, ``{batch, labels} -> {batch, labels, vocab}``
    :raises ValueError: for a size that doesn't fit, or another ``positions``
    """
    model_dim = nn.as_dim(model_dim, name="lm")
    size = model_dim.dimension
    assert size is not None
    check_at_least("transformer lm", 1, num_layers=num_layers, num_heads=num_heads)
    check_probability("transformer lm", dropout=dropout)
    if size % num_heads:
        raise ValueError(f"transformer lm: model_dim {size} is not a multiple of num_heads {num_heads}")
    if positions not in ("none", "absolute", "rotary"):
        raise ValueError(f"transformer lm: expected positions 'none', 'absolute' or 'rotary', got {positions!r}")
    return nn.fuse(
        TransformerDecoder(
            None,
            nn.as_dim(vocab_dim, name="labels"),
            model_dim,
            num_layers=num_layers,
            num_heads=num_heads,
            ff_dim=nn.as_dim(4 * size if ff_dim is None else ff_dim, name="lm-ff"),
            pos_enc=nn.sinusoidal_positional_encoding if positions == "absolute" else None,
            dropout=dropout,
            att_dropout=dropout,
            embed_dim=None if embed_dim is None else nn.as_dim(embed_dim, name="lm-embedding"),
            share_embedding=embed_dim is None,
            input_embedding_scale=size**0.5 if embed_dim is None else 1.0,
            input_dropout=dropout,
            layer_opts={"self_att": CausalSelfAttention, "self_att_opts": {"rotary": positions == "rotary"}},
        )
    )
