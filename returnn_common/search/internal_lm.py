"""
The language model inside of a decoder with attention, as a scorer: what it gives without anything from the encoder.

A search with another language model subtracts it, as the transcripts in training are no longer what is expected
(McDermott et al. 2019, https://arxiv.org/abs/2002.11268, with a language model trained on the transcripts; Variani et
al. 2020, https://arxiv.org/abs/2003.07705; Meng et al. 2021, https://arxiv.org/abs/2011.01991)::

    ilm = internal_lm(decoder, average_context(encoded, spatial_dim=time))
    scorer = combine([(DecoderScorer(decoder, encoder), 1.0), (lm, 0.5), (ilm, -0.3)])

Zeineldeen et al. 2021, https://arxiv.org/abs/2104.05544, compare what to put in the place of the encoder's output.
"""

from __future__ import annotations

from .. import nn
from .scorers import DecoderScorer

__all__ = ["average_context", "internal_lm", "zero_context"]


def internal_lm(decoder: nn.Decoder, context: nn.Tensor) -> DecoderScorer:
    """
    The decoder with a single frame as the encoder's output: whatever it attends to, that is what it finds. With
    :func:`make_lstm_attention_decoder`, it is the context vector; with a Transformer, the values of each layer are
    computed from it, with their biases.

    :param decoder: with `transform_encoder`
    :param context: {encoder_dim}, or {batch, encoder_dim}: :func:`zero_context`, :func:`average_context`, or your own,
        such as an average over the training data
    :return: scorer
    """
    frame_dim = nn.Dim(1, name="context-frame")
    frame = nn.expand_dim(context, frame_dim)
    frame.feature_dim = context.feature_dim
    return DecoderScorer(decoder, decoder.transform_encoder(frame, axis=frame_dim))


def zero_context(encoder_dim: nn.Dim) -> nn.Tensor:
    """
    Nothing from the encoder, as in Variani et al. 2020 and Meng et al. 2021.

    :param encoder_dim: of the encoder's output
    :return: {encoder_dim}
    """
    return nn.zeros([encoder_dim], feature_dim=encoder_dim)


def average_context(encoded: nn.Tensor, *, spatial_dim: nn.Dim) -> nn.Tensor:
    """
    What the encoder gives on average, as in Zeineldeen et al. 2021.

    :param encoded: {batch, time, encoder_dim}
    :param spatial_dim: time
    :return: {batch, encoder_dim}: average over the frames of each sequence; zeros where it has none
    :raise ValueError: encoded without that dim
    """
    if spatial_dim not in encoded.dims:
        raise ValueError(f"average_context: encoded, expected a tensor with {spatial_dim}, got {encoded}")
    device = encoded.device
    sizes = spatial_dim.get_size_tensor(device=device)
    valid = nn.compare_bc(nn.range_over_dim(spatial_dim, device=device), "<", sizes)
    total = nn.reduce_sum(nn.where(valid, encoded, 0.0), axis=spatial_dim, use_mask=False)
    average = total / nn.maximum(nn.cast(sizes, encoded.dtype), 1.0)
    average.feature_dim = encoded.feature_dim
    return average
