"""
The best path through a lattice.

Differs from `_lattice.py` in that the maximum takes the place of the sum.
"""

from __future__ import annotations

from collections.abc import Sequence

import returnn.frontend as rf
from returnn.tensor import Dim, Tensor

from ._lattice import IMPOSSIBLE, NEG, LatticeSum
from .scan import scan_over

__all__ = ["best_path"]


def best_path(arcs: Sequence[Tensor], *, final: Tensor, steps_dim: Dim, states_dim: Dim) -> LatticeSum:
    """
    Viterbi algorithm (Rabiner 1989, https://doi.org/10.1109/5.18626, III.B). Of equally good arcs into a state, that
    from the nearest state is taken.

    :param arcs: see :func:`sum_over_paths`
    :param final: see there
    :param steps_dim: see there
    :param states_dim: see there
    :return: log_prob of the best path; its occupancies are 1 for the arcs that it passes, else 0
    """
    arcs = [rf.stop_gradient(x) for x in arcs]
    first = arcs[0]
    state_range = rf.range_over_dim(states_dim, device=first.device)
    end = rf.where(final, 0.0, NEG)
    batch_dims = end.remaining_dims(states_dim)
    # The order of the dims is for the net dict, whose loops have the batch first.
    zeros = rf.zeros([*batch_dims, states_dim], dtype=first.dtype, device=first.device)
    start = zeros + rf.where(state_range < 1, 0.0, NEG)

    def forward(x: list[Tensor], state: Tensor) -> tuple[Tensor, Tensor]:
        """:return: from how many states before it, each state is entered; the scores of the best paths to it"""
        best, choice = state + x[0], rf.zeros_like(state)
        for j, arc in enumerate(x[1:], start=1):
            other = rf.shift_right(state, axis=states_dim, amount=j, pad_value=NEG) + arc
            choice = rf.where(other > best, float(j), choice)
            best = rf.maximum(other, best)
        return choice, best

    template = Tensor("choice", dims=zeros.dims, dtype=zeros.dtype)
    choices, last = scan_over(steps_dim, forward, xs=arcs, initial=start, ys=template, may_repeat=True)
    last += end
    log_prob = rf.reduce_max(last, axis=states_dim)
    possible = rf.logical_not(log_prob < IMPOSSIBLE)  # not a number is possible, so that it is seen

    def backward(choices: Tensor, state: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """:return: the state after this step and how it was entered; the state before"""
        choice = rf.gather(choices, indices=_plain(state), axis=states_dim)
        # A copy: in a net dict, a loop can't give out its own state.
        return {"state": state + choice * 0.0, "choice": choice}, rf.relu(state - choice)

    best_end = _as_float(rf.reduce_argmax(last, axis=states_dim), first.dtype)
    one = Tensor("one", dims=batch_dims, dtype=zeros.dtype)
    path, _ = scan_over(
        steps_dim,
        backward,
        xs=_flip(choices, steps_dim),
        initial=rf.zeros(batch_dims, dtype=first.dtype, device=first.device) + best_end,
        ys={"state": one, "choice": one.copy_template()},
        may_repeat=True,
    )
    states, taken = (_flip(path[name], steps_dim) for name in ("state", "choice"))
    passed = rf.compare_bc(_as_float(state_range, first.dtype), "==", states)
    passed = rf.combine_bc(passed, "logical_and", possible)
    occupancies = [
        rf.cast(rf.combine_bc(passed, "logical_and", rf.compare_bc(taken, "==", float(j))), first.dtype)
        for j in range(len(arcs))
    ]
    return LatticeSum(log_prob=log_prob, possible=possible, occupancies=occupancies)


def _flip(x: Tensor, axis: Dim) -> Tensor:
    return rf.reverse_sequence(x, axis=axis, handle_dynamic_dims=False)


def _plain(x: Tensor) -> Tensor:
    return rf.cast(x, "int32")


def _as_float(x: Tensor, dtype: str) -> Tensor:
    """:return: without sparse dim"""
    x = rf.cast(x, dtype)
    x.sparse_dim = None
    return x
