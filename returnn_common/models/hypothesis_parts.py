"""
What each part of a model (decoder, CTC, language model) gives the hypotheses of its search, one by one: for the tuning
of their scales, and for n-best lists in another order.
"""

from __future__ import annotations

from collections.abc import Mapping

from .. import nn
from ..search import Hypotheses, Scorer, score_labels

__all__ = ["score_parts"]


def score_parts(hypotheses: Hypotheses, scorers: Mapping[str, tuple[Scorer | None, int, int]]) -> dict[str, nn.Tensor]:
    """
    :param hypotheses: of a search
    :param scorers: by name of the part: a scorer over the same labels, which may have more behind them; its begin and
        end of sentence. None: there is no such part.
    :return: for each part ``{batch, beam}``, natural log, end of sentence included, see :func:`score_labels`
    :raises ValueError: for a scorer with fewer labels
    """
    labels_dim = hypotheses.labels.sparse_dim
    assert labels_dim is not None and labels_dim.dimension is not None
    parts = {}
    for name, (scorer, bos, eos) in scorers.items():
        if scorer is None:
            continue
        if (scorer.vocab_dim.dimension or 0) < labels_dim.dimension:
            raise ValueError(
                f"score_parts: {name}: expected a vocabulary of at least {labels_dim.dimension} labels like "
                f"{labels_dim}, got {scorer.vocab_dim}"
            )
        labels = nn.set_sparse_dim(hypotheses.labels, scorer.vocab_dim)
        parts[name] = score_labels(scorer, labels, spatial_dim=hypotheses.spatial_dim, bos=bos, eos=eos)
    return parts
