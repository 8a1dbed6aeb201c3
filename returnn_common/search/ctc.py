"""
Search for CTC models: the best path, and prefix beam search.

Shape letters: T frames (`spatial_dim`), V labels with blank.
"""

from __future__ import annotations

from typing import Any

from .. import nn
from ._common import check_ctc_log_probs
from ._ctc_prefix_beam import PrefixBeamSearch
from ._ctc_pruning import CtcPruning
from .hypotheses import Hypotheses

__all__ = ["ctc_beam_search", "ctc_greedy_search"]


def ctc_greedy_search(
    log_probs: nn.Tensor, *, spatial_dim: nn.Dim, blank: int, vocab_dim: nn.Dim | None = None
) -> Hypotheses:
    """
    The label sequence of the best path: the best label of each frame, repeats merged, blanks removed.

    Graves et al. 2006, "Connectionist Temporal Classification", section 3.2, "best path decoding".

    :param log_probs: {batch, T, V}. V is its feature dim, or its only static dim beside the batch dim
    :param spatial_dim: T
    :param blank: index of blank in V
    :param vocab_dim: sparse dim of the resulting labels: V itself (default), or V without its last label, blank
    :return: one hypothesis per batch entry; its score is the best path's, the sum of the largest log prob of each frame
    :raise ValueError: an argument that doesn't fit `log_probs`
    """
    in_vocab_dim, labels_dim = _check("ctc_greedy_search", log_probs, spatial_dim, blank, vocab_dim)
    beam_dim = nn.Dim(1, name="beam")
    device = log_probs.device
    best = nn.cast(nn.reduce_argmax(log_probs, axis=in_vocab_dim), "int32")
    scores = nn.reduce_sum(nn.reduce_max(log_probs, axis=in_vocab_dim), axis=spatial_dim)
    scores = nn.expand_dim(scores, beam_dim)

    # Compacting without scatter, which not all engines have: sort the frames to keep to the front, with top_k.
    frames = nn.range_over_dim(spatial_dim, dtype="int32", device=device)
    previous = nn.gather(best, indices=nn.relu(frames - 1), axis=spatial_dim)
    is_new = nn.logical_or(nn.compare(frames, "equal", 0), nn.not_equal(best, previous))
    keep = nn.logical_and(nn.compare(best, "not_equal", blank), is_new)
    lengths = nn.copy_to_device(nn.reduce_sum(nn.cast(keep, "int32"), axis=spatial_dim), "cpu")
    kept_dim = nn.Dim(lengths, name="labels")
    keys = nn.where(keep, nn.cast(-frames, "float32"), -1e9)
    _, indices, _ = nn.top_k(keys, axis=spatial_dim, k_dim=kept_dim)
    # As floats, since the net dict's expand_dim fails for sparse tensors.
    assert isinstance(indices, nn.Tensor)
    labels = nn.gather(nn.cast(best, "float32"), indices=indices, axis=spatial_dim)
    labels = nn.where(kept_dim.get_mask(device=device), labels, 0.0)
    labels = nn.set_sparse_dim(nn.cast(nn.expand_dim(labels, beam_dim), "int32"), labels_dim)
    out_dim = nn.Dim(nn.expand_dim(lengths, beam_dim), name="labels")
    labels = nn.gather(labels, indices=nn.range_over_dim(out_dim, dtype="int32", device=device), axis=kept_dim)
    return Hypotheses(labels=labels, scores=scores, beam_dim=beam_dim, spatial_dim=out_dim)


def ctc_beam_search(
    log_probs: nn.Tensor,
    *,
    spatial_dim: nn.Dim,
    blank: int,
    beam_size: int,
    scorer: Any = None,
    scorer_scale: float = 0.0,
    recombine: str = "sum",
    bos: int | None = None,
    eos: int | None = None,
    vocab_dim: nn.Dim | None = None,
    pruning: CtcPruning | None = None,
) -> Hypotheses:
    """
    Prefix beam search: frame by frame, over label sequences (prefixes) instead of alignments.

    Graves 2012, "Supervised Sequence Labelling with Recurrent Neural Networks", "prefix search decoding", and
    Hannun et al. 2014, https://arxiv.org/abs/1408.2873, algorithm 1; with a scorer, log-linear:
    `score = CTC + scorer_scale * scorer`, also when the beam is pruned.

    Alignments of one label sequence are recombined exactly: also where a prefix is extended to one that is in the beam
    already. So with a beam that holds all prefixes, the result is that of enumerating all alignments.

    :param log_probs: {batch, T, V}. V is its feature dim, or its only static dim beside the batch dim
    :param spatial_dim: T
    :param blank: index of blank in V
    :param beam_size: prefixes kept after each frame, and size of the result's beam dim
    :param scorer: e.g. a language model, with `vocab_dim`, `initial_state(*, batch_dims)` and
        `score(prev_labels, state) -> (log_probs, new_state)`. Its vocabulary is V (what it has in the place of
        blank, e.g. `eos`, is never a label), or V without blank
        (the others in the same order). Its state may grow on PyTorch alone
    :param scorer_scale: weight of the scorer; with 0, it is ignored
    :param recombine: "sum" over the alignments of a label sequence, or "max", its best alignment
    :param bos: the scorer's first `prev_labels`, an index of its vocabulary. Default: `eos` if given, else 0
    :param eos: if given, an index of the scorer's vocabulary, scored at the end of each hypothesis
    :param vocab_dim: sparse dim of the resulting labels: V itself (default), or V without its last label, blank
    :param pruning: what to leave out in order to be faster; default: nothing but what the beam has no room for
    :return: `beam_size` hypotheses per batch entry; where there are fewer, the rest has the score -inf
    :raise ValueError: an argument that doesn't fit `log_probs`, or is out of range
    """
    name = "ctc_beam_search"
    in_vocab_dim, labels_dim = _check(name, log_probs, spatial_dim, blank, vocab_dim)
    if not isinstance(beam_size, int) or beam_size < 1:
        raise ValueError(f"{name}: beam_size, expected an int of at least 1, got {beam_size!r}")
    if recombine not in ("sum", "max"):
        raise ValueError(f"{name}: recombine, expected 'sum' or 'max', got {recombine!r}")
    if scorer is not None:
        _check_scorer(name, scorer, in_vocab_dim, bos, eos)
    elif bos is not None or eos is not None or scorer_scale:
        raise ValueError(f"{name}: scorer_scale, bos and eos expect a scorer, got scorer=None")
    search = PrefixBeamSearch(
        log_probs=log_probs,
        spatial_dim=spatial_dim,
        vocab_dim=in_vocab_dim,
        blank=blank,
        beam_size=beam_size,
        scorer=scorer if scorer_scale else None,
        scorer_scale=float(scorer_scale),
        use_sum=recombine == "sum",
        bos=bos if bos is not None else (eos or 0),
        eos=eos,
        pruning=pruning or CtcPruning(),
    )
    labels, scores, out_dim = search.run()
    labels = nn.set_sparse_dim(labels, labels_dim)
    return Hypotheses(labels=labels, scores=scores, beam_dim=search.beam_dim, spatial_dim=out_dim)


def _check(
    name: str, log_probs: nn.Tensor, spatial_dim: nn.Dim, blank: int, labels_dim: nn.Dim | None
) -> tuple[nn.Dim, nn.Dim]:
    """:return: V, and the sparse dim of the labels"""
    vocab_dim = check_ctc_log_probs(name, log_probs, spatial_dim=spatial_dim, blank=blank)
    size = vocab_dim.dimension or 0
    if labels_dim is None:
        return vocab_dim, vocab_dim
    if labels_dim.dimension != size and not (labels_dim.dimension == size - 1 and blank == size - 1):
        raise ValueError(
            f"{name}: vocab_dim, expected size {size}, or {size - 1} where blank is the last label, got {labels_dim}"
        )
    return vocab_dim, labels_dim


def _check_scorer(name: str, scorer: Any, vocab_dim: nn.Dim, bos: int | None, eos: int | None):
    size, expected = scorer.vocab_dim.dimension or 0, vocab_dim.dimension or 0
    if size not in (expected, expected - 1):
        raise ValueError(
            f"{name}: scorer, expected a vocabulary of {expected} labels, or one less (without blank),"
            f" got {scorer.vocab_dim}"
        )
    for what, index in (("bos", bos), ("eos", eos)):
        if index is not None and not 0 <= index < size:
            raise ValueError(f"{name}: {what}, expected an index of the scorer's {scorer.vocab_dim}, got {index}")
