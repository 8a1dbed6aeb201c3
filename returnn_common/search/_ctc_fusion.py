"""
A scorer, such as a language model, in CTC prefix beam search.

Shape letters: B batch dims, K beam, V labels with blank.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import nn
from ._common import plain, scale_log_probs, size_of, with_dims
from .scorers import bounded_initial_state, score_next


class CtcFusion:
    """
    Scaled scores of the next label for each prefix in the beam. Only a prefix that was extended gets new ones.

    :param scorer: see :func:`returnn_common.search.ctc_beam_search`, also for the others
    :param dims: B, K
    :param beam_dim: K
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
        beam_dim: nn.Dim,
        vocab_dim: nn.Dim,
        blank: int,
        device: str | None,
    ):
        self.scorer = scorer
        self.scale = scale
        self.bos, self.eos, self.blank = bos, eos, blank
        self.dims, self.beam_dim, self.vocab_dim = dims, beam_dim, vocab_dim
        self.device = device
        self.has_blank = size_of(scorer.vocab_dim) == size_of(vocab_dim)

    def initial_state(self, *, num_frames: nn.Tensor | None) -> dict[str, Any]:
        """
        :param num_frames: of the longest sequence, scalar; None: not known
        :return: `last`, score of the last label {B, K}; `next`, of each next one {B, K, V}; `eos` {B, K}; `state`
        """
        # The scorer has a beam from the start, so that the dims of its state's tensors stay as they are.
        bos = nn.constant(self.bos, dims=self.dims, dtype="int32", device=self.device)
        max_steps = None if num_frames is None else num_frames + 1
        state = bounded_initial_state(self.scorer, batch_dims=self.dims, max_steps=max_steps)
        scores, state = score_next(self.scorer, nn.set_sparse_dim(bos, self.scorer.vocab_dim), state)
        next_scores, eos = self._scaled(scores)
        return {
            "last": nn.constant(0.0, dims=self.dims, dtype="float32", device=self.device),
            "next": next_scores,
            "eos": eos,
            "state": with_dims(state, self.dims),
        }

    def advance(self, fusion: dict[str, Any], chosen: dict[str, nn.Tensor]) -> dict[str, Any]:
        """
        :param fusion: of the prefixes before
        :param chosen: `source`, `label`, `extends` {B, K}: from which ones the new ones come, and by which label
        :return: of the new ones
        """
        source, label, extends = chosen["source"], chosen["label"], chosen["extends"]
        last, scores, eos = (nn.gather(fusion[k], indices=source, axis=self.beam_dim) for k in ("last", "next", "eos"))
        label_score = nn.gather(scores, indices=label, axis=self.vocab_dim)
        state = nn.nested.gather_nested(fusion["state"], indices=nn.set_sparse_dim(source, self.beam_dim))
        previous = nn.where(extends, self._as_scorers(label), self.bos)
        new_scores, new_state = score_next(self.scorer, nn.set_sparse_dim(previous, self.scorer.vocab_dim), state)
        new_scores, new_eos = self._scaled(new_scores)
        return {
            "last": nn.where(extends, label_score, last),
            "next": nn.where(extends, new_scores, scores),
            "eos": nn.where(extends, new_eos, eos),
            "state": nn.nested.where_nested(new_state, state, condition=extends),
        }

    def _scaled(self, scores: nn.Tensor) -> tuple[nn.Tensor, nn.Tensor]:
        """:return: of labels {B, K, V}, and of end of sentence {B, K}"""
        scorers_dim = self.scorer.vocab_dim
        scores = scale_log_probs(scores, self.scale)
        eos = nn.constant(0.0, dims=self.dims, dtype="float32", device=self.device)
        if self.eos is not None:
            eos = nn.gather(scores, indices=self.eos, axis=scorers_dim)
        if scorers_dim != self.vocab_dim:
            labels = plain(nn.range_over_dim(self.vocab_dim, dtype="int32", device=self.device))
            indices = nn.clip_by_value(self._as_scorers(labels), 0, size_of(scorers_dim) - 1)
            scores = nn.gather(scores, indices=nn.set_sparse_dim(indices, scorers_dim), axis=scorers_dim)
        return scores, eos

    def _as_scorers(self, label: nn.Tensor) -> nn.Tensor:
        return label if self.has_blank else label - nn.cast(label > self.blank, "int32")
