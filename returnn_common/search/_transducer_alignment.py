"""
What :func:`returnn_common.search.transducer_alignment_search` runs: search by the length of the alignments.

Differs from `_transducer_beam.py` in that all hypotheses in the beam have the same number of labels and blanks
together, so that each is in a frame of its own: the number of its blanks. Those that have ended the last frame are kept
apart.

Shape letters: B batch dims, K beam, V labels with blank.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .. import nn
from ._common import IMPOSSIBLE, NEG, longest_of, plain, while_loop
from ._transducer_beam import TransducerBeamSearch


@dataclass
class TransducerAlignmentSearch:
    """
    See :func:`returnn_common.search.transducer_alignment_search`, which checks the arguments.

    :param beam: what holds and extends the hypotheses, monotonic
    :param encoded: {B, T, features}
    :param spatial_dim: T
    :param max_len: labels of a hypothesis at most; None: as many as there are frames
    """

    beam: TransducerBeamSearch
    encoded: nn.Tensor
    spatial_dim: nn.Dim
    max_len: int | None

    def __post_init__(self):
        self.zeros = self.beam._full(0)
        self.num_frames = plain(self.spatial_dim.get_size_tensor(device=self.beam.device))
        self.limit = self.num_frames if self.max_len is None else self.max_len

    def run(self) -> tuple[nn.Tensor, nn.Tensor, nn.Dim]:
        """:return: labels {B, K, out}, scores {B, K}, out dim with lengths {B, K}"""
        beam = self.beam
        state = beam.initial_state(max_labels=longest_of(self.spatial_dim))
        score = state["score"]
        if beam.fusion is not None:
            score = score + state["known"]["fusion"]["end"]
        is_empty = nn.compare_bc(self.num_frames, "equal", state["length"])  # at first 0
        state["step"] = state["length"]
        state["final"] = {
            "score": nn.where(is_empty, score, NEG),
            "length": state["length"],
            "history": state["history"],
        }
        state["score"] = nn.where(is_empty, NEG, state["score"])
        final = while_loop(self._goes_on, self._step, state)["final"]
        return beam.sorted_labels(final["score"], plain(final["length"]), plain(final["history"]))

    def _goes_on(self, state: dict[str, Any]) -> nn.Tensor:
        """:return: whether there is a hypothesis, scalar"""
        return nn.copy_to_device(nn.reduce_any(state["score"] > IMPOSSIBLE, axis=self.beam.dims), "cpu")

    def _step(self, state: dict[str, Any]) -> dict[str, Any]:
        """
        :param state: of the hypotheses with so many labels and blanks
        :return: of those with one more
        """
        beam, length = self.beam, state["length"]
        frame = state["step"] - length
        is_used = state["score"] > IMPOSSIBLE
        frame = nn.where(is_used, frame, 0)
        encoded = nn.gather(self.encoded, indices=frame, axis=self.spatial_dim)
        log_probs = beam._log_probs(encoded, is_used, state["known"]["predicted"])
        blank = state["score"] + nn.gather(log_probs, indices=beam.blank, axis=beam.vocab_dim)
        blank = nn.where(is_used, blank, NEG)
        is_last = nn.compare_bc(frame, "equal", self.num_frames - 1)

        slots = beam._full(0) + plain(nn.range_over_dim(beam.beam_dim, dtype="int32", device=beam.device))
        may_go_on = nn.compare_bc(length, "less", self.limit)
        open_score = nn.where(may_go_on, state["score"], NEG)
        level = {"score": open_score, "length": length, "origin": slots, "tail": beam._tail(state)}
        extended, source, label = beam._extend(level, log_probs, state["known"])
        if beam.is_greedy:  # also in the last frame, where blank is no competitor in the beam
            goes_on = extended["score"] > blank
            blank = nn.where(goes_on, NEG, blank)
            extended["score"] = nn.where(goes_on, extended["score"], NEG)
        known = [state["known"], beam._known_after(state["known"], source=source, label=label)]
        best = beam._join_ended(
            beam._as_ended(level, nn.where(is_last, NEG, blank), 0, slots),
            beam._as_ended(extended, extended["score"], 1, slots),
            beam._starts_same(state["history"]),
        )
        new = beam._next_state(state, best, known)
        # What isn't used would become ever longer.
        new["length"] = plain(nn.where(new["score"] > IMPOSSIBLE, new["length"], 0)) + self.zeros
        # Something from outside of the loop tells net dicts its dims.
        new["history"] = nn.combine_bc(new["history"], "+", self.zeros)
        return {
            **new,
            "step": state["step"] + 1,
            "final": self._join_final(state, nn.where(is_last, blank, NEG)),
        }

    def _join_final(self, state: dict[str, Any], score: nn.Tensor) -> dict[str, Any]:
        """
        :param state:
        :param score: of those hypotheses that end the last frame {B, K}; each label sequence does so only once
        :return: the best K of them and of those before
        """
        final = state["final"]
        if self.beam.fusion is not None:
            score = score + state["known"]["fusion"]["end"]
        scores, take = self.beam._best_of_both(final["score"], nn.where(score > IMPOSSIBLE, score, NEG))
        length, history = (take(final[name], state[name]) for name in ("length", "history"))
        return {"score": scores, "length": length, "history": history}
