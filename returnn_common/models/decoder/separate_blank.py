"""
Blank with a probability of its own: the hybrid autoregressive transducer (Variani et al. 2020,
https://arxiv.org/abs/2003.07705, section 3.1).
"""

from __future__ import annotations

from ... import nn

__all__ = ["with_separate_blank"]


def with_separate_blank(logits: nn.Tensor, *, labels_dim: nn.Dim, blank: int) -> nn.Tensor:
    """
    :param logits: of a sigmoid for blank, and of a softmax over the other labels, which share the rest
        ``{..., labels and blank}``
    :param labels_dim: labels and blank
    :param blank: index
    :return: such that the softmax over all gives these probabilities; float32
    """
    logits = nn.cast(logits, "float32")  # from mixed precision
    # sigmoid(x) = exp(x + z) / (exp(x + z) + exp(z)), with z the labels' logsumexp
    labels = nn.range_over_dim(labels_dim, dtype="int32", device=logits.device)
    is_blank = nn.compare(labels, "equal", blank)
    total = nn.reduce_logsumexp(nn.where(is_blank, -1e30, logits), axis=labels_dim)
    logits = nn.where(is_blank, logits + total, logits)
    logits.feature_dim = labels_dim
    return logits
