"""
Phrases that a search should prefer, such as names from an address book, as a scorer.

Shape letters: B batch dims (with the beam, once there is one), V labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy

from .. import nn
from ._automaton import Automaton, AutomatonScorer
from ._common import as_scale, check_index, check_sequences, size_of

__all__ = ["PhraseBias"]


class PhraseBias(AutomatonScorer):
    """
    Contextual biasing (Zhao et al. 2019, https://doi.org/10.21437/Interspeech.2019-1209): `bonus` for each occurrence
    of a phrase, whatever is around it. Add it to other scorers::

        names = PhraseBias([[4, 17, 3], [8, 8]], vocab_dim, bonus=2.0, eos=eos)
        beam_search(combine([(decoder, 1.0), (names, 1.0)]), ...)

    So that phrases survive the pruning, each of their labels gets its share of the bonus when it comes. What a phrase
    got that then isn't completed is taken back, at end of sentence as well. So the score of a whole hypothesis is
    exactly `bonus * number of occurrences`, where phrases that overlap or are part of others count each. (While several
    phrases are under way, the largest of their shares is paid. A negative bonus is only paid for a complete phrase.)

    For other phrases with another bonus, combine several of these. Where labels are subwords, phrases that are to match
    whole words must have the label which begins a word, as the vocabulary has it.

    The state is one number per hypothesis: of the automaton of Aho and Corasick 1975
    (https://doi.org/10.1145/360825.360855).

    :param phrases: label indices of each; one that comes twice counts once. There may be none.
    :param vocab_dim: V
    :param bonus: natural log, of each phrase. `can_exceed_zero` holds for a positive one.
    :param eos: end of sentence, in no phrase. In a search without it, what was not completed would not be taken back:
        :func:`ctc_beam_search` needs the same `eos`, e.g. with the index of blank.
    :param dense_limit: see :class:`NgramScorer`
    :raise ValueError: an empty phrase, one with the end of sentence or with what is no label, a bonus that isn't finite
    :raise TypeError: something else than label sequences
    """

    def __init__(
        self,
        phrases: Sequence[Sequence[int]],
        vocab_dim: nn.Dim,
        *,
        bonus: float,
        eos: int,
        dense_limit: int = 2**22,
    ):
        check_index("PhraseBias", "eos", eos, vocab_dim)
        bonus = as_scale("PhraseBias", "bonus", bonus)
        self.can_exceed_zero = bonus > 0
        check_sequences("PhraseBias: phrases", phrases)
        phrases = [[int(x) if isinstance(x, numpy.integer) else x for x in phrase] for phrase in phrases]
        for i, phrase in enumerate(phrases):
            if not len(phrase):
                raise ValueError(f"PhraseBias: phrase {i}, expected at least one label, got none")
            for label in phrase:
                check_index("PhraseBias", f"phrase {i} ({phrase!r})", label, vocab_dim)
                if label == eos:
                    raise ValueError(f"PhraseBias: phrase {i} ({phrase!r}), expected it without end of sentence {eos}")
        nodes = _make_nodes(phrases, bonus)
        super().__init__(_make_automaton(nodes, vocab_dim, dense_limit=dense_limit))


@dataclass
class _Node:
    """
    The beginning of a phrase.

    following: label -> node. At first of the phrases themselves, in the end also of the suffixes but the empty one.
    suffix: node of the longest suffix which is the beginning of a phrase
    paid: shares in the bonus so far, of phrases that are not complete
    gained: for the phrases that are complete here
    """

    depth: int
    following: dict[int, int] = field(default_factory=dict)
    suffix: int = 0
    paid: float = 0.0
    gained: float = 0.0


def _make_nodes(phrases: Sequence[Sequence[int]], bonus: float) -> list[_Node]:
    """:return: the empty one first, the others sorted by length"""
    phrases = sorted({tuple(phrase) for phrase in phrases})
    nodes, at = [_Node(0)], [0] * len(phrases)
    for depth in range(1, 1 + max([len(phrase) for phrase in phrases], default=0)):
        for i, phrase in enumerate(phrases):
            if len(phrase) < depth:
                continue
            children = nodes[at[i]].following
            if phrase[depth - 1] not in children:
                children[phrase[depth - 1]] = len(nodes)
                nodes.append(_Node(depth))
            at[i] = children[phrase[depth - 1]]
            node = nodes[at[i]]
            if len(phrase) == depth:
                node.gained = bonus
            else:
                node.paid = max(node.paid, bonus * depth / len(phrase))
    # Shorter ones first: suffixes are complete when they are needed.
    root = nodes[0]
    for child in root.following.values():
        _inherit(nodes[child], nodes, 0)
    for node in nodes[1:]:
        suffix = nodes[node.suffix]
        for label, child in node.following.items():
            _inherit(nodes[child], nodes, suffix.following.get(label, root.following.get(label, 0)))
        if node.suffix:
            node.following = {**suffix.following, **node.following}
    return nodes


def _inherit(node: _Node, nodes: list[_Node], suffix: int):
    node.suffix = suffix
    node.paid = max(node.paid, nodes[suffix].paid)
    node.gained += nodes[suffix].gained


def _make_automaton(nodes: list[_Node], vocab_dim: nn.Dim, *, dense_limit: int) -> Automaton:
    """The states are the nodes."""
    value = numpy.array([node.paid + node.gained for node in nodes])
    default_next = numpy.zeros(size_of(vocab_dim), "int64")
    for label, child in nodes[0].following.items():
        default_next[label] = child
    arcs = [sorted(node.following.items()) if i else [] for i, node in enumerate(nodes)]
    count = numpy.array([len(x) for x in arcs])
    words, following = numpy.array([arc for x in arcs for arc in x], "int64").reshape(-1, 2).T
    return Automaton(
        chain=numpy.arange(len(nodes))[:, None],
        total=numpy.array([-node.paid for node in nodes]),
        default_score=value[default_next],
        default_next=default_next,
        arc_start=numpy.cumsum(count) - count,
        arc_count=count,
        arc_word=words,
        arc_delta=value[following] - value[default_next[words]],
        arc_next=following,
        start=0,
        dense_limit=dense_limit,
        label_dim=vocab_dim,
    )
