"""
Attention-based encoder-decoder (Bahdanau et al. 2016, https://arxiv.org/abs/1508.04395; Chan et al. 2016,
https://arxiv.org/abs/1508.01211), with CTC heads on the encoder (Watanabe et al. 2017,
https://doi.org/10.1109/JSTSP.2017.2763455; on inner layers: Lee and Watanabe 2021, https://arxiv.org/abs/2102.03216).
"""

from __future__ import annotations

from collections.abc import Sequence

from .. import nn
from ..nn.checks import check_probability
from .aed_model import AedModel
from .decoder.transformer import make_transformer_decoder
from .specaugment import SpecAugment
from .speech import check_layers, choose_front_end

__all__ = ["AedModel", "make_aed_model"]


def make_aed_model(
    in_dim: int | nn.Dim | None,
    vocab_dim: int | nn.Dim,
    *,
    encoder: nn.Encoder | None = None,
    decoder: nn.Decoder | None = None,
    eos: int | None = None,
    specaugment: str | SpecAugment | None = "LD",
    aux_ctc_layers: Sequence[int] = (),
    aux_ctc_scale: float = 0.3,
    label_smoothing: float = 0.1,
) -> AedModel:
    """
    The defaults are ESPnet's LibriSpeech Conformer with a Transformer decoder of 6 layers (Guo et al. 2021,
    https://arxiv.org/abs/2010.13956, table 1), label smoothing as there.

    :param in_dim: of the log-mels in the source; None: the source is raw audio, and the model computes 80 log-mels
        (or as many as the encoder takes)
    :param vocab_dim: labels of the targets
    :param encoder: default: :func:`make_conformer_encoder`
    :param decoder: default: :func:`make_transformer_decoder`, with 2048 in its feed-forward blocks
    :param eos: index of the end of sentence in ``vocab_dim``, used as begin of sentence as well; None: the decoder has
        a label for it behind those of ``vocab_dim``
    :param specaugment: policy by name, or a module; None: none
    :param aux_ctc_layers: encoder layers (1 is the first) with a CTC head, see :class:`AedModel`
    :param aux_ctc_scale: of the loss of each of them
    :param label_smoothing: of the decoder's loss
    :raises ValueError: if the encoder takes another ``in_dim``, or has no such layer, if the decoder's vocabulary has
        another size, or ``eos`` is not in it
    """
    vocab_dim = nn.as_dim(vocab_dim, name="labels")
    check_probability("make_aed_model", label_smoothing=label_smoothing)
    features, specaugment, encoder = choose_front_end(
        "make_aed_model", in_dim, encoder=encoder, specaugment=specaugment
    )
    check_layers("make_aed_model", encoder, aux_ctc_layers, last=True)
    size = vocab_dim.dimension
    assert size is not None
    if eos is not None and not 0 <= eos < size:
        raise ValueError(f"make_aed_model: expected eos as an index of {vocab_dim}, got {eos!r}")
    decoder_vocab_dim = vocab_dim if eos is not None else nn.FeatureDim("labels-and-end", size + 1)
    if decoder is None:
        decoder = make_transformer_decoder(encoder.out_dim, decoder_vocab_dim, ff_dim=2048)
    elif decoder.vocab_dim.dimension != decoder_vocab_dim.dimension:
        raise ValueError(
            f"make_aed_model: expected a decoder with {decoder_vocab_dim.dimension} labels "
            f"({'eos among them' if eos is not None else 'end of sentence behind them'}), got {decoder.vocab_dim}"
        )
    eos = size if eos is None else eos
    return AedModel(
        encoder=encoder,
        decoder=decoder,
        vocab_dim=vocab_dim,
        bos=eos,
        eos=eos,
        features=features,
        specaugment=specaugment,
        aux_ctc_layers=aux_ctc_layers,
        aux_ctc_scale=aux_ctc_scale,
        label_smoothing=label_smoothing,
    )
