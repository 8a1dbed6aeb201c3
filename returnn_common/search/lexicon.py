"""
Word lists: only words of a list can be recognised.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy

from .. import nn
from ._automaton import Automaton, AutomatonScorer
from ._common import NEG, check_index, check_sequences, size_of

__all__ = ["LexiconScorer", "spell_words"]

_NEG = float(numpy.float32(NEG))  # so that minus it gives 0, also where it was rounded to float32

_Trie = list[dict[int, int]]  # for each node: label -> node


class LexiconScorer(AutomatonScorer):
    """
    Rules out all label sequences but those of words of a list: each label that goes on with a word, or begins the next
    one where one can end, has the log prob 0, all others have -inf. End of sentence is possible only where a word ends,
    or before the first one. For beam search of any kind, beside other scorers::

        lexicon = LexiconScorer(spell_words(words, vocab.encode), vocab_dim, eos=eos)
        beam_search(combine([(decoder, 1.0), (lexicon, 1.0)]), ...)
        ctc_beam_search(log_probs, scorer=combine([(lm, 0.5), (lexicon, 1.0)]), scorer_scale=1.0, eos=eos, ...)

    For CTC, give `eos`, in the place of blank in the vocabulary if there is no other one: else hypotheses may end
    within a word.

    Where one label sequence can be read as different words ("a b" and "ab", without a mark of the words' begin), all
    are followed. The state is one number per hypothesis.

    :param spellings: the labels of each word. Words can have several, and one can be the begin of another
    :param vocab_dim: V
    :param eos: end of sentence; None: there is none
    :param separator: the label between two words, such as the space between characters; None: words follow each other,
        as subwords that have marks, or labels that are words
    :param allow_empty: whether a sentence without words is possible
    :param dense_limit: states times labels up to which the automaton is one table; see :class:`NgramScorer`
    :raises ValueError: no words, one without labels, with eos or the separator, or with what is no label
    :raises TypeError: something else than label sequences
    """

    def __init__(
        self,
        spellings: Iterable[Sequence[int]],
        vocab_dim: nn.Dim,
        *,
        eos: int | None,
        separator: int | None = None,
        allow_empty: bool = True,
        dense_limit: int = 2**22,
    ):
        name = "LexiconScorer"
        for what, label in (("eos", eos), ("separator", separator)):
            if label is not None:
                check_index(name, what, label, vocab_dim)
        if separator is not None and separator == eos:
            raise ValueError(f"{name}: separator, expected another label than eos, got {separator}")
        spellings = list(spellings) if hasattr(type(spellings), "__iter__") else spellings
        check_sequences(f"{name}: spellings", spellings)
        trie, ends = _make_trie(spellings, vocab_dim, forbidden={"eos": eos, "separator": separator})
        super().__init__(
            _make_automaton(
                trie,
                ends,
                vocab_dim=vocab_dim,
                eos=eos,
                separator=separator,
                allow_empty=allow_empty,
                dense_limit=dense_limit,
            )
        )


def spell_words(words: Iterable[str], encode: Callable[[str], Sequence[int]]) -> list[list[int]]:
    """
    :param words: of a list; one that comes again is taken once
    :param encode: text -> labels, e.g. `VocabConfig.encode`, which raises a ValueError if it can't
    :return: the labels of each word
    :raises ValueError: no words, or some which can't be written with the labels, naming these
    """
    spellings, unknown = [], []
    words = list(dict.fromkeys(words))
    for word in words:
        try:
            labels = list(encode(word))
        except ValueError:
            labels = []
        spellings.append(labels)
        if not labels:
            unknown.append(word)
    if not words:
        raise ValueError("spell_words: expected at least one word, got none")
    if unknown:
        raise ValueError(
            f"spell_words: {len(unknown)} of {len(words)} words can't be written with the vocabulary: "
            f"{', '.join(map(repr, unknown[:8]))}{', ...' * (len(unknown) > 8)}"
        )
    return spellings


def _make_trie(
    spellings: Iterable[Sequence[int]], vocab_dim: nn.Dim, *, forbidden: Mapping[str, int | None]
) -> tuple[_Trie, set[int]]:
    """:return: nodes, 0 is the root; those in which a word ends"""
    trie: _Trie = [{}]
    ends: set[int] = set()
    size = vocab_dim.dimension or 0
    for i, spelling in enumerate(spellings):
        node = 0
        try:
            labels = [int(label) for label in spelling]
        except ValueError:
            raise ValueError(f"LexiconScorer: word {i}, expected label indices, got {spelling!r}") from None
        for label in labels:
            if not 0 <= label < size:
                raise ValueError(f"LexiconScorer: word {i}, expected labels from 0 to {size - 1}, got {labels}")
            for what, other in forbidden.items():
                if label == other:
                    raise ValueError(f"LexiconScorer: word {i}, expected no {what} ({other}) in it, got {labels}")
            if label not in trie[node]:
                trie[node][label] = len(trie)
                trie.append({})
            node = trie[node][label]
        if not node:
            raise ValueError(f"LexiconScorer: word {i}, expected at least one label, got none")
        ends.add(node)
    if not ends:
        raise ValueError("LexiconScorer: expected at least one word, got none")
    return trie, ends


def _make_automaton(
    trie: _Trie,
    ends: set[int],
    *,
    vocab_dim: nn.Dim,
    eos: int | None,
    separator: int | None,
    allow_empty: bool,
    dense_limit: int,
) -> Automaton:
    """
    A state is the set of the nodes in which the last word can be, without those that have no children, and whether a
    word can end. State 0 is that of what is ruled out; 1 that between two words, whose arcs the states in which a word
    can end inherit; 2 the start of a sentence.
    """
    between = ((0,), False)
    states: dict[Any, int] = {None: 0, between: 1, "start": 2}
    todo: deque[tuple[Any, int]] = deque([(between, 1)])
    arcs: list[list[tuple[int, float, int]]] = [[], [], []]  # label, score beyond what is inherited, next state
    ending = [False, False, allow_empty]
    roots = trie[0]
    while todo:
        (nodes, can_end), index = todo.popleft()
        following: dict[int, list[int]] = {}
        for node in nodes:
            for label, child in trie[node].items():
                following.setdefault(label, []).append(child)
        inherits = can_end and separator is None
        for label, children in sorted(following.items()):
            inherited = inherits and label in roots
            children = [*children, *([roots[label]] if inherited else [])]
            key = (tuple(sorted({c for c in children if trie[c]})), any(c in ends for c in children))
            if key not in states:
                states[key] = len(states)
                todo.append((key, states[key]))
                arcs.append([])
                ending.append(key[1])
            arcs[index].append((label, 0.0 if inherited else -_NEG, states[key]))
        if can_end and separator is not None:
            arcs[index].append((separator, -_NEG, 1))
    for index, can_end in enumerate(ending):
        if can_end and eos is not None:
            arcs[index].append((eos, -_NEG, 0))
        arcs[index].sort()
    counts = numpy.array([len(of_state) for of_state in arcs])
    flat = numpy.array([arc for of_state in arcs for arc in of_state])
    inherits = numpy.array([can_end and separator is None for can_end in ending])
    inherits[2] = True  # the start has the arcs of the state between words, with or without a separator
    index = numpy.arange(len(states))
    return Automaton(
        chain=numpy.stack([index, numpy.where(inherits, 1, 0)], axis=1),
        total=numpy.zeros(len(states)),
        default_score=numpy.full(size_of(vocab_dim), _NEG),
        default_next=numpy.zeros(size_of(vocab_dim)),
        arc_start=numpy.cumsum(counts) - counts,
        arc_count=counts,
        arc_word=flat[:, 0].astype("int64"),
        arc_delta=flat[:, 1],
        arc_next=flat[:, 2].astype("int64"),
        start=2,
        dense_limit=dense_limit,
        label_dim=vocab_dim,
    )
