"""
A scorer, such as a language model, in the search for transducers.

Shape letters: B batch dims, K beam, V labels with blank.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import nn
from ._common import plain, scale_log_probs, size_of, with_dims
from .scorers import bounded_initial_state, score_next


class TransducerFusion:
    """
    Scaled scores of the next label.

    :param scorer: see :func:`returnn_common.search.transducer_beam_search`, also for the others
    :param dims: B, K
    :param vocab_dim: V
    """

    def __init__(
        self,
        scorer: Any,
        *,
        scale: float,
        bos: int,
        eos: int | None,
        dims: Sequence[nn.Dim],
        vocab_dim: nn.Dim,
        blank: int,
        device: str | None,
    ):
        self.scorer = scorer
        self.scale = scale
        self.bos, self.eos, self.blank = bos, eos, blank
        self.dims, self.vocab_dim = dims, vocab_dim
        self.device = device
        self.may_rise = scale < 0 or getattr(scorer, "can_exceed_zero", False)

    def initial(self, *, max_labels: nn.Tensor | None) -> dict[str, Any]:
        """
        :param max_labels: of a hypothesis, scalar; None: not known
        :return: `next`, scaled log probs of each next label {B, K, V}, `end`, of the end of sentence {B, K}; `state`
        """
        max_steps = None if max_labels is None else max_labels + 1
        state = bounded_initial_state(self.scorer, batch_dims=self.dims, max_steps=max_steps)
        bos = nn.constant(self.bos, dims=self.dims, dtype="int32", device=self.device)
        return self._score(bos, state)

    def advance(self, label: nn.Tensor, state: Any) -> dict[str, Any]:
        """
        :param label: the last one, in V {B, K}
        :param state: before it
        :return: see :func:`initial`
        """
        return self._score(self._as_scorers(label), state)

    def _score(self, label: nn.Tensor, state: Any) -> dict[str, Any]:
        scorers_dim = self.scorer.vocab_dim
        scores, state = score_next(self.scorer, nn.set_sparse_dim(label, scorers_dim), state)
        scores = scale_log_probs(scores, self.scale)
        end = zeros = nn.constant(0.0, dims=self.dims, dtype="float32", device=self.device)
        scores = nn.combine_bc(zeros, "+", scores)  # a scorer may depend on less than the hypotheses
        if self.eos is not None:
            end = nn.gather(scores, indices=self.eos, axis=scorers_dim)
        if scorers_dim != self.vocab_dim:
            labels = plain(nn.range_over_dim(self.vocab_dim, dtype="int32", device=self.device))
            indices = nn.set_sparse_dim(self._as_scorers(labels), scorers_dim)
            scores = nn.gather(scores, indices=indices, axis=scorers_dim)
        return {"next": scores, "end": end, "state": with_dims(state, self.dims)}

    def _as_scorers(self, label: nn.Tensor) -> nn.Tensor:
        size = size_of(self.scorer.vocab_dim)
        if size < size_of(self.vocab_dim):
            label = label - nn.cast(label > self.blank, "int32")
        return nn.clip_by_value(label, 0, size - 1)  # what isn't used can have blank as its label
