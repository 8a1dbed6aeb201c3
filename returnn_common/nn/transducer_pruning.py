"""
Pruned transducer loss (Kuang et al. 2022, https://arxiv.org/abs/2206.13236): a cheap first pass finds a band of a few
positions for each frame, and only there the joint network runs.

Glossary: t is a frame, u the number of labels so far (position), p the first position of a frame's band.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import returnn.frontend as rf
from returnn.tensor import Dim, Tensor

from ._label_scores import label_log_probs
from ._lattice import NEG
from ._transducer_bands import find_bands
from ._transducer_targets import TransducerLoss, TransducerTargets, find_positions_dim, loss_of_scores
from ._transducer_topologies import pick, range_over
from .checks import check_at_least
from .loss import Loss
from .transducer_joint import Joint, check_encoder

__all__ = ["PrunedTransducerLoss", "pruned_transducer_loss"]

TINY = 1e-37  # keeps the log finite


@dataclass(frozen=True)
class PrunedTransducerLoss:
    """
    :param simple: of the first pass
    :param pruned: of the second pass
    :param first_positions: of the bands ``{batch, time}``
    """

    simple: TransducerLoss
    pruned: TransducerLoss
    first_positions: Tensor

    def as_losses(self, *, simple_scale: float = 0.5, pruned_scale: float = 1.0) -> dict[str, Loss]:
        """
        :param simple_scale: of the first pass, which must be trained as well
        :param pruned_scale: of the second pass. The paper has it small at first, while the bands mean nothing yet.
        :return: "transducer", "transducer_simple" (both per label), "impossible" (share of the utterances that have no
            alignment within the bands)
        """
        return {
            **self.pruned.as_losses("transducer", scale=pruned_scale),
            "transducer_simple": self.simple.as_losses(scale=simple_scale)["transducer"],
        }


def pruned_transducer_loss(
    joint: Joint,
    *,
    encoder: Tensor,
    predictor: Tensor,
    encoder_logits: Tensor,
    predictor_logits: Tensor,
    targets: TransducerTargets,
    band: int = 5,
) -> PrunedTransducerLoss:
    """
    The joint network gets the predictor's outputs of the band, ``{batch, time, band, features}``.

    An utterance needs ``(band - 1) * time`` of at least its number of labels, otherwise no alignment lies within the
    bands. Where a band is as long as labels + 1, nothing is pruned.

    :param joint: ``(encoder, predictor) -> logits`` with vocab as feature dim. Module or function
    :param encoder: ``{batch, time, features}``
    :param predictor: at [u] for what follows after u labels ``{batch, positions, features}``, positions = labels + 1
    :param encoder_logits: for the first pass, in which their sum is normalised ``{batch, time, vocab}``
    :param predictor_logits: for the first pass ``{batch, positions, vocab}``
    :param targets:
    :param band: number of positions for each frame, at least 2
    :return: both losses
    :raises ValueError: if a dim is missing or has other lengths, or band is below 2
    """
    check_at_least("transducer", 2, band=band)
    check_encoder("encoder", encoder, targets)
    positions_dim, _ = find_positions_dim("predictor", predictor, targets, time_dim=None)
    scores = _simple_scores(encoder_logits, predictor_logits, targets, positions_dim)
    simple, full_sum = loss_of_scores(scores, targets, positions_dim)
    sizes = targets.sizes(positions_dim)
    first = find_bands(full_sum.occupancies, sizes, band)

    band_dim = Dim(band, name="band")
    positions = rf.combine_bc(first, "+", range_over(band_dim, first))
    is_frame = rf.compare_bc(range_over(targets.input_spatial_dim, first), "<", sizes.num_frames)
    mask = rf.combine_bc(is_frame, "logical_and", rf.compare_bc(positions, "<=", sizes.num_labels))
    logits = joint(encoder, pick(predictor, positions_dim, positions))
    vocab_dim = _find_vocab_dim(logits, mask)
    targets.check_vocab(vocab_dim)
    scores = label_log_probs(logits, targets.symbols(positions), axis=vocab_dim, mask=mask)
    places = rf.combine_bc(range_over(positions_dim, first), "-", first)
    inside = rf.combine_bc(places >= 0, "logical_and", places < band)
    scores = [rf.where(inside, pick(x, band_dim, places), NEG) for x in scores]
    pruned = loss_of_scores(scores, targets, positions_dim)[0]
    return PrunedTransducerLoss(simple=simple, pruned=pruned, first_positions=first)


def _find_vocab_dim(logits: Tensor, mask: Tensor) -> Dim:
    rest = [dim for dim in logits.dims if dim not in mask.dims]
    if len(rest) != 1 or len(logits.dims) != len(mask.dims) + 1:
        raise ValueError(
            f"transducer: expected the joint network's output with the dims {mask.dims}, vocab, got {logits}"
        )
    return rest[0]


def _simple_scores(
    encoder_logits: Tensor, predictor_logits: Tensor, targets: TransducerTargets, positions_dim: Dim
) -> list[Tensor]:
    """
    Log probabilities of the sum of both logits. The normaliser is a matrix product, so that nothing here has time,
    positions and vocab.

    :return: ``{batch, time, positions}``
    """
    check_encoder("encoder_logits", encoder_logits, targets)
    dims, vocab_dim = find_positions_dim("predictor_logits", predictor_logits, targets, time_dim=None)
    if dims != positions_dim or vocab_dim not in encoder_logits.dims:
        raise ValueError(
            f"transducer: expected encoder_logits and predictor_logits over the same vocab and {positions_dim}, "
            f"got {encoder_logits} and {predictor_logits}"
        )
    targets.check_vocab(vocab_dim)
    sizes = targets.sizes(positions_dim)
    is_frame = rf.compare_bc(range_over(targets.input_spatial_dim, targets.targets), "<", sizes.num_frames)
    is_position = rf.compare_bc(range_over(positions_dim, targets.targets), "<=", sizes.num_labels)
    left, right = _clean(encoder_logits, is_frame), _clean(predictor_logits, is_position)
    left_max, right_max = (rf.stop_gradient(rf.reduce_max(x, axis=vocab_dim)) for x in (left, right))
    with _full_precision(left):
        product = rf.matmul(rf.exp(left - left_max), rf.exp(right - right_max), reduce=vocab_dim)
    total = rf.log(product + TINY) + rf.combine_bc(left_max, "+", right_max)
    scores = []
    for symbol in targets.symbols(range_over(positions_dim, targets.targets)):
        both = [rf.gather(x, indices=symbol, axis=vocab_dim) for x in (left, right)]
        scores.append(rf.combine_bc(both[0], "+", both[1]) - total)
    return scores


@contextlib.contextmanager
def _full_precision(x: Tensor) -> Iterator[None]:
    """matrix products are not rounded within, whatever mixed precision says"""
    with rf.set_amp_policy_ctx(None), contextlib.ExitStack() as stack:
        if x._raw_backend.name == "torch":
            import torch

            stack.enter_context(torch.autocast(x.raw_tensor.device.type, enabled=False))
        yield


def _clean(x: Tensor, mask: Tensor) -> Tensor:
    """:return: float64 if it was, else float32; 0 outside of the mask"""
    return rf.where(mask, x if x.dtype == "float64" else rf.cast(x, "float32"), 0.0)
