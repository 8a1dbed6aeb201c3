"""
Search: from log probabilities and scorers to the best label sequences.

Implemented on RETURNN's frontend, batched. The result is always :class:`Hypotheses`.
"""

from ._ctc_pruning import CtcPruning
from .alignment import Alignment, ctc_align
from .arpa import NgramModel, read_arpa
from .beam_search import beam_search
from .biasing import PhraseBias
from .ctc import ctc_beam_search, ctc_greedy_search
from .ctc_prefix_scorer import CtcPrefixScorer
from .ctc_streaming import CtcBeamStream, CtcGreedyStream
from .hypotheses import Hypotheses
from .internal_lm import average_context, internal_lm, zero_context
from .lexicon import LexiconScorer, spell_words
from .ngram import NgramScorer
from .rescoring import rescore, score_labels
from .sampling import sample
from .scorers import DecoderScorer, Scorer, combine
from .soft_alignment import SoftAlignment, ctc_soft_align, transducer_soft_align
from .streaming import SearchStream
from .transducer import (
    Transducer,
    transducer_alignment_search,
    transducer_beam_search,
    transducer_greedy_search,
)
from .transducer_align import transducer_align
from .transducer_lm import TransducerLmScorer
from .transducer_streaming import TransducerBeamStream, TransducerGreedyStream

__all__ = [
    "Alignment",
    "CtcBeamStream",
    "CtcGreedyStream",
    "CtcPrefixScorer",
    "CtcPruning",
    "DecoderScorer",
    "Hypotheses",
    "LexiconScorer",
    "NgramModel",
    "NgramScorer",
    "PhraseBias",
    "Scorer",
    "SearchStream",
    "SoftAlignment",
    "Transducer",
    "TransducerBeamStream",
    "TransducerGreedyStream",
    "TransducerLmScorer",
    "average_context",
    "beam_search",
    "combine",
    "ctc_align",
    "ctc_beam_search",
    "ctc_greedy_search",
    "ctc_soft_align",
    "internal_lm",
    "read_arpa",
    "rescore",
    "sample",
    "score_labels",
    "spell_words",
    "transducer_align",
    "transducer_alignment_search",
    "transducer_beam_search",
    "transducer_greedy_search",
    "transducer_soft_align",
    "zero_context",
]
