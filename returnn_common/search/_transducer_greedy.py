"""
The best path of a transducer, on the frontend: what :func:`returnn_common.search.transducer_greedy_search` runs.

Shape letters: B batch dims with a beam of one, T frames, V labels with blank, L room for labels.

Each utterance has its own frame: in each step, one of its labels or blank is appended to its path.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .. import nn
from ._common import NEG, plain, while_loop


@dataclass
class TransducerGreedySearch:
    """See :func:`returnn_common.search.transducer_greedy_search`, which checks the arguments."""

    transducer: Any
    encoded: nn.Tensor
    spatial_dim: nn.Dim
    blank: int
    max_labels: int
    is_monotonic: bool

    def __post_init__(self):
        self.device = self.encoded.device
        self.vocab_dim: nn.Dim = self.transducer.labels_dim
        self.beam_dim = nn.Dim(1, name="beam")
        features = self.encoded.feature_dim
        self.dims = [d for d in self.encoded.dims if d not in (self.spatial_dim, features)] + [self.beam_dim]
        self.num_frames = plain(self.spatial_dim.get_size_tensor(device=self.device))
        longest = plain(nn.convert_to_tensor(self.spatial_dim.get_dim_value_tensor()))
        self.room_dim = nn.Dim(nn.copy_to_device(longest * self.max_labels, "cpu"), name="room")
        self.positions = plain(nn.range_over_dim(self.room_dim, dtype="int32", device=self.device))
        labels = plain(nn.range_over_dim(self.vocab_dim, dtype="int32", device=self.device))
        self.is_blank = nn.compare(labels, "equal", self.blank)

    def run(self) -> tuple[nn.Tensor, nn.Tensor, nn.Dim]:
        """:return: labels {B, out}, scores {B}, out dim with lengths {B}"""
        first = self._full(self.blank)
        state = self.transducer.initial_state(batch_dims=self.dims)
        predicted, state = self.transducer.predict(nn.set_sparse_dim(first, self.vocab_dim), state)
        state = while_loop(
            self._goes_on,
            self._step,
            {
                "frame": self._full(0),
                "in_frame": self._full(0),  # labels
                "length": self._full(0),
                "score": self._full(0.0, "float32"),
                "history": nn.constant(0, dims=[*self.dims, self.room_dim], dtype="int32", device=self.device),
                "predicted": predicted,
                "predictor": state,
            },
        )
        length = nn.relu(state["length"])  # a layer of its own, for the net dict
        out_dim = nn.Dim(nn.copy_to_device(length, "cpu"), name="labels")
        positions = plain(nn.range_over_dim(out_dim, dtype="int32", device=self.device))
        labels = nn.gather(state["history"], indices=positions, axis=self.room_dim)
        labels = nn.where(nn.compare_bc(positions, "less", length), labels, 0)
        return labels, state["score"], out_dim

    def _full(self, value: float, dtype: str = "int32") -> nn.Tensor:
        return nn.constant(value, dims=self.dims, dtype=dtype, device=self.device)

    def _has_frame(self, state: dict[str, Any]) -> nn.Tensor:
        return nn.compare_bc(state["frame"], "less", self.num_frames)

    def _goes_on(self, state: dict[str, Any]) -> nn.Tensor:
        return nn.copy_to_device(nn.reduce_any(self._has_frame(state), axis=self.dims), "cpu")

    def _step(self, state: dict[str, Any]) -> dict[str, Any]:
        has_frame = self._has_frame(state)
        frame = nn.where(has_frame, state["frame"], 0)
        encoded = nn.gather(self.encoded, indices=frame, axis=self.spatial_dim)
        logits = nn.cast(self.transducer.join(encoded, state["predicted"]), "float32")
        log_probs = nn.maximum(nn.log_softmax(logits, axis=self.vocab_dim), NEG)
        may_go_on = nn.compare(state["in_frame"], "less", self.max_labels)
        allowed = nn.combine_bc(may_go_on, "logical_or", self.is_blank)
        log_probs = nn.where(allowed, log_probs, 2 * NEG)
        label = plain(nn.reduce_argmax(log_probs, axis=self.vocab_dim))
        emits = nn.logical_and(has_frame, nn.compare(label, "not_equal", self.blank))
        emits_int = nn.cast(emits, "int32")
        ends = has_frame if self.is_monotonic else nn.logical_and(has_frame, nn.logical_not(emits))
        score = nn.where(has_frame, nn.gather(log_probs, indices=label, axis=self.vocab_dim), 0.0)
        append = nn.combine_bc(nn.compare_bc(self.positions, "equal", state["length"]), "logical_and", emits)
        new_predicted, predictor = self.transducer.predict(nn.set_sparse_dim(label, self.vocab_dim), state["predictor"])
        predicted = nn.where(emits, new_predicted, state["predicted"])
        predicted.feature_dim = state["predicted"].feature_dim
        return {
            "frame": state["frame"] + nn.cast(ends, "int32"),
            "in_frame": nn.where(ends, 0, state["in_frame"] + emits_int),
            "length": state["length"] + emits_int,
            "score": state["score"] + score,
            "history": nn.where(append, label, state["history"]),
            "predicted": predicted,
            "predictor": nn.nested.where_nested(predictor, state["predictor"], condition=emits),
        }
