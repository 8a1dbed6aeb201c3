"""
What takes part in a search beside a model.
"""

from __future__ import annotations

from ..search import LexiconScorer, PhraseBias, combine, read_arpa, score_labels, spell_words
from .ngram_lm import NgramLm

__all__ = ["FusionParts"]


class FusionParts:
    """
    With this as its ``fusion_parts``, a model has all that the options of a recognition may ask for
    (:class:`returnn_common.recog.search_options.SearchOptions`), as scorers that its ``search`` takes for ``lm``:
    n-gram models, phrases, lists of words, and several of them at once. A model of your own gets it by
    ``fusion_parts = FusionParts`` in its class.
    """

    combine = staticmethod(combine)
    read_arpa = staticmethod(read_arpa)
    score_labels = staticmethod(score_labels)
    spell_words = staticmethod(spell_words)
    lexicon_scorer = LexiconScorer
    ngram_lm = NgramLm
    phrase_bias = PhraseBias
