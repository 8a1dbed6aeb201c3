"""
The internal language model of a transducer, as a scorer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .. import nn
from ._common import NEG, plain

if TYPE_CHECKING:
    from .transducer import Transducer

__all__ = ["TransducerLmScorer"]


class TransducerLmScorer:
    """
    Softmax over the labels' logits, without blank, with zeros for the encoder's output (Variani et al. 2020,
    https://arxiv.org/abs/2003.07705, section 4; Meng et al. 2021, https://arxiv.org/abs/2011.01991, section 3.1).
    To be subtracted where another language model is added: :func:`combine` with a negative scale.

    :param transducer: the model
    :param encoder_dim: features of the encoder's output
    :param blank: index of blank in the transducer's labels, the last one
    :param vocab_dim: those labels without blank, or with one more in its place, whose score is 0, as the transducer
        doesn't know it
    :param bos: index of the first `prev_labels` in it, which becomes the transducer's start of the sentence; None: any
    :raise ValueError: `vocab_dim` has another size, or `bos` is not in it
    """

    def __init__(
        self,
        transducer: Transducer,
        *,
        encoder_dim: nn.Dim,
        blank: int,
        vocab_dim: nn.Dim,
        bos: int | None = None,
    ):
        size = vocab_dim.dimension or 0
        if size not in (blank, blank + 1):
            raise ValueError(
                f"TransducerLmScorer: expected a vocabulary of {blank} labels, or one more behind them, got {vocab_dim}"
            )
        if bos is not None and not 0 <= bos < size:
            raise ValueError(
                f"TransducerLmScorer: bos, expected an index from 0 to {size - 1} of {vocab_dim}, got {bos}"
            )
        self.transducer = transducer
        self.encoder_dim = encoder_dim
        self.blank = blank
        self.vocab_dim = vocab_dim

    def initial_state(self, *, batch_dims: Sequence[nn.Dim]) -> dict[str, Any]:
        """
        :param batch_dims: of the hypotheses
        :return: "started": 1 once there was a label, {batch}; "predictor"
        """
        return {
            "started": nn.zeros(batch_dims, dtype="float32"),
            "predictor": self.transducer.initial_state(batch_dims=batch_dims),
        }

    def score(self, prev_labels: nn.Tensor, state: dict[str, Any]) -> tuple[nn.Tensor, dict[str, Any]]:
        """
        :param prev_labels: {batch}, over `vocab_dim`
        :param state: of `initial_state`, or of the call before
        :return: log probs {batch, vocab_dim}, new state
        """
        transducer, labels_dim = self.transducer, self.transducer.labels_dim
        # The first one is the start, also if its index is that of a label.
        labels = nn.where(state["started"] < 0.5, self.blank, plain(prev_labels))
        predicted, predictor_state = transducer.predict(nn.set_sparse_dim(labels, labels_dim), state["predictor"])
        silence = nn.zeros([self.encoder_dim], feature_dim=self.encoder_dim)
        logits = nn.cast(transducer.join(silence, predicted), "float32")
        indices = plain(nn.range_over_dim(labels_dim, dtype="int32", device=logits.device))
        is_blank = nn.compare(indices, "equal", self.blank)
        log_probs = nn.log_softmax(nn.where(is_blank, NEG, logits), axis=labels_dim)
        log_probs = nn.where(is_blank, 0.0, log_probs)
        indices = plain(nn.range_over_dim(self.vocab_dim, dtype="int32", device=logits.device))
        log_probs = nn.gather(log_probs, indices=nn.set_sparse_dim(indices, labels_dim), axis=labels_dim)
        return log_probs, {"started": state["started"] * 0.0 + 1.0, "predictor": predictor_state}
