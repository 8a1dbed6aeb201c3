"""
What comes in pieces of any size, in steps of one size: for whatever works on windows of its input.
"""

from __future__ import annotations

from collections.abc import Sequence

import returnn.frontend as rf
from returnn.tensor import Dim, Tensor

from .dims import SpatialDim

__all__ = ["StreamBuffer"]


class StreamBuffer:
    """
    Windows of ``window`` items, each ``step`` after the one before, are handed over as soon as they are complete; the
    rest is held back. Each sequence of the batch is on its own: pieces of theirs that come together can have any
    lengths, also 0.

    :param step: at least 1
    :param window: at least ``step``; the last ``window - step`` items of a window are also in the next one
    """

    def __init__(self, *, step: int, window: int):
        assert 1 <= step <= window
        self.step = step
        self.overlap = window - step
        self.held_dim = SpatialDim("held-back", max(window - 1, 1))

    def initial_state(self, *, batch_dims: Sequence[Dim], item_dims: Sequence[Dim] = ()) -> rf.State:
        """
        :param batch_dims: of the sequences
        :param item_dims: of an item, e.g. of features
        :return: nothing is held back
        """
        return rf.State(
            held=rf.zeros([*batch_dims, self.held_dim, *item_dims], dtype="float32"),
            count=rf.zeros(batch_dims, dtype="int32"),
        )

    def push(self, source: Tensor, *, in_spatial_dim: Dim, state: rf.State) -> tuple[Tensor, Dim, rf.State]:
        """
        :param source: ``{batch, time, ...}``, the next items
        :param in_spatial_dim: time
        :param state: of :func:`initial_state`, or of the call before
        :return: for each sequence the items of its n complete windows, ``n * step + overlap`` of them (where n is 0,
            that many of no meaning); their dim; and new state
        """
        source = rf.cast(source, state.held.dtype)
        joined, joined_dim = rf.concat((state.held, self.held_dim), (source, in_spatial_dim), allow_broadcast=True)
        held = rf.cast(state.count, "float32")  # as floats, whose arithmetic is the same on all engines
        total = rf.combine_bc(held, "+", rf.cast(in_spatial_dim.get_size_tensor(device=source.device), "float32"))
        # The half keeps away from the edges, whichever way an engine divides.
        num = rf.relu(rf.floor((total - float(self.overlap) + 0.5) * (1.0 / self.step)))
        ready_dim = _make_dim(num * float(self.step) + float(self.overlap), name="ready")
        ready = self._take(joined, joined_dim, range_of=ready_dim, first=None, held=held)
        rest = self._take(joined, joined_dim, range_of=self.held_dim, first=num * float(self.step), held=held)
        return ready, ready_dim, rf.State(held=rest, count=rf.cast(total - num * float(self.step), "int32"))

    def flush(self, state: rf.State) -> tuple[Tensor, Dim]:
        """
        :param state: of the last call of :func:`push`
        :return: what was held back of each sequence, ``{batch, rest, ...}``, and the dim rest
        """
        rest_dim = _make_dim(rf.cast(state.count, "float32"), name="rest")
        indices = rf.range_over_dim(rest_dim, dtype="int32", device=state.held.device)
        return rf.gather(state.held, indices=indices, axis=self.held_dim, clip_to_valid=True), rest_dim

    def _take(self, joined: Tensor, joined_dim: Dim, *, range_of: Dim, first: Tensor | None, held: Tensor) -> Tensor:
        """:return: from the item ``first`` on, where a sequence has ``held`` items before those that are new"""
        index = rf.range_over_dim(range_of, dtype="float32", device=joined.device)
        if first is not None:
            index = rf.combine_bc(index, "+", first)
        gap = float(self.held_dim.dimension or 0) - held
        is_new = rf.cast(rf.compare_bc(index, ">=", held), "float32")
        index = rf.combine_bc(index, "+", rf.combine_bc(is_new, "*", gap))
        return rf.gather(joined, indices=rf.cast(index, "int32"), axis=joined_dim, clip_to_valid=True)


def _make_dim(lengths: Tensor, *, name: str) -> Dim:
    return Dim(rf.copy_to_device(rf.cast(lengths, "int32"), "cpu"), name=name)
