"""
The searches for CTC piece after piece, see :mod:`.streaming`.

Shape letters: B batch dims, T frames of a piece (`spatial_dim`), V labels with blank.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import nn
from ._common import check_ctc_log_probs, check_index, longest_of, make_room, plain, room_of
from ._ctc_greedy import best_path, hypothesis_of_path
from ._ctc_options import make_prefix_beam
from ._ctc_pruning import CtcPruning, as_pruning, select_frames
from ._options import check_beam, check_labels_dim
from .hypotheses import Hypotheses

__all__ = ["CtcBeamStream", "CtcGreedyStream"]


class CtcGreedyStream:
    """
    :func:`.ctc_greedy_search`, piece after piece: the labels only grow.

    :param labels_dim: V
    :param blank: index of blank in V
    :param batch_dims: B
    :param vocab_dim: sparse dim of the resulting labels, see there
    :param device: of all tensors
    :raise ValueError: an argument that is out of range, or doesn't fit
    """

    def __init__(
        self,
        labels_dim: nn.Dim,
        *,
        blank: int,
        batch_dims: Sequence[nn.Dim],
        vocab_dim: nn.Dim | None = None,
        device: str | None = None,
    ):
        check_index("CtcGreedyStream", "blank", blank, labels_dim)
        self.labels_dim = labels_dim
        self.blank = blank
        self.batch_dims = list(batch_dims)
        self.out_labels_dim = check_labels_dim("CtcGreedyStream", labels_dim, blank, vocab_dim)
        self.device = device
        self.beam_dim = nn.Dim(1, name="beam")

    def initial_state(self) -> dict[str, nn.Tensor]:
        """:return: "before", best label of the frame before; "score"; "length" {B}; "history", the labels {B, room}"""

        def full(value: float, dtype: str, dims: Sequence[nn.Dim] = ()) -> nn.Tensor:
            return nn.constant(value, dims=[*self.batch_dims, *dims], dtype=dtype, device=self.device)

        return {
            "before": full(self.blank, "int32"),
            "score": full(0.0, "float32"),
            "length": full(0, "int32"),
            "history": full(0, "int32", [nn.Dim(1, name="room")]),
        }

    def step(self, source: nn.Tensor, *, spatial_dim: nn.Dim, state: dict[str, nn.Tensor]) -> dict[str, nn.Tensor]:
        """
        :param source: log probs {B, T, V} of the next frames; see :class:`SearchStream`
        """
        _check_frames("CtcGreedyStream", source, spatial_dim, self.labels_dim, self.blank)
        before, length = state["before"], state["length"]
        labels, kept_dim, scores, best = best_path(
            source, spatial_dim=spatial_dim, vocab_dim=self.labels_dim, blank=self.blank, before=before
        )
        history, room_dim = make_room(state["history"], length=length, more=longest_of(kept_dim), end=0)
        positions = plain(nn.range_over_dim(room_dim, dtype="int32", device=history.device))
        index = nn.combine_bc(positions, "-", length)
        num = nn.copy_to_device(kept_dim.get_size_tensor(), history.device)
        is_new = nn.combine_bc(index >= 0, "logical_and", nn.compare_bc(index, "less", num))
        # With one more in front, there is always something to gather.
        joined, joined_dim = _prepend(before, nn.cast(labels, "int32"), kept_dim)
        labels = nn.gather(joined, indices=nn.relu(index) + 1, axis=joined_dim, clip_to_valid=True)
        joined, joined_dim = _prepend(before, plain(best), spatial_dim)
        lengths = nn.copy_to_device(spatial_dim.get_size_tensor(), history.device)
        return {
            "before": nn.gather(joined, indices=lengths, axis=joined_dim),
            "score": state["score"] + nn.cast(scores, "float32"),
            "length": length + num,
            "history": nn.where(is_new, labels, history),
        }

    def hypotheses(self, state: dict[str, nn.Tensor]) -> Hypotheses:
        """:return: see :func:`.ctc_greedy_search`"""
        labels_dim = nn.Dim(nn.copy_to_device(state["length"], "cpu"), name="labels")
        positions = plain(nn.range_over_dim(labels_dim, dtype="int32", device=state["history"].device))
        room_dim = room_of(state["history"], without=self.batch_dims)
        labels = nn.gather(state["history"], indices=positions, axis=room_dim)
        labels, out_dim = hypothesis_of_path(nn.cast(labels, "float32"), labels_dim, beam_dim=self.beam_dim)
        return Hypotheses(
            labels=nn.set_sparse_dim(labels, self.out_labels_dim),
            scores=nn.expand_dim(state["score"], self.beam_dim),
            beam_dim=self.beam_dim,
            spatial_dim=out_dim,
        )


class CtcBeamStream:
    """
    :func:`.ctc_beam_search`, piece after piece. Hypotheses can change in all their labels while they become longer; the
    end of the sentence is scored in each of :meth:`hypotheses`, but not in the state.

    :param labels_dim: V
    :param blank: index of blank in V
    :param batch_dims: B
    :param device: of all tensors; the further arguments are those of that function
    :raise ValueError: an argument that is out of range, or doesn't fit
    """

    def __init__(
        self,
        labels_dim: nn.Dim,
        *,
        blank: int,
        batch_dims: Sequence[nn.Dim],
        beam_size: int,
        scorer: Any = None,
        scorer_scale: float = 0.0,
        recombine: str = "sum",
        bos: int | None = None,
        eos: int | None = None,
        vocab_dim: nn.Dim | None = None,
        pruning: CtcPruning | None = None,
        device: str | None = None,
    ):
        name = "CtcBeamStream"
        scorer_options = (scorer, scorer_scale, bos, eos)
        check_index(name, "blank", blank, labels_dim)
        check_beam(name, labels_dim, beam_size, recombine=recombine, scorer_options=scorer_options)
        self.out_labels_dim = check_labels_dim(name, labels_dim, blank, vocab_dim)
        self.labels_dim = labels_dim
        self.search = make_prefix_beam(
            vocab_dim=labels_dim,
            blank=blank,
            beam_size=beam_size,
            recombine=recombine,
            scorer_options=scorer_options,
            pruning=as_pruning(name, pruning),
            batch_dims=list(batch_dims),
            device=device,
            may_go_on=True,
        )

    def initial_state(self) -> dict[str, Any]:
        """:return: "prefixes", "fusion", and "rest" with what is known of blanks since the last frame searched"""
        search = self.search
        state = search.initial_state(room_dim=nn.Dim(1, name="room"), num_frames=None)
        if search.pruning.blank_threshold is not None:
            options = {"dims": search.batch_dims, "device": search.device}
            state["rest"] = (nn.constant(0.0, dtype="float32", **options), nn.constant(False, dtype="bool", **options))
        return state

    def step(self, source: nn.Tensor, *, spatial_dim: nn.Dim, state: dict[str, Any]) -> dict[str, Any]:
        """
        :param source: log probs {B, T, V} of the next frames; see :class:`SearchStream`
        """
        search = self.search
        _check_frames("CtcBeamStream", source, spatial_dim, self.labels_dim, search.blank)
        frames = select_frames(
            source,
            spatial_dim=spatial_dim,
            vocab_dim=self.labels_dim,
            blank=search.blank,
            threshold=search.pruning.blank_threshold,
            before=state.get("rest"),
        )
        prefixes = dict(state["prefixes"])
        prefixes["history"], _ = make_room(
            prefixes["history"], length=prefixes["length"], more=longest_of(frames.spatial_dim), end=-1
        )
        new_state = search.run(frames, {**state, "prefixes": prefixes})
        if frames.rest is not None:
            new_state["rest"] = (frames.rest, frames.has_rest)
        return new_state

    def hypotheses(self, state: dict[str, Any]) -> Hypotheses:
        """:return: see :func:`.ctc_beam_search`"""
        rest, _ = state.get("rest", (None, None))
        labels, scores, out_dim = self.search.finish(state, rest=rest)
        labels = nn.set_sparse_dim(labels, self.out_labels_dim)
        return Hypotheses(labels=labels, scores=scores, beam_dim=self.search.beam_dim, spatial_dim=out_dim)


def _prepend(first: nn.Tensor, x: nn.Tensor, spatial_dim: nn.Dim) -> tuple[nn.Tensor, nn.Dim]:
    """:return: {B, 1 + T}, of {B} and {B, T}"""
    one = nn.Dim(1, name="first")
    # Not one + spatial_dim: the net dict knows that dim only if it knows the sizes of spatial_dim from outside.
    out_dim = nn.Dim(nn.relu(spatial_dim.get_size_tensor()) + 1, name="joined")
    return nn.concat((nn.expand_dim(first, one), one), (x, spatial_dim), out_dim=out_dim)


def _check_frames(name: str, log_probs: nn.Tensor, spatial_dim: nn.Dim, labels_dim: nn.Dim, blank: int):
    check_ctc_log_probs(name, log_probs, spatial_dim=spatial_dim, blank=blank)
    if labels_dim not in log_probs.dims:
        raise ValueError(f"{name}: log_probs, expected a tensor with {labels_dim}, got {log_probs}")
