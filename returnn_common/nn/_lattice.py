"""
Sums over all paths through a lattice, and how much of the probability passes each of its arcs.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import returnn.frontend as rf
from returnn.tensor import Dim, Tensor

from .scan import scan_over

__all__ = ["IMPOSSIBLE", "NEG", "LatticeSum", "sum_over_paths"]

# It stands for minus infinity, since the difference of two infinities is not a number.
NEG = -1e30  # the sum of 1e8 of them is still finite in float32
IMPOSSIBLE = -1e29  # a path below has no probability


@dataclass(frozen=True)
class LatticeSum:
    """
    :param log_prob: natural log of the sum of all paths' probabilities ``{batch}``
    :param possible: whether there is a path ``{batch}``
    :param occupancies: for each of the arcs, the share of the paths' probability that passes it
        ``{batch, steps, states}``, zero where no path is possible
    """

    log_prob: Tensor
    possible: Tensor
    occupancies: list[Tensor]


def sum_over_paths(arcs: Sequence[Tensor], *, final: Tensor, steps_dim: Dim, states_dim: Dim) -> LatticeSum:
    """
    Forward-backward algorithm (Rabiner 1989, https://doi.org/10.1109/5.18626, III.A). A path starts in state 0, passes
    one arc in each step, and ends in a final state. Nothing here is differentiated: the occupancies are the gradient.

    :param arcs: arcs[j] is the log probability of entering a state from the state j before it
        ``{batch, steps, states}``, finite (NEG where there is no such arc). Where a sequence has ended, a state is
        entered from itself with log probability 0.
    :param final: which states are final, bool ``{batch, states}``
    :param steps_dim: one length for all
    :param states_dim: one length for all
    """
    arcs = [rf.stop_gradient(x) for x in arcs]
    first = arcs[0]
    state_range = rf.range_over_dim(states_dim, device=first.device)
    start = rf.where(state_range < 1, 0.0, NEG)
    end = rf.where(final, 0.0, NEG)
    # The order of the dims is for the net dict, whose loops have the batch first.
    end = rf.zeros([*end.remaining_dims(states_dim), states_dim], dtype=first.dtype, device=first.device) + end
    # The backward pass is the forward pass through the lattice turned round, so one loop does both.
    direction_dim = Dim(2, name="direction")
    turned = [_turned(x, j, steps_dim=steps_dim, states_dim=states_dim) for j, x in enumerate(arcs)]
    both = [_pair(x, y, direction_dim) for x, y in zip(arcs, turned, strict=True)]
    start = _pair(rf.zeros_like(end) + start, _flip(end, states_dim), direction_dim)
    run = _run_torch if first._raw_backend.name == "torch" else _run
    before, last = run(both, start, steps_dim=steps_dim, states_dim=states_dim)
    forward, backward = (rf.gather(before, axis=direction_dim, indices=i) for i in range(2))
    backward = _flip(_flip(backward, steps_dim), states_dim)
    last = rf.gather(last, axis=direction_dim, indices=0)
    log_prob = rf.reduce_logsumexp(last + end, axis=states_dim)
    possible = rf.logical_not(log_prob < IMPOSSIBLE)  # not a number is possible, so that it is seen
    shares = [_from_before(forward, j, states_dim) + arc + backward for j, arc in enumerate(arcs)]
    # A path passes one arc in each step. Dividing by the sum of the step's own keeps the errors of the sums out.
    totals = [rf.reduce_logsumexp(x, axis=states_dim) for x in shares]
    total = functools.reduce(rf.log_add_exp, totals)
    occupancies = [rf.where(possible, rf.exp(x - total), 0.0) for x in shares]
    return LatticeSum(log_prob=log_prob, possible=possible, occupancies=occupancies)


def _run(arcs: list[Tensor], start: Tensor, *, steps_dim: Dim, states_dim: Dim) -> tuple[Tensor, Tensor]:
    """:return: log of the sum over all paths to each state before each step, and after the last step"""

    def step(x: list[Tensor], state: Tensor) -> tuple[Tensor, Tensor]:
        total = state + x[0]
        for j, arc in enumerate(x[1:], start=1):
            total = rf.log_add_exp(total, _from_before(state, j, states_dim) + arc)
        return total, total

    after, last = scan_over(steps_dim, step, xs=arcs, initial=start, ys=start.copy_template())
    # The net dict can't give out the state before a step.
    before = rf.shift_right(after, axis=steps_dim, pad_value=NEG)
    is_first = rf.range_over_dim(steps_dim, device=start.device) < 1
    return rf.where(is_first, start, before, allow_broadcast_all_sources=True), last


def _run_torch(arcs: list[Tensor], start: Tensor, *, steps_dim: Dim, states_dim: Dim) -> tuple[Tensor, Tensor]:
    """as _run, without the frontend's Python in each step, which takes twenty times as long as the arithmetic"""
    import torch

    dims = [*start.remaining_dims(states_dim), states_dim]
    arcs_raw: list[torch.Tensor] = [x.copy_compatible_to_dims_raw([steps_dim, *dims]) for x in arcs]
    state: torch.Tensor = start.copy_compatible_to_dims_raw(dims)
    num_steps, num_states = arcs_raw[0].shape[0], state.shape[-1]
    states = state.new_empty([num_steps + 1, *state.shape])
    states[0] = state
    for s in range(num_steps):
        torch.add(states[s], arcs_raw[0][s], out=states[s + 1])
        for j, arc in enumerate(arcs_raw[1:], start=1):
            into = states[s + 1, ..., j:]
            torch.logaddexp(into, states[s, ..., : max(num_states - j, 0)] + arc[s, ..., j:], out=into)
    before = Tensor("before", dims=[steps_dim, *dims], dtype=start.dtype, raw_tensor=states[:-1])
    return before, Tensor("last", dims=dims, dtype=start.dtype, raw_tensor=states[-1])


def _pair(x: Tensor, y: Tensor, dim: Dim) -> Tensor:
    """:return: x and y along a new dim, as RETURNN's stack, which the net dict lacks"""
    is_first = rf.cast(rf.range_over_dim(dim, device=x.device) < 1, x.dtype)
    return rf.combine_bc(x, "*", is_first) + rf.combine_bc(y, "*", 1.0 - is_first)


def _flip(x: Tensor, axis: Dim) -> Tensor:
    return rf.reverse_sequence(x, axis=axis, handle_dynamic_dims=False)


def _from_before(x: Tensor, distance: int, axis: Dim) -> Tensor:
    return rf.shift_right(x, axis=axis, amount=distance, pad_value=NEG) if distance else x


def _turned(arc: Tensor, distance: int, *, steps_dim: Dim, states_dim: Dim) -> Tensor:
    return _from_before(_flip(_flip(arc, steps_dim), states_dim), distance, states_dim)
