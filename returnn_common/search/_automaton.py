"""
Finite automata over labels with scores, looked up on the frontend: what n-gram models and phrase biasing run.

Shape letters: B batch dims, S states, W words (what the automaton is over), L levels, A arcs.

Each state has a chain of at most L states, itself among them, from which it inherits arcs: `chain {S, L}`, filled up
with state 0, which has no arcs. The score and the next state after a word w are, in a state s::

    score(s, w) = total[s] + default_score[w] + sum of arc_delta over the arcs for w in the chain of s
    next(s, w)  = the largest of default_next[w] and arc_next of these arcs

A small automaton is looked up in one table {S * W}. For a large one, the arcs of a state are read from the arrays of
all arcs, in which they lie side by side, sorted by word.

Numbers of states and positions are float32 on the engines, exact to 2**24: with integers, not all of them can do what
is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy

from .. import nn
from ._common import IMPOSSIBLE

__all__ = ["Automaton", "AutomatonScorer", "AutomatonState"]

AutomatonState = dict[str, nn.Tensor]
MAX_EXACT = 2**24


@dataclass
class Automaton:
    """
    :param chain: {S, L}
    :param total: {S}
    :param default_score: {W}, natural log; below -1e29: impossible
    :param default_next: {W}
    :param arc_start: {S}, of its arcs
    :param arc_count: {S}
    :param arc_word: {A}
    :param arc_delta: {A}
    :param arc_next: {A}
    :param start: state in which a sequence begins
    :param dense_limit: S * W up to which it is one table
    :param label_dim: V, of what comes in and goes out; None: `word_dim`
    :param word_of_label: {V}, None: the words are the labels
    """

    chain: numpy.ndarray
    total: numpy.ndarray
    default_score: numpy.ndarray
    default_next: numpy.ndarray
    arc_start: numpy.ndarray
    arc_count: numpy.ndarray
    arc_word: numpy.ndarray
    arc_delta: numpy.ndarray
    arc_next: numpy.ndarray
    start: int
    dense_limit: int
    label_dim: nn.Dim | None = None
    word_of_label: numpy.ndarray | None = None

    def __post_init__(self):
        self.num_states, self.num_levels = self.chain.shape
        self.num_words = len(self.default_score)
        self.is_dense = self.num_states * self.num_words <= min(self.dense_limit, MAX_EXACT)
        self._tensors: dict[Any, dict[str, nn.Tensor]] = {}
        self.word_dim = nn.Dim(self.num_words, name="words")
        self.label_dim = self.label_dim or self.word_dim
        self.level_dim = nn.Dim(self.num_levels, name="levels")
        self.state_dim = nn.Dim(self.num_states, name="states")
        self.flat_dim = nn.Dim(self.num_states * self.num_words, name="states-and-words")
        self.arc_dim = nn.Dim(len(self.arc_word) + 1, name="arcs")

    @cached_property
    def arrays(self) -> dict[str, tuple[list[nn.Dim], numpy.ndarray]]:
        """:return: what is looked up: name -> dims, values"""
        arrays: dict[str, tuple[list[nn.Dim], numpy.ndarray]] = {}
        assert self.label_dim is not None
        if self.word_of_label is not None:
            arrays["word"] = ([self.label_dim], self.word_of_label)
        if self.is_dense:
            scores, following = self.dense()
            arrays["score"] = ([self.state_dim, self.word_dim], scores)
            arrays["next"] = ([self.flat_dim], following.ravel())
            return {name: (dims, array.astype("float32")) for name, (dims, array) in arrays.items()}
        arc_word = numpy.append(self.arc_word, -1)  # never empty
        arrays |= {
            "start": ([self.state_dim, self.level_dim], self.arc_start[self.chain]),
            "end": ([self.state_dim, self.level_dim], (self.arc_start + self.arc_count)[self.chain]),
            "total": ([self.state_dim], self.total),
            "default_score": ([self.word_dim], self.default_score),
            "default_next": ([self.word_dim], self.default_next),
            "arc_word": ([self.arc_dim], arc_word),
            "arc_delta": ([self.arc_dim], numpy.append(self.arc_delta, 0.0)),
            "arc_next": ([self.arc_dim], numpy.append(self.arc_next, 0)),
        }
        return {name: (dims, array.astype("float32")) for name, (dims, array) in arrays.items()}

    def dense(self) -> tuple[numpy.ndarray, numpy.ndarray]:
        """:return: score, next; each {S, W}, float32"""
        scores = (self.total[:, None] + self.default_score).astype("float32")
        following = numpy.tile(self.default_next.astype("float32"), (self.num_states, 1))
        for level in range(self.num_levels):
            start, count = self.arc_start[self.chain[:, level]], self.arc_count[self.chain[:, level]]
            rows = numpy.repeat(numpy.arange(self.num_states), count)
            arcs = numpy.arange(len(rows)) + numpy.repeat(start - numpy.cumsum(count) + count, count)
            where = rows, self.arc_word[arcs]
            scores[where] += self.arc_delta[arcs]
            following[where] = numpy.maximum(following[where], self.arc_next[arcs])
        return scores, following

    def tables(self, device: str | None) -> dict[str, nn.Tensor]:
        """:return: the arrays as tensors; kept, where the engine is eager"""
        backend = nn.get_selected_backend()
        device = None if backend == "returnn_layers_tf" else device
        keep = backend == "returnn_layers_tf" or (nn.is_executing_eagerly() and not nn.is_static_traceable())
        if keep and (backend, device) in self._tensors:
            return self._tensors[backend, device]
        tensors = {
            name: nn.convert_to_tensor(array, dims=dims, device=device) for name, (dims, array) in self.arrays.items()
        }
        if keep:
            self._tensors[backend, device] = tensors
        return tensors

    def initial_state(self, batch_dims: Any) -> AutomatonState:
        """:return: before the begin of sentence. -1 stands for that: whatever label comes, it is the begin."""
        # Layers of the network that is being made: in its loops, there can be no constants that are arrays.
        self._tensors = {key: x for key, x in self._tensors.items() if key[0] != "returnn_layers_tf"}
        if nn.get_selected_backend() == "returnn_layers_tf":
            self.tables(None)
        return {"state": nn.constant(-1.0, dims=batch_dims, dtype="float32")}

    def step(self, labels: nn.Tensor, state: AutomatonState) -> tuple[nn.Tensor, AutomatonState]:
        """
        :param labels: {B}
        :param state: before these labels
        :return: scores of the next {B, V}, -inf where impossible; state
        """
        tables = self.tables(labels.device)
        words = nn.cast(labels, "float32")
        assert self.label_dim is not None
        if self.word_of_label is not None:
            words = self._at(tables["word"], words, self.label_dim)
        before = state["state"]
        following = self._next(words, nn.maximum(before, 0.0), tables)
        after = nn.where(before < -0.5, float(self.start), following)
        indices = nn.set_sparse_dim(nn.cast(after, "int32"), self.state_dim)
        if self.is_dense:
            scores = nn.gather(tables["score"], indices=indices, axis=self.state_dim)
        else:
            total = nn.gather(tables["total"], indices=indices, axis=self.state_dim)
            scores = nn.combine_bc(total, "+", tables["default_score"])
            if len(self.arc_word):
                scores = scores + self._deltas(indices, tables)
        scores = nn.where(scores < IMPOSSIBLE, float("-inf"), scores)
        if self.word_of_label is not None:
            scores = self._at(scores, tables["word"], self.word_dim)
        elif self.label_dim != self.word_dim:
            scores, _ = nn.replace_dim(scores, in_dim=self.word_dim, out_dim=self.label_dim)
        return scores, {"state": after}

    def _next(self, words: nn.Tensor, state: nn.Tensor, tables: dict[str, nn.Tensor]) -> nn.Tensor:
        if self.is_dense:
            indices = nn.cast(state * float(self.num_words) + words, "int32")
            return nn.gather(tables["next"], indices=nn.set_sparse_dim(indices, self.flat_dim), axis=self.flat_dim)
        default = self._at(tables["default_next"], words, self.word_dim)
        if not len(self.arc_word):
            return default
        position, found = self._find(words, nn.set_sparse_dim(nn.cast(state, "int32"), self.state_dim), tables)
        following = self._at(tables["arc_next"], position, self.arc_dim) * found
        # found is 0 or 1, so that this is 0 where there is no arc: never larger than the default
        return nn.maximum(nn.reduce_max(following, axis=self.level_dim), default)

    def _find(self, words: nn.Tensor, indices: nn.Tensor, tables: dict[str, nn.Tensor]) -> tuple[nn.Tensor, nn.Tensor]:
        """
        Binary search.

        :param words: {B} or {W}
        :param indices: {B}, states
        :return: position of the arc, and whether there is one, 1 or 0. Both {B, L} or {B, L, W}
        """
        start, end = (nn.gather(tables[name], indices=indices, axis=self.state_dim) for name in ("start", "end"))
        position = nn.combine_bc(start, "+", words * 0.0)  # the last one of those whose word is not larger, from here
        step = 1 << max(int(self.arc_count.max()) - 1, 0).bit_length()
        while step:
            candidate = position + float(step)
            word = self._at(tables["arc_word"], nn.minimum(candidate, float(len(self.arc_word))), self.arc_dim)
            smaller = nn.logical_and(nn.compare_bc(candidate, "<", end), nn.compare_bc(word, "<=", words))
            position = nn.where(smaller, candidate, position)
            step //= 2
        word = self._at(tables["arc_word"], position, self.arc_dim)
        found = nn.logical_and(nn.compare_bc(position, "<", end), nn.compare_bc(word, "==", words))
        return position, nn.cast(found, "float32")

    def _deltas(self, indices: nn.Tensor, tables: dict[str, nn.Tensor]) -> nn.Tensor:
        """
        :param indices: {B}, states
        :return: {B, W}, sum over the chain
        """
        if nn.get_selected_backend() == "returnn_layers_tf":  # no scatter there
            words = nn.cast(nn.range_over_dim(self.word_dim, dtype="int32"), "float32")
            position, found = self._find(words, indices, tables)
            deltas = self._at(tables["arc_delta"], position, self.arc_dim) * found
            return nn.reduce_sum(deltas, axis=self.level_dim)
        start, end = (nn.gather(tables[name], indices=indices, axis=self.state_dim) for name in ("start", "end"))
        result = None
        for level, longest in enumerate(self._longest):
            first, last = (nn.gather(x, indices=level, axis=self.level_dim) for x in (start, end))
            if (
                nn.get_selected_backend() == "torch"
            ):  # any shape is fine, so only as long as it has to be: no `tensors_only`
                count = last - first
                longest = int(nn.reduce_max(count, axis=count.dims).raw_tensor) if count.dims else longest
            if not longest:
                continue
            range_dim = nn.Dim(longest, name="arcs-of-state")
            offset = nn.cast(nn.range_over_dim(range_dim, dtype="int32", device=indices.device), "float32")
            position = nn.combine_bc(first, "+", offset)
            valid = nn.compare_bc(position, "<", last)
            position = nn.where(valid, position, float(len(self.arc_word)))
            delta = self._at(tables["arc_delta"], position, self.arc_dim)  # 0 where not valid
            word = nn.maximum(self._at(tables["arc_word"], position, self.arc_dim), 0.0)
            word = nn.set_sparse_dim(nn.cast(word, "int32"), self.word_dim)
            delta = nn.scatter(delta, indices=word, indices_dim=range_dim, out_dim=self.word_dim, use_mask=False)
            result = delta if result is None else result + delta
        return nn.zeros([*indices.dims, self.word_dim], device=indices.device) if result is None else result

    @cached_property
    def _longest(self) -> list[int]:
        """:return: for each level, arcs of a state at most"""
        return [int(self.arc_count[self.chain[:, level]].max()) for level in range(self.num_levels)]

    @staticmethod
    def _at(table: nn.Tensor, position: nn.Tensor, dim: nn.Dim) -> nn.Tensor:
        """
        :param table: {..., dim}
        :param position: any shape, float32
        """
        return nn.gather(table, indices=nn.set_sparse_dim(nn.cast(position, "int32"), dim), axis=dim)


class AutomatonScorer:
    """
    What the scorers that are automata have in common: see :class:`.scorers.Scorer`.

    :param automaton: over the labels
    """

    def __init__(self, automaton: Automaton):
        assert automaton.label_dim is not None
        self.vocab_dim = automaton.label_dim
        self._automaton = automaton

    @property
    def num_states(self) -> int:
        """histories that differ in what may follow, or in its scores"""
        return self._automaton.num_states

    @property
    def tensors_only(self) -> bool:
        """see :class:`Scorer`"""
        return self._automaton.is_dense

    def initial_state(self, *, batch_dims: Sequence[nn.Dim]) -> AutomatonState:
        """
        :param batch_dims: B
        :return: "state" {B}
        """
        return self._automaton.initial_state(batch_dims)

    def score(self, prev_labels: nn.Tensor, state: AutomatonState) -> tuple[nn.Tensor, AutomatonState]:
        """
        :param prev_labels: {B}
        :param state: before them
        :return: scores {B, V}, -inf where impossible; new state
        """
        return self._automaton.step(prev_labels, state)
