"""References for CTC search, and what its tests share."""

from __future__ import annotations

import itertools

import numpy
import pytest

from returnn_common import nn
from returnn_common.search import ctc_beam_search
from tests.engines import Input, run_on


class Trigram:
    """A scorer whose state matters: it remembers the label before the last one."""

    def __init__(self, size, *, bos, seed=0):
        rng = numpy.random.default_rng(seed)
        table = rng.standard_normal((size, size, size)).astype("float32") * 2
        self.table = table - numpy.log(numpy.exp(table).sum(-1, keepdims=True))  # [label before, previous, next]
        self.bos = bos
        self.vocab_dim = nn.Dim(size, name="lm-vocab")
        self.rows_dim = nn.Dim(size * size, name="lm-rows")
        self.parameter = None  # instead of a constant: in a net dict, a constant cannot be an array

    def make_module(self):
        module = nn.Module()
        self.parameter = nn.Parameter([self.rows_dim, self.vocab_dim])
        setattr(module, "table", self.parameter)  # noqa: B010
        return module

    def initial_state(self, *, batch_dims):
        return {"before": nn.constant(self.bos, dims=batch_dims, dtype="int32", sparse_dim=self.vocab_dim)}

    def score(self, prev_labels, state):
        size, table = len(self.table), self.parameter
        if table is None:
            table = self.table.reshape(size * size, size)
            table = nn.convert_to_tensor(table, dims=[self.rows_dim, self.vocab_dim])
        # By float: an int32 with a sparse dim and one without it do not mix in a net dict.
        row = nn.cast(nn.cast(state["before"], "float32") * float(size) + nn.cast(prev_labels, "float32"), "int32")
        log_probs = nn.gather(table, indices=nn.set_sparse_dim(row, self.rows_dim), axis=self.rows_dim)
        return log_probs, {"before": prev_labels}

    def total(self, labels, eos):
        """reference"""
        seq = [self.bos, self.bos, *labels] + ([eos] if eos is not None else [])
        return sum(self.table[seq[i - 2], seq[i - 1], seq[i]] for i in range(2, len(seq)))


def enumerate_all(log_probs, *, blank, recombine="sum", scorer=None, scale=0.0, eos=None, to_lm=lambda c: c):
    """:return: labels -> score, of all alignments of log_probs [T, V]"""
    num_frames, size = log_probs.shape
    scores = {}
    for path in itertools.product(range(size), repeat=num_frames):
        labels = tuple(c for c, _ in itertools.groupby(path) if c != blank)
        score = float(sum(log_probs[t, c] for t, c in enumerate(path)))
        scores.setdefault(labels, []).append(score)
    add = numpy.logaddexp.reduce if recombine == "sum" else max
    scores = {labels: float(add(ls)) for labels, ls in scores.items()}
    if scorer is not None:
        scores = {k: v + scale * scorer.total([to_lm(c) for c in k], eos) for k, v in scores.items()}
    return {k: v for k, v in scores.items() if v > -numpy.inf}


def random_log_probs(rng, batch, frames, size):
    x = rng.standard_normal((batch, frames, size)) * rng.choice([0.5, 2.0, 5.0], (batch, 1, 1))
    return (x - numpy.log(numpy.exp(x).sum(-1, keepdims=True))).astype("float32")


def search_on_torch(log_probs, lengths, **kwargs):
    """:return: n-best list of each batch entry"""
    found = []

    def func(x, time):
        hyps = ctc_beam_search(x, spatial_dim=time, **kwargs)
        found.extend(hyps.nbest(i) for i in range(len(log_probs)))
        return {}

    dims = {"time": list(lengths), "vocab": log_probs.shape[-1]}
    run_on("torch", func, {"x": Input(log_probs, "batch time vocab")}, dims)
    return found


def assert_same(nbest, expected, *, exact=True):
    """order and scores; equal scores may come in any order"""
    assert len({tuple(labels) for _, labels in nbest}) == len(nbest), "one label sequence twice"
    scores = [score for score, _ in nbest]
    assert scores == sorted(scores, reverse=True)
    for score, labels in nbest:
        assert score <= expected[tuple(labels)] + 1e-4
        if exact:
            assert score == pytest.approx(expected[tuple(labels)], abs=1e-4)
    if exact:
        assert len(nbest) == len(expected)
        numpy.testing.assert_allclose(scores, sorted(expected.values(), reverse=True), atol=1e-4)


def dict_search(log_probs, *, blank, beam_size, max_labels=None, score_margin=None, blank_threshold=None):
    """prefix beam search of one sequence [T, V], with prefixes as keys: (labels, score), best first"""
    add, nothing = numpy.logaddexp, float("-inf")
    beam: dict[tuple, tuple[float, float]] = {(): (0.0, nothing)}
    for frame in log_probs:
        if blank_threshold is not None and frame[blank] > numpy.log(blank_threshold):
            beam = {prefix: (float(add(*scores)) + frame[blank], nothing) for prefix, scores in beam.items()}
            continue
        labels = [c for c in numpy.argsort(-frame) if c != blank][:max_labels]
        new = {}
        for prefix, (in_blank, in_label) in beam.items():
            total = add(in_blank, in_label)
            arrivals = [(prefix, total + frame[blank], nothing)]
            arrivals += [(prefix, nothing, in_label + frame[prefix[-1]])] if prefix else []
            for c in {*labels, *(k[-1] for k in beam if k and k[:-1] == prefix)}:
                before = in_blank if prefix and prefix[-1] == c else total
                arrivals.append((prefix + (int(c),), nothing, before + frame[c]))
            for key, b, n in arrivals:
                old = new.get(key, (nothing, nothing))
                new[key] = (float(add(old[0], b)), float(add(old[1], n)))
        best = sorted(new.items(), key=lambda kv: -add(*kv[1]))[:beam_size]
        limit = nothing if score_margin is None else add(*best[0][1]) - score_margin
        beam = {k: v for k, v in best if nothing < add(*v) >= limit}
    return sorted(((k, add(*v)) for k, v in beam.items()), key=lambda kv: -kv[1])
