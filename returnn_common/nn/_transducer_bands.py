"""
Where the band of each frame begins, in which the pruned transducer loss looks for alignments.

Glossary: t is a frame, u the number of labels so far (position), p the first position of a frame's band.
"""

from __future__ import annotations

from collections.abc import Sequence

import returnn.frontend as rf
from returnn.tensor import Dim, Tensor

from ._lattice import NEG
from ._transducer_topologies import Sizes, pick, plain, range_over, size_of, without_lengths
from .scan import scan_over

__all__ = ["find_bands"]


def find_bands(occupancies: Sequence[Tensor], sizes: Sizes, band: int) -> Tensor:
    """
    The bands that keep most of the probability, summed over the frames, of all those which begin at 0, end at the last
    position, and move on by less than their own length, so that neighbours overlap.

    Differs from the paper (Kuang et al. 2022, section 3), which takes the best band for each frame by itself and
    corrects what doesn't fit together.

    :param occupancies: of the scores ``{batch, time, positions}``
    :param sizes:
    :param band: number of positions for each frame
    :return: p, int32 ``{batch, time}``
    """
    time, positions = without_lengths(sizes.time_dim), without_lengths(sizes.positions_dim)
    like = occupancies[0]
    kept = _kept(occupancies, sizes.positions_dim, band)
    t, p = range_over(time, like), range_over(positions, like)
    kept = pick(pick(kept, sizes.positions_dim, p), sizes.time_dim, t)
    kept = rf.where(rf.compare_bc(t, "<", sizes.num_frames), kept, 0.0)
    last = rf.relu(sizes.num_labels + (1 - band))
    steps_dim = Dim(band, name="band-steps")
    steps = range_over(steps_dim, like)
    best = _best_to_the_end(kept, sizes.num_frames, last, time=time, positions=positions, steps=steps)
    first = rf.combine_bc(t < 1, "logical_and", p > 0)
    first = _follow(rf.where(first, NEG, best), time=time, positions=positions, steps=steps)
    return plain(pick(first, time, range_over(sizes.time_dim, like)))


def _kept(occupancies: Sequence[Tensor], positions_dim: Dim, band: int) -> Tensor:
    """:return: the probability of what stays in the band at p: all there, but no label which leads out of it"""
    u = range_over(positions_dim, occupancies[0])
    total = rf.zeros_like(occupancies[0])
    for i, x in enumerate(occupancies):
        length = band - 1 if i == 1 else band
        up_to = rf.cumsum(x, spatial_dim=positions_dim)
        total += pick(up_to, positions_dim, u + (length - 1)) - up_to + x
    return total


def _best_to_the_end(
    kept: Tensor, num_frames: Tensor, last: Tensor, *, time: Dim, positions: Dim, steps: Tensor
) -> Tensor:
    """:return: the most that the bands from t on can keep if that of t begins at p ``{batch, time, positions}``"""
    t, p = range_over(time, kept), range_over(positions, kept)
    end = rf.where(rf.compare_bc(p, "==", last), 0.0, NEG)
    ends = rf.compare_bc(t, ">=", num_frames - 1)
    next_positions = rf.minimum(rf.combine_bc(p, "+", steps), size_of(positions) - 1)
    (steps_dim,) = steps.dims

    def step(x: tuple[Tensor, Tensor], after: Tensor) -> tuple[Tensor, Tensor]:
        kept, is_end = x
        after = rf.reduce_max(rf.gather(after, indices=next_positions, axis=positions), axis=steps_dim)
        total = rf.where(is_end, end, after) + kept
        return total, total

    xs = tuple(rf.reverse_sequence(x, axis=time, handle_dynamic_dims=False) for x in (kept, ends))
    best, _ = scan_over(time, step, xs=xs, initial=end, ys=end.copy_template())
    return rf.reverse_sequence(best, axis=time, handle_dynamic_dims=False)


def _follow(best: Tensor, *, time: Dim, positions: Dim, steps: Tensor) -> Tensor:
    """:return: p of the best bands, as floats ``{batch, time}``"""
    (steps_dim,) = steps.dims

    def step(x: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
        choices = rf.minimum(rf.combine_bc(before, "+", steps), size_of(positions) - 1)
        values = rf.gather(x, indices=choices, axis=positions)
        now = rf.gather(choices, indices=rf.reduce_argmax(values, axis=steps_dim), axis=steps_dim)
        return now, now

    initial = rf.zeros(best.remaining_dims([time, positions]), dtype="int32", device=best.device)
    return scan_over(time, step, xs=best, initial=initial, ys=initial.copy_template())[0]
