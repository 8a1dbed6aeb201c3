"""
Label-synchronous beam search: all hypotheses grow by one label in each step.

Shape letters: B batch dims, K beam, O the beam once more, N hypotheses returned, V labels, L room for the longest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .. import nn
from ._common import IMPOSSIBLE, NEG, check_index, check_int, plain, while_loop
from .hypotheses import Hypotheses
from .scorers import Scorer, bounded_initial_state

__all__ = ["beam_search"]


def beam_search(
    scorer: Scorer,
    *,
    batch_dims: Sequence[nn.Dim],
    beam_size: int,
    max_len: int | nn.Tensor,
    bos: int,
    eos: int,
    length_exponent: float = 1.0,
    min_len: int = 0,
    num_best: int | None = None,
) -> Hypotheses:
    """
    The label sequences which the scorer gives the highest scores, ranked by
    `score / (number of labels + 1) ** length_exponent`: end of sentence counts as a label, in the score and in the
    length (the length normalisation of Wu et al. 2016, https://arxiv.org/abs/1609.08144, section 7, there with another
    function of the length; counting as in RETURNN's recognition setups).

    In each step, `beam_size` of all extensions of the hypotheses in the beam are kept: the best ones by that rank, with
    the labels so far as their number. Hypotheses that have ended stay in the beam as they are, as long as they are
    among the best. So with beam size 1, the search is greedy; with a beam that holds all hypotheses, the result is
    that of enumerating them.

    The search stops as soon as no unfinished hypothesis can become one of the `num_best` (for a scorer with
    `can_exceed_zero`: as soon as all in the beam have ended). `num_best=1` so takes the fewest steps.

    An utterance without any possible hypothesis (all end with a log prob of -inf) has entries with no labels and
    the score -inf; `nbest` lists none.

    :param scorer: log probs of the next label, e.g. :class:`DecoderScorer`, or several by :func:`combine`
    :param batch_dims: B, the utterances
    :param beam_size: K, may exceed V
    :param max_len: largest number of labels, end of sentence not counted, int or integer tensor {B}: where it is
        reached, only `eos` may follow. 0 allows only the empty hypothesis.
    :param bos: first of the scorer's `prev_labels`; never in a hypothesis
    :param eos: end of sentence; may equal `bos`
    :param length_exponent: 0 for no length normalisation, 1 for the average over the labels; at least 0
    :param min_len: labels before `eos` may follow (`max_len` has precedence)
    :param num_best: hypotheses per utterance, at most `beam_size`, which is the default
    :return: the beam has size `num_best`; unused entries have the score -inf
    :raise ValueError, TypeError: an argument out of range, or of the wrong type
    """
    name, dim = "beam_search", scorer.vocab_dim
    check_int(name, "beam_size", beam_size, at_least=1)
    check_int(name, "min_len", min_len, at_least=0)
    check_index(name, "bos", bos, dim)
    check_index(name, "eos", eos, dim)
    if not length_exponent >= 0:
        raise ValueError(f"{name}: length_exponent, expected at least 0, got {length_exponent!r}")
    if num_best is None:
        num_best = beam_size
    check_int(name, "num_best", num_best, at_least=1)
    if num_best > beam_size:
        raise ValueError(f"{name}: num_best, expected at most the beam_size {beam_size}, got {num_best}")
    return _BeamSearch(
        scorer=scorer,
        batch_dims=list(batch_dims),
        beam_size=beam_size,
        max_len=_as_lengths(name, max_len, batch_dims),
        bos=bos,
        eos=eos,
        length_exponent=float(length_exponent),
        min_len=min_len,
        num_best=num_best,
    ).run()


def _as_lengths(name: str, max_len: int | nn.Tensor, batch_dims: Sequence[nn.Dim]) -> int | nn.Tensor:
    if not isinstance(max_len, nn.Tensor):
        check_int(name, "max_len", max_len, at_least=0)
        return max_len
    if not max_len.dtype.startswith("int"):
        raise TypeError(f"{name}: max_len, expected an int or an integer tensor, got {max_len.dtype}")
    if not set(max_len.dims) <= set(batch_dims):
        raise ValueError(f"{name}: max_len, expected dims of {list(batch_dims)}, got {max_len}")
    return plain(max_len)


@dataclass
class _BeamSearch:
    """See :func:`beam_search`, which checks the arguments."""

    scorer: Scorer
    batch_dims: list[nn.Dim]
    beam_size: int
    max_len: int | nn.Tensor
    bos: int
    eos: int
    length_exponent: float
    min_len: int
    num_best: int

    def __post_init__(self):
        self.device = nn.get_default_device()
        self.vocab_dim = self.scorer.vocab_dim
        self.beam_dim = nn.Dim(self.beam_size, name="beam")
        self.other_dim = nn.Dim(self.beam_size, name="other-beam")
        self.best_dim = nn.Dim(self.num_best, name="best")
        self.dims = [*self.batch_dims, self.beam_dim]
        labels = plain(nn.range_over_dim(self.vocab_dim, dtype="int32", device=self.device))
        self.is_eos = nn.compare(labels, "equal", self.eos)
        self.is_label = nn.logical_and(nn.logical_not(self.is_eos), nn.compare(labels, "not_equal", self.bos))
        if isinstance(self.max_len, int):
            self.room_dim = nn.Dim(max(self.max_len, 1), name="room")
        else:
            longest = nn.reduce_max(self.max_len, axis=self.max_len.dims) if self.max_len.dims else self.max_len
            self.room_dim = nn.Dim(nn.copy_to_device(nn.relu(longest - 1) + 1, "cpu"), name="room")
            self.max_len = nn.copy_to_device(self.max_len, self.device)
        self.positions = plain(nn.range_over_dim(self.room_dim, dtype="int32", device=self.device))
        # Only then, what an unfinished hypothesis can still reach is known.
        self.can_stop_early = self.num_best < self.beam_size and not getattr(self.scorer, "can_exceed_zero", False)

    def run(self) -> Hypotheses:
        # The first step is outside of the loop: after it, the dims of the scorer's state are those that stay.
        state = self._step(self._initial_state())
        return self._finish(while_loop(self._goes_on, self._step, state))

    def _initial_state(self) -> dict[str, Any]:
        """The empty hypothesis, and K - 1 unused entries."""
        first = nn.compare(nn.range_over_dim(self.beam_dim, dtype="int32", device=self.device), "equal", 0)
        return {
            "score": nn.where(first, self._full(0.0, "float32"), NEG),
            "ended": self._full(0.0, "float32"),  # 1 or 0
            "length": self._full(0),
            "last": nn.set_sparse_dim(self._full(self.bos), self.vocab_dim),
            # {B, K, L}, -1 after the hypothesis' end
            "history": nn.constant(-1, dims=[*self.dims, self.room_dim], dtype="int32", device=self.device),
            "scorer": bounded_initial_state(self.scorer, batch_dims=self.dims, max_steps=self.max_len + 1),
        }

    def _full(self, value: float, dtype: str = "int32") -> nn.Tensor:
        return nn.constant(value, dims=self.dims, dtype=dtype, device=self.device)

    def _goes_on(self, state: dict[str, Any]) -> nn.Tensor:
        """:return: whether there is an unfinished hypothesis, scalar"""
        return nn.copy_to_device(nn.reduce_any(self._is_open(state), axis=self.dims), "cpu")

    def _is_open(self, state: dict[str, Any]) -> nn.Tensor:
        return nn.logical_and(state["score"] > IMPOSSIBLE, state["ended"] < 0.5)

    def _step(self, state: dict[str, Any]) -> dict[str, Any]:
        """
        :param state: of the K hypotheses so far
        :return: of the best K of their extensions, and of those that have ended
        """
        log_probs, scorer_state = self.scorer.score(state["last"], state["scorer"])
        candidates = self._candidates(log_probs, state)
        # All open hypotheses have the same number of labels: those of the extensions include the new one.
        ranks = self._rank(candidates, length=state["length"])
        _, indices, _ = nn.top_k(ranks, axis=[self.beam_dim, self.vocab_dim], k_dim=self.other_dim)
        assert isinstance(indices, Sequence)
        source, label = (self._as_beam(plain(x)) for x in indices)

        def take(x: nn.Tensor) -> nn.Tensor:
            return nn.gather(x, indices=source, axis=self.beam_dim)

        score = nn.gather(take(candidates), indices=label, axis=self.vocab_dim)
        score = nn.where(score > IMPOSSIBLE, score, NEG)
        is_eos = nn.compare(label, "equal", self.eos)
        length = take(state["length"])
        append = nn.logical_and(nn.compare_bc(self.positions, "equal", length), nn.logical_not(is_eos))
        new = {
            "score": score,
            "ended": nn.cast(is_eos, "float32"),
            "length": length + nn.cast(nn.logical_not(is_eos), "int32"),
            "last": nn.set_sparse_dim(label, self.vocab_dim),
            "history": nn.where(append, label, take(state["history"])),
            "scorer": nn.nested.gather_nested(scorer_state, indices=nn.set_sparse_dim(source, self.beam_dim)),
        }
        return self._without_hopeless(new) if self.can_stop_early else new

    def _candidates(self, log_probs: nn.Tensor, state: dict[str, Any]) -> nn.Tensor:
        """
        :param log_probs: {B, K, V}
        :return: scores {B, K, V}; what has ended continues in the place of `eos`
        """
        score, length, is_open = state["score"], state["length"], self._is_open(state)
        total = nn.combine_bc(score, "+", nn.maximum(nn.cast(log_probs, "float32"), NEG))
        may_go_on = nn.logical_and(is_open, nn.compare_bc(length, "less", self.max_len))
        may_end = nn.compare(length, "greater_equal", self.min_len)
        may_end = nn.logical_and(is_open, nn.logical_or(may_end, nn.logical_not(may_go_on)))
        # Also here: where() rather than adding NEG, in case that the scorer gives NaN for hypotheses not in use.
        ending = nn.where(may_end, nn.gather(total, indices=self.eos, axis=self.vocab_dim), NEG)
        ending = nn.where(state["ended"] < 0.5, ending, score)
        going_on = nn.where(nn.combine_bc(may_go_on, "logical_and", self.is_label), total, NEG)
        return nn.where(self.is_eos, ending, going_on)

    def _rank(self, score: nn.Tensor, *, length: nn.Tensor | int) -> nn.Tensor:
        """:return: score, normalised by length + 1"""
        if not self.length_exponent:
            return score
        # A division: with some engines of RETURNN, x ** -1.0 is -x.
        if isinstance(length, int):
            normalised = score / float(length + 1) ** self.length_exponent
        else:
            normalised = nn.combine_bc(score, "/", (nn.cast(length, "float32") + 1.0) ** self.length_exponent)
        return nn.where(score > IMPOSSIBLE, normalised, NEG)

    def _without_hopeless(self, state: dict[str, Any]) -> dict[str, Any]:
        """Ends those open hypotheses that can't become one of the N best, not even if all that follows has prob 1."""
        is_open = self._is_open(state)
        ended = nn.where(is_open, NEG, self._rank(state["score"], length=state["length"]))
        ended, _, _ = nn.top_k(ended, axis=self.beam_dim, k_dim=self.best_dim)
        last_of_best = nn.reduce_min(ended, axis=self.best_dim)
        reachable = self._rank(state["score"], length=self.max_len)
        hopeless = nn.logical_and(is_open, nn.compare_bc(reachable, "less_equal", last_of_best))
        return {**state, "score": nn.where(hopeless, NEG, state["score"])}

    def _as_beam(self, x: nn.Tensor) -> nn.Tensor:
        return nn.replace_dim(x, in_dim=self.other_dim, out_dim=self.beam_dim)[0]

    def _finish(self, state: dict[str, Any]) -> Hypotheses:
        ranks = nn.where(state["ended"] < 0.5, NEG, self._rank(state["score"], length=state["length"]))
        _, order, _ = nn.top_k(ranks, axis=self.beam_dim, k_dim=self.best_dim)
        score, length, labels = (
            nn.gather(state[k], indices=plain(order), axis=self.beam_dim) for k in ("score", "length", "history")
        )
        possible = score > IMPOSSIBLE
        length = nn.where(possible, length, 0)
        out_dim = nn.Dim(nn.copy_to_device(length, "cpu"), name="labels")
        positions = plain(nn.range_over_dim(out_dim, dtype="int32", device=self.device))
        labels = nn.gather(labels, indices=positions, axis=self.room_dim)
        labels = nn.where(nn.compare_bc(positions, "less", length), labels, 0)
        return Hypotheses(
            labels=nn.set_sparse_dim(labels, self.vocab_dim),
            scores=nn.where(possible, score, float("-inf")),
            beam_dim=self.best_dim,
            spatial_dim=out_dim,
        )
