"""
N-gram language models as scorers.

Shape letters: B batch dims (with the beam, once there is one), V labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy

from .. import nn
from ._automaton import MAX_EXACT, Automaton, AutomatonScorer
from ._common import NEG, check_index
from .arpa import NgramModel

__all__ = ["NgramScorer"]


class NgramScorer(AutomatonScorer):
    """
    A back-off model (Katz 1987; all kinds of smoothing come in this form), e.g. for shallow fusion::

        lm = NgramScorer(read_arpa("4gram.arpa.gz"), vocab_dim, labels=vocab.labels, eos=eos)
        beam_search(combine([(decoder, 1.0), (lm, 0.3)]), ...)

    The log probs are exactly those of the file. The state is one number per hypothesis: the longest context that the
    model knows. The first of the `prev_labels` is the begin of sentence, whatever index it has.

    Labels and words belong together by their names. So a model of words is for labels that are words, one of subwords
    or characters for such labels.

    :param model: of :func:`read_arpa`
    :param vocab_dim: V
    :param labels: their names in the model; None: those of `vocab_dim.vocab`
    :param eos: the label that gets the log prob of `</s>`; None: the one of that name, if there is one
    :param missing: what labels get that are not in the model: "unk", each of them the log prob of its `<unk>` (and they
        are `<unk>` in the context), or "impossible", -inf. `<s>` is impossible, always.
    :param dense_limit: scores in a table of all contexts and labels, at most: up to there, one look-up gives them; from
        there on, they are put together from the n-grams, which takes less memory and more time
    :raise ValueError: labels that the model doesn't fit, an eos out of range, a model too large
    """

    def __init__(
        self,
        model: NgramModel,
        vocab_dim: nn.Dim,
        *,
        labels: Sequence[str] | None = None,
        eos: int | None = None,
        missing: str = "unk",
        dense_limit: int = 2**22,
    ):
        words = _words_of_labels(model, vocab_dim, labels, eos=eos, missing=missing)
        used = list(dict.fromkeys(words))
        super().__init__(_make_automaton(model, used, vocab_dim, dense_limit=dense_limit))
        if used != words:  # several labels are the same word
            index = {word: i for i, word in enumerate(used)}
            self._automaton.word_of_label = numpy.array([index[word] for word in words])


def _words_of_labels(
    model: NgramModel, vocab_dim: nn.Dim, labels: Sequence[str] | None, *, eos: int | None, missing: str
) -> list[int]:
    """:return: for each label its word in the model; -1: impossible"""
    if labels is None:
        labels = getattr(vocab_dim.vocab, "labels", None)
        if labels is None:
            raise ValueError(f"NgramScorer: expected labels, or a vocab_dim with a vocabulary, got {vocab_dim}")
    if len(labels) != vocab_dim.dimension:
        raise ValueError(f"NgramScorer: expected the {vocab_dim.dimension} labels of {vocab_dim}, got {len(labels)}")
    if missing not in ("unk", "impossible"):
        raise ValueError(f"NgramScorer: missing, expected 'unk' or 'impossible', got {missing!r}")
    ids = {word: i for i, word in enumerate(model.words)}
    names = list(labels)
    if eos is not None:
        check_index("NgramScorer", "eos", eos, vocab_dim)
        names[eos] = "</s>"
        if "</s>" not in ids:
            raise ValueError("NgramScorer: expected a model with </s> for the eos, got none among its 1-grams")
    ids.pop("<s>", None)
    unknown = [name for name in names if name not in ids and name != "<s>"]
    if not set(names) & set(ids) - {"</s>", "<unk>", "<UNK>"}:
        raise ValueError(f"NgramScorer: expected labels of the model, like {model.words[:8]}, got {names[:8]}")
    fallback = -1 if missing == "impossible" else ids.get(model.unknown_word or "")
    if unknown and fallback is None:
        raise ValueError(
            "NgramScorer: expected all labels in the model, which has no <unk> (or missing='impossible'), but it lacks "
            f"{len(unknown)} of {len(names)}: {unknown[:8]}"
        )
    return [-1 if name == "<s>" else ids.get(name, fallback) for name in names]


def _make_automaton(model: NgramModel, used: list[int], vocab_dim: nn.Dim, *, dense_limit: int) -> Automaton:
    """
    :param used: the words of the automaton, -1: an impossible one
    """
    word_of = numpy.full(len(model.words) + 1, -1)
    word_of[used] = numpy.arange(len(used))
    word_of = word_of[:-1]  # -1 was the last one
    keep_state = _reachable(model, word_of)
    keep_arc = keep_state[model.arc_state] & (word_of[model.arc_word] >= 0)
    inner = numpy.flatnonzero(keep_arc & (model.arc_state > 0))
    # A context without n-grams and weight is like the shorter one.
    matters = model.backoff != 0
    matters[model.arc_state[inner]] = True
    matters[0] = True
    same_as = numpy.arange(len(model.length))
    for n in range(1, model.order):
        states = numpy.flatnonzero((model.length == n) & ~matters)
        same_as[states] = same_as[model.suffix[states]]
    kept = numpy.flatnonzero(keep_state & matters)
    new = numpy.zeros(len(model.length), "int64")
    new[kept] = numpy.arange(len(kept))
    new = new[same_as]
    if max(len(kept), len(inner) + 1) >= MAX_EXACT:
        raise ValueError(f"NgramScorer: expected less than {MAX_EXACT} n-grams and contexts, got {len(inner)}")
    arrays = _assemble(model, word_of, used, kept=kept, new=new, inner=inner)
    return Automaton(**arrays, dense_limit=dense_limit, label_dim=vocab_dim)


def _reachable(model: NgramModel, word_of: numpy.ndarray) -> numpy.ndarray:
    """:return: {states}, whether sentences of these words get there"""
    parent, word = (x[: len(model.length) - 1] for x in (model.arc_state, model.arc_word))
    can_follow = word_of >= 0
    for name in ("<s>", "</s>"):
        if name in model.words:
            can_follow[model.words.index(name)] = False
    result = numpy.zeros(len(model.length), bool)
    result[0] = True
    for n in range(1, model.order):
        states = numpy.flatnonzero(model.length == n)
        result[states] = result[parent[states - 1]] & can_follow[word[states - 1]]
        if n == 1 and "<s>" in model.words:
            result[states] |= word[states - 1] == model.words.index("<s>")
    return result


def _assemble(
    model: NgramModel,
    word_of: numpy.ndarray,
    used: list[int],
    *,
    kept: numpy.ndarray,
    new: numpy.ndarray,
    inner: numpy.ndarray,
) -> dict[str, Any]:
    """
    :param kept: states
    :param new: {states}, their new numbers
    :param inner: arcs that do not begin in the empty context
    :return: arguments of the automaton
    """
    chain = numpy.zeros((len(kept), max(model.order - 1, 1)), "int64")
    total = numpy.zeros(len(kept))
    suffix, length = new[model.suffix[kept]], model.length[kept]
    for n in range(1, model.order):
        states = numpy.flatnonzero(length == n)
        chain[states] = chain[suffix[states]]
        chain[states, n - 1] = states
        total[states] = model.backoff[kept[states]] + total[suffix[states]]
    following = new[model.arc_next]
    if "</s>" in model.words:
        following[model.arc_word == model.words.index("</s>")] = 0
    # The first arcs are those of the empty context, one for each word.
    words = numpy.array(used)
    default_score = numpy.where(words < 0, NEG, model.arc_log_prob[words])
    default_next = numpy.where(words < 0, 0, following[words])
    state, word = model.arc_state[inner], model.arc_word[inner]
    arcs, weights = model.find_arc(model.suffix[state], word)
    backed_off = model.backoff[state] + weights + model.arc_log_prob[arcs]
    sort = numpy.lexsort((word_of[word], new[state]))
    count = numpy.bincount(new[state], minlength=len(kept))
    start = 0
    if model.order > 1 and "<s>" in model.words:
        start = int(new[model.arc_next[model.words.index("<s>")]])
    return {
        "chain": chain,
        "total": total,
        "default_score": default_score,
        "default_next": default_next,
        "arc_start": numpy.cumsum(count) - count,
        "arc_count": count,
        "arc_word": word_of[word][sort],
        "arc_delta": (model.arc_log_prob[inner] - backed_off)[sort],
        "arc_next": following[inner][sort],
        "start": start,
    }
