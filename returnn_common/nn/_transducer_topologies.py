"""
How the labels of a transducer may lie over the frames: which lattice belongs to each topology.

Glossary: t is a frame, u the number of labels so far, s a step of the lattice and k one of its states.

Scores are a list of tensors ``{batch, time, positions}``, for what may follow at frame t after u labels: no label
(blank); label u + 1; and, only in the topology "ctc", label u once more (repeat).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import returnn.frontend as rf
from returnn.tensor import Dim, Tensor

from ._lattice import NEG, LatticeSum, sum_over_paths
from ._lattice_best import best_path

__all__ = [
    "TOPOLOGIES",
    "Sizes",
    "TransducerOccupancies",
    "occupancies_of",
    "pick",
    "plain",
    "range_over",
    "size_of",
    "without_lengths",
]

Solve = Callable[..., LatticeSum]


@dataclass(frozen=True)
class Sizes:
    """
    :param num_frames: ``{batch}``
    :param num_labels: ``{batch}``
    :param time_dim: t
    :param positions_dim: u, one more than there are labels
    :param is_repeated: whether label u equals label u - 1, bool ``{batch, positions}``; only for the topology "ctc"
    """

    num_frames: Tensor
    num_labels: Tensor
    time_dim: Dim
    positions_dim: Dim
    is_repeated: Tensor | None = None

    def valid(self) -> list[Tensor]:
        """:return: of each of the scores, bool: where there are a frame and such a label"""
        t, u = range_over(self.time_dim, self.num_frames), range_over(self.positions_dim, self.num_frames)
        is_frame = rf.compare_bc(t, "<", self.num_frames)
        blank = rf.combine_bc(is_frame, "logical_and", rf.compare_bc(u, "<=", self.num_labels))
        label = rf.combine_bc(is_frame, "logical_and", rf.compare_bc(u, "<", self.num_labels))
        return [blank, label, rf.combine_bc(blank, "logical_and", u > 0)]


@dataclass(frozen=True)
class TransducerOccupancies:
    """
    How often the alignments of the labels have what the scores are for. All without gradient.

    :param log_prob: of all alignments, or of the best one, natural log ``{batch}``
    :param possible: whether there is an alignment ``{batch}``
    :param occupancies: of each of the scores ``{batch, time, positions}``: the share of the alignments' probability
        that has it, which is the gradient of the log probability; for the best alignment 1 or 0. Without an alignment 0
    """

    log_prob: Tensor
    possible: Tensor
    occupancies: list[Tensor]


def occupancies_of(
    scores: Sequence[Tensor], sizes: Sizes, topology: str, *, best: bool = False
) -> TransducerOccupancies:
    """
    :param scores: log probabilities, finite everywhere
    :param sizes:
    :param topology:
    :param best: of the best alignment, not of all
    """
    valid = sizes.valid()[: len(scores)]
    masked = [rf.where(mask, rf.stop_gradient(x), NEG) for x, mask in zip(scores, valid, strict=True)]
    result, occupancies = TOPOLOGIES[topology](masked, sizes, best_path if best else sum_over_paths)
    occupancies = [rf.where(mask, x, 0.0) for x, mask in zip(occupancies, valid, strict=True)]
    return TransducerOccupancies(log_prob=result.log_prob, possible=result.possible, occupancies=occupancies)


def _rnnt(scores: list[Tensor], sizes: Sizes, solve: Solve) -> tuple[LatticeSum, list[Tensor]]:
    """Step s is the diagonal t + u = s, state k is u. Blank keeps u, a label keeps t."""
    time, states = without_lengths(sizes.time_dim), without_lengths(sizes.positions_dim)
    steps = Dim(size_of(time) + (size_of(states) - 1), name="steps")
    like = scores[0]
    s, k = range_over(steps, like), range_over(states, like)

    def skew(x: Tensor) -> Tensor:
        # With the batch: in a compiled step, JAX's gather can't add it.
        t = rf.combine_bc(rf.combine_bc(s, "-", k), "+", sizes.num_frames * 0)
        # One more frame, which there is even if no sequence has any: what follows after the last one.
        x = pick(x, sizes.positions_dim, k)
        x, (more,) = rf.pad(x, axes=[sizes.time_dim], padding=[(0, 1)], value=NEG, handle_dynamic_dims=False)
        return rf.where(t >= 0, pick(x, more, t), NEG)

    def unskew(x: Tensor) -> Tensor:
        u = range_over(sizes.positions_dim, like)
        t = range_over(sizes.time_dim, like)
        t = rf.combine_bc(rf.combine_bc(t, "+", u), "+", sizes.num_frames * 0)
        return pick(pick(x, states, u), steps, t)

    ended = rf.compare_bc(s, ">=", sizes.num_frames + sizes.num_labels)
    blank, label = scores
    stay = rf.where(ended, 0.0, skew(blank))
    move = rf.shift_right(skew(label), axis=states, pad_value=NEG)
    final = rf.compare_bc(k, "==", sizes.num_labels)
    result = solve([stay, move], final=final, steps_dim=steps, states_dim=states)
    stayed, moved = result.occupancies
    label = rf.shift_left(moved, axis=states, pad_value=0.0)
    return result, [unskew(stayed), unskew(label)]


def _monotonic(scores: list[Tensor], sizes: Sizes, solve: Solve) -> tuple[LatticeSum, list[Tensor]]:
    """Step s is the frame, state k is u. Both blank and a label take a frame."""
    steps, states = without_lengths(sizes.time_dim), without_lengths(sizes.positions_dim)
    like = scores[0]
    s, k = range_over(steps, like), range_over(states, like)
    blank, label = (pick(pick(x, sizes.positions_dim, k), sizes.time_dim, s) for x in scores)
    stay = rf.where(rf.compare_bc(s, ">=", sizes.num_frames), 0.0, blank)
    move = rf.shift_right(label, axis=states, pad_value=NEG)
    final = rf.compare_bc(k, "==", sizes.num_labels)
    result = solve([stay, move], final=final, steps_dim=steps, states_dim=states)
    stayed, moved = result.occupancies
    moved = rf.shift_left(moved, axis=states, pad_value=0.0)
    t = range_over(sizes.time_dim, like)
    u = range_over(sizes.positions_dim, like)
    return result, [pick(pick(x, steps, t), states, u) for x in (stayed, moved)]


def _ctc(scores: list[Tensor], sizes: Sizes, solve: Solve) -> tuple[LatticeSum, list[Tensor]]:
    """Step s is the frame; state 2u is "after label u, and then blank", 2u - 1 is "in label u"."""
    assert sizes.is_repeated is not None
    blank, label, repeat = scores
    steps, positions = without_lengths(sizes.time_dim), without_lengths(sizes.positions_dim)
    states = Dim(size_of(positions) * 2 - 1, name="states")
    like = scores[0]
    s, k = range_over(steps, like), range_over(states, like)
    before, in_label = k // 2, k % 2 > 0  # of a label's state, `before` is the number of labels before it

    def spread(x: Tensor, u: Tensor) -> Tensor:
        return pick(pick(x, sizes.positions_dim, u), sizes.time_dim, s)

    stay = rf.where(in_label, spread(repeat, (k + 1) // 2), spread(blank, before))
    stay = rf.where(rf.compare_bc(s, ">=", sizes.num_frames), 0.0, stay)
    move = rf.where(in_label, spread(label, before), spread(blank, before))
    other = rf.logical_not(pick(sizes.is_repeated, sizes.positions_dim, (k + 1) // 2))
    jump = rf.where(rf.combine_bc(in_label, "logical_and", other), spread(label, before), NEG)
    last = 2 * sizes.num_labels
    final = rf.combine_bc(rf.compare_bc(k, "==", last), "logical_or", rf.compare_bc(k, "==", last - 1))
    result = solve([stay, move, jump], final=final, steps_dim=steps, states_dim=states)
    stayed, moved, jumped = result.occupancies
    t = range_over(sizes.time_dim, like)
    u = range_over(sizes.positions_dim, like)

    def collect(x: Tensor, state: Tensor) -> Tensor:
        return pick(pick(x, steps, t), states, state)

    return result, [collect(stayed + moved, 2 * u), collect(moved + jumped, 2 * u + 1), collect(stayed, 2 * u - 1)]


TOPOLOGIES: dict[str, Callable[[list[Tensor], Sizes, Solve], tuple[LatticeSum, list[Tensor]]]] = {
    "rnnt": _rnnt,
    "monotonic": _monotonic,
    "ctc": _ctc,
}


def plain(x: Tensor) -> Tensor:
    """:return: int32 without sparse dim: net dicts can't mix tensors with and without. By float, exact to 2**24"""
    return rf.cast(rf.cast(x, "float32"), "int32")


def range_over(dim: Dim, like: Tensor) -> Tensor:
    """
    :param dim:
    :param like: some tensor on the same device
    :return: int32 ``{dim}``
    """
    return plain(rf.range_over_dim(dim, device=like.device))


def without_lengths(dim: Dim) -> Dim:
    """:return: as long as the longest sequence, for all"""
    return Dim(dim.get_dim_value_tensor(), name=f"{dim.name}_max") if dim.need_masking() else dim


def size_of(dim: Dim) -> Tensor | int:
    return dim.get_dim_value_tensor()


def pick(x: Tensor, axis: Dim, indices: Tensor) -> Tensor:
    """:return: x at the indices, at the nearest if they are outside"""
    indices = rf.minimum(rf.maximum(indices, 0), size_of(axis) - 1)
    return rf.gather(x, indices=indices, axis=axis)
