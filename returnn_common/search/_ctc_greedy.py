"""
The best path of CTC, on the frontend: what :func:`returnn_common.search.ctc_greedy_search` runs.
"""

from __future__ import annotations

from .. import nn
from ._common import NEG

__all__ = ["best_path", "hypothesis_of_path"]


def best_path(
    log_probs: nn.Tensor, *, spatial_dim: nn.Dim, vocab_dim: nn.Dim, blank: int, before: nn.Tensor | None = None
) -> tuple[nn.Tensor, nn.Dim, nn.Tensor, nn.Tensor]:
    """
    :param log_probs: {batch, T, V}
    :param spatial_dim: T
    :param vocab_dim: V
    :param blank: its index
    :param before: the best label of the frame before these {batch}; None: there is none
    :return: labels {batch, kept}, as floats; the dim kept; score of the path {batch}; best labels {batch, T}
    """
    device = log_probs.device
    log_probs = nn.cast(log_probs, "float32")
    log_probs = nn.where(log_probs > NEG, log_probs, float("-inf"))  # NaN as well
    best = nn.cast(nn.reduce_argmax(log_probs, axis=vocab_dim), "int32")
    scores = nn.reduce_sum(nn.reduce_max(log_probs, axis=vocab_dim), axis=spatial_dim)

    # Compacting without scatter, which not all engines have: sort the frames to keep to the front, with top_k.
    frames = nn.range_over_dim(spatial_dim, dtype="int32", device=device)
    previous = nn.gather(best, indices=nn.relu(frames - 1), axis=spatial_dim)
    is_first = nn.compare(frames, "equal", 0)
    is_new = nn.not_equal(best, previous)
    if before is not None:
        is_new = nn.where(is_first, nn.compare_bc(best, "not_equal", before), is_new)
    else:
        is_new = nn.logical_or(is_first, is_new)
    keep = nn.logical_and(nn.compare(best, "not_equal", blank), is_new)
    lengths = nn.copy_to_device(nn.reduce_sum(nn.cast(keep, "int32"), axis=spatial_dim), "cpu")
    kept_dim = nn.Dim(lengths, name="labels")
    keys = nn.where(keep, nn.cast(-frames, "float32"), -1e9)
    _, indices, _ = nn.top_k(keys, axis=spatial_dim, k_dim=kept_dim)
    # As floats, since the net dict's expand_dim fails for sparse tensors.
    assert isinstance(indices, nn.Tensor)
    labels = nn.gather(nn.cast(best, "float32"), indices=indices, axis=spatial_dim)
    return nn.where(kept_dim.get_mask(device=device), labels, 0.0), kept_dim, scores, best


def hypothesis_of_path(labels: nn.Tensor, labels_dim: nn.Dim, *, beam_dim: nn.Dim) -> tuple[nn.Tensor, nn.Dim]:
    """
    :param labels: {batch, labels}, as floats
    :param labels_dim: labels
    :param beam_dim: of one
    :return: {batch, beam, labels}, as int32; and their dim, with lengths {batch, beam}
    """
    lengths = labels_dim.get_size_tensor()
    labels = nn.cast(nn.expand_dim(labels, beam_dim), "int32")
    out_dim = nn.Dim(nn.expand_dim(lengths, beam_dim), name="labels")
    indices = nn.range_over_dim(out_dim, dtype="int32", device=labels.device)
    return nn.gather(labels, indices=indices, axis=labels_dim), out_dim
