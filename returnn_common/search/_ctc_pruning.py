"""
What :func:`returnn_common.search.ctc_beam_search` leaves out to be faster, and its input without that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from .. import nn
from ._common import NEG, check_int, finite, index_dtype, mask_of, plain

__all__ = ["CtcPruning", "FramesToSearch", "as_pruning", "select_frames", "select_labels"]


@dataclass(frozen=True)
class CtcPruning:
    """
    What a CTC prefix beam search may leave out. By default nothing.

    :param max_labels: in each frame, only that many labels with the highest probability extend a prefix. Blank and
        repetitions of the last label are always possible
    :param score_margin: after each frame, prefixes that score less than the best one by more than that are dropped
    :param blank_threshold: a frame in which blank has a higher probability is taken for all blank, and costs almost no
        time; its log prob of blank is part of the scores (Chen et al. 2016, "Phone synchronous decoding with CTC
        lattice", https://www.isca-archive.org/interspeech_2016/chen16k_interspeech.html, leave out such frames)
    :raises ValueError: fewer than one label, a negative margin, or a threshold not above 0 and below 1
    """

    max_labels: int | None = None
    score_margin: float | None = None
    blank_threshold: float | None = None

    def __post_init__(self):
        if self.max_labels is not None:
            check_int("CtcPruning", "max_labels", self.max_labels, at_least=1)
        if self.score_margin is not None and not self.score_margin >= 0:
            raise ValueError(f"CtcPruning: score_margin, expected at least 0, got {self.score_margin!r}")
        if self.blank_threshold is not None and not 0 < self.blank_threshold < 1:
            raise ValueError(
                f"CtcPruning: blank_threshold, expected a probability between 0 and 1, got {self.blank_threshold!r}"
            )


def as_pruning(name: str, pruning: CtcPruning | None) -> CtcPruning:
    """:raise TypeError: something else"""
    if not isinstance(pruning, CtcPruning | None):
        raise TypeError(f"{name}: pruning, expected a CtcPruning, got {pruning!r}")
    return pruning or CtcPruning()


@dataclass
class FramesToSearch:
    """
    :param log_probs: {B, T', V}, of the frames that are not left out
    :param spatial_dim: T'
    :param has_gap: {B, T'}, whether frames before that one were left out; None: in none
    :param gap: {B, T'}, log prob of blank in these frames
    :param rest: {B}, log prob of blank in the frames left out after the last one
    :param has_rest: {B}, whether there are any
    """

    log_probs: nn.Tensor
    spatial_dim: nn.Dim
    has_gap: nn.Tensor | None = None
    gap: nn.Tensor | None = None
    rest: nn.Tensor | None = None
    has_rest: nn.Tensor | None = None


def select_frames(
    log_probs: nn.Tensor,
    *,
    spatial_dim: nn.Dim,
    vocab_dim: nn.Dim,
    blank: int,
    threshold: float | None,
    before: tuple[nn.Tensor, nn.Tensor] | None = None,
) -> FramesToSearch:
    """
    :param log_probs: {B, T, V}
    :param before: `rest` and `has_rest` of the frames before these; None: there are none
    :return: those frames in which blank is not above the threshold; behind a sequence's end, blank is certain
    """
    log_probs = finite(log_probs)
    if threshold is None:
        return FramesToSearch(_end_in_blank(log_probs, spatial_dim, vocab_dim, blank), spatial_dim)
    device = log_probs.device
    log_prob_blank = nn.gather(log_probs, indices=blank, axis=vocab_dim)
    is_frame = mask_of(spatial_dim, device=device)
    keep = nn.logical_and(log_prob_blank <= math.log(threshold), is_frame)
    is_left_out = nn.logical_and(log_prob_blank > math.log(threshold), is_frame)
    left_out = nn.where(is_left_out, log_prob_blank, 0.0)

    # As in ctc_greedy_search: what is kept comes first by top_k.
    frames = nn.cast(plain(nn.range_over_dim(spatial_dim, dtype="int32", device=device)), "float32")
    lengths = nn.reduce_sum(nn.cast(keep, "int32"), axis=spatial_dim, use_mask=False)
    kept_dim = nn.Dim(nn.copy_to_device(lengths, "cpu"), name="kept-frames")
    _, indices, _ = nn.top_k(nn.where(keep, -frames, -1e9), axis=spatial_dim, k_dim=kept_dim)
    indices = plain(indices)
    mask = kept_dim.get_mask(device=device)
    sums = nn.where(
        mask, nn.gather(nn.cumsum(left_out, spatial_dim=spatial_dim), indices=indices, axis=spatial_dim), 0.0
    )
    positions = nn.where(mask, nn.cast(indices, "float32"), -1.0)
    order = plain(nn.range_over_dim(kept_dim, dtype="int32", device=device))
    last = nn.relu(order - 1)
    is_first = order < 1
    gap = sums - nn.where(is_first, 0.0, nn.gather(sums, indices=last, axis=kept_dim))
    step = positions - nn.where(is_first, -1.0, nn.gather(positions, indices=last, axis=kept_dim))
    total, num = (nn.reduce_sum(x, axis=spatial_dim, use_mask=False) for x in (left_out, _as_float(is_left_out)))
    if before is not None:
        rest, has_rest = before[0], _as_float(before[1])
        gap = gap + nn.combine_bc(_as_float(is_first), "*", rest)
        step = step + nn.combine_bc(_as_float(is_first), "*", has_rest)
        total, num = total + rest, num + has_rest
    gap, in_gaps = nn.where(mask, gap, 0.0), nn.where(mask, step - 1.0, 0.0)
    return FramesToSearch(
        log_probs=_end_in_blank(nn.gather(log_probs, indices=indices, axis=spatial_dim), kept_dim, vocab_dim, blank),
        spatial_dim=kept_dim,
        has_gap=step > 1.5,
        gap=gap,
        rest=total - nn.reduce_sum(gap, axis=kept_dim, use_mask=False),
        has_rest=num - nn.reduce_sum(in_gaps, axis=kept_dim, use_mask=False) > 0.5,
    )


def _as_float(x: nn.Tensor) -> nn.Tensor:
    return nn.cast(x, "float32")


def _end_in_blank(log_probs: nn.Tensor, spatial_dim: nn.Dim, vocab_dim: nn.Dim, blank: int) -> nn.Tensor:
    if not spatial_dim.need_masking():
        return log_probs
    device = log_probs.device
    labels = plain(nn.range_over_dim(vocab_dim, dtype="int32", device=device))
    only_blank = nn.where(nn.compare(labels, "equal", blank), 0.0, NEG)
    return nn.where(spatial_dim.get_mask(device=device), log_probs, only_blank)


def select_labels(
    log_probs: nn.Tensor, *, vocab_dim: nn.Dim, blank: int, max_labels: int
) -> tuple[nn.Tensor, nn.Tensor, nn.Dim]:
    """
    :param log_probs: {B, T, V}
    :return: blank and the labels with the highest probability: their log probs (blank's: none) and indices {B, T, S},
        and the dim S
    """
    labels = plain(nn.range_over_dim(vocab_dim, dtype="int32", device=log_probs.device))
    of_labels = nn.where(nn.compare(labels, "equal", blank), 2 * NEG, log_probs)  # below labels that are impossible
    k_dim = nn.Dim(max_labels, name="best-labels")
    values, indices, _ = nn.top_k(of_labels, axis=vocab_dim, k_dim=k_dim)
    slots_dim = nn.Dim(max_labels + 1, name="blank-and-best-labels")
    values, _ = nn.pad(values, axes=[k_dim], padding=[(1, 0)], out_dims=[slots_dim], value=NEG)
    indices, _ = nn.pad(
        plain(indices, index_dtype()), axes=[k_dim], padding=[(1, 0)], out_dims=[slots_dim], value=blank
    )
    return values, indices, slots_dim
