"""
Search: from log probabilities and scorers to the best label sequences.

Implemented on RETURNN's frontend, batched. The result is always :class:`Hypotheses`.
"""

from .ctc import ctc_beam_search, ctc_greedy_search
from .hypotheses import Hypotheses

__all__ = ["Hypotheses", "ctc_beam_search", "ctc_greedy_search"]
