"""
The searches for transducers piece after piece, see :mod:`.streaming`.

Shape letters: B batch dims, T frames of a piece (`spatial_dim`), V labels with blank.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from .. import nn
from ._common import check_index, longest_of, make_room, room_of
from ._options import check_beam, check_labels_dim
from ._transducer_greedy import TransducerGreedySearch
from ._transducer_options import check_max_labels, make_beam
from .hypotheses import Hypotheses
from .transducer import Transducer

__all__ = ["TransducerBeamStream", "TransducerGreedyStream"]


class TransducerGreedyStream:
    """
    :func:`.transducer_greedy_search`, piece after piece: the labels only grow.

    :param transducer: e.g. the model
    :param blank: index of blank in V
    :param batch_dims: B
    :param device: of all tensors; the further arguments are those of that function
    :raise ValueError: an argument that is out of range, or doesn't fit
    """

    def __init__(
        self,
        transducer: Transducer,
        *,
        blank: int,
        batch_dims: Sequence[nn.Dim],
        max_labels_per_frame: int | None = None,
        topology: str = "rnnt",
        vocab_dim: nn.Dim | None = None,
        device: str | None = None,
    ):
        name = "TransducerGreedyStream"
        check_index(name, "blank", blank, transducer.labels_dim)
        self.out_labels_dim = check_labels_dim(name, transducer.labels_dim, blank, vocab_dim)
        self.search = TransducerGreedySearch(
            transducer=transducer,
            batch_dims=list(batch_dims),
            device=device,
            blank=blank,
            beam_dim=nn.Dim(1, name="beam"),
            room_dim=nn.Dim(1, name="room"),
            max_labels=check_max_labels(name, max_labels_per_frame, topology),
            is_monotonic=topology != "rnnt",
            is_ctc=topology == "ctc",
        )

    def initial_state(self) -> dict[str, Any]:
        """:return: of the empty hypothesis"""
        return self.search.initial_state()

    def step(self, source: nn.Tensor, *, spatial_dim: nn.Dim, state: dict[str, Any]) -> dict[str, Any]:
        """
        :param source: encoder's output {B, T, features} of the next frames; see :class:`SearchStream`
        """
        return _run_transducer("TransducerGreedyStream", self.search, source, spatial_dim, state, end=0)

    def hypotheses(self, state: dict[str, Any]) -> Hypotheses:
        """:return: see :func:`.transducer_greedy_search`"""
        return _finish_transducer(self.search, state, self.out_labels_dim)


class TransducerBeamStream:
    """
    :func:`.transducer_beam_search`, piece after piece. Hypotheses can change in all their labels while they become
    longer; the end of the sentence is scored in each of :meth:`hypotheses`, but not in the state.

    :param transducer: e.g. the model
    :param blank: index of blank in V
    :param batch_dims: B
    :param device: of all tensors; the further arguments are those of that function
    :raise ValueError: an argument that is out of range, or doesn't fit
    """

    def __init__(
        self,
        transducer: Transducer,
        *,
        blank: int,
        batch_dims: Sequence[nn.Dim],
        beam_size: int,
        max_labels_per_frame: int | None = None,
        topology: str = "rnnt",
        recombine: str = "sum",
        scorer: Any = None,
        scorer_scale: float = 0.0,
        bos: int | None = None,
        eos: int | None = None,
        vocab_dim: nn.Dim | None = None,
        device: str | None = None,
    ):
        name = "TransducerBeamStream"
        scorer_options = (scorer, scorer_scale, bos, eos)
        check_index(name, "blank", blank, transducer.labels_dim)
        check_beam(name, transducer.labels_dim, beam_size, recombine=recombine, scorer_options=scorer_options)
        self.out_labels_dim = check_labels_dim(name, transducer.labels_dim, blank, vocab_dim)
        self.search = make_beam(
            transducer,
            batch_dims=list(batch_dims),
            device=device,
            blank=blank,
            beam_size=beam_size,
            room_dim=nn.Dim(1, name="room"),
            max_labels=check_max_labels(name, max_labels_per_frame, topology),
            is_monotonic=topology != "rnnt",
            is_ctc=topology == "ctc",
            recombine=recombine,
            scorer_options=scorer_options,
        )

    def initial_state(self) -> dict[str, Any]:
        """:return: of the empty hypothesis"""
        return self.search.initial_state(max_labels=None)

    def step(self, source: nn.Tensor, *, spatial_dim: nn.Dim, state: dict[str, Any]) -> dict[str, Any]:
        """
        :param source: encoder's output {B, T, features} of the next frames; see :class:`SearchStream`
        """
        return _run_transducer("TransducerBeamStream", self.search, source, spatial_dim, state, end=-1)

    def hypotheses(self, state: dict[str, Any]) -> Hypotheses:
        """:return: see :func:`.transducer_beam_search`"""
        return _finish_transducer(self.search, state, self.out_labels_dim)


def _run_transducer(
    name: str, search: Any, encoded: nn.Tensor, spatial_dim: nn.Dim, state: dict[str, Any], *, end: int
) -> dict[str, Any]:
    if spatial_dim not in encoded.dims:
        raise ValueError(f"{name}: source, expected a tensor with {spatial_dim}, got {encoded}")
    more = longest_of(spatial_dim) * search.max_labels
    history, room_dim = make_room(state["history"], length=state["length"], more=more, end=end)
    search = dataclasses.replace(search, room_dim=room_dim)
    return search.run(encoded, spatial_dim=spatial_dim, state={**state, "history": history})


def _finish_transducer(search: Any, state: dict[str, Any], labels_dim: nn.Dim) -> Hypotheses:
    search = dataclasses.replace(search, room_dim=room_of(state["history"], without=search.dims))
    labels, scores, out_dim = search.finish(state)
    labels = nn.set_sparse_dim(labels, labels_dim)
    return Hypotheses(labels=labels, scores=scores, beam_dim=search.beam_dim, spatial_dim=out_dim)
