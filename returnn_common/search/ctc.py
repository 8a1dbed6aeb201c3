"""
Search for CTC models: the best path, and prefix beam search.

Shape letters: T frames (`spatial_dim`), V labels with blank.
"""

from __future__ import annotations

from typing import Any

from .. import nn
from ._common import check_ctc_log_probs, longest_of
from ._ctc_greedy import best_path, hypothesis_of_path
from ._ctc_options import make_prefix_beam
from ._ctc_pruning import CtcPruning, as_pruning, select_frames
from ._options import check_beam, check_labels_dim
from .hypotheses import Hypotheses

__all__ = ["ctc_beam_search", "ctc_greedy_search"]


def ctc_greedy_search(
    log_probs: nn.Tensor, *, spatial_dim: nn.Dim, blank: int, vocab_dim: nn.Dim | None = None
) -> Hypotheses:
    """
    The label sequence of the best path: the best label of each frame, repeats merged, blanks removed.

    Graves et al. 2006, "Connectionist Temporal Classification", section 3.2, "best path decoding".

    :param log_probs: {batch, T, V}; -inf and NaN are impossible. V is its feature dim, or its only static dim beside
        the batch dim
    :param spatial_dim: T
    :param blank: index of blank in V
    :param vocab_dim: sparse dim of the resulting labels: V itself (default), or V without its last label, blank
    :return: one hypothesis per batch entry; its score is the best path's, the sum of the largest log prob of each frame
    :raise ValueError: an argument that doesn't fit `log_probs`
    """
    name = "ctc_greedy_search"
    in_vocab_dim = check_ctc_log_probs(name, log_probs, spatial_dim=spatial_dim, blank=blank)
    labels_dim = check_labels_dim(name, in_vocab_dim, blank, vocab_dim)
    beam_dim = nn.Dim(1, name="beam")
    labels, kept_dim, scores, _ = best_path(log_probs, spatial_dim=spatial_dim, vocab_dim=in_vocab_dim, blank=blank)
    labels, out_dim = hypothesis_of_path(labels, kept_dim, beam_dim=beam_dim)
    labels = nn.set_sparse_dim(labels, labels_dim)
    return Hypotheses(labels=labels, scores=nn.expand_dim(scores, beam_dim), beam_dim=beam_dim, spatial_dim=out_dim)


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

    :param log_probs: {batch, T, V}; -inf and NaN are impossible. V is its feature dim, or its only static dim beside
        the batch dim
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
    in_vocab_dim = check_ctc_log_probs(name, log_probs, spatial_dim=spatial_dim, blank=blank)
    labels_dim = check_labels_dim(name, in_vocab_dim, blank, vocab_dim)
    check_beam(name, in_vocab_dim, beam_size, recombine=recombine, scorer_options=(scorer, scorer_scale, bos, eos))
    pruning = as_pruning(name, pruning)
    search = make_prefix_beam(
        vocab_dim=in_vocab_dim,
        blank=blank,
        beam_size=beam_size,
        recombine=recombine,
        scorer_options=(scorer, scorer_scale, bos, eos),
        pruning=pruning,
        batch_dims=[d for d in log_probs.dims if d not in (spatial_dim, in_vocab_dim)],
        device=log_probs.device,
    )
    frames = select_frames(
        log_probs, spatial_dim=spatial_dim, vocab_dim=in_vocab_dim, blank=blank, threshold=pruning.blank_threshold
    )
    longest = longest_of(frames.spatial_dim)
    room_dim = nn.Dim(nn.copy_to_device(longest, "cpu") + 1, name="room")
    state = search.run(frames, search.initial_state(room_dim=room_dim, num_frames=longest))
    labels, scores, out_dim = search.finish(state, rest=frames.rest)
    labels = nn.set_sparse_dim(labels, labels_dim)
    return Hypotheses(labels=labels, scores=scores, beam_dim=search.beam_dim, spatial_dim=out_dim)
