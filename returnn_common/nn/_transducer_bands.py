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
    kept = _kept(occupancies, sizes.positions_dim, band)
    t, p = range_over(time, kept), range_over(positions, kept)
    kept = pick(pick(kept, sizes.positions_dim, p), sizes.time_dim, t)
    # The last band begins where it reaches the last position.
    last = rf.relu(sizes.num_labels + (1 - band))
    elsewhere = rf.logical_not(rf.compare_bc(p, "==", last))
    is_last = rf.compare_bc(t, "==", sizes.num_frames - 1)
    kept = rf.where(rf.combine_bc(is_last, "logical_and", elsewhere), NEG, kept)
    steps_dim = Dim(band, name="band-steps")
    choices = rf.minimum(rf.combine_bc(p, "+", range_over(steps_dim, kept)), size_of(positions) - 1)
    backwards = rf.combine_bc(sizes.num_frames - 1, "-", t)
    best = _best_to_the_end(pick(kept, time, backwards), choices, time=time, positions=positions)
    best = pick(best, time, backwards)
    best = rf.where(rf.combine_bc(t < 1, "logical_and", p > 0), NEG, best)
    step = rf.reduce_argmax(rf.gather(best, indices=choices, axis=positions), axis=steps_dim)
    following = rf.minimum(rf.combine_bc(p, "+", plain(step)), size_of(positions) - 1)
    first = _follow(following, time=time, positions=positions)
    return plain(pick(first, time, range_over(sizes.time_dim, kept)))


def _kept(occupancies: Sequence[Tensor], positions_dim: Dim, band: int) -> Tensor:
    """:return: the probability of what stays in the band at p: all there, but no label which leads out of it"""
    u = range_over(positions_dim, occupancies[0])
    total = rf.zeros_like(occupancies[0])
    for i, x in enumerate(occupancies):
        length = band - 1 if i == 1 else band
        up_to = rf.cumsum(x, spatial_dim=positions_dim)
        total += pick(up_to, positions_dim, u + (length - 1)) - up_to + x
    return total


def _best_to_the_end(kept: Tensor, choices: Tensor, *, time: Dim, positions: Dim) -> Tensor:
    """
    :param kept: last frame first
    :param choices: where a band may begin if the one before begins at p ``{positions, steps}``
    :param time:
    :param positions:
    :return: the most that the bands from t on can keep if that of t begins at p ``{batch, time, positions}``
    """
    steps = choices.remaining_dims(positions)

    def step(kept: Tensor, after: Tensor) -> tuple[Tensor, Tensor]:
        after = rf.reduce_max(rf.gather(after, indices=choices, axis=positions), axis=steps) + kept
        return after, after

    initial = rf.zeros([*kept.remaining_dims([time, positions]), positions], dtype=kept.dtype, device=kept.device)
    return scan_over(time, step, xs=kept, initial=initial, ys=initial.copy_template())[0]


def _follow(following: Tensor, *, time: Dim, positions: Dim) -> Tensor:
    """
    :param following: where the band of t begins if the one before begins at p ``{batch, time, positions}``
    :param time:
    :param positions:
    :return: p, from 0 on ``{batch, time}``
    """

    def step(following: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
        now = rf.gather(following, indices=before, axis=positions)
        return now, now

    batch_dims = following.remaining_dims([time, positions])
    initial = rf.zeros(batch_dims, dtype=following.dtype, device=following.device)
    return scan_over(time, step, xs=following, initial=initial, ys=initial.copy_template())[0]
