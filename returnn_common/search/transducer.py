"""
Search for transducers (Graves 2012, https://arxiv.org/abs/1211.3711): the best path, and beam search over the label
sequences, both frame by frame.

Shape letters: T frames (`spatial_dim`), V labels with blank.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from .. import nn
from ._common import check_index, check_int, longest_of
from ._options import check_beam, check_labels_dim
from ._transducer_alignment import TransducerAlignmentSearch
from ._transducer_beam import batch_dims_of
from ._transducer_greedy import TransducerGreedySearch
from ._transducer_options import check_max_labels, make_beam
from .hypotheses import Hypotheses

__all__ = ["Transducer", "transducer_alignment_search", "transducer_beam_search", "transducer_greedy_search"]


class Transducer(Protocol):
    """
    What the searches need of a transducer. Any object with these is one: `TransducerModel`, yours. Nobody inherits from
    it.

    labels_dim: V
    """

    labels_dim: nn.Dim

    def initial_state(self, *, batch_dims: Sequence[nn.Dim]) -> Any:
        """
        :param batch_dims: of the hypotheses
        :return: any nested structure that `nn.nested` handles, of tensors with these dims
        """
        ...

    def predict(self, prev_labels: nn.Tensor, state: Any) -> tuple[nn.Tensor, Any]:
        """
        :param prev_labels: {batch}, sparse over V, at first blank
        :param state: `initial_state` or the state that the step before returned, with hypotheses selected
        :return: what is known of the labels so far, {batch, features}; and the new state, with the same dims
        """
        ...

    def join(self, encoded: nn.Tensor, predicted: nn.Tensor) -> nn.Tensor:
        """
        :param encoded: {batch, features}, one frame
        :param predicted: {batch, features}, of `predict`
        :return: unnormalised scores of what follows, {batch, V}
        """
        ...


def transducer_greedy_search(
    transducer: Transducer,
    encoded: nn.Tensor,
    *,
    spatial_dim: nn.Dim,
    blank: int,
    max_labels_per_frame: int | None = None,
    topology: str = "rnnt",
    vocab_dim: nn.Dim | None = None,
) -> Hypotheses:
    """
    In each frame the best label, again and again, until blank is the best one, or the frame has as many labels as it
    may have: then blank follows, whatever its probability.

    :param transducer: e.g. the model
    :param encoded: {batch, T, features}
    :param spatial_dim: T
    :param blank: index of blank in V
    :param max_labels_per_frame: at least 1; default: 5. With the topologies "monotonic" and "ctc", it is 1 in any case
    :param topology: "rnnt": labels are emitted in a frame until blank ends it. "monotonic": a label ends it, too.
        "ctc": also, and it may go on in the next frames, see :class:`returnn_common.nn.TransducerTargets`
    :param vocab_dim: sparse dim of the resulting labels: V itself (default), or V without its last label, blank
    :return: one hypothesis per batch entry; its score is that of the path, the log probs of its labels and blanks
    :raise ValueError: an argument that doesn't fit, or is out of range
    """
    name = "transducer_greedy_search"
    labels_dim = _check(name, transducer, encoded, spatial_dim, blank, vocab_dim)
    max_labels = check_max_labels(name, max_labels_per_frame, topology)
    room = nn.copy_to_device(longest_of(spatial_dim) * max_labels, "cpu")
    search = TransducerGreedySearch(
        transducer=transducer,
        batch_dims=batch_dims_of(encoded, spatial_dim),
        device=encoded.device,
        blank=blank,
        beam_dim=nn.Dim(1, name="beam"),
        room_dim=nn.Dim(room, name="room"),
        max_labels=max_labels,
        is_monotonic=topology != "rnnt",
        is_ctc=topology == "ctc",
    )
    labels, scores, out_dim = search.finish(search.run(encoded, spatial_dim=spatial_dim, state=search.initial_state()))
    labels = nn.set_sparse_dim(labels, labels_dim)
    return Hypotheses(labels=labels, scores=scores, beam_dim=search.beam_dim, spatial_dim=out_dim)


def transducer_beam_search(
    transducer: Transducer,
    encoded: nn.Tensor,
    *,
    spatial_dim: nn.Dim,
    blank: int,
    beam_size: int,
    max_labels_per_frame: int | None = None,
    topology: str = "rnnt",
    recombine: str = "sum",
    scorer: Any = None,
    scorer_scale: float = 0.0,
    bos: int | None = None,
    eos: int | None = None,
    vocab_dim: nn.Dim | None = None,
) -> Hypotheses:
    """
    Time-synchronous: in each frame, the hypotheses of the beam get one label more, again and again, up to
    `max_labels_per_frame` (Saon et al. 2020, https://doi.org/10.1109/ICASSP40776.2020.9053040, algorithm 1). All of
    these, ended by blank, compete for the beam of the next frame. Those that are worse already than the whole beam
    aren't extended further (as Graves 2012, algorithm 1, stops).

    Alignments of one label sequence are recombined exactly. So with a beam that holds all label sequences, the result
    is that of enumerating all alignments with so many labels per frame. With a beam of 1 and no scorer, it is that of
    :func:`transducer_greedy_search`, with the score of its path.

    With a scorer, log-linear: `score = transducer + scorer_scale * scorer`, also when the beam is pruned.

    :param transducer: e.g. the model
    :param encoded: {batch, T, features}
    :param spatial_dim: T
    :param blank: index of blank in V
    :param beam_size: label sequences kept, and size of the result's beam dim
    :param max_labels_per_frame: see :func:`transducer_greedy_search`
    :param topology: see there
    :param recombine: "sum" over the alignments of a label sequence, or "max", its best alignment
    :param scorer: e.g. a language model, see :func:`ctc_beam_search`
    :param scorer_scale: weight of the scorer; with 0, it is ignored
    :param bos: the scorer's first `prev_labels`, an index of its vocabulary. Default: `eos` if given, else 0
    :param eos: if given, an index of the scorer's vocabulary, scored at the end of each hypothesis
    :param vocab_dim: sparse dim of the resulting labels: V itself (default), or V without its last label, blank
    :return: `beam_size` hypotheses per batch entry; where there are fewer, the rest has the score -inf
    :raise ValueError: an argument that doesn't fit, or is out of range
    """
    name = "transducer_beam_search"
    labels_dim = _check(name, transducer, encoded, spatial_dim, blank, vocab_dim)
    scorer_options = (scorer, scorer_scale, bos, eos)
    check_beam(name, transducer.labels_dim, beam_size, recombine=recombine, scorer_options=scorer_options)
    max_labels = check_max_labels(name, max_labels_per_frame, topology)
    most = longest_of(spatial_dim) * max_labels
    search = make_beam(
        transducer,
        batch_dims=batch_dims_of(encoded, spatial_dim),
        device=encoded.device,
        room_dim=nn.Dim(nn.copy_to_device(nn.relu(most - 1) + 1, "cpu"), name="room"),
        blank=blank,
        max_labels=max_labels,
        is_monotonic=topology != "rnnt",
        is_ctc=topology == "ctc",
        beam_size=beam_size,
        recombine=recombine,
        scorer_options=scorer_options,
    )
    state = search.run(encoded, spatial_dim=spatial_dim, state=search.initial_state(max_labels=most))
    labels, scores, out_dim = search.finish(state)
    labels = nn.set_sparse_dim(labels, labels_dim)
    return Hypotheses(labels=labels, scores=scores, beam_dim=search.beam_dim, spatial_dim=out_dim)


def transducer_alignment_search(
    transducer: Transducer,
    encoded: nn.Tensor,
    *,
    spatial_dim: nn.Dim,
    blank: int,
    beam_size: int,
    max_len: int | None = None,
    recombine: str = "sum",
    scorer: Any = None,
    scorer_scale: float = 0.0,
    bos: int | None = None,
    eos: int | None = None,
    vocab_dim: nn.Dim | None = None,
) -> Hypotheses:
    """
    Alignment-length-synchronous (Saon et al. 2020, https://doi.org/10.1109/ICASSP40776.2020.9053040, algorithm 2):
    each step appends one label or blank to each hypothesis, so that those compete which have the same number of labels
    and blanks together. There is one step for each frame and label, with no limit of the labels in a frame.

    Alignments are recombined as in :func:`transducer_beam_search`. For the topology "rnnt". With a beam of 1 and no
    scorer, the result is that of :func:`transducer_greedy_search` without a limit in the frames.

    :param transducer: see :func:`transducer_beam_search`, also for the others
    :param max_len: labels of a hypothesis at most; default: as many as there are frames
    :return: `beam_size` hypotheses per batch entry; where there are fewer, the rest has the score -inf
    :raise ValueError: an argument that doesn't fit, or is out of range
    """
    name = "transducer_alignment_search"
    labels_dim = _check(name, transducer, encoded, spatial_dim, blank, vocab_dim)
    if max_len is not None:
        check_int(name, "max_len", max_len, at_least=0)
    scorer_options = (scorer, scorer_scale, bos, eos)
    check_beam(name, transducer.labels_dim, beam_size, recombine=recombine, scorer_options=scorer_options)
    room = max(max_len, 1) if max_len is not None else nn.relu(longest_of(spatial_dim) - 1) + 1
    beam = make_beam(
        transducer,
        batch_dims=batch_dims_of(encoded, spatial_dim),
        device=encoded.device,
        room_dim=nn.Dim(nn.copy_to_device(room, "cpu") if isinstance(room, nn.Tensor) else room, name="room"),
        blank=blank,
        max_labels=1,
        is_monotonic=True,
        beam_size=beam_size,
        recombine=recombine,
        scorer_options=scorer_options,
    )
    search = TransducerAlignmentSearch(beam, encoded, spatial_dim, max_len=max_len)
    labels, scores, out_dim = search.run()
    labels = nn.set_sparse_dim(labels, labels_dim)
    return Hypotheses(labels=labels, scores=scores, beam_dim=beam.beam_dim, spatial_dim=out_dim)


def _check(
    name: str,
    transducer: Transducer,
    encoded: nn.Tensor,
    spatial_dim: nn.Dim,
    blank: int,
    labels_dim: nn.Dim | None,
) -> nn.Dim:
    """:return: the sparse dim of the labels"""
    if spatial_dim not in encoded.dims:
        raise ValueError(f"{name}: encoded, expected a tensor with {spatial_dim}, got {encoded}")
    check_index(name, "blank", blank, transducer.labels_dim)
    return check_labels_dim(name, transducer.labels_dim, blank, labels_dim)
