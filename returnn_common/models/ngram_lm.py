"""
An n-gram model as the language model of a recogniser.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..nn.labels import scored_labels
from ..search import NgramModel, NgramScorer

__all__ = ["NgramLm"]


class NgramLm:
    """
    Used like a :class:`.language_model.LanguageModel`: it has ``scorer()``, ``bos`` and ``eos``,
    but no parameters.

    :param ngram: of :func:`returnn_common.search.read_arpa`
    :param model: of which it is to score the labels: with a ``decoder``, over that decoder's labels, with the model's
        ``eos``; else (CTC), over those of ``vocab_dim``, and end of sentence behind them
    :param labels: names of the labels of the model's ``vocab_dim``, which are the words of the n-gram model
    :param missing: see :class:`returnn_common.search.NgramScorer`
    :raises ValueError: see there
    """

    def __init__(self, ngram: NgramModel, model: Any, *, labels: Sequence[str], missing: str = "unk"):
        size = len(labels)
        vocab_dim, self.bos, self.eos = scored_labels(model, size=size)
        # Behind the labels there may be those for begin and end of sentence, of whatever name.
        names = [*labels, *["<s>"] * ((vocab_dim.dimension or 0) - size)]
        self._scorer = NgramScorer(ngram, vocab_dim, labels=names, eos=self.eos, missing=missing)

    def scorer(self) -> NgramScorer:
        """:return: for a search"""
        return self._scorer
