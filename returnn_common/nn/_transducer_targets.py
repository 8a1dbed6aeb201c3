"""
What a transducer shall emit, and the loss of its scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import returnn.frontend as rf
from returnn.tensor import Dim, Tensor

from ._lattice import NEG
from ._transducer_topologies import TOPOLOGIES, FullSum, Sizes, full_sum, plain, range_over
from .loss import Loss

__all__ = ["TransducerLoss", "TransducerTargets", "loss_of_scores"]


@dataclass(frozen=True)
class TransducerTargets:
    """
    What a transducer shall emit, and how.

    The topology tells what an alignment may be, in all of which only labels change the position:

    - "rnnt": any number of labels in a frame, then blank, which ends it (Graves 2012)
    - "monotonic": a label or blank in each frame (Sak et al. 2017, https://doi.org/10.21437/Interspeech.2017-1705;
      Tripathi et al. 2019, https://arxiv.org/abs/1911.06543)
    - "ctc": the same, and a label may go on over several frames, so that there must be a blank between two equal ones
      (Zeyer et al. 2020, https://arxiv.org/abs/2005.09319, section 2). It goes on with its own probability at the
      position after it.

    :param targets: label indices ``{batch, labels}``
    :param input_spatial_dim: time
    :param targets_spatial_dim: labels
    :param blank_index: in the vocabulary
    :param topology: "rnnt", "monotonic" or "ctc"
    :param fast_emission: lambda of FastEmit (Yu et al. 2021, https://arxiv.org/abs/2010.11148): the
        gradient with respect to the log probabilities of labels, not those of blank, is 1 + lambda times as large. The
        loss has the same value.
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

    def sizes(self, positions_dim: Dim) -> Sizes:
        """:param positions_dim: one more than there are labels"""
        device = self.targets.device
        is_repeated = None
        if self.topology == "ctc":
            positions = range_over(positions_dim, self.targets)
            this, last = (self._label_after(positions - i) for i in (1, 2))
            is_repeated = rf.combine_bc(rf.compare_bc(this, "==", last), "logical_and", positions > 1)
        return Sizes(
            num_frames=self.input_spatial_dim.get_size_tensor(device=device),
            num_labels=self.targets_spatial_dim.get_size_tensor(device=device),
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

    def _label_after(self, positions: Tensor) -> Tensor:
        """:return: ``{batch, ...}``, without sparse dim; 0 where there is none"""
        padded, (dim,) = rf.pad(
            plain(self.targets), axes=[self.targets_spatial_dim], padding=[(0, 1)], value=0, handle_dynamic_dims=False
        )
        num_labels = self.targets_spatial_dim.get_size_tensor(device=self.targets.device)
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
) -> tuple[TransducerLoss, FullSum]:
    """
    :param scores: log probabilities ``{batch, time, positions}``, minus infinity allowed
    :param targets:
    :param positions_dim: one more than there are labels
    :return: the loss, and what it was computed from
    """
    scores = [rf.maximum(x, NEG) for x in scores]
    sizes = targets.sizes(positions_dim)
    result = full_sum(scores, sizes, targets.topology)
    value = rf.where(result.possible, -result.log_prob, 0.0)
    label_factor = 1.0 + targets.fast_emission
    for x, occupancy, factor in zip(scores, result.occupancies, [1.0, label_factor, label_factor], strict=False):
        nothing = x - rf.stop_gradient(x)  # 0, with a gradient
        value -= rf.reduce_sum(occupancy * factor * nothing, axis=[targets.input_spatial_dim, positions_dim])
    return TransducerLoss(value=value, possible=result.possible, num_labels=sizes.num_labels), result
