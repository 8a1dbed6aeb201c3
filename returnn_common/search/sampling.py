"""
Label sequences drawn from what a scorer gives, instead of searched for.

Shape letters: B batch dims, K samples, V labels, C the candidates among them, most probable first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy

from .. import nn
from ._common import IMPOSSIBLE, NEG, check_int, plain
from ._label_loop import LabelLoop, State, check_arguments
from .hypotheses import Hypotheses
from .scorers import Scorer

__all__ = ["sample"]


def sample(
    scorer: Scorer,
    *,
    batch_dims: Sequence[nn.Dim],
    num_samples: int,
    max_len: int | nn.Tensor,
    bos: int,
    eos: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
) -> Hypotheses:
    """
    Independent draws, label by label, from the probabilities `softmax(log_probs / temperature)`, of which `top_k` and
    then `top_p` leave the most probable labels, renormalised. With neither, and temperature 1, each sequence comes with
    the probability that the scorer gives it. With `top_k=1`, all are the one of greedy search.

    A seed gives the same samples on every engine, but for rounding. The k-th sample of an utterance depends on neither
    the other utterances nor the number of samples; so utterances that are alike have the same samples.

    :param scorer: log probs of the next label; where they are not normalised, such as those of a mixture, softmax does
    :param batch_dims: B, the utterances
    :param num_samples: K, of each utterance
    :param max_len: see :func:`beam_search`
    :param bos: see :func:`beam_search`
    :param eos: see :func:`beam_search`
    :param temperature: above 0; below 1, the probable labels become more probable
    :param top_k: this many labels at most (Fan et al. 2018, https://arxiv.org/abs/1805.04833, section 5.3)
    :param top_p: the fewest labels that together have at least this probability, in (0, 1]
        (Holtzman et al. 2020, https://arxiv.org/abs/1904.09751, section 3.1)
    :param seed: at least 0
    :return: the samples, those with the highest scores first, drawn twice or not. The scores are those of the scorer,
        as from :func:`beam_search`: without temperature, `top_k` and `top_p`. Samples that came to where no label is
        possible have the score -inf.
    :raise ValueError, TypeError: an argument out of range, or of the wrong type
    """
    name = "sample"
    check_int(name, "num_samples", num_samples, at_least=1)
    check_int(name, "seed", seed, at_least=0)
    check_arguments(name, scorer, batch_dims=batch_dims, max_len=max_len, bos=bos, eos=eos)
    if not 0 < temperature < math.inf:
        raise ValueError(f"{name}: temperature, expected a number above 0, got {temperature!r}")
    if top_k is not None:
        check_int(name, "top_k", top_k, at_least=1)
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(f"{name}: top_p, expected a number above 0 and at most 1, got {top_p!r}")
    beam_dim = nn.Dim(num_samples, name="samples")
    loop = LabelLoop(scorer, batch_dims=batch_dims, beam_dim=beam_dim, max_len=max_len, bos=bos, eos=eos)

    def step(state: State) -> State:
        scores, scorer_state = loop.extensions(state)
        labels, probs, candidates = _most_probable(
            scores, dim=scorer.vocab_dim, temperature=float(temperature), k=top_k, p=top_p
        )
        numbers, generator = _draw(state["generator"])
        label = _choose(labels, probs, numbers, candidates=candidates)
        score = nn.gather(scores, indices=label, axis=scorer.vocab_dim)
        return {**loop.extend(state, label=label, score=score, scorer_state=scorer_state), "generator": generator}

    generator = _seeded(seed, dim=beam_dim, device=loop.device)
    state = loop.run(step, {**loop.initial_state(0.0, selects=False), "generator": generator})
    return loop.hypotheses(state, num_best=num_samples, length_exponent=0.0)


def _most_probable(
    scores: nn.Tensor, *, dim: nn.Dim, temperature: float, k: int | None, p: float | None
) -> tuple[nn.Tensor, nn.Tensor, nn.Dim]:
    """
    :param scores: {B, K, V}, of the hypothesis and the label
    :param dim: V
    :return: labels {B, K, C}, their probabilities (those of labels that are left out are 0) {B, K, C}, and C
    """
    size = dim.dimension
    assert size is not None
    candidates = nn.Dim(min(k or size, size), name="candidates")
    best, labels, _ = nn.top_k(scores, axis=dim, k_dim=candidates)
    assert isinstance(labels, nn.Tensor)
    logits = nn.combine_bc(best, "-", nn.reduce_max(best, axis=candidates)) * (1.0 / temperature)
    # What is impossible stays so at a high temperature.
    probs = nn.where(best > IMPOSSIBLE, nn.softmax(nn.maximum(logits, NEG), axis=candidates), 0.0)
    if p is not None:
        before = nn.cumsum(probs, spatial_dim=candidates) - probs
        probs = nn.where(before < p, probs, 0.0)
    return plain(labels), probs, candidates


def _choose(labels: nn.Tensor, probs: nn.Tensor, numbers: nn.Tensor, *, candidates: nn.Dim) -> nn.Tensor:
    """
    By the inverse of the cumulative distribution.

    :param labels: {B, K, C}
    :param probs: of each of them, {B, K, C}; their sum doesn't matter
    :param numbers: {K}, uniform in [0, 1)
    :param candidates: C
    :return: labels {B, K}
    """
    assert candidates.dimension is not None
    cumulative = nn.cumsum(probs, spatial_dim=candidates)
    total = nn.reduce_max(cumulative, axis=candidates)
    # A little less than the sum, so that rounding never chooses what has no probability.
    threshold = nn.combine_bc(total, "*", nn.minimum(numbers, 1.0 - 1e-6))
    chosen = nn.reduce_sum(nn.cast(nn.compare_bc(cumulative, "less_equal", threshold), "float32"), axis=candidates)
    chosen = nn.cast(nn.minimum(chosen, float(candidates.dimension - 1)), "int32")
    return plain(nn.gather(labels, indices=chosen, axis=candidates))


# Multipliers and moduli of the generator.
_WICHMANN_HILL = ((171.0, 30269.0), (172.0, 30307.0), (170.0, 30323.0))


def _seeded(seed: int, *, dim: nn.Dim, device: str) -> list[nn.Tensor]:
    """
    The generator of Wichmann and Hill (1982, https://doi.org/10.2307/2347988, algorithm AS 183). Its products are
    exact in single precision, so that it is the same on every engine, also inside of loops, where engines differ in
    the random numbers that they offer.

    :return: its state for each of dim: three numbers {dim}
    """
    assert dim.dimension is not None
    states = []
    for i, (_, modulus) in enumerate(_WICHMANN_HILL):
        values = numpy.random.default_rng([seed, i]).integers(1, int(modulus), size=dim.dimension).astype("float32")
        states.append(_from_numpy(values, dim=dim, device=device))
    return states


def _from_numpy(values: numpy.ndarray, *, dim: nn.Dim, device: str) -> nn.Tensor:
    """:return: {dim}"""
    if nn.get_selected_backend() != "returnn_layers_tf":
        return nn.copy_to_device(nn.convert_to_tensor(values, dims=[dim]), device)
    # In a net dict, a constant cannot be an array.
    entries = plain(nn.range_over_dim(dim, dtype="int32"))
    result = nn.constant(float(values[0]), dims=[dim], dtype="float32")
    for i, value in enumerate(values[1:], start=1):
        result = nn.where(nn.compare(entries, "equal", i), float(value), result)
    return result


def _draw(generator: Sequence[nn.Tensor]) -> tuple[nn.Tensor, list[nn.Tensor]]:
    """:return: next numbers, uniform in [0, 1), and the state after them"""
    after = [_modulo(x * a, m) for x, (a, m) in zip(generator, _WICHMANN_HILL, strict=True)]
    first, second, third = (x / m for x, (_, m) in zip(after, _WICHMANN_HILL, strict=True))
    return _modulo(first + second + third, 1.0), after


def _modulo(x: nn.Tensor, m: float) -> nn.Tensor:
    """not all engines have it; exact for integers"""
    half = 0.5 if m > 1 else 0.0
    return x - nn.floor((x + half) / m) * m
