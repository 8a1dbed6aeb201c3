"""
CTC prefix beam search, on the frontend: what :func:`returnn_common.search.ctc_beam_search` runs.

Shape letters: B batch dims, K beam, O the beam once more, T frames, V labels with blank.

Each prefix in the beam has two log probabilities: of its alignments that end in blank, and of those that end in its
last label. In each frame, every prefix stays (blank, or its last label again) or is extended by a label. An extension
that equals another prefix of the beam goes to that one, so that the prefixes in the beam always differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .. import nn
from ._common import IMPOSSIBLE, NEG, plain, scale_log_probs, size_of, with_dims
from .scorers import bounded_initial_state


@dataclass
class PrefixBeamSearch:
    """See :func:`returnn_common.search.ctc_beam_search`, which checks the arguments."""

    log_probs: nn.Tensor
    spatial_dim: nn.Dim
    vocab_dim: nn.Dim
    blank: int
    beam_size: int
    scorer: Any
    scorer_scale: float
    use_sum: bool
    bos: int
    eos: int | None

    def __post_init__(self):
        self.device = self.log_probs.device
        self.beam_dim = nn.Dim(self.beam_size, name="beam")
        self.other_dim = nn.Dim(self.beam_size, name="other-beam")
        self.batch_dims = [d for d in self.log_probs.dims if d not in (self.spatial_dim, self.vocab_dim)]
        self.dims = [*self.batch_dims, self.beam_dim]
        self.label_range = plain(nn.range_over_dim(self.vocab_dim, dtype="int32", device=self.device))
        self.is_blank = nn.compare(self.label_range, "equal", self.blank)
        self.positions = plain(nn.range_over_dim(self.spatial_dim, dtype="int32", device=self.device))

    def run(self) -> tuple[nn.Tensor, nn.Tensor, nn.Dim]:
        """:return: labels {B, K, out}, scores {B, K}, out dim with lengths {B, K}"""
        log_probs = nn.maximum(nn.cast(self.log_probs, "float32"), NEG)
        # After its end, a sequence is all blank, for certain: that changes no score.
        mask = self.spatial_dim.get_mask(device=self.device)
        log_probs = nn.where(mask, log_probs, nn.where(self.is_blank, 0.0, NEG))
        log_probs_blank = nn.gather(log_probs, indices=self.blank, axis=self.vocab_dim)

        def frame(t: nn.Tensor | int, state: dict[str, Any]) -> dict[str, Any]:
            at_t = [nn.gather(x, indices=t, axis=self.spatial_dim) for x in (log_probs, log_probs_blank)]
            return self._frame(at_t[0], at_t[1], state)

        state = self._initial_state()
        num_frames = nn.convert_to_tensor(self.spatial_dim.get_dim_value_tensor())
        if nn.is_executing_eagerly() and not nn.is_static_traceable():
            # Not nn.while_loop: the dims in the scorer's state may grow.
            for t in range(int(num_frames.raw_tensor or 0)):
                state = frame(t, state)
        else:

            def body(loop):
                return loop[0] + 1, frame(*loop)

            start = nn.constant(0, dims=(), dtype=num_frames.dtype, device="cpu")
            _, state = nn.while_loop(lambda loop: loop[0] < num_frames, body, (start, state))
        return self._finish(state)

    def _initial_state(self) -> dict[str, Any]:
        """The empty prefix, and K - 1 unused entries."""
        first = nn.compare(nn.range_over_dim(self.beam_dim, dtype="int32", device=self.device), "equal", 0)
        state = {
            # Scores of the alignments that end in blank, and of those that end in the last label
            "blank": nn.where(first, self._full(0.0, "float32"), NEG),
            "label": self._full(NEG, "float32"),
            # An empty prefix has no last label; blank never equals the label that extends it.
            "last": self._full(self.blank),
            "length": self._full(0),
            # {B, K, T}, -1 after the prefix's end
            "history": nn.constant(-1, dims=[*self.dims, self.spatial_dim], dtype="int32", device=self.device),
        }
        if self.scorer is not None:
            # The scorer has a beam from the start, so that the dims of its state's tensors stay as they are.
            bos = nn.set_sparse_dim(self._full(self.bos), self.scorer.vocab_dim)
            num_frames = nn.cast(nn.convert_to_tensor(self.spatial_dim.get_dim_value_tensor()), "int32")
            lm_state = bounded_initial_state(self.scorer, batch_dims=self.dims, max_steps=num_frames + 1)
            scores, lm_state = self.scorer.score(bos, lm_state)
            lm_state = with_dims(lm_state, self.dims)
            # Scaled log probs: of the last label (in `blank` and `label` too), the next label, end of sentence
            state["lm_last"] = self._full(0.0, "float32")
            state["lm_next"], state["lm_eos"] = self._scaled(scores)
            state["lm_state"] = lm_state
        return state

    def _full(self, value: float, dtype: str = "int32") -> nn.Tensor:
        return nn.constant(value, dims=self.dims, dtype=dtype, device=self.device)

    def _frame(self, log_probs: nn.Tensor, log_prob_blank: nn.Tensor, state: dict[str, Any]) -> dict[str, Any]:
        """
        :param log_probs: {B, V}, of this frame
        :param log_prob_blank: {B}
        :param state: of the prefixes up to the frame before
        :return: of the best K prefixes up to this frame
        """
        last, total = state["last"], self.add(state["blank"], state["label"])
        is_last = nn.compare_bc(last, "equal", self.label_range)  # {B, K, V}
        log_prob_last = nn.gather(log_probs, indices=last, axis=self.vocab_dim)
        arriving, in_beam = self._recombine(state, total=total, is_last=is_last)
        stay_blank = total + log_prob_blank
        stay_label = self.add(state["label"], arriving) + log_prob_last

        # All candidates in one tensor {B, K, V}: extensions, and staying in the place of blank.
        # A label twice in a row has a blank in between.
        extended = nn.where(is_last, state["blank"], total) + log_probs + in_beam * NEG
        if self.scorer is not None:
            extended += state["lm_next"]
        candidates = nn.where(self.is_blank, self.add(stay_blank, stay_label), extended)
        scores, indices, _ = nn.top_k(candidates, axis=[self.beam_dim, self.vocab_dim], k_dim=self.other_dim)
        scores = self._as_beam(scores)
        assert isinstance(indices, Sequence)
        source, label = (self._as_beam(plain(x)) for x in indices)

        def take(x: nn.Tensor) -> nn.Tensor:
            return nn.gather(x, indices=source, axis=self.beam_dim)

        extends = nn.compare(label, "not_equal", self.blank)
        length = take(state["length"])
        append = nn.logical_and(nn.compare_bc(self.positions, "equal", length), extends)
        extends_int = nn.cast(extends, "int32")
        new = {
            "blank": take(stay_blank) + nn.cast(extends_int, "float32") * NEG,
            "label": nn.where(extends, scores, take(stay_label)),
            "last": nn.where(extends, label, take(last)),
            "length": length + extends_int,
            "history": nn.where(append, label, take(state["history"])),
        }
        if self.scorer is not None:
            new.update(self._score(state, source=source, label=label, extends=extends))
        return new

    def _recombine(self, state: dict[str, Any], *, total: nn.Tensor, is_last: nn.Tensor) -> tuple[nn.Tensor, nn.Tensor]:
        """
        :return: what arrives at each prefix from the one without its last label {B, K}, without this frame's log prob;
            and for each extension, 1 if that prefix is in the beam, else 0 {B, K, V}
        """
        length = state["length"]
        # Unused entries can have the same history as others: nothing may arrive there.
        used = nn.logical_and(length > 0, total > IMPOSSIBLE)
        parent = nn.where(nn.compare_bc(self.positions, "equal", length - 1), -1, state["history"])
        same = nn.compare_bc(parent, "equal", self._as_other(state["history"]))  # {B, K, O, T}
        is_parent = nn.reduce_all(same, axis=self.spatial_dim, use_mask=False)
        is_parent = nn.logical_and(is_parent, used)  # {B, K, O}: K is O extended by K's last label
        repeated = nn.compare_bc(state["last"], "equal", self._as_other(state["last"]))
        scores = nn.where(repeated, self._as_other(state["blank"]), self._as_other(total))
        arriving = nn.reduce_max(nn.where(is_parent, scores, NEG), axis=self.other_dim)
        if self.scorer is not None:
            arriving += state["lm_last"]
        in_beam = nn.matmul(nn.cast(is_parent, "float32"), nn.cast(is_last, "float32"), reduce=self.beam_dim)
        return arriving, self._as_beam(in_beam)

    def add(self, a: nn.Tensor, b: nn.Tensor) -> nn.Tensor:
        """of the scores of two sets of alignments: the score of both"""
        return nn.log_add_exp(a, b) if self.use_sum else nn.combine(a, "maximum", b)

    def _as_other(self, x: nn.Tensor) -> nn.Tensor:
        return nn.replace_dim(x, in_dim=self.beam_dim, out_dim=self.other_dim)[0]

    def _as_beam(self, x: nn.Tensor) -> nn.Tensor:
        return nn.replace_dim(x, in_dim=self.other_dim, out_dim=self.beam_dim)[0]

    def _scaled(self, scores: nn.Tensor) -> tuple[nn.Tensor, nn.Tensor]:
        """:return: the scorer's scores, scaled: of labels {B, K, V}, and of end of sentence {B, K}"""
        lm_dim = self.scorer.vocab_dim
        scores = scale_log_probs(scores, self.scorer_scale)
        eos = self._full(0.0, "float32")
        if self.eos is not None:
            eos = nn.gather(scores, indices=self.eos, axis=lm_dim)
        if lm_dim != self.vocab_dim:
            indices = nn.clip_by_value(self._as_lm_label(self.label_range), 0, size_of(lm_dim) - 1)
            scores = nn.gather(scores, indices=nn.set_sparse_dim(indices, lm_dim), axis=lm_dim)
        return scores, eos

    def _as_lm_label(self, label: nn.Tensor) -> nn.Tensor:
        if size_of(self.scorer.vocab_dim) < size_of(self.vocab_dim):
            label = label - nn.cast(label > self.blank, "int32")
        return label

    def _score(
        self, state: dict[str, Any], *, source: nn.Tensor, label: nn.Tensor, extends: nn.Tensor
    ) -> dict[str, Any]:
        """:return: the scorer's part of the new state. Only extended prefixes get new scores."""
        names = ("lm_last", "lm_next", "lm_eos")
        last, scores, eos = (nn.gather(state[k], indices=source, axis=self.beam_dim) for k in names)
        label_score = nn.gather(scores, indices=label, axis=self.vocab_dim)
        lm_state = nn.nested.gather_nested(state["lm_state"], indices=nn.set_sparse_dim(source, self.beam_dim))
        previous = nn.where(extends, self._as_lm_label(label), self.bos)
        previous = nn.set_sparse_dim(previous, self.scorer.vocab_dim)
        new_scores, new_lm_state = self.scorer.score(previous, lm_state)
        new_scores, new_eos = self._scaled(new_scores)
        return {
            "lm_last": nn.where(extends, label_score, last),
            "lm_next": nn.where(extends, new_scores, scores),
            "lm_eos": nn.where(extends, new_eos, eos),
            "lm_state": nn.nested.where_nested(new_lm_state, lm_state, condition=extends),
        }

    def _finish(self, state: dict[str, Any]) -> tuple[nn.Tensor, nn.Tensor, nn.Dim]:
        scores = self.add(state["blank"], state["label"])
        if self.scorer is not None:
            scores += state["lm_eos"]
        scores, order, _ = nn.top_k(scores, axis=self.beam_dim, k_dim=self.other_dim)
        scores, order = self._as_beam(scores), self._as_beam(plain(order))
        possible = scores > IMPOSSIBLE
        length = nn.where(possible, nn.gather(state["length"], indices=order, axis=self.beam_dim), 0)
        out_dim = nn.Dim(nn.copy_to_device(length, "cpu"), name="labels")
        positions = plain(nn.range_over_dim(out_dim, dtype="int32", device=self.device))
        labels = nn.gather(state["history"], indices=order, axis=self.beam_dim)
        labels = nn.gather(labels, indices=positions, axis=self.spatial_dim)
        labels = nn.where(nn.compare_bc(positions, "less", length), labels, 0)
        return labels, nn.where(possible, scores, float("-inf")), out_dim
