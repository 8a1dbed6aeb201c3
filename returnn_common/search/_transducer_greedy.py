"""
The best path of a transducer, on the frontend: what :func:`returnn_common.search.transducer_greedy_search` runs.

Shape letters: B batch dims with a beam of one, T frames, V labels with blank, L room for labels.

Each utterance has its own frame: in each step, one of its labels or blank is appended to its path.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .. import nn
from ._common import NEG, finite, plain, while_loop


@dataclass
class TransducerGreedySearch:
    """
    See :func:`returnn_common.search.transducer_greedy_search`, which checks the arguments.

    :param batch_dims: B without the beam
    :param device: of all tensors
    :param beam_dim: of one
    :param room_dim: L
    """

    transducer: Any
    batch_dims: Sequence[nn.Dim]
    device: str | None
    blank: int
    beam_dim: nn.Dim
    room_dim: nn.Dim
    max_labels: int
    is_monotonic: bool
    is_ctc: bool = False

    def __post_init__(self):
        self.vocab_dim: nn.Dim = self.transducer.labels_dim
        self.dims = [*self.batch_dims, self.beam_dim]
        self.positions = plain(nn.range_over_dim(self.room_dim, dtype="int32", device=self.device))
        labels = plain(nn.range_over_dim(self.vocab_dim, dtype="int32", device=self.device))
        self.is_blank = nn.compare(labels, "equal", self.blank)

    def initial_state(self) -> dict[str, Any]:
        """:return: the empty hypothesis"""
        first = self._full(self.blank)
        state = self.transducer.initial_state(batch_dims=self.dims)
        predicted, state = self.transducer.predict(nn.set_sparse_dim(first, self.vocab_dim), state)
        last = {"last": self._full(self.blank)} if self.is_ctc else {}
        return {
            **last,
            "length": self._full(0),
            "score": self._full(0.0, "float32"),
            "history": nn.constant(0, dims=[*self.dims, self.room_dim], dtype="int32", device=self.device),
            "predicted": predicted,
            "predictor": state,
        }

    def run(self, encoded: nn.Tensor, *, spatial_dim: nn.Dim, state: dict[str, Any]) -> dict[str, Any]:
        """
        :param encoded: {B, T, features}
        :param spatial_dim: T
        :param state: of the hypothesis before these frames
        :return: after them
        """
        lengths = plain(spatial_dim.get_size_tensor(device=self.device))

        def goes_on(state: dict[str, Any]) -> nn.Tensor:
            has_frame = nn.compare_bc(state["frame"], "less", lengths)
            return nn.copy_to_device(nn.reduce_any(has_frame, axis=self.dims), "cpu")

        def step(state: dict[str, Any]) -> dict[str, Any]:
            has_frame = nn.compare_bc(state["frame"], "less", lengths)
            frame = nn.where(has_frame, state["frame"], 0)
            return self._step(nn.gather(encoded, indices=frame, axis=spatial_dim), has_frame, state)

        # "in_frame" counts the labels of a frame.
        state = while_loop(goes_on, step, {**state, "frame": self._full(0), "in_frame": self._full(0)})
        return {name: state[name] for name in state if name not in ("frame", "in_frame")}

    def finish(self, state: dict[str, Any]) -> tuple[nn.Tensor, nn.Tensor, nn.Dim]:
        """
        :param state: of the hypothesis after the last frame
        :return: labels {B, out}, scores {B}, out dim with lengths {B}
        """
        length = nn.relu(state["length"])  # a layer of its own, for the net dict
        out_dim = nn.Dim(nn.copy_to_device(length, "cpu"), name="labels")
        positions = plain(nn.range_over_dim(out_dim, dtype="int32", device=self.device))
        labels = nn.gather(state["history"], indices=positions, axis=self.room_dim)
        labels = nn.where(nn.compare_bc(positions, "less", length), labels, 0)
        return labels, state["score"], out_dim

    def _full(self, value: float, dtype: str = "int32") -> nn.Tensor:
        return nn.constant(value, dims=self.dims, dtype=dtype, device=self.device)

    def _step(self, encoded: nn.Tensor, has_frame: nn.Tensor, state: dict[str, Any]) -> dict[str, Any]:
        """
        :param encoded: {B, features}, of the frame in which the hypothesis is
        :param has_frame: {B}, whether there is one
        :param state: see :meth:`run`
        :return: after one more label or blank
        """
        logits = nn.cast(self.transducer.join(encoded, state["predicted"]), "float32")
        log_probs = finite(nn.log_softmax(logits, axis=self.vocab_dim))
        may_go_on = nn.compare(state["in_frame"], "less", self.max_labels)
        allowed = nn.combine_bc(may_go_on, "logical_or", self.is_blank)
        log_probs = nn.where(allowed, log_probs, 2 * NEG)
        label = plain(nn.reduce_argmax(log_probs, axis=self.vocab_dim))
        emits = nn.logical_and(has_frame, nn.compare(label, "not_equal", self.blank))
        if self.is_ctc:  # a label may go on
            emits = nn.logical_and(emits, nn.compare(label, "not_equal", state["last"]))
        emits_int = nn.cast(emits, "int32")
        ends = has_frame if self.is_monotonic else nn.logical_and(has_frame, nn.logical_not(emits))
        score = nn.where(has_frame, nn.gather(log_probs, indices=label, axis=self.vocab_dim), 0.0)
        append = nn.combine_bc(nn.compare_bc(self.positions, "equal", state["length"]), "logical_and", emits)
        new_predicted, predictor = self.transducer.predict(nn.set_sparse_dim(label, self.vocab_dim), state["predictor"])
        predicted = nn.where(emits, new_predicted, state["predicted"])
        predicted.feature_dim = state["predicted"].feature_dim
        return {
            **({"last": nn.where(has_frame, label, state["last"])} if self.is_ctc else {}),
            "frame": state["frame"] + nn.cast(ends, "int32"),
            "in_frame": nn.where(ends, 0, state["in_frame"] + emits_int),
            "length": state["length"] + emits_int,
            "score": state["score"] + score,
            "history": nn.where(append, label, state["history"]),
            "predicted": predicted,
            "predictor": nn.nested.where_nested(predictor, state["predictor"], condition=emits),
        }
