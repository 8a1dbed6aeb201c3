"""
The losses of CTC heads (Graves et al. 2006, https://doi.org/10.1145/1143844.1143891).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import returnn.frontend as rf
from returnn.tensor import Dim, Tensor

from .loss import Loss

__all__ = ["CtcHead", "ctc_losses"]


@dataclass(frozen=True)
class CtcHead:
    """
    :param name: of the loss
    :param logits: ``{batch, time, labels and blank}``
    :param scale: of the loss
    """

    name: str
    logits: Tensor
    scale: float = 1.0


def ctc_losses(
    heads: Sequence[CtcHead], *, spatial_dim: Dim, targets: Tensor, targets_spatial_dim: Dim, blank_index: int
) -> dict[str, Loss]:
    """
    An utterance whose transcript needs more frames than there are costs nothing, has no gradient,
    and is counted in "impossible".

    :param heads: one or more
    :param spatial_dim: time
    :param targets: label indices ``{batch, labels}``
    :param targets_spatial_dim: labels
    :param blank_index: in the logits
    :return: by the names of the heads (per label, natural log; an empty transcript counts as one), and "impossible"
        (share of the utterances)
    :raises ValueError: if a head is over other frames, as that of a layer before a time pooling is
    """
    for head in heads:
        if spatial_dim not in head.logits.dims:
            raise ValueError(f"ctc_losses: {head.name}: expected logits over {spatial_dim}, got {head.logits}")
    possible = _is_possible(targets, targets_spatial_dim=targets_spatial_dim, spatial_dim=spatial_dim)
    num_labels = rf.cast(targets_spatial_dim.get_size_tensor(device=targets.device), "float32")
    num_labels = rf.maximum(num_labels, 1.0)  # else a batch of empty transcripts is divided by 0
    losses = {}
    for head in heads:
        loss = rf.ctc_loss(
            logits=rf.cast(head.logits, "float32"),  # from mixed precision
            targets=targets,
            input_spatial_dim=spatial_dim,
            targets_spatial_dim=targets_spatial_dim,
            blank_index=blank_index,
        )
        losses[head.name] = Loss(rf.where(possible, loss, 0.0), scale=head.scale, inv_norm_factor=num_labels)
    losses["impossible"] = Loss(1.0 - rf.cast(possible, "float32"), as_error=True)
    return losses


def _is_possible(targets: Tensor, *, targets_spatial_dim: Dim, spatial_dim: Dim) -> Tensor:
    """
    CTC needs one frame per label, and one more (blank) between two equal labels.

    :return: bool ``{batch}``
    """
    num_frames = spatial_dim.get_size_tensor(device=targets.device)
    num_labels = targets_spatial_dim.get_size_tensor(device=targets.device)
    previous = rf.shift_right(targets, axis=targets_spatial_dim, pad_value=-1)
    repeats = rf.reduce_sum(rf.cast(targets == previous, num_labels.dtype), axis=targets_spatial_dim)
    return rf.compare(num_labels + repeats, "<=", num_frames)
