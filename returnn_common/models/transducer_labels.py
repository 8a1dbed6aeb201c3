"""
What a transducer says about given labels: their loss, their probability, their alignments.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .. import nn
from ..nn.transducer_joint import Joint
from ..search import Alignment, SoftAlignment, transducer_align, transducer_soft_align

__all__ = ["KnownLabels"]


@dataclass(frozen=True)
class KnownLabels:
    """
    :param join: the model's
    :param encoded: ``{batch, time, features}``
    :param predicted: for each number of labels ``{batch, labels + 1, features}``; may also have a beam, as the labels
    :param targets: the labels
    :param frames_per_block: for how many frames at once the loss has the logits; None: all
    """

    join: Joint
    encoded: nn.Tensor
    predicted: nn.Tensor
    targets: nn.TransducerTargets
    frames_per_block: int | None

    def losses(self) -> dict[str, nn.Loss]:
        """:return: see :func:`nn.transducer_losses`"""
        if self.frames_per_block is None:
            return nn.transducer_losses(self.join(self.encoded, self.predicted), self.targets)
        return nn.joint_transducer_loss(
            self.join,
            encoder=self.encoded,
            predictor=self.predicted,
            targets=self.targets,
            frames_per_block=self.frames_per_block,
        ).as_losses()

    def log_probs(self) -> nn.Tensor:
        """:return: over all alignments ``{batch, beam}``, -inf without one"""
        loss = nn.joint_transducer_loss(self.join, **self._parts())
        return nn.where(loss.possible, -loss.value, float("-inf"))

    def align(self) -> Alignment:
        """:return: see :func:`transducer_align`"""
        return transducer_align(self.join, **self._parts())

    def soft_align(self) -> SoftAlignment:
        """:return: see :func:`transducer_soft_align`"""
        return transducer_soft_align(self.join, **self._parts())

    def _parts(self) -> dict[str, Any]:
        # Each label sequence has the encoder's output for itself.
        labels_dim = self.targets.targets_spatial_dim
        dims = [d for d in self.targets.targets.dims if d != labels_dim]
        encoded = nn.combine_bc(self.encoded, "+", nn.zeros(dims, dtype=self.encoded.dtype, device=self.encoded.device))
        encoded.feature_dim = self.encoded.feature_dim
        return {"encoder": encoded, "predictor": self.predicted, "targets": self.targets}
