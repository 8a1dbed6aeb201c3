"""
In which frames a transducer emits the labels of a given sequence.

Shape letters: B batch dims, D further dims of the labels, such as a beam, T frames, L labels of the sequence, U = L + 1
numbers of labels (positions).
"""

from __future__ import annotations

from collections.abc import Callable

from .. import nn
from ._common import IMPOSSIBLE, finite, log, plain
from .alignment import Alignment

__all__ = ["transducer_align"]


def transducer_align(
    joint: Callable[[nn.Tensor, nn.Tensor], nn.Tensor],
    *,
    encoder: nn.Tensor,
    predictor: nn.Tensor,
    targets: nn.TransducerTargets,
    frames_per_block: int = 16,
) -> Alignment:
    """
    The best one among the alignments of the targets whose probabilities :func:`nn.joint_transducer_loss` sums up
    (Graves 2012, https://arxiv.org/abs/1211.3711, section 2.4, with the maximum for the sum). How many labels a frame
    has is not limited.

    With the topology "rnnt", a frame can have several labels. Each of them starts there and ends with the frame, `path`
    has the last one, and `frame_scores` are those of all labels and the blank of the frame.

    :param joint: ``(encoder, predictor) -> logits``, see :func:`nn.joint_transducer_loss`, also for what follows
    :param encoder: {B, D, T, features}
    :param predictor: {B, D, U, features}, of these labels
    :param targets: labels {B, D, L} and topology
    :param frames_per_block: at once, on PyTorch
    :return: of each label sequence. With fewer frames than the topology needs, there is no path.
    :raise ValueError: a dim is missing or has other lengths, or frames_per_block is below 1
    """
    scores, positions_dim = nn.joint_transducer_scores(
        joint, encoder=encoder, predictor=predictor, targets=targets, frames_per_block=frames_per_block
    )
    scores = [finite(nn.stop_gradient(x)) for x in scores]
    best = nn.transducer_occupancies(scores, targets=targets, positions_dim=positions_dim, best=True)
    return _to_alignment(scores, best, targets=targets, positions_dim=positions_dim)


def _to_alignment(
    scores: list[nn.Tensor], best: nn.TransducerOccupancies, *, targets: nn.TransducerTargets, positions_dim: nn.Dim
) -> Alignment:
    time_dim, device = targets.input_spatial_dim, scores[0].device
    frames = nn.cast(nn.range_over_dim(time_dim, device=device), "float32")
    positions = nn.cast(nn.range_over_dim(positions_dim, device=device), "float32")
    _, enters, *repeats = occupancies = [nn.cast(x, "float32") for x in best.occupancies]

    spoken = nn.combine_bc(enters, "*", positions + 1.0)
    shares = [nn.cast(passed * nn.exp(x), "float32") for passed, x in zip(occupancies, scores, strict=True)]
    starts = of_labels(nn.reduce_sum(nn.combine_bc(enters, "*", frames), axis=time_dim), targets, positions_dim)
    lengths = of_labels(nn.reduce_sum(enters, axis=time_dim), targets, positions_dim)
    probs = of_labels(nn.reduce_sum(shares[1], axis=time_dim), targets, positions_dim)
    if repeats:
        spoken += nn.combine_bc(repeats[0], "*", positions)
        lengths += of_labels(nn.reduce_sum(repeats[0], axis=time_dim), targets, positions_dim, shift=1)
        probs += of_labels(nn.reduce_sum(shares[2], axis=time_dim), targets, positions_dim, shift=1)
    per_frame = [nn.reduce_sum(passed * x, axis=positions_dim) for passed, x in zip(occupancies, scores, strict=True)]
    first_blank = nn.gather(scores[0], indices=0, axis=positions_dim)
    frame_scores = nn.where(best.possible, sum(per_frame[1:], per_frame[0]), first_blank)
    label_scores = nn.where(lengths > 0.5, log(probs) - log(lengths), 0.0)
    return Alignment(
        path=plain(nn.reduce_max(spoken, axis=positions_dim) - 1.0),
        starts=nn.cast(starts, "int32"),
        ends=nn.cast(starts + lengths, "int32"),
        frame_scores=nn.where(frame_scores > IMPOSSIBLE, frame_scores, float("-inf")),
        scores=nn.where(best.possible, best.log_prob, float("-inf")),
        label_scores=label_scores,
    )


def of_labels(x: nn.Tensor, targets: nn.TransducerTargets, positions_dim: nn.Dim, *, shift: int = 0) -> nn.Tensor:
    """
    :param x: {B, D, ..., U}, 0 in the padding
    :param targets:
    :param positions_dim: U
    :param shift: what is at U = l + shift belongs to label l
    :return: {B, D, ..., L}, 0 in the padding
    """
    labels_dim = targets.targets_spatial_dim
    labels = plain(nn.range_over_dim(labels_dim, dtype="int32", device=x.device))
    x = nn.gather(x, indices=labels + shift, axis=positions_dim)
    is_label = nn.compare_bc(labels, "less", plain(labels_dim.get_size_tensor(device=x.device)))
    return nn.where(is_label, x, 0.0)
