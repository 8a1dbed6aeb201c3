"""
Transducer (Graves 2012, https://arxiv.org/abs/1211.3711): encoder, predictor over the labels so far, and a joiner of
both, which in each frame scores the next label, and blank for none.
"""

from __future__ import annotations

from collections.abc import Sequence

from .. import nn
from .decoder.transducer import Joiner, LSTMPredictor, StatelessPredictor, make_joiner, make_lstm_predictor
from .specaugment import SpecAugment
from .speech import check_layers, choose_front_end
from .transducer_model import TransducerModel

__all__ = ["TransducerModel", "make_transducer_model"]


def make_transducer_model(
    in_dim: int | nn.Dim | None,
    vocab_dim: int | nn.Dim,
    *,
    encoder: nn.Encoder | None = None,
    predictor: LSTMPredictor | StatelessPredictor | None = None,
    joiner: Joiner | None = None,
    specaugment: str | SpecAugment | None = "LD",
    separate_blank: bool = False,
    aux_ctc_layers: Sequence[int] = (),
    aux_ctc_scale: float = 0.3,
) -> TransducerModel:
    """
    Predictor and joiner are by default as in the Conformer transducers (Gulati et al. 2020,
    https://arxiv.org/abs/2005.08100, table 1: one LSTM of 640).

    :param in_dim: of the log-mels in the source; None: the source is raw audio, and the model computes 80 log-mels
        (or as many as the encoder takes)
    :param vocab_dim: labels without blank, which is added as the last one
    :param encoder: default: :func:`make_conformer_encoder`
    :param predictor: default: :func:`make_lstm_predictor`
    :param joiner: default: :func:`make_joiner`
    :param specaugment: policy by name, or a module; None: none
    :param separate_blank: see :class:`TransducerModel`
    :param aux_ctc_layers: encoder layers (1 is the first) with a CTC head, see :class:`TransducerModel`
    :param aux_ctc_scale: of the loss of each of them
    :raises ValueError: if parts don't fit each other, or there is no such layer
    """
    name = "make_transducer_model"
    vocab_dim = nn.as_dim(vocab_dim, name="labels")
    features, specaugment, encoder = choose_front_end(name, in_dim, encoder=encoder, specaugment=specaugment)
    check_layers(name, encoder, aux_ctc_layers, last=True)
    predictor = predictor or make_lstm_predictor(vocab_dim)
    joiner = joiner or make_joiner(encoder.out_dim, predictor.out_dim, vocab_dim)
    for what, part in [("predictor", predictor), ("joiner", joiner)]:
        if part.vocab_dim.dimension != vocab_dim.dimension:
            raise ValueError(f"{name}: expected a {what} over {vocab_dim.dimension} labels, got {part.vocab_dim}")
    if (joiner.encoder_dim, joiner.predictor_dim) != (encoder.out_dim, predictor.out_dim):
        raise ValueError(
            f"{name}: expected a joiner of {encoder.out_dim} and {predictor.out_dim}, "
            f"got one of {joiner.encoder_dim} and {joiner.predictor_dim}"
        )
    return TransducerModel(
        encoder=encoder,
        predictor=predictor,
        joiner=joiner,
        vocab_dim=vocab_dim,
        features=features,
        specaugment=specaugment,
        separate_blank=separate_blank,
        aux_ctc_layers=aux_ctc_layers,
        aux_ctc_scale=aux_ctc_scale,
    )
