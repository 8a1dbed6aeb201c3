"""
Beam search for transducers, on the frontend: what :func:`returnn_common.search.transducer_beam_search` runs.

Shape letters: B batch dims, K beam, O the beam once more, T frames, V labels with blank, L room for labels.

In a frame, there are levels: on level s are hypotheses with s labels of this frame. Those that the frame began with
are the origins, and all differ. On each level, those ended by blank join the ended ones of the levels before, which
they can be equal to: "a" + "b" and "ab". Two hypotheses are equal if they are equally long, one's origin begins with
the other's, and the last labels, as many as a frame can have, are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .. import nn
from ._common import IMPOSSIBLE, NEG, finite, plain, size_of
from ._transducer_ctc_frame import ctc_frame
from ._transducer_fusion import TransducerFusion


def batch_dims_of(encoded: nn.Tensor, spatial_dim: nn.Dim) -> list[nn.Dim]:
    """:return: B, of the encoder's output {B, T, features}"""
    return [d for d in encoded.dims if d not in (spatial_dim, encoded.feature_dim)]


@dataclass
class TransducerBeamSearch:
    """
    See :func:`returnn_common.search.transducer_beam_search`, which checks the arguments.

    :param batch_dims: B
    :param device: of all tensors
    :param beam_dim: K
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
    use_sum: bool
    fusion: TransducerFusion | None
    is_ctc: bool = False

    def __post_init__(self):
        self.vocab_dim: nn.Dim = self.transducer.labels_dim
        self.other_dim = nn.Dim(size_of(self.beam_dim), name="other-beam")
        self.pair_dim = nn.Dim(2, name="pair")
        self.dims = [*self.batch_dims, self.beam_dim]
        self.positions = plain(nn.range_over_dim(self.room_dim, dtype="int32", device=self.device))
        self.label_range = plain(nn.range_over_dim(self.vocab_dim, dtype="int32", device=self.device))
        is_blank = nn.compare(self.label_range, "equal", self.blank)
        self.not_blank = nn.where(is_blank, NEG, 0.0)
        self.only_blank = nn.where(is_blank, 0.0, NEG)
        pair = plain(nn.range_over_dim(self.pair_dim, dtype="int32", device=self.device))
        self.is_second_of_pair = nn.cast(pair, "float32")
        self.is_eager = nn.is_executing_eagerly() and not nn.is_static_traceable()
        # With nothing to compete with, a hypothesis goes the way that is the best at once, as the greedy search does.
        self.is_greedy = size_of(self.beam_dim) == 1 and self.fusion is None

    def run(self, encoded: nn.Tensor, *, spatial_dim: nn.Dim, state: dict[str, Any]) -> dict[str, Any]:
        """
        :param encoded: {B, T, features}
        :param spatial_dim: T
        :param state: of the hypotheses before these frames
        :return: after them
        """
        lengths = plain(spatial_dim.get_size_tensor(device=self.device))

        def frame(t: nn.Tensor | int, state: dict[str, Any]) -> dict[str, Any]:
            is_frame = nn.compare_bc(plain(t) if isinstance(t, nn.Tensor) else t, "less", lengths)
            x = nn.gather(encoded, indices=t, axis=spatial_dim)
            return ctc_frame(self, x, is_frame, state) if self.is_ctc else self._frame(x, is_frame, state)

        num_frames = nn.convert_to_tensor(spatial_dim.get_dim_value_tensor())
        if self.is_eager:
            # Not nn.while_loop: the dims in the scorer's state may grow.
            for t in range(int(num_frames.raw_tensor or 0)):
                state = frame(nn.constant(t, dims=(), dtype="int32", device=self.device), state)
        else:

            def body(loop):
                return loop[0] + 1, frame(*loop)

            start = nn.constant(0, dims=(), dtype=num_frames.dtype, device="cpu")
            _, state = nn.while_loop(lambda loop: loop[0] < num_frames, body, (start, state))
        return state

    def initial_state(self, *, max_labels: nn.Tensor | None) -> dict[str, Any]:
        """
        :param max_labels: of a hypothesis, if that is known, scalar
        :return: the empty hypothesis, and K - 1 unused entries
        """
        first = nn.compare(nn.range_over_dim(self.beam_dim, dtype="int32", device=self.device), "equal", 0)
        # The states have a beam from the start, so that the dims of their tensors stay as they are.
        known = self._after(self._full(self.blank), self.transducer.initial_state(batch_dims=self.dims))
        if self.fusion is not None:
            known["fusion"] = self.fusion.initial(max_labels=max_labels)
        score = nn.where(first, self._full(0.0, "float32"), NEG)
        parts = {"blank_score": score, "label_score": self._full(NEG, "float32")} if self.is_ctc else {}
        return {
            **parts,
            "score": score,
            "length": self._full(0),
            # {B, K, L}, -1 after the end
            "history": nn.constant(-1, dims=[*self.dims, self.room_dim], dtype="int32", device=self.device),
            "known": known,
        }

    def _full(self, value: float, dtype: str = "int32") -> nn.Tensor:
        return nn.constant(value, dims=self.dims, dtype=dtype, device=self.device)

    def _after(self, label: nn.Tensor, predictor: Any) -> dict[str, Any]:
        """
        :param label: the last one {B, K}
        :param predictor: state before it
        :return: what is known of the hypotheses: "predicted", "predictor"
        """
        predicted, predictor = self.transducer.predict(nn.set_sparse_dim(label, self.vocab_dim), predictor)
        return {"predicted": predicted, "predictor": predictor}

    def _frame(self, encoded: nn.Tensor, is_frame: nn.Tensor, state: dict[str, Any]) -> dict[str, Any]:
        """
        :param encoded: {B, features}, of this frame
        :param is_frame: {B}, whether there is one
        :param state: of the hypotheses up to the frame before
        :return: of the best K hypotheses up to this frame
        """
        starts_same = self._starts_same(state["history"])
        slots = self.slots()
        level: dict[str, Any] = {
            "score": state["score"],
            "length": state["length"],
            "origin": slots,
            "tail": self._tail(state),
        }
        known = [state["known"]]
        ended: dict[str, Any] | None = None
        for s in range(self.max_labels + 1):
            if self.is_monotonic and s == 1:
                ended = self._join_ended(ended, self._as_ended(level, level["score"], s, slots), starts_same)
                break
            log_probs = self._log_probs(encoded, is_frame, known[s]["predicted"])
            blank = level["score"] + nn.gather(log_probs, indices=self.blank, axis=self.vocab_dim)
            if s == self.max_labels:
                ended = self._join_ended(ended, self._as_ended(level, blank, s, slots), starts_same)
                break
            extended, source, label = self._extend(level, log_probs, known[s])
            if self.is_greedy:
                goes_on = extended["score"] > blank
                blank = nn.where(goes_on, NEG, blank)
                extended["score"] = nn.where(goes_on, extended["score"], NEG)
            ended = self._join_ended(ended, self._as_ended(level, blank, s, slots), starts_same)
            level = extended
            if not self.is_monotonic and not self.is_greedy and (self.fusion is None or not self.fusion.may_rise):
                worst = nn.reduce_min(ended["score"], axis=self.beam_dim)
                hopeless = nn.compare_bc(level["score"], "less", worst)
                level["score"] = nn.where(hopeless, NEG, level["score"])
            if self.is_eager and not self._any_used(level["score"]):
                break
            known.append(self._known_after(known[s], source=source, label=label))
        return self._next_state(state, ended, known)

    def _log_probs(self, encoded: nn.Tensor, is_frame: nn.Tensor, predicted: nn.Tensor) -> nn.Tensor:
        """:return: {B, K, V}"""
        logits = nn.cast(self.transducer.join(encoded, predicted), "float32")
        log_probs = finite(nn.log_softmax(logits, axis=self.vocab_dim))
        # After its end, a sequence is all blank, for certain: that changes no score.
        return nn.where(is_frame, log_probs, self.only_blank, allow_broadcast_all_sources=True)

    def _extend(
        self, level: dict[str, Any], log_probs: nn.Tensor, known: dict[str, Any]
    ) -> tuple[dict[str, Any], nn.Tensor, nn.Tensor]:
        """:return: the best K extensions by a label, from which hypothesis {B, K}, by which label {B, K}"""
        candidates = level["score"] + log_probs
        if self.fusion is not None:
            candidates += known["fusion"]["next"]
        candidates += self.not_blank
        scores, indices, _ = nn.top_k(candidates, axis=[self.beam_dim, self.vocab_dim], k_dim=self.other_dim)
        assert isinstance(indices, Sequence)
        scores, source, label = (self._as_beam(x) for x in (scores, plain(indices[0]), plain(indices[1])))
        length, origin, *tail = (
            nn.gather(x, indices=source, axis=self.beam_dim)
            for x in (level["length"], level["origin"], *level["tail"][:-1])
        )
        scores = nn.where(scores > IMPOSSIBLE, scores, NEG)
        extended = {"score": scores, "length": length + 1, "origin": origin, "tail": [label, *tail]}
        return extended, source, label

    def _known_after(self, known: dict[str, Any], *, source: nn.Tensor, label: nn.Tensor) -> dict[str, Any]:
        states = {"predictor": known["predictor"]}
        if self.fusion is not None:
            states["fusion"] = known["fusion"]["state"]
        states = nn.nested.gather_nested(states, indices=nn.set_sparse_dim(source, self.beam_dim))
        known = self._after(label, states["predictor"])
        if self.fusion is not None:
            known["fusion"] = self.fusion.advance(label, states["fusion"])
        return known

    def _any_used(self, score: nn.Tensor) -> bool:
        return bool(nn.copy_to_device(nn.reduce_any(score > IMPOSSIBLE, axis=score.dims), "cpu").raw_tensor)

    def _starts_same(self, history: nn.Tensor) -> nn.Tensor:
        """:return: 1 if one hypothesis begins with the other {B, K, O}, else 0"""
        other = self._as_other(history)
        same = nn.compare_bc(history, "equal", other)
        over = nn.combine_bc(history < 0, "logical_or", other < 0)
        return nn.cast(nn.reduce_all(nn.logical_or(same, over), axis=self.room_dim, use_mask=False), "float32")

    def _tail(self, state: dict[str, Any]) -> list[nn.Tensor]:
        """:return: the last label, the one before it, ..., -1 where there is none {B, K}"""
        tail = []
        for i in range(1, self.max_labels + 1):
            label = nn.gather(state["history"], indices=nn.relu(state["length"] - i), axis=self.room_dim)
            tail.append(nn.where(nn.compare(state["length"], "greater_equal", i), label, -1))
        return tail

    def _as_ended(self, level: dict[str, Any], score: nn.Tensor, number: int, slots: nn.Tensor) -> dict[str, Any]:
        score = nn.where(score > IMPOSSIBLE, score, NEG)
        return {**level, "score": score, "level": self._full(number), "slot": slots}

    def _join_ended(self, ended: dict[str, Any] | None, new: dict[str, Any], starts_same: nn.Tensor) -> dict[str, Any]:
        """
        :param ended: the best K so far, which all differ; None: none
        :param new: K more, which all differ
        :param starts_same: {B, K, O}
        :return: the best K of both, which all differ
        """
        if ended is None:
            return new
        arriving, is_double = self.arrivals(ended, new, starts_same)
        old_score = self._add(ended["score"], arriving)
        new_score = nn.where(is_double, NEG, new["score"])
        scores, take = self._best_of_both(old_score, new_score)
        joined = {name: take(ended[name], new[name]) for name in ("length", "origin", "level", "slot")}
        tail = [take(a, b) for a, b in zip(ended["tail"], new["tail"], strict=True)]
        return {**joined, "score": nn.where(scores > IMPOSSIBLE, scores, NEG), "tail": tail}

    def arrivals(
        self, ended: dict[str, Any], new: dict[str, Any], starts_same: nn.Tensor
    ) -> tuple[nn.Tensor, nn.Tensor]:
        """:return: of each ended one, the score of the new one that equals it {B, K}; of each new one, if it does"""
        equal = self._equal(ended, new, starts_same)
        other_score = self._as_other(new["score"])
        score = nn.where(equal, other_score, NEG, allow_broadcast_all_sources=True)
        return nn.reduce_max(score, axis=self.other_dim), self._as_beam(nn.reduce_any(equal, axis=self.beam_dim))

    def slots(self) -> nn.Tensor:
        """:return: of each hypothesis, where it is in the beam {B, K}"""
        return self._full(0) + plain(nn.range_over_dim(self.beam_dim, dtype="int32", device=self.device))

    def _best_of_both(
        self, old_score: nn.Tensor, new_score: nn.Tensor
    ) -> tuple[nn.Tensor, Callable[[nn.Tensor, nn.Tensor], nn.Tensor]]:
        """:return: the K best scores of both, and ``(old, new) -> chosen`` for anything else {B, K, ...}"""
        # Not by where(), which on TensorFlow can't broadcast all of the three.
        pair = nn.combine_bc(old_score, "*", 1.0 - self.is_second_of_pair)
        pair += nn.combine_bc(new_score, "*", self.is_second_of_pair)
        scores, indices, _ = nn.top_k(pair, axis=[self.pair_dim, self.beam_dim], k_dim=self.other_dim)
        assert isinstance(indices, Sequence)
        scores, which, source = (self._as_beam(x) for x in (scores, plain(indices[0]), plain(indices[1])))

        def take(old: nn.Tensor, new: nn.Tensor) -> nn.Tensor:
            old, new = (nn.gather(x, indices=source, axis=self.beam_dim) for x in (old, new))
            return nn.where(nn.compare(which, "equal", 0), old, new)

        return scores, take

    def _equal(self, ended: dict[str, Any], new: dict[str, Any], starts_same: nn.Tensor) -> nn.Tensor:
        """:return: bool {B, K, O}: whether they are the same label sequence"""
        same = nn.gather(starts_same, indices=ended["origin"], axis=self.beam_dim)
        same = nn.gather(same, indices=self._as_other(new["origin"]), axis=self.other_dim)
        used = nn.combine_bc(ended["score"] > IMPOSSIBLE, "logical_and", self._as_other(new["score"]) > IMPOSSIBLE)
        equal = nn.combine_bc(same > 0.5, "logical_and", used)
        for a, b in [(ended["length"], new["length"]), *zip(ended["tail"], new["tail"], strict=True)]:
            equal = nn.combine_bc(equal, "logical_and", nn.compare_bc(a, "equal", self._as_other(b)))
        return equal

    def _add(self, a: nn.Tensor, b: nn.Tensor) -> nn.Tensor:
        """of the scores of two sets of alignments: the score of both"""
        return nn.log_add_exp(a, b) if self.use_sum else nn.combine(a, "maximum", b)

    def _as_other(self, x: nn.Tensor) -> nn.Tensor:
        return nn.replace_dim(x, in_dim=self.beam_dim, out_dim=self.other_dim)[0]

    def _as_beam(self, x: nn.Tensor) -> nn.Tensor:
        return nn.replace_dim(x, in_dim=self.other_dim, out_dim=self.beam_dim)[0]

    def _next_state(
        self, state: dict[str, Any], ended: dict[str, Any] | None, known: Sequence[dict[str, Any]]
    ) -> dict[str, Any]:
        """
        :param state: up to the frame before
        :param ended: the best K of this frame
        :param known: of the hypotheses on each level
        """
        assert ended is not None
        history = nn.gather(state["history"], indices=ended["origin"], axis=self.beam_dim)
        for i, label in enumerate(ended["tail"], start=1):
            here = nn.compare_bc(self.positions, "equal", ended["length"] - i)
            here = nn.combine_bc(here, "logical_and", nn.compare(ended["level"], "greater_equal", i))
            history = nn.where(here, label, history)
        slot = nn.set_sparse_dim(ended["slot"], self.beam_dim)
        new_known = nn.nested.gather_nested(known[0], indices=slot)
        for s in range(1, len(known)):
            is_level = nn.compare(ended["level"], "equal", s)
            taken = nn.nested.gather_nested(known[s], indices=slot)
            new_known = nn.nested.where_nested(taken, new_known, condition=is_level)
        # So that the features of what a loop carries are marked alike.
        new_known["predicted"].feature_dim = known[0]["predicted"].feature_dim
        # Plain for net dicts, which take what comes out of several where() as floats before they know it all.
        length, history = plain(ended["length"]), plain(history)
        return {"score": ended["score"], "length": length, "history": history, "known": new_known}

    def finish(self, state: dict[str, Any]) -> tuple[nn.Tensor, nn.Tensor, nn.Dim]:
        """
        :param state: of the hypotheses after the last frame
        :return: labels {B, K, out}, scores {B, K}, out dim with lengths {B, K}
        """
        scores = state["score"]
        if self.fusion is not None:
            scores = scores + state["known"]["fusion"]["end"]
        return self.sorted_labels(scores, state["length"], state["history"])

    def sorted_labels(
        self, scores: nn.Tensor, length: nn.Tensor, history: nn.Tensor
    ) -> tuple[nn.Tensor, nn.Tensor, nn.Dim]:
        """
        :param scores: {B, K}
        :param length: {B, K}
        :param history: {B, K, L}
        :return: see :func:`finish`
        """
        scores, order, _ = nn.top_k(scores, axis=self.beam_dim, k_dim=self.other_dim)
        scores, order = self._as_beam(scores), self._as_beam(plain(order))
        possible = scores > IMPOSSIBLE
        length = nn.where(possible, nn.gather(length, indices=order, axis=self.beam_dim), 0)
        out_dim = nn.Dim(nn.copy_to_device(length, "cpu"), name="labels")
        positions = plain(nn.range_over_dim(out_dim, dtype="int32", device=self.device))
        labels = nn.gather(history, indices=order, axis=self.beam_dim)
        labels = nn.gather(labels, indices=positions, axis=self.room_dim)
        labels = nn.where(nn.compare_bc(positions, "less", length), labels, 0)
        return labels, nn.where(possible, scores, float("-inf")), out_dim
