"""
What label-synchronous searches share: hypotheses that all grow by one label in each step.

Shape letters: B batch dims, K beam, N hypotheses returned, V labels, L room for the longest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .. import nn
from ._common import IMPOSSIBLE, NEG, as_scale, check_index, check_int, check_scorer, finite, plain, while_loop
from .hypotheses import Hypotheses
from .scorers import Scorer, bounded_initial_state, score_next

__all__ = ["LabelLoop", "State", "check_arguments", "check_exponent", "rank"]

State = dict[str, Any]


def check_arguments(
    name: str, scorer: Scorer, *, batch_dims: Sequence[nn.Dim], max_len: int | nn.Tensor, bos: int, eos: int
):
    """
    :param name: of the function that got the arguments
    :raise ValueError, TypeError: an argument out of range, or of the wrong type
    """
    check_scorer(f"{name}: scorer", scorer)
    if isinstance(batch_dims, nn.Dim) or not all(isinstance(dim, nn.Dim) for dim in batch_dims):
        raise TypeError(f"{name}: batch_dims, expected a sequence of dims, got {batch_dims!r}")
    check_index(name, "bos", bos, scorer.vocab_dim)
    check_index(name, "eos", eos, scorer.vocab_dim)
    if not isinstance(max_len, nn.Tensor):
        check_int(name, "max_len", max_len, at_least=0)
        return
    if not max_len.dtype.startswith("int"):
        raise TypeError(f"{name}: max_len, expected an int or an integer tensor, got {max_len.dtype}")
    if not set(max_len.dims) <= set(batch_dims):
        raise ValueError(f"{name}: max_len, expected dims of {list(batch_dims)}, got {max_len}")


def check_exponent(name: str, length_exponent: float):
    """:raise ValueError: not a finite number of at least 0"""
    if as_scale(name, "length_exponent", length_exponent) < 0:
        raise ValueError(f"{name}: length_exponent, expected at least 0, got {length_exponent!r}")


class LabelLoop:
    """
    The loop, its state, and what becomes of it. What the search adds is which extensions are kept.

    :param scorer: of the next label
    :param batch_dims: B
    :param beam_dim: K, static
    :param max_len: labels at most, int or {B}
    :param bos: first of the scorer's `prev_labels`; never in a hypothesis
    :param eos: end of sentence
    :param min_len: labels before `eos` may follow (`max_len` has precedence)
    """

    def __init__(
        self,
        scorer: Scorer,
        *,
        batch_dims: Sequence[nn.Dim],
        beam_dim: nn.Dim,
        max_len: int | nn.Tensor,
        bos: int,
        eos: int,
        min_len: int = 0,
    ):
        self.scorer, self.vocab_dim = scorer, scorer.vocab_dim
        self.beam_dim, self.dims = beam_dim, [*batch_dims, beam_dim]
        self.bos, self.eos, self.min_len = bos, eos, min_len
        self.device = nn.get_default_device()
        labels = plain(nn.range_over_dim(self.vocab_dim, dtype="int32", device=self.device))
        self.is_eos = nn.compare(labels, "equal", eos)
        self.is_label = nn.logical_and(nn.logical_not(self.is_eos), nn.compare(labels, "not_equal", bos))
        if isinstance(max_len, int):
            self.room_dim = nn.Dim(max(max_len, 1), name="room")
        else:
            max_len = plain(max_len)
            longest = nn.reduce_max(max_len, axis=max_len.dims) if max_len.dims else max_len
            self.room_dim = nn.Dim(nn.copy_to_device(nn.relu(longest - 1) + 1, "cpu"), name="room")
            max_len = nn.copy_to_device(max_len, self.device)
        self.max_len = max_len
        self.positions = plain(nn.range_over_dim(self.room_dim, dtype="int32", device=self.device))

    def initial_state(self, score: nn.Tensor | float, *, selects: bool) -> State:
        """
        :param score: of the empty hypothesis, {K}; NEG for entries not in use
        :param selects: whether hypotheses are selected from the beam, which gives them a common history
        :return: tensors {B, K} unless said otherwise
        """
        return {
            "score": nn.combine_bc(self._full(0.0, "float32"), "+", score),
            "ended": self._full(0.0, "float32"),  # 1 or 0
            "length": self._full(0),
            "last": nn.set_sparse_dim(self._full(self.bos), self.vocab_dim),
            # {B, K, L}, -1 after the hypothesis' end
            "history": nn.constant(-1, dims=[*self.dims, self.room_dim], dtype="int32", device=self.device),
            "scorer": bounded_initial_state(
                self.scorer,
                batch_dims=self.dims,
                beam_dim=self.beam_dim if selects else None,
                max_steps=self.max_len + 1,
            ),
        }

    def _full(self, value: float, dtype: str = "int32") -> nn.Tensor:
        return nn.constant(value, dims=self.dims, dtype=dtype, device=self.device)

    def run(self, step: Callable[[State], State], state: State) -> State:
        """
        :param step: state -> state with one label more
        :return: state when all hypotheses have ended
        """
        # The first step is outside of the loop: after it, the dims of the scorer's state are those that stay.
        return while_loop(self._goes_on, step, step(state))

    def _goes_on(self, state: State) -> nn.Tensor:
        """:return: whether there is an unfinished hypothesis, scalar"""
        return nn.copy_to_device(nn.reduce_any(self.is_open(state), axis=self.dims), "cpu")

    def is_open(self, state: State) -> nn.Tensor:
        """:return: whether a hypothesis is one, and has not ended, {B, K}"""
        return nn.logical_and(state["score"] > IMPOSSIBLE, state["ended"] < 0.5)

    def extensions(self, state: State) -> tuple[nn.Tensor, Any]:
        """
        :return: scores of the hypotheses with one label more, {B, K, V}; what has ended continues in the place of
            `eos`. And the scorer's new state.
        """
        log_probs, scorer_state = score_next(self.scorer, state["last"], state["scorer"])
        score, length, is_open = state["score"], state["length"], self.is_open(state)
        total = nn.combine_bc(score, "+", finite(log_probs))
        may_go_on = nn.logical_and(is_open, nn.compare_bc(length, "less", self.max_len))
        may_end = nn.compare(length, "greater_equal", self.min_len)
        may_end = nn.logical_and(is_open, nn.logical_or(may_end, nn.logical_not(may_go_on)))
        # Also here: where() rather than adding NEG, in case that the scorer gives NaN for hypotheses not in use.
        ending = nn.where(may_end, nn.gather(total, indices=self.eos, axis=self.vocab_dim), NEG)
        ending = nn.where(state["ended"] < 0.5, ending, score)
        going_on = nn.where(nn.combine_bc(may_go_on, "logical_and", self.is_label), total, NEG)
        return nn.where(self.is_eos, ending, going_on), scorer_state

    def extend(self, state: State, *, label: nn.Tensor, score: nn.Tensor, scorer_state: Any) -> State:
        """
        :param state: of the hypotheses that go on
        :param label: {B, K}, the next of each
        :param score: {B, K}, with that label
        :param scorer_state: after their last label
        """
        is_eos = nn.compare(label, "equal", self.eos)
        append = nn.logical_and(nn.compare_bc(self.positions, "equal", state["length"]), nn.logical_not(is_eos))
        return {
            "score": nn.where(score > IMPOSSIBLE, score, NEG),
            "ended": nn.cast(is_eos, "float32"),
            "length": state["length"] + nn.cast(nn.logical_not(is_eos), "int32"),
            "last": nn.set_sparse_dim(label, self.vocab_dim),
            "history": nn.where(append, label, state["history"]),
            "scorer": scorer_state,
        }

    def hypotheses(self, state: State, *, num_best: int, length_exponent: float) -> Hypotheses:
        """
        :param state: the last one
        :param num_best: N, at most K
        :param length_exponent: of the rank, see :func:`rank`
        """
        best_dim = nn.Dim(num_best, name="best")
        ranks = rank(state["score"], length=state["length"], length_exponent=length_exponent)
        _, order, _ = nn.top_k(nn.where(state["ended"] < 0.5, NEG, ranks), axis=self.beam_dim, k_dim=best_dim)
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
            beam_dim=best_dim,
            spatial_dim=out_dim,
        )


def rank(score: nn.Tensor, *, length: nn.Tensor | int, length_exponent: float) -> nn.Tensor:
    """:return: score, normalised by length + 1"""
    if not length_exponent:
        return score
    # A division: with some engines of RETURNN, x ** -1.0 is -x.
    if isinstance(length, int):
        normalised = score / float(length + 1) ** length_exponent
    else:
        normalised = nn.combine_bc(score, "/", (nn.cast(length, "float32") + 1.0) ** length_exponent)
    return nn.where(score > IMPOSSIBLE, normalised, NEG)
