"""
CTC prefix beam search, on the frontend: what :func:`returnn_common.search.ctc_beam_search` runs.

Shape letters: B batch dims, K beam, O the beam once more, T frames, V labels with blank, S labels with blank that can
come next in a frame: all, or the best ones.

Each prefix in the beam has two log probabilities: of its alignments that end in blank, and of those that end in its
last label. In each frame, every prefix stays (blank, or its last label again) or is extended by a label. An extension
that equals another prefix of the beam goes to that one, so that the prefixes in the beam always differ.

To see that, the state has for each two prefixes the label with which the one goes on behind the other, if it begins
with it (`next`). A number for each prefix would not do: "a" can leave the beam, while "ab" stays, and come back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .. import nn
from ._common import IMPOSSIBLE, NEG, index_dtype, mask_of, plain, room_of, size_of
from ._ctc_fusion import CtcFusion
from ._ctc_pruning import CtcPruning, FramesToSearch, select_labels


@dataclass
class PrefixBeamSearch:
    """
    See :func:`returnn_common.search.ctc_beam_search`, which checks the arguments.

    :param batch_dims: B
    :param device: of all tensors
    :param vocab_dim: V
    :param beam_dim: K
    :param other_dim: O, which the state has, too
    :param fusion: of a scorer; None: there is none
    :param may_go_on: whether frames can follow on a sequence's last one, so that its state must stay behind its end
    """

    batch_dims: Sequence[nn.Dim]
    device: str | None
    vocab_dim: nn.Dim
    blank: int
    beam_dim: nn.Dim
    other_dim: nn.Dim
    fusion: CtcFusion | None
    use_sum: bool
    pruning: CtcPruning
    may_go_on: bool = False

    def __post_init__(self):
        self.index_dtype = index_dtype()
        self.dims = [*self.batch_dims, self.beam_dim]
        self.beam_range = plain(
            nn.range_over_dim(self.beam_dim, dtype=self.index_dtype, device=self.device), self.index_dtype
        )

    def initial_state(self, *, room_dim: nn.Dim, num_frames: nn.Tensor | None) -> dict[str, Any]:
        """
        :param room_dim: for labels
        :param num_frames: of the longest sequence, if that is known, scalar
        :return: of the empty prefix
        """
        fusion = {} if self.fusion is None else self.fusion.initial_state(num_frames=num_frames)
        return {"prefixes": self._initial_prefixes(room_dim), "fusion": fusion}

    def run(self, frames: FramesToSearch, state: dict[str, Any]) -> dict[str, Any]:
        """
        :param frames: in which there are fewer labels than the room left in the state's history
        :param state: of the prefixes before them
        :return: after them
        """
        xs = self._make_slots(frames)
        if self.may_go_on:
            mask = nn.cast(mask_of(frames.spatial_dim, device=self.device), "float32")
            xs["is_frame"] = nn.combine_bc(mask, "+", nn.zeros(self.batch_dims, dtype="float32", device=self.device))
        self.room_dim = room_of(state["prefixes"]["history"], without=self.dims)
        self.positions = plain(
            nn.range_over_dim(self.room_dim, dtype=self.index_dtype, device=self.device), self.index_dtype
        )
        prefixes, fusion = state["prefixes"], self.fusion
        if fusion is None:
            prefixes = nn.fold_over(frames.spatial_dim, lambda x, s: self._frame(x, s)[0], xs=xs, initial=prefixes)
            return {"prefixes": prefixes, "fusion": {}}

        def frame(x: dict[str, nn.Tensor], state: tuple[Any, Any]) -> tuple[Any, Any]:
            prefixes, chosen = self._frame(x, *state)
            return prefixes, fusion.advance(state[1], chosen)

        prefixes, fusion_state = nn.fold_over(
            frames.spatial_dim,
            frame,
            xs=xs,
            initial=(prefixes, state["fusion"]),
            may_repeat=getattr(fusion.scorer, "tensors_only", False),
        )
        return {"prefixes": prefixes, "fusion": fusion_state}

    def finish(self, state: dict[str, Any], *, rest: nn.Tensor | None) -> tuple[nn.Tensor, nn.Tensor, nn.Dim]:
        """
        :param state: of the prefixes after the last frame
        :param rest: {B}, log prob of blank in the frames left out after that
        :return: labels {B, K, out}, scores {B, K}, out dim with lengths {B, K}
        """
        prefixes = state["prefixes"]
        scores = self.add(prefixes["blank"], prefixes["label"])
        for more in (rest, state["fusion"].get("eos")):
            if more is not None:
                scores = nn.combine_bc(scores, "+", more)
        return self._sorted_labels(prefixes, scores)

    def _make_slots(self, frames: FramesToSearch) -> dict[str, nn.Tensor]:
        """:return: what is needed in each frame; sets what is the same in all"""
        xs = {"log_probs": frames.log_probs}
        if frames.gap is not None and frames.has_gap is not None:
            xs.update(gap=frames.gap, has_gap=nn.cast(frames.has_gap, "float32"))
        max_labels = self.pruning.max_labels
        if max_labels is None or max_labels >= size_of(self.vocab_dim) - 1:
            self.slots_dim, blank_slot = self.vocab_dim, self.blank
        else:
            xs["slot_scores"], xs["slot_labels"], self.slots_dim = select_labels(
                frames.log_probs, vocab_dim=self.vocab_dim, blank=self.blank, max_labels=max_labels
            )
            blank_slot = 0
        self.slot_range = plain(
            nn.range_over_dim(self.slots_dim, dtype=self.index_dtype, device=self.device), self.index_dtype
        )
        self.is_blank_slot = nn.compare(self.slot_range, "equal", blank_slot)
        return xs

    def _initial_prefixes(self, room_dim: nn.Dim) -> dict[str, nn.Tensor]:
        """The empty prefix, and K - 1 unused entries."""
        first = nn.compare(self.beam_range, "equal", 0)
        return {
            # Scores of the alignments that end in blank, and of those that end in the last label
            "blank": self._full(0.0, "float32") + nn.where(first, 0.0, NEG),
            "label": self._full(NEG, "float32"),
            # An empty prefix has no last label; blank never equals the label that extends it.
            "last": self._full(self.blank),
            "length": self._full(0),
            # {B, K, room}, -1 after the prefix's end
            "history": nn.constant(-1, dims=[*self.dims, room_dim], dtype=self.index_dtype, device=self.device),
            # {B, K, O}, label of K behind its prefix O; -1 if O is no prefix of K, or is K
            "next": nn.constant(-1, dims=[*self.dims, self.other_dim], dtype=self.index_dtype, device=self.device),
        }

    def _full(self, value: float, dtype: str | None = None) -> nn.Tensor:
        return nn.constant(value, dims=self.dims, dtype=dtype or self.index_dtype, device=self.device)

    def _frame(
        self, x: dict[str, nn.Tensor], state: dict[str, nn.Tensor], scorer: dict[str, nn.Tensor] | None = None
    ) -> tuple[dict[str, nn.Tensor], dict[str, nn.Tensor]]:
        """
        :param x: of this frame: log probs {B, V}, of the slots {B, S} and their labels {B, S} if these are not all
            labels; log prob of the blanks left out before it {B}
        :param state: of the prefixes up to the frame before
        :param scorer: `last` {B, K} and `next` {B, K, V}: scaled scores of the last label and of the next one
        :return: state of the best K prefixes up to this frame; and `source`, `label` and `extends` {B, K}: from which
            prefixes they come, and by which label extended, if so
        """
        blank, label = state["blank"], state["label"]
        if "gap" in x:
            in_gap = self.add(blank, label) + x["gap"]
            blank = nn.where(x["has_gap"] > 0.5, in_gap, blank)
            label = label + x["has_gap"] * NEG
        total, last = self.add(blank, label), state["last"]
        log_probs, slot_labels = x["log_probs"], x.get("slot_labels", self.slot_range)
        is_last = nn.compare_bc(last, "equal", slot_labels)  # {B, K, S}

        # Where a prefix of the beam is another one without its last label, it arrives there.
        is_parent = self._is_parent(state, total=total)  # {B, K, O}: O is K without its last label
        repeated = nn.compare_bc(last, "equal", self._as_other(last))
        arriving = nn.where(repeated, self._as_other(blank), self._as_other(total))
        arriving = nn.reduce_max(nn.where(is_parent, arriving, NEG), axis=self.other_dim)
        if scorer is not None:
            arriving += scorer["last"]
        in_beam = nn.matmul(nn.cast(is_parent, "float32"), nn.cast(is_last, "float32"), reduce=self.beam_dim)
        stay_blank = total + nn.gather(log_probs, indices=self.blank, axis=self.vocab_dim)
        stay_label = self.add(label, arriving) + nn.gather(log_probs, indices=last, axis=self.vocab_dim)

        # All candidates in one tensor {B, K, S}: extensions, and staying in the place of blank.
        # A label twice in a row has a blank in between.
        extended = nn.where(is_last, blank, total) + x.get("slot_scores", log_probs) + self._as_beam(in_beam) * NEG
        if scorer is not None:
            next_scores = scorer["next"]
            if "slot_labels" in x:
                next_scores = nn.gather(next_scores, indices=slot_labels, axis=self.vocab_dim)
            extended += next_scores
        candidates = nn.where(self.is_blank_slot, self.add(stay_blank, stay_label), extended)
        scores, indices, _ = nn.top_k(candidates, axis=[self.beam_dim, self.slots_dim], k_dim=self.other_dim)
        assert isinstance(indices, Sequence)
        scores, source, slot = self._as_beam(scores), *(self._as_beam(plain(i, self.index_dtype)) for i in indices)
        new_label = nn.gather(slot_labels, indices=slot, axis=self.slots_dim) if "slot_labels" in x else slot
        if "is_frame" in x:
            is_frame = x["is_frame"] > 0.5
            source, new_label = nn.where(is_frame, source, self.beam_range), nn.where(is_frame, new_label, self.blank)
            scores = nn.where(is_frame, scores, total)
            stay_blank, stay_label = nn.where(is_frame, stay_blank, blank), nn.where(is_frame, stay_label, label)
        chosen = {"source": source, "label": new_label, "extends": nn.compare(new_label, "not_equal", self.blank)}
        return self._select(state, chosen, scores=scores, stay_blank=stay_blank, stay_label=stay_label), chosen

    def _is_parent(self, state: dict[str, nn.Tensor], *, total: nn.Tensor) -> nn.Tensor:
        length = state["length"]
        # Unused entries can be the same prefix as others: nothing may arrive there.
        one_longer = nn.compare_bc(length - 1, "equal", self._as_other(length))
        return nn.logical_and(nn.logical_and(state["next"] >= 0, one_longer), total > IMPOSSIBLE)

    def _select(
        self,
        state: dict[str, nn.Tensor],
        chosen: dict[str, nn.Tensor],
        *,
        scores: nn.Tensor,
        stay_blank: nn.Tensor,
        stay_label: nn.Tensor,
    ) -> dict[str, nn.Tensor]:
        """:return: state of the chosen prefixes"""
        source, label, extends = chosen["source"], chosen["label"], chosen["extends"]

        def take(x: nn.Tensor) -> nn.Tensor:
            return nn.gather(x, indices=source, axis=self.beam_dim)

        extends_int = nn.cast(extends, self.index_dtype)
        before = take(state["length"])
        length = before + extends_int
        added = nn.where(extends, label, -1)
        history = nn.where(nn.compare_bc(before, "equal", self.positions), added, take(state["history"]))
        in_blank = nn.where(extends, NEG, take(stay_blank))
        in_label = nn.where(extends, scores, take(stay_label))
        if self.pruning.score_margin is not None:
            best = nn.reduce_max(scores, axis=self.beam_dim)
            dropped = nn.cast(nn.combine_bc(scores, "-", best) < -self.pruning.score_margin, "float32") * NEG
            in_blank, in_label = in_blank + dropped, in_label + dropped

        # How K goes on behind the old prefix which O comes from; then, where O has a new label, behind that.
        source_of_other = self._as_other(source)
        behind = nn.gather(take(state["next"]), indices=source_of_other, axis=self.other_dim)
        same_source = nn.compare_bc(source, "equal", source_of_other)
        behind = nn.where(same_source, added, behind)
        further = nn.gather(history, indices=self._as_other(length), axis=self.room_dim)
        further = nn.where(nn.compare_bc(behind, "equal", self._as_other(label)), further, -1)
        return {
            "blank": in_blank,
            "label": in_label,
            "last": nn.where(extends, label, take(state["last"])),
            "length": length,
            "history": history,
            "next": nn.where(self._as_other(extends), further, behind),
        }

    def add(self, a: nn.Tensor, b: nn.Tensor) -> nn.Tensor:
        """of the scores of two sets of alignments: the score of both"""
        return nn.log_add_exp(a, b) if self.use_sum else nn.combine(a, "maximum", b)

    def _as_other(self, x: nn.Tensor) -> nn.Tensor:
        return nn.replace_dim(x, in_dim=self.beam_dim, out_dim=self.other_dim)[0]

    def _as_beam(self, x: nn.Tensor) -> nn.Tensor:
        return nn.replace_dim(x, in_dim=self.other_dim, out_dim=self.beam_dim)[0]

    def _sorted_labels(self, state: dict[str, nn.Tensor], scores: nn.Tensor) -> tuple[nn.Tensor, nn.Tensor, nn.Dim]:
        scores, order, _ = nn.top_k(scores, axis=self.beam_dim, k_dim=self.other_dim)
        scores, order = self._as_beam(scores), self._as_beam(plain(order, self.index_dtype))
        possible = scores > IMPOSSIBLE
        length = nn.cast(nn.gather(state["length"], indices=order, axis=self.beam_dim), "int32")
        length = nn.where(possible, length, 0)
        out_dim = nn.Dim(nn.copy_to_device(length, "cpu"), name="labels")
        positions = plain(nn.range_over_dim(out_dim, dtype=self.index_dtype, device=self.device), self.index_dtype)
        labels = nn.gather(state["history"], indices=order, axis=self.beam_dim)
        labels = nn.gather(labels, indices=positions, axis=room_of(state["history"], without=self.dims))
        labels = nn.where(nn.compare_bc(positions, "less", length), nn.cast(labels, "int32"), 0)
        return labels, nn.where(possible, scores, float("-inf")), out_dim
