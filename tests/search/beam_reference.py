"""Reference for label-synchronous search, and what its tests share."""

from __future__ import annotations

import itertools
from typing import Any

import numpy

from returnn_common import nn
from returnn_common.search import beam_search
from tests.engines import Input, run_on

ROWS = 211  # enough that different hypotheses hardly ever have equal scores


class TableScorer:
    """Its state is a number made of all labels so far and of the utterance: the row of the table with the scores."""

    def __init__(self, size: int, *, seed: int = 0, spread: float = 2.0, name: str = "table"):
        rng = numpy.random.default_rng(seed)
        table = rng.standard_normal((ROWS, size)) * spread
        self.table = (table - numpy.log(numpy.exp(table).sum(-1, keepdims=True))).astype("float32")
        self.vocab_dim = nn.Dim(size, name=f"{name}-vocab")
        self.rows_dim = nn.Dim(ROWS, name=f"{name}-rows")
        self.parameter: Any = None  # instead of a constant: in a net dict, a constant cannot be an array
        self.start: Any = None  # {batch}, row at the start
        self.num_steps = self.initial_states = 0

    def make_module(self):
        module = nn.Module()
        self.parameter = nn.Parameter([self.rows_dim, self.vocab_dim])
        setattr(module, "table", self.parameter)  # noqa: B010
        return module

    def initial_state(self, *, batch_dims):
        self.initial_states += 1
        zero = nn.constant(0.0, dims=batch_dims, dtype="float32")
        return {"row": zero if self.start is None else zero + nn.cast(self.start, "float32")}

    def score(self, prev_labels, state):
        self.num_steps += 1
        table = self.parameter
        if table is None:
            table = nn.convert_to_tensor(self.table, dims=[self.rows_dim, self.vocab_dim])
        # By float, and without modulo: not all engines have it.
        row = state["row"] * 5.0 + nn.cast(prev_labels, "float32") + 1.0
        row = row - nn.floor((row + 0.5) / float(ROWS)) * float(ROWS)
        indices = nn.set_sparse_dim(nn.cast(row, "int32"), self.rows_dim)
        return nn.gather(table, indices=indices, axis=self.rows_dim), {"row": row}

    def total(self, labels, *, bos, eos, start=0):
        """reference"""
        row, score = start, 0.0
        for prev, label in itertools.pairwise([bos, *labels, eos]):
            row = (row * 5 + prev + 1) % ROWS
            score += float(self.table[row, label])
        return score


def enumerate_all(scorer, *, max_len, bos, eos, min_len=0, length_exponent=1.0, **kwargs):
    """:return: (score, labels) of all hypotheses, best first"""
    vocab = [label for label in range(scorer.vocab_dim.dimension) if label not in (bos, eos)]
    found = []
    for length in range(min(min_len, max_len), max_len + 1):
        for labels in itertools.product(vocab, repeat=length):
            found.append((scorer.total(labels, bos=bos, eos=eos, **kwargs), list(labels)))
    found = [(score, labels) for score, labels in found if score > -numpy.inf]
    return sorted(found, key=lambda x: -rank(*x, length_exponent))


def rank(score, labels, length_exponent):
    return score / (len(labels) + 1) ** length_exponent


def search_on_torch(scorer, starts, *, max_len, as_tensor=False, scorers=None, **kwargs):
    """
    :param scorers: those that scorer is made of
    :return: n-best list of each batch entry
    """
    found, scorers = [], scorers or [scorer]
    lengths = numpy.broadcast_to(numpy.array(max_len, "int32"), len(starts)).copy()

    def func(start, lens, batch):
        for x in scorers:
            x.start = start
        limit = lens if as_tensor or numpy.ndim(max_len) else max_len
        hyps = beam_search(scorer, batch_dims=[batch], max_len=limit, **kwargs)
        found.extend(hyps.nbest(i) for i in range(len(starts)))
        return {}

    inputs = {"start": Input(numpy.array(starts, "int32"), "batch"), "lens": Input(lengths, "batch")}
    run_on("torch", func, inputs)
    for x in scorers:
        x.start = None
    return found


def assert_same(nbest, expected, length_exponent=1.0):
    """hypotheses, order and scores; those of equal rank may come in any order"""
    assert sorted(labels for _, labels in nbest) == sorted(labels for _, labels in expected)
    numpy.testing.assert_allclose([s for s, _ in sorted(nbest)], [s for s, _ in sorted(expected)], atol=1e-4)
    ranks = [rank(score, labels, length_exponent) for score, labels in nbest]
    numpy.testing.assert_allclose(ranks, sorted(ranks, reverse=True), atol=1e-5)


def list_search(scorer, *, start, beam_size, max_len, bos, eos, length_exponent=1.0, min_len=0):
    """narrow beam, with lists: (score, labels) of what is in the last beam"""
    beam, vocab = [(0.0, [], start, False)], range(scorer.vocab_dim.dimension)
    while not all(ended for *_, ended in beam):
        candidates = []
        for score, labels, row, ended in beam:
            if ended:
                candidates.append((score, labels, row, True))
                continue
            row = (row * 5 + (labels or [bos])[-1] + 1) % ROWS
            for label in vocab:
                if label == eos and len(labels) >= min(min_len, max_len):
                    candidates.append((score + float(scorer.table[row, eos]), labels, row, True))
                elif label not in (bos, eos) and len(labels) < max_len:
                    candidates.append((score + float(scorer.table[row, label]), [*labels, label], row, False))
        candidates.sort(key=lambda c: -c[0] / (len(c[1]) + c[3]) ** length_exponent)
        beam = candidates[:beam_size]
    return [(score, labels) for score, labels, *_ in beam]
