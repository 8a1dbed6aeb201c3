"""
Searches of this package piece after piece, with a state: what comes out after the last piece is what the search of the
whole gives; before, it is what is known so far.

Each is used as::

    search = CtcBeamStream(labels_dim, blank=blank, beam_size=8, batch_dims=[batch_dim])
    state = search.initial_state()
    for log_probs, time in pieces:
        state = search.step(log_probs, spatial_dim=time, state=state)
        print(search.hypotheses(state).nbest(0))

The sequences of a batch need not keep pace: in each piece, each has so many frames as the spatial dim says, also none.
A state is a nested structure of tensors; those of the labels grow.

Shape letters: B batch dims, T frames of a piece (`spatial_dim`), V labels with blank.
"""

from __future__ import annotations

from typing import Any, Protocol

from .. import nn
from .hypotheses import Hypotheses

__all__ = ["SearchStream"]


class SearchStream(Protocol):
    """What the classes here have in common."""

    def initial_state(self) -> Any:
        """:return: before the first frame"""
        ...

    def step(self, source: nn.Tensor, *, spatial_dim: nn.Dim, state: Any) -> Any:
        """
        :param source: {B, T, ...}, the next frames
        :param spatial_dim: T
        :param state: of `initial_state`, or of the step before
        :return: new state
        """
        ...

    def hypotheses(self, state: Any) -> Hypotheses:
        """:return: as if the sequences ended here"""
        ...
