"""
Label-synchronous beam search: all hypotheses grow by one label in each step.

Shape letters: B batch dims, K beam, O the beam once more, N hypotheses returned, V labels.
"""

from __future__ import annotations

from collections.abc import Sequence

from .. import nn
from ._common import NEG, check_int, plain
from ._label_loop import LabelLoop, State, check_arguments, check_exponent, rank
from .hypotheses import Hypotheses
from .scorers import Scorer

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
    name = "beam_search"
    check_int(name, "beam_size", beam_size, at_least=1)
    check_int(name, "min_len", min_len, at_least=0)
    check_arguments(name, scorer, batch_dims=batch_dims, max_len=max_len, bos=bos, eos=eos)
    check_exponent(name, length_exponent)
    if num_best is None:
        num_best = beam_size
    check_int(name, "num_best", num_best, at_least=1)
    if num_best > beam_size:
        raise ValueError(f"{name}: num_best, expected at most the beam_size {beam_size}, got {num_best}")
    loop = LabelLoop(
        scorer,
        batch_dims=batch_dims,
        beam_dim=nn.Dim(beam_size, name="beam"),
        max_len=max_len,
        bos=bos,
        eos=eos,
        min_len=min_len,
    )
    return _BeamSearch(loop, length_exponent=float(length_exponent), num_best=num_best).run()


class _BeamSearch:
    """See :func:`beam_search`, which checks the arguments."""

    def __init__(self, loop: LabelLoop, *, length_exponent: float, num_best: int):
        self.loop = loop
        self.length_exponent = length_exponent
        self.num_best = num_best
        beam_size = loop.beam_dim.dimension
        assert beam_size is not None
        self.other_dim = nn.Dim(beam_size, name="other-beam")
        # Only then, what an unfinished hypothesis can still reach is known.
        self.can_stop_early = num_best < beam_size and not getattr(loop.scorer, "can_exceed_zero", False)

    def run(self) -> Hypotheses:
        # The empty hypothesis, and K - 1 unused entries.
        entries = nn.range_over_dim(self.loop.beam_dim, dtype="int32", device=self.loop.device)
        state = self.loop.initial_state(nn.where(nn.compare(entries, "equal", 0), 0.0, NEG), selects=True)
        state = self.loop.run(self._step, state)
        return self.loop.hypotheses(state, num_best=self.num_best, length_exponent=self.length_exponent)

    def _step(self, state: State) -> State:
        """
        :param state: of the K hypotheses so far
        :return: of the best K of their extensions, and of those that have ended
        """
        beam_dim, vocab_dim = self.loop.beam_dim, self.loop.vocab_dim
        scores, scorer_state = self.loop.extensions(state)
        # All open hypotheses have the same number of labels: those of the extensions include the new one.
        ranks = self._rank(scores, length=state["length"])
        _, indices, _ = nn.top_k(ranks, axis=[beam_dim, vocab_dim], k_dim=self.other_dim)
        assert isinstance(indices, Sequence)
        source, label = (plain(x) for x in indices)
        # First the labels {B, K, O}: what is selected in the end is the smaller part.
        score = nn.gather(nn.gather(scores, indices=label, axis=vocab_dim), indices=source, axis=beam_dim)
        source, label, score = (self._as_beam(x) for x in (source, label, score))
        selected = nn.nested.gather_nested(
            {"length": state["length"], "history": state["history"], "scorer": scorer_state},
            indices=nn.set_sparse_dim(source, beam_dim),
        )
        new = self.loop.extend(selected, label=label, score=score, scorer_state=selected["scorer"])
        return self._without_hopeless(new) if self.can_stop_early else new

    def _rank(self, score: nn.Tensor, *, length: nn.Tensor | int) -> nn.Tensor:
        return rank(score, length=length, length_exponent=self.length_exponent)

    def _without_hopeless(self, state: State) -> State:
        """Ends those open hypotheses that can't become one of the N best, not even if all that follows has prob 1."""
        is_open, best_dim = self.loop.is_open(state), nn.Dim(self.num_best, name="best")
        ended = nn.where(is_open, NEG, self._rank(state["score"], length=state["length"]))
        ended, _, _ = nn.top_k(ended, axis=self.loop.beam_dim, k_dim=best_dim)
        last_of_best = nn.reduce_min(ended, axis=best_dim)
        reachable = self._rank(state["score"], length=self.loop.max_len)
        hopeless = nn.logical_and(is_open, nn.compare_bc(reachable, "less_equal", last_of_best))
        return {**state, "score": nn.where(hopeless, NEG, state["score"])}

    def _as_beam(self, x: nn.Tensor) -> nn.Tensor:
        return nn.replace_dim(x, in_dim=self.other_dim, out_dim=self.loop.beam_dim)[0]
