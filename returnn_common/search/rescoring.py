"""
Scores of given label sequences, and n-best lists ordered anew by them.

Shape letters: B batch dims (with the beam, if there is one), T labels, V vocabulary.
"""

from __future__ import annotations

from typing import Any

from .. import nn
from ._common import (
    IMPOSSIBLE,
    NEG,
    as_scale,
    check_index,
    check_scorer,
    plain,
    scale_log_probs,
    type_name,
    while_loop,
)
from ._label_loop import check_exponent
from .hypotheses import Hypotheses
from .scorers import Scorer, bounded_initial_state, score_next

__all__ = ["rescore", "score_labels"]


def score_labels(scorer: Scorer, labels: nn.Tensor, *, spatial_dim: nn.Dim, bos: int, eos: int) -> nn.Tensor:
    """
    What a scorer gives label sequences when it is forced on them: the sum over the labels and end of sentence, so
    the same as :func:`beam_search` reports for them. It runs label by label, like a search.

    :param scorer: as in :func:`beam_search`
    :param labels: {B, T}, without `bos` and `eos`; for `Hypotheses`, B has the beam
    :param spatial_dim: T, also static
    :param bos: first of the scorer's `prev_labels`
    :param eos: end of sentence
    :return: {B}, natural log, float32; -inf where the scorer rules one of the labels out
    :raise ValueError: labels without that dim or of another vocabulary, bos or eos out of range
    :raise TypeError: labels that are no tensor, or what is no scorer
    """
    name = "score_labels"
    check_scorer(f"{name}: scorer", scorer)
    vocab_dim = scorer.vocab_dim
    if not isinstance(labels, nn.Tensor):
        raise TypeError(f"{name}: labels, expected a Tensor, got {type_name(labels)}")
    check_index(name, "bos", bos, vocab_dim)
    check_index(name, "eos", eos, vocab_dim)
    if spatial_dim not in labels.dims:
        raise ValueError(f"{name}: labels, expected a tensor with {spatial_dim}, got {labels}")
    if labels.sparse_dim is None or labels.sparse_dim.dimension != vocab_dim.dimension:
        raise ValueError(f"{name}: labels, expected indices of {vocab_dim}, got {labels}")
    device = labels.device
    dims = [d for d in labels.dims if d != spatial_dim]
    lengths = spatial_dim.get_size_tensor(device=device)
    # Labels, then only end of sentence, of which the first one counts
    targets = plain(labels)
    if spatial_dim.need_masking():
        targets = nn.where(spatial_dim.get_mask(device=device), targets, eos)
    targets, (targets_dim,) = nn.pad(
        targets, axes=[spatial_dim], padding=[(0, 1)], value=eos, handle_dynamic_dims=False
    )

    def step(state: dict[str, Any]) -> dict[str, Any]:
        log_probs, scorer_state = score_next(scorer, state["last"], state["scorer"])
        label = nn.gather(targets, indices=state["step"], axis=targets_dim)
        score = nn.gather(scale_log_probs(log_probs, 1.0), indices=label, axis=vocab_dim)
        counts = nn.compare_bc(nn.copy_to_device(state["step"], device), "less_equal", lengths)
        return {
            "step": state["step"] + 1,
            "score": state["score"] + nn.where(counts, score, 0.0),
            "last": nn.set_sparse_dim(label, vocab_dim),
            "scorer": scorer_state,
        }

    longest = nn.cast(nn.convert_to_tensor(spatial_dim.get_dim_value_tensor()), "int32")
    state = {
        "step": nn.constant(0, dims=(), dtype="int32", device="cpu"),
        "score": nn.constant(0.0, dims=dims, dtype="float32", device=device),
        "last": nn.set_sparse_dim(nn.constant(bos, dims=dims, dtype="int32", device=device), vocab_dim),
        "scorer": bounded_initial_state(scorer, batch_dims=dims, max_steps=longest + 1),
    }
    # The first step is outside of the loop: after it, the dims of the scorer's state are those that stay.
    state = {**step(state), "step": nn.constant(1, dims=(), dtype="int32", device="cpu")}
    state = while_loop(lambda s: s["step"] <= longest, step, state)
    return nn.where(state["score"] > IMPOSSIBLE, state["score"], float("-inf"))


def rescore(
    hypotheses: Hypotheses,
    scorer: Scorer,
    *,
    scale: float,
    bos: int,
    eos: int,
    own_scale: float = 1.0,
    length_exponent: float = 0.0,
) -> Hypotheses:
    """
    N-best lists with new scores: `own_scale * score + scale * score by the scorer`, in the order that follows.

    :param hypotheses: of a search
    :param scorer: e.g. a language model, with a vocabulary of the same size
    :param scale: of the scorer; with 0, it is ignored
    :param bos: first of the scorer's `prev_labels`
    :param eos: end of sentence
    :param own_scale: of the scores there are; with 0, they are ignored
    :param length_exponent: of the order, as in :func:`beam_search`
    :return: the same hypotheses; those with the score -inf, and those which the scorer rules out, are unused entries
    :raise ValueError: as :func:`score_labels`; a scale that isn't finite, or an exponent below 0
    :raise TypeError: as :func:`score_labels`; what is no :class:`Hypotheses`
    """
    name = "rescore"
    if not isinstance(hypotheses, Hypotheses):
        raise TypeError(f"{name}: hypotheses, expected those of a search, got {type_name(hypotheses)}")
    scale, own_scale = as_scale(name, "scale", scale), as_scale(name, "own_scale", own_scale)
    check_exponent(name, length_exponent)
    beam_dim, spatial_dim = hypotheses.beam_dim, hypotheses.spatial_dim
    new = scale_log_probs(hypotheses.scores, own_scale)
    if scale:
        forced = score_labels(scorer, hypotheses.labels, spatial_dim=spatial_dim, bos=bos, eos=eos)
        new = new + scale_log_probs(forced, scale)
    new = nn.where(new > IMPOSSIBLE, new, NEG)
    lengths = hypotheses.lengths
    device = hypotheses.scores.device
    norm = (nn.cast(nn.copy_to_device(lengths, device), "float32") + 1.0) ** float(length_exponent)
    out_beam_dim = nn.Dim(beam_dim.dimension, name="beam")
    _, order, _ = nn.top_k(nn.where(new > IMPOSSIBLE, new / norm, NEG), axis=beam_dim, k_dim=out_beam_dim)
    order = plain(order)
    scores = nn.gather(new, indices=order, axis=beam_dim)
    possible = scores > IMPOSSIBLE
    lengths = nn.gather(nn.copy_to_device(lengths, device), indices=order, axis=beam_dim)
    out_dim = nn.Dim(nn.copy_to_device(nn.where(possible, lengths, 0), "cpu"), name="labels")
    labels = nn.gather(hypotheses.labels, indices=order, axis=beam_dim)
    labels = nn.gather(
        labels, indices=plain(nn.range_over_dim(out_dim, dtype="int32", device=device)), axis=spatial_dim
    )
    return Hypotheses(
        labels=labels,
        scores=nn.where(possible, scores, float("-inf")),
        beam_dim=out_beam_dim,
        spatial_dim=out_dim,
    )
