"""
What the searches ask of the options that they have in common.
"""

from __future__ import annotations

from typing import Any

from .. import nn
from ._common import as_scale, check_int, check_scorer

__all__ = ["ScorerOptions", "check_beam", "check_labels_dim"]

ScorerOptions = tuple[Any, float, int | None, int | None]  # scorer, scorer_scale, bos, eos


def check_labels_dim(name: str, vocab_dim: nn.Dim, blank: int, labels_dim: nn.Dim | None) -> nn.Dim:
    """
    :param name: of the search, for the messages
    :param vocab_dim: labels and blank
    :param blank: its index
    :param labels_dim: wanted for the labels found; None: ``vocab_dim``
    :return: sparse dim of the labels
    :raise ValueError, TypeError: it doesn't fit
    """
    size = vocab_dim.dimension or 0
    if labels_dim is None:
        return vocab_dim
    if not isinstance(labels_dim, nn.Dim):
        raise TypeError(f"{name}: vocab_dim, expected a Dim, got {labels_dim!r}")
    if labels_dim.dimension != size and not (labels_dim.dimension == size - 1 and blank == size - 1):
        raise ValueError(
            f"{name}: vocab_dim, expected size {size}, or {size - 1} where blank is the last label, got {labels_dim}"
        )
    return labels_dim


def check_beam(name: str, vocab_dim: nn.Dim, beam_size: Any, *, recombine: str, scorer_options: ScorerOptions):
    """
    :param name: of the search, for the messages
    :param vocab_dim: labels and blank
    :param beam_size: at least 1
    :param recombine: "sum" or "max"
    :raise ValueError, TypeError: a value that is out of range, or a scorer that doesn't fit
    """
    scorer, scorer_scale, bos, eos = scorer_options
    check_int(name, "beam_size", beam_size, at_least=1)
    if recombine not in ("sum", "max"):
        raise ValueError(f"{name}: recombine, expected 'sum' or 'max', got {recombine!r}")
    if scorer is not None:
        as_scale(name, "scorer_scale", scorer_scale)
        check_scorer(f"{name}: scorer", scorer)
        _check_vocab(name, scorer, vocab_dim, bos, eos)
    elif bos is not None or eos is not None or scorer_scale:
        raise ValueError(f"{name}: scorer_scale, bos and eos expect a scorer, got scorer=None")


def _check_vocab(name: str, scorer: Any, vocab_dim: nn.Dim, bos: int | None, eos: int | None):
    size, expected = scorer.vocab_dim.dimension or 0, vocab_dim.dimension or 0
    if size not in (expected, expected - 1):
        raise ValueError(
            f"{name}: scorer, expected a vocabulary of {expected} labels, or one less (without blank),"
            f" got {scorer.vocab_dim}"
        )
    for what, index in (("bos", bos), ("eos", eos)):
        if index is not None and (isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < size):
            raise ValueError(f"{name}: {what}, expected an index of the scorer's {scorer.vocab_dim}, got {index}")
