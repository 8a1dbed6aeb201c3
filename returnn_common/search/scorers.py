"""
Scorers: what gives a search the log probabilities of the next label, given those before it.

Shape letters: B batch dims (with the beam, once there is one), V labels.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from .. import nn
from ._common import IMPOSSIBLE, as_scale, check_scorer, scale_log_probs, type_name

__all__ = ["DecoderScorer", "Scorer", "combine"]


class Scorer(Protocol):
    """
    Any object with these is a scorer: ours, yours. Nobody inherits from it.

    vocab_dim: V, of the labels, end of sentence included.

    A scorer whose scores can be above zero, such as a difference of log probabilities, also has
    `can_exceed_zero = True`: then a search cannot know that a hypothesis only gets worse the longer it is.

    One that only computes with tensors (it draws no random numbers, keeps nothing from call to call, and takes no value
    out of a tensor) may have `tensors_only = True`: then CTC prefix beam search on PyTorch calls it for the first
    frames, and repeats what it did (see :func:`returnn_common.nn.fold_over`), in a fraction of the time.
    """

    vocab_dim: nn.Dim

    def initial_state(self, *, batch_dims: Sequence[nn.Dim]) -> Any:
        """
        It may also take `capacity` and `beam_dim`, see :class:`DecoderScorer`; a search tells what it knows of them.

        :param batch_dims: B
        :return: any nested structure that `nn.nested` handles, of tensors and dims. The search selects from its
            tensors along the beam dim, those without it are shared.
        """
        ...

    def score(self, prev_labels: nn.Tensor, state: Any) -> tuple[nn.Tensor, Any]:
        """
        :param prev_labels: {B}, sparse over V, at the first step the begin of sentence. Hypotheses that have
            ended are passed on as well, with end of sentence; what comes out for them is not used.
        :param state: `initial_state` or the state that the step before returned, with hypotheses selected
        :return: log_probs {B, V}, natural log, of the next label (-inf or NaN: impossible); and the new state
        """
        ...


class DecoderScorer:
    """
    A decoder of an attention model, or a language model, as a scorer: softmax over its logits.

    :param decoder: module with `vocab_dim`, `default_initial_state(*, batch_dims)` and
        `decoder(labels, *, spatial_dim, state, encoder=None) -> (logits, new_state)`,
        e.g. :class:`returnn.frontend.decoder.transformer.TransformerDecoder`
    :param encoder: what its `transform_encoder(encoded, *, axis)` returned; None for a language model
    :param capacity: steps at most, int or scalar, for a decoder whose `default_initial_state` takes it: then no shape
        in its state changes. None: :func:`beam_search` tells it, on the engines where it matters.
    """

    def __init__(self, decoder: Any, encoder: Any = None, *, capacity: int | nn.Tensor | None = None):
        self.decoder = decoder
        self.encoder = encoder
        self.capacity = capacity
        self.vocab_dim: nn.Dim = decoder.vocab_dim

    def initial_state(
        self,
        *,
        batch_dims: Sequence[nn.Dim],
        capacity: int | nn.Tensor | None = None,
        beam_dim: nn.Dim | None = None,
    ) -> Any:
        """
        :param batch_dims: B
        :param capacity: steps at most, where the scorer has none of its own
        :param beam_dim: the one of B whose entries are hypotheses of the same utterance, for a decoder whose
            `default_initial_state` takes it: then they can share what they have in common
        :return: the decoder's
        """
        capacity = capacity if self.capacity is None else self.capacity
        return _call_with(
            self.decoder.default_initial_state, batch_dims=batch_dims, capacity=capacity, beam_dim=beam_dim
        )

    def score(self, prev_labels: nn.Tensor, state: Any) -> tuple[nn.Tensor, Any]:
        """
        :param prev_labels: {B}
        :param state: the decoder's
        :return: log_probs {B, V} in float32, new state
        """
        kwargs = {} if self.encoder is None else {"encoder": self.encoder}
        logits, state = self.decoder(prev_labels, spatial_dim=nn.single_step_dim, state=state, **kwargs)
        return nn.log_softmax(nn.cast(logits, "float32"), axis=self.vocab_dim), state


def combine(scorers: Sequence[tuple[Scorer, float]]) -> Scorer:
    """
    Log-linear mixture, a scorer again: `sum(scale * log_probs)`, not normalised. So for ensembles of models, shallow
    fusion (Gulcehre et al. 2015, https://arxiv.org/abs/1503.03535, equation 6), density ratio
    (McDermott et al. 2019, https://arxiv.org/abs/2002.11268, equation 7) and subtraction of an internal LM.

    A label that one of them rules out (-inf) is ruled out, whatever its scale. One with scale 0 is ignored,
    it is not even called.

    Their vocabularies must have the same size; the first one's dim is that of the mixture. Where dims have a
    RETURNN vocabulary (`dim.vocab`), its labels must be the same.

    :param scorers: pairs of scorer and scale, which may be negative
    :raise ValueError: no pairs, no scale but 0 or one that isn't finite, or different vocabularies
    :raise TypeError: what is no scorer, or no pair
    """
    pairs = list(scorers)
    for i, pair in enumerate(pairs):
        if not isinstance(pair, Sequence) or len(pair) != 2:
            raise TypeError(f"combine: scorer {i}, expected a pair of scorer and scale, got {type_name(pair)}")
        check_scorer(f"combine: scorer {i}", pair[0])
    parts = [(scorer, as_scale("combine", f"scale {i}", scale)) for i, (scorer, scale) in enumerate(pairs)]
    if not any(scale for _, scale in parts):
        raise ValueError(f"combine: expected at least one scorer with a scale other than 0, got {pairs}")
    first = parts[0][0].vocab_dim
    for i, (scorer, _) in enumerate(parts):
        _check_vocab(f"combine: scorer {i} ({type(scorer).__name__})", scorer.vocab_dim, first)
    return _Combined([(scorer, scale) for scorer, scale in parts if scale], vocab_dim=first)


def bounded_initial_state(
    scorer: Scorer,
    *,
    batch_dims: Sequence[nn.Dim],
    max_steps: int | nn.Tensor | None,
    beam_dim: nn.Dim | None = None,
) -> Any:
    """
    :param scorer: if its `initial_state` also takes `capacity`, it gets `max_steps` on the engines that gain from it:
        dims cannot grow in the loops of graphs, and JAX compiles for each shape. If it takes `beam_dim`, it gets that
        where shapes may change as they like.
    :param batch_dims: B
    :param max_steps: number of calls of `score` at most, int or {B}; None: not known
    :param beam_dim: the one of B whose entries are hypotheses of the same utterance, if a search selects among them
    :return: the scorer's initial state
    """
    if nn.get_selected_backend() not in ("returnn_layers_tf", "tf", "jax"):
        if not nn.is_executing_eagerly() or nn.is_static_traceable():
            beam_dim = None
        return _call_with(scorer.initial_state, batch_dims=batch_dims, beam_dim=beam_dim)
    if isinstance(max_steps, nn.Tensor):
        max_steps = nn.reduce_max(max_steps, axis=max_steps.dims) if max_steps.dims else max_steps
        max_steps = nn.copy_to_device(max_steps, "cpu")
    return _call_with(scorer.initial_state, batch_dims=batch_dims, capacity=max_steps)


def score_next(scorer: Scorer, prev_labels: nn.Tensor, state: Any) -> tuple[nn.Tensor, Any]:
    """
    :param scorer:
    :param prev_labels: {B}
    :param state: the scorer's
    :return: what its `score` returns
    :raise TypeError: that is no pair of a tensor and a state
    :raise ValueError: that tensor lacks the scorer's `vocab_dim`
    """
    result, name = scorer.score(prev_labels, state), f"{type(scorer).__name__}.score"
    if not isinstance(result, tuple) or len(result) != 2 or not isinstance(result[0], nn.Tensor):
        got = f"({', '.join(map(type_name, result))})" if isinstance(result, tuple) else type_name(result)
        raise TypeError(f"{name}: expected to return log_probs, a Tensor, and the new state, got {got}")
    if scorer.vocab_dim not in result[0].dims:
        raise ValueError(f"{name}: log_probs, expected a tensor with {scorer.vocab_dim}, got {result[0]}")
    return result


def _call_with(func: Callable[..., Any], *, batch_dims: Sequence[nn.Dim], **hints) -> Any:
    """:param hints: those that are not None are passed on, if `func` takes them"""
    known = inspect.signature(func).parameters
    return func(batch_dims=batch_dims, **{k: v for k, v in hints.items() if v is not None and k in known})


class _Combined:
    """see :func:`combine`"""

    def __init__(self, parts: Sequence[tuple[Scorer, float]], *, vocab_dim: nn.Dim):
        self.parts = list(parts)
        self.vocab_dim = vocab_dim
        self.can_exceed_zero = any(scale < 0 or getattr(scorer, "can_exceed_zero", False) for scorer, scale in parts)
        self.tensors_only = all(getattr(scorer, "tensors_only", False) for scorer, _ in parts)

    def initial_state(
        self,
        *,
        batch_dims: Sequence[nn.Dim],
        capacity: int | nn.Tensor | None = None,
        beam_dim: nn.Dim | None = None,
    ) -> dict[str, Any]:
        return {
            str(i): _call_with(scorer.initial_state, batch_dims=batch_dims, capacity=capacity, beam_dim=beam_dim)
            for i, (scorer, _) in enumerate(self.parts)
        }

    def score(self, prev_labels: nn.Tensor, state: dict[str, Any]) -> tuple[nn.Tensor, dict[str, Any]]:
        total, new_state = None, {}
        for i, (scorer, scale) in enumerate(self.parts):
            labels = nn.set_sparse_dim(prev_labels, scorer.vocab_dim)
            log_probs, new_state[str(i)] = score_next(scorer, labels, state[str(i)])
            if scorer.vocab_dim != self.vocab_dim:
                log_probs, _ = nn.replace_dim(log_probs, in_dim=scorer.vocab_dim, out_dim=self.vocab_dim)
            log_probs = scale_log_probs(log_probs, scale)
            # One may depend on less than another, e.g. not on the utterance
            total = log_probs if total is None else nn.combine_bc(total, "+", log_probs)
        assert total is not None
        return nn.where(total < IMPOSSIBLE, float("-inf"), total), new_state


def _check_vocab(what: str, dim: nn.Dim, first: nn.Dim):
    if dim.dimension != first.dimension:
        raise ValueError(f"{what}: expected a vocabulary of {first.dimension} labels like {first}, got {dim}")
    labels, expected = (getattr(d.vocab, "labels", None) for d in (dim, first))
    if labels is None or expected is None or labels == expected:
        return
    i = next(i for i, (a, b) in enumerate(zip(labels, expected, strict=True)) if a != b)
    raise ValueError(f"{what}: expected the same labels, but label {i} of {dim} is {labels[i]!r}, not {expected[i]!r}")
