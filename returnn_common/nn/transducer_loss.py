"""
The loss of transducers (RNN-T: Graves 2012, https://arxiv.org/abs/1211.3711): minus the log of the sum of the
probabilities of all alignments.
"""

from __future__ import annotations

from returnn.tensor import Dim, Tensor

from ._label_scores import label_log_probs
from ._transducer_targets import TransducerLoss, TransducerTargets, find_positions_dim, loss_of_scores
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
    positions_dim, vocab_dim = find_positions_dim("logits", logits, targets, time_dim=targets.input_spatial_dim)
    targets.check_vocab(vocab_dim)
    positions = range_over(positions_dim, logits)
    mask = targets.sizes(positions_dim).valid()[0]
    scores = label_log_probs(logits, targets.symbols(positions), axis=vocab_dim, mask=mask)
    return loss_of_scores(scores, targets, positions_dim)[0]
