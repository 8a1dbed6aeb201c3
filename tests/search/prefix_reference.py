"""References for CTC's prefix probabilities, and what their tests share."""

from __future__ import annotations

import itertools

import numpy

from returnn_common import nn
from returnn_common.search import CtcPrefixScorer
from tests.engines import Input, run_on

INF = float("inf")


class AllAlignments:
    """
    Of all alignments of log_probs [T, labels and blank], in float64.

    :param to_label: index of CTC -> label of the scorer; None: no label
    """

    def __init__(self, log_probs, *, blank, to_label=lambda c: c):
        frames, size = log_probs.shape
        self.wholes = {}
        for path in itertools.product(range(size), repeat=frames):
            labels = tuple(to_label(c) for c, _ in itertools.groupby(path) if c != blank)
            score = sum((float(log_probs[t, c]) for t, c in enumerate(path)), 0.0)
            self.wholes[labels] = numpy.logaddexp(self.wholes.get(labels, -INF), score)

    def whole(self, labels):
        """:return: log prob of the label sequence"""
        return float(self.wholes.get(tuple(labels), -INF))

    def prefix(self, labels):
        """:return: log prob of all label sequences that begin so"""
        scores = [score for whole, score in self.wholes.items() if whole[: len(labels)] == tuple(labels)]
        return float(numpy.logaddexp.reduce([-INF, *scores]))

    def scores(self, labels, *, size, eos):
        """:return: what a scorer gives after these labels, [size]"""
        prefix = self.prefix(labels)
        if prefix == -INF:
            return numpy.full(size, -INF)
        after = [self.whole(labels) if c == eos else self.prefix([*labels, c]) for c in range(size)]
        return numpy.array(after) - prefix


def score_prefixes(log_probs, lengths, labels, *, blank, eos, size=None, engine="torch"):
    """
    :param labels: [batch, beam, L], the scorer is led along them
    :param size: of the scorer's vocabulary, if it is not that of log_probs
    :return: [batch, beam, L + 1, size]: scores after each number of labels
    """
    labels = numpy.asarray(labels, "int32")
    num_steps = labels.shape[-1] + 1

    def func(x, time, y, batch, beam, steps, vocab):
        vocab_dim = vocab if size is None else nn.Dim(size, name="decoder-vocab")
        scorer = CtcPrefixScorer(x, spatial_dim=time, blank=blank, eos=eos, vocab_dim=vocab_dim)
        state, outputs = scorer.initial_state(batch_dims=[batch, beam]), {}
        previous = nn.constant(eos, dims=[batch, beam], dtype="int32", sparse_dim=vocab_dim)
        for i in range(num_steps):
            scores, state = scorer.score(previous, state)
            outputs[str(i)] = (scores, [batch, beam, vocab_dim])
            if i < num_steps - 1:
                previous = nn.set_sparse_dim(nn.gather(y, indices=i, axis=steps), vocab_dim)
        return outputs

    inputs = {"x": Input(log_probs, "batch time vocab"), "y": Input(labels, "batch beam steps")}
    dims = {"time": lengths, "vocab": log_probs.shape[-1], "beam": labels.shape[1], "steps": labels.shape[2]}
    result = run_on(engine, func, inputs, dims)
    return numpy.stack([result[str(i)] for i in range(num_steps)], axis=2)
