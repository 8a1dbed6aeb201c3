"""
The loss of transducers (RNN-T: Graves 2012, https://arxiv.org/abs/1211.3711): minus the log of the sum of the
probabilities of all alignments.
"""

from __future__ import annotations

import numpy
import returnn.frontend as rf
from returnn.tensor import Dim, Tensor

from ._label_scores import label_log_probs
from ._transducer_targets import TransducerLoss, TransducerTargets, loss_of_scores
from ._transducer_topologies import range_over
from .loss import Loss

__all__ = ["TransducerLoss", "TransducerTargets", "transducer_loss", "transducer_losses"]


def transducer_loss(
    *,
    logits: Tensor,
    targets: Tensor,
    input_spatial_dim: Dim,
    targets_spatial_dim: Dim,
    blank_index: int,
    topology: str = "rnnt",
    fast_emission: float = 0.0,
) -> Tensor:
    """
    Of logits that are there as a whole. They are normalised here, in float32 if they are in less.

    Labels that have no alignment (no frames, with some topologies too few, or probability 0) cost nothing and have no
    gradient; :func:`transducer_losses` counts them.

    :param logits: unnormalised ``{batch, time, positions, vocab}`` with positions = labels + 1: at [t, u] they are for
        what follows in frame t after u labels. Vocab is the feature dim. Position and time may be anything where there
        is padding.
    :param targets: label indices ``{batch, labels}``
    :param input_spatial_dim: time
    :param targets_spatial_dim: labels
    :param blank_index: in vocab
    :param topology: see :class:`TransducerTargets`
    :param fast_emission: see :class:`TransducerTargets`
    :return: natural log, not divided by the number of labels ``{batch}``
    :raises ValueError: if a dim is missing or has other lengths, or an argument has no such value
    """
    goal = TransducerTargets(
        targets=targets,
        input_spatial_dim=input_spatial_dim,
        targets_spatial_dim=targets_spatial_dim,
        blank_index=blank_index,
        topology=topology,
        fast_emission=fast_emission,
    )
    return _loss_of_logits(logits, goal).value


def transducer_losses(logits: Tensor, targets: TransducerTargets) -> dict[str, Loss]:
    """
    :func:`transducer_loss` for the train step.

    :param logits: see there
    :param targets:
    :return: "transducer" (per label; no labels count as one), "impossible" (share of the utterances)
    :raises ValueError: see there
    """
    return _loss_of_logits(logits, targets).as_losses()


def _loss_of_logits(logits: Tensor, targets: TransducerTargets) -> TransducerLoss:
    positions_dim, vocab_dim = find_positions_dim("logits", logits, targets, over_time=True)
    check_vocab(vocab_dim, targets)
    positions = range_over(positions_dim, logits)
    mask = targets.sizes(positions_dim).valid()[0]
    scores = label_log_probs(logits, targets.symbols(positions), axis=vocab_dim, mask=mask)
    return loss_of_scores(scores, targets, positions_dim)[0]


def find_positions_dim(what: str, x: Tensor, targets: TransducerTargets, *, over_time: bool) -> tuple[Dim, Dim]:
    """
    :param what: for messages
    :param x: ``{batch, positions, features}``, and time if over_time
    :param targets:
    :param over_time: whether x has time
    :return: positions, features
    :raises ValueError: if there aren't just these dims, or positions has not one more than there are labels
    """
    others = targets.targets.remaining_dims(targets.targets_spatial_dim)
    if over_time:
        others.append(targets.input_spatial_dim)
    expected = f"{[*others, 'positions (labels + 1)', 'features']}"
    missing = [dim for dim in others if dim not in x.dims]
    rest = [dim for dim in x.dims if dim not in others]
    if missing or len(rest) != 2:
        raise ValueError(f"transducer: expected {what} with the dims {expected}, got {x}")
    features = [dim for dim in rest if dim in (x.feature_dim, targets.targets.sparse_dim)] or [
        dim for dim in rest if dim.is_static()
    ]
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


def check_vocab(vocab_dim: Dim, targets: TransducerTargets):
    """:raises ValueError: if blank or a label is not in it"""
    size, labels_dim = vocab_dim.dimension or 0, targets.targets.sparse_dim
    blank = targets.blank_index
    if isinstance(blank, bool) or not isinstance(blank, int) or not 0 <= blank < size:
        raise ValueError(f"transducer: expected blank_index in 0 to {size - 1} of {vocab_dim}, got {blank!r}")
    if labels_dim is not None and (labels_dim.dimension or 0) > size:
        raise ValueError(f"transducer: expected logits for at least the labels of {labels_dim}, got {vocab_dim}")
