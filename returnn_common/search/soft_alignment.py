"""
How probable each label of a given sequence is in each frame, over all alignments.

Shape letters: B batch dims, D further dims of the labels, such as a beam, T frames, V labels with blank, L labels of
the sequence, U = L + 1 numbers of labels (positions).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .. import nn
from ._common import check_ctc_log_probs, finite, plain
from .alignment import check_labels
from .transducer_align import of_labels

__all__ = ["SoftAlignment", "ctc_soft_align", "transducer_soft_align"]


@dataclass
class SoftAlignment:
    """
    Expected values under the distribution of the alignments, given the labels.

    :param labels: {B, D, T, L}: how probable it is that this label is in this frame. In all frames together, that is
        the mean number of its frames.
    :param blank: {B, D, T}: number of blanks, so 1 less the labels; with the topology "rnnt" 1, since each frame ends
        with one. Where there is no alignment (see :class:`Alignment`), 0 like all `labels`
    :param scores: {B, D}, natural log, of all alignments together; -inf where there is none
    """

    labels: nn.Tensor
    blank: nn.Tensor
    scores: nn.Tensor


def transducer_soft_align(
    joint: Callable[[nn.Tensor, nn.Tensor], nn.Tensor],
    *,
    encoder: nn.Tensor,
    predictor: nn.Tensor,
    targets: nn.TransducerTargets,
    frames_per_block: int = 16,
) -> SoftAlignment:
    """
    Differs from :func:`transducer_align` in that all alignments count, as for the loss (Graves 2012,
    https://arxiv.org/abs/1211.3711, section 2.4).

    :param joint: see there, also for the others
    :return: of each label sequence
    :raise ValueError: see there
    """
    scores, positions_dim = nn.joint_transducer_scores(
        joint, encoder=encoder, predictor=predictor, targets=targets, frames_per_block=frames_per_block
    )
    return _soft_alignment(scores, targets, positions_dim)


def ctc_soft_align(
    log_probs: nn.Tensor, *, spatial_dim: nn.Dim, labels: nn.Tensor, labels_spatial_dim: nn.Dim, blank: int
) -> SoftAlignment:
    """
    Differs from :func:`ctc_align` in that all alignments count (Graves et al. 2006, "Connectionist Temporal
    Classification", section 4.1).

    :param log_probs: see there, also for the others
    :return: of each label sequence
    :raise ValueError, TypeError: see there
    """
    name = "ctc_soft_align"
    vocab_dim = check_ctc_log_probs(name, log_probs, spatial_dim=spatial_dim, blank=blank)
    batch_dims = [d for d in log_probs.dims if d not in (spatial_dim, vocab_dim)]
    check_labels(name, labels, labels_spatial_dim, batch_dims=batch_dims, vocab_dim=vocab_dim, blank=blank)
    targets = nn.TransducerTargets(
        targets=labels,
        input_spatial_dim=spatial_dim,
        targets_spatial_dim=labels_spatial_dim,
        blank_index=blank,
        topology="ctc",
    )
    positions_dim = labels_spatial_dim + 1
    positions = plain(nn.range_over_dim(positions_dim, device=log_probs.device))
    log_probs = finite(nn.stop_gradient(log_probs))
    symbols = targets.symbols(positions)
    scores = [nn.gather(log_probs, indices=symbol, axis=vocab_dim) for symbol in symbols]
    scores[0] = nn.combine_bc(scores[0], "+", nn.zeros_like(scores[1]))
    return _soft_alignment(scores, targets, positions_dim)


def _soft_alignment(scores: list[nn.Tensor], targets: nn.TransducerTargets, positions_dim: nn.Dim) -> SoftAlignment:
    found = nn.transducer_occupancies(scores, targets=targets, positions_dim=positions_dim)
    blank, enters, *repeats = found.occupancies
    labels = of_labels(enters, targets, positions_dim)
    for x in repeats:
        labels += of_labels(x, targets, positions_dim, shift=1)
    return SoftAlignment(
        labels=labels,
        blank=nn.reduce_sum(blank, axis=positions_dim),
        scores=nn.where(found.possible, found.log_prob, float("-inf")),
    )
