"""
What a transducer shall emit, and the loss of its scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy
import returnn.frontend as rf
from returnn.tensor import Dim, Tensor

from ._lattice import NEG
from ._transducer_topologies import TOPOLOGIES, Sizes, TransducerOccupancies, occupancies_of, plain, range_over
from .loss import Loss

__all__ = ["TransducerLoss", "TransducerTargets", "find_positions_dim", "loss_of_scores"]


@dataclass(frozen=True)
class TransducerTargets:
    """
    What a transducer shall emit, and how.

    The topology tells what an alignment may be, in all of which only labels change the position:

    - "rnnt": any number of labels in a frame, then blank, which ends it (Graves 2012)
    - "monotonic": a label or blank in each frame (Sak et al. 2017, https://doi.org/10.21437/Interspeech.2017-1705;
      Tripathi et al. 2019, "Monotonic recurrent neural network transducer and decoding strategies", ASRU)
    - "ctc": the same, and a label may go on over several frames, so that there must be a blank between two equal ones
      (Zeyer et al. 2020, https://arxiv.org/abs/2005.09319, section 2). It goes on with its own probability at the
      position after it.

    :param targets: label indices ``{batch, labels}``
    :param input_spatial_dim: time
    :param targets_spatial_dim: labels
    :param blank_index: in the vocabulary
    :param topology: "rnnt", "monotonic" or "ctc"
    :param fast_emission: lambda of FastEmit (Yu et al. 2021, https://arxiv.org/abs/2010.11148, section 3): the
        gradient with respect to the log probabilities of labels, not those of blank, is 1 + lambda times as large, as
        in warp-transducer's and NeMo's ``fastemit_lambda``. The loss has the same value.
    :raises ValueError: if targets_spatial_dim is missing in the targets, or the topology is another, or
        fast_emission is negative
    """

    targets: Tensor
    input_spatial_dim: Dim
    targets_spatial_dim: Dim
    blank_index: int
    topology: str = "rnnt"
    fast_emission: float = 0.0

    def __post_init__(self):
        if self.targets_spatial_dim not in self.targets.dims:
            raise ValueError(f"transducer: expected targets over {self.targets_spatial_dim}, got {self.targets}")
        if self.topology not in TOPOLOGIES:
            raise ValueError(f"transducer: expected topology as one of {', '.join(TOPOLOGIES)}, got {self.topology!r}")
        if not self.fast_emission >= 0.0:
            raise ValueError(f"transducer: expected fast_emission >= 0, got {self.fast_emission}")

    def check_vocab(self, vocab_dim: Dim):
        """:raises ValueError: if blank or a label is not in it"""
        size, labels_dim, blank = vocab_dim.dimension or 0, self.targets.sparse_dim, self.blank_index
        if isinstance(blank, bool) or not isinstance(blank, int) or not 0 <= blank < size:
            raise ValueError(f"transducer: expected blank_index in 0 to {size - 1} of {vocab_dim}, got {blank!r}")
        if labels_dim is not None and (labels_dim.dimension or 0) > size:
            raise ValueError(f"transducer: expected logits for at least the labels of {labels_dim}, got {vocab_dim}")

    def sizes(self, positions_dim: Dim) -> Sizes:
        """:param positions_dim: one more than there are labels"""
        is_repeated = None
        if self.topology == "ctc":
            positions = range_over(positions_dim, self.targets)
            this, last = (self._label_after(positions - i) for i in (1, 2))
            is_repeated = rf.combine_bc(rf.compare_bc(this, "==", last), "logical_and", positions > 1)
        return Sizes(
            num_frames=self._lengths(self.input_spatial_dim),
            num_labels=self._lengths(self.targets_spatial_dim),
            time_dim=self.input_spatial_dim,
            positions_dim=positions_dim,
            is_repeated=is_repeated,
        )

    def symbols(self, positions: Tensor) -> list[Tensor]:
        """
        :param positions: number of labels before ``{...}``
        :return: indices in the vocabulary of what may follow, in the order of the scores
        """
        blank = rf.constant(self.blank_index, dims=(), dtype="int32", device=self.targets.device)
        symbols = [blank, self._label_after(positions)]
        if self.topology == "ctc":
            symbols.append(self._label_after(positions - 1))
        return symbols

    def _lengths(self, dim: Dim) -> Tensor:
        """:return: ``{batch}``, also if it is one length for all"""
        lengths = dim.get_size_tensor(device=self.targets.device)
        batch_dims = self.targets.remaining_dims(self.targets_spatial_dim)
        return rf.expand_dims(lengths, [x for x in batch_dims if x not in lengths.dims])

    def _label_after(self, positions: Tensor) -> Tensor:
        """:return: ``{batch, ...}``, without sparse dim; 0 where there is none"""
        padded, (dim,) = rf.pad(
            plain(self.targets), axes=[self.targets_spatial_dim], padding=[(0, 1)], value=0, handle_dynamic_dims=False
        )
        num_labels = self._lengths(self.targets_spatial_dim)
        exists = rf.combine_bc(positions >= 0, "logical_and", rf.compare_bc(positions, "<", num_labels))
        positions = rf.where(exists, positions, 0, allow_broadcast_all_sources=True)
        return rf.where(exists, rf.gather(padded, indices=positions, axis=dim), 0)


@dataclass(frozen=True)
class TransducerLoss:
    """
    :param value: natural log, not divided by the number of labels ``{batch}``; without an alignment 0, without gradient
    :param possible: whether there is an alignment with a probability above 0 ``{batch}``
    :param num_labels: ``{batch}``
    """

    value: Tensor
    possible: Tensor
    num_labels: Tensor

    def as_losses(self, name: str = "transducer", *, scale: float = 1.0) -> dict[str, Loss]:
        """
        :param name: of the loss
        :param scale: of the loss
        :return: by that name, per label (no labels count as one); "impossible", share of the utterances
        """
        num_labels = rf.maximum(rf.cast(self.num_labels, "float32"), 1.0)
        return {
            name: Loss(self.value, scale=scale, inv_norm_factor=num_labels),
            "impossible": Loss(1.0 - rf.cast(self.possible, "float32"), as_error=True),
        }


def loss_of_scores(
    scores: Sequence[Tensor], targets: TransducerTargets, positions_dim: Dim
) -> tuple[TransducerLoss, TransducerOccupancies]:
    """
    :param scores: log probabilities ``{batch, time, positions}``, minus infinity allowed
    :param targets:
    :param positions_dim: one more than there are labels
    :return: the loss, and what it was computed from
    """
    scores = [rf.maximum(x, NEG) for x in scores]
    sizes = targets.sizes(positions_dim)
    result = occupancies_of(scores, sizes, targets.topology)
    value = rf.where(result.possible, -result.log_prob, 0.0)
    label_factor = 1.0 + targets.fast_emission
    for x, occupancy, factor in zip(scores, result.occupancies, [1.0, label_factor, label_factor], strict=False):
        nothing = x - rf.stop_gradient(x)  # 0, with a gradient
        value -= rf.reduce_sum(occupancy * factor * nothing, axis=[targets.input_spatial_dim, positions_dim])
    return TransducerLoss(value=value, possible=result.possible, num_labels=sizes.num_labels), result


def find_positions_dim(what: str, x: Tensor, targets: TransducerTargets, *, time_dim: Dim | None) -> tuple[Dim, Dim]:
    """
    :param what: for messages
    :param x: ``{batch, positions, features}``, and time if that is given
    :param targets:
    :param time_dim: of x
    :return: positions, features
    :raises ValueError: if there aren't just these dims, or positions has not one more than there are labels
    """
    others = targets.targets.remaining_dims(targets.targets_spatial_dim)
    if time_dim is not None:
        others.append(time_dim)
    expected = f"{[*others, 'positions (labels + 1)', 'features']}"
    missing = [dim for dim in others if dim not in x.dims]
    rest = [dim for dim in x.dims if dim not in others]
    if missing or len(rest) != 2:
        raise ValueError(f"transducer: expected {what} with the dims {expected}, got {x}")
    known = (x.feature_dim, targets.targets.sparse_dim)
    features = (
        [dim for dim in rest if dim in known]
        or [dim for dim in rest if targets.targets_spatial_dim + 1 in rest and dim != targets.targets_spatial_dim + 1]
        or [dim for dim in rest if dim.is_static()]
    )
    if len(features) != 1:
        raise ValueError(f"transducer: expected {what} with feature_dim set to one of {rest}, got {x}")
    (positions_dim,) = (dim for dim in rest if dim != features[0])
    _check_positions(what, positions_dim, targets.targets_spatial_dim)
    return positions_dim, features[0]


def _check_positions(what: str, positions_dim: Dim, targets_spatial_dim: Dim):
    """As far as the lengths are known: not before the graph runs."""
    if positions_dim == targets_spatial_dim + 1 or not rf.is_executing_eagerly() or rf.is_static_traceable():
        return
    labels = numpy.asarray(targets_spatial_dim.get_size_tensor().raw_tensor)
    positions = numpy.asarray(positions_dim.get_size_tensor().raw_tensor)
    expected = labels + 1 if positions.ndim else labels.max(initial=0) + 1  # one length for all: of the longest
    if numpy.array_equal(positions, expected):
        return
    raise ValueError(
        f"transducer: expected {what} with one position more than there are labels, {(labels + 1).tolist()}, "
        f"got {positions_dim} with {positions.tolist()}"
    )
