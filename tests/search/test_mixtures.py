"""Every mixture of scorers: each score that a search returns is the sum of what the parts give when forced."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy

from returnn_common import nn
from returnn_common.models.decoder.transformer import make_transformer_decoder
from returnn_common.models.lm.lstm import make_lstm_lm
from returnn_common.search import (
    CtcPrefixScorer,
    DecoderScorer,
    NgramScorer,
    PhraseBias,
    beam_search,
    combine,
    ctc_beam_search,
    read_arpa,
    score_labels,
)
from tests.engines import Input, run_on
from tests.search.arpa_reference import random_ngrams, write_arpa
from tests.search.ctc_reference import enumerate_all, random_log_probs

SIZE, END = 4, 3  # end of sentence is where CTC has blank
LENGTHS = [3, 1, 2, 3]
SCALES = {"decoder": 0.7, "other": 0.4, "ctc": 0.5, "lm": 0.3, "ngram": -0.2, "bias": 1.0}


class _Model(nn.Module):
    def __init__(self, feat):
        super().__init__()
        vocab_dim = nn.Dim(SIZE, name="labels")
        options = {"num_layers": 1, "model_dim": 4, "num_heads": 2, "dropout": 0.0}
        self.decoder = make_transformer_decoder(feat, vocab_dim, **options)
        self.other = make_transformer_decoder(feat, vocab_dim, positions="rotary", **options)
        self.lm = make_lstm_lm(vocab_dim, num_layers=1, model_dim=4, embed_dim=3)

    def scorers(self, x, time, log_probs, *, arpa):
        decoders = {"decoder": self.decoder, "other": self.other}
        names = ["a", "b", "c", "</s>"]
        return {
            **{k: DecoderScorer(d, d.transform_encoder(x, axis=time)) for k, d in decoders.items()},
            "ctc": CtcPrefixScorer(log_probs, spatial_dim=time, blank=END, eos=END),
            "lm": DecoderScorer(self.lm),
            "ngram": NgramScorer(read_arpa(arpa), self.lm.vocab_dim, labels=names, eos=END),
            "bias": PhraseBias([[0, 1], [1]], self.lm.vocab_dim, bonus=1.5, eos=END),
        }


def run(func, tmp_path):
    """:param func: (scorers by name, log probs of CTC, their time)"""
    rng = numpy.random.default_rng(2)
    arpa = write_arpa(tmp_path / "x.arpa", random_ngrams(["a", "b", "c"], order=3, seed=1))
    inputs = {
        "x": Input(rng.standard_normal((4, 3, 6)).astype("float32"), "batch time feat"),
        "ctc": Input(random_log_probs(rng, 4, 3, SIZE), "batch time vocab"),
    }

    def call(model, x, ctc, time):
        func(model.scorers(x, time, ctc, arpa=arpa), ctc, time)
        return {}

    run_on("torch", call, inputs, {"time": LENGTHS, "feat": 6, "vocab": SIZE}, make_model=_Model)


def subsets(names: Sequence[str]) -> list[tuple[str, ...]]:
    """each alone, all pairs, all together"""
    return [s for n in (1, 2, len(names)) for s in itertools.combinations(names, n)]


def forced(scorer, hypotheses) -> numpy.ndarray:
    labels = nn.set_sparse_dim(hypotheses.labels, scorer.vocab_dim)
    scores = score_labels(scorer, labels, spatial_dim=hypotheses.spatial_dim, bos=END, eos=END)
    return as_array(scores, hypotheses)


def as_array(scores, hypotheses) -> numpy.ndarray:
    return scores.copy_compatible_to_dims_raw([nn.batch_dim, hypotheses.beam_dim]).detach().numpy()


def test_label_synchronous(tmp_path):
    """a narrow beam: pruning changes which hypotheses there are, but not their scores"""

    def func(scorers, log_probs, time):
        for names in subsets(list(SCALES)):
            mixture = combine([(scorers[name], SCALES[name]) for name in names])
            found = beam_search(mixture, batch_dims=[nn.batch_dim], beam_size=3, max_len=4, bos=END, eos=END)
            scores = as_array(found.scores, found)
            used = numpy.isfinite(scores)
            assert used.any(1).all()
            total = numpy.sum([SCALES[name] * forced(scorers[name], found)[used] for name in names], axis=0)
            numpy.testing.assert_allclose(scores[used], total, atol=2e-4, err_msg=str(names))

    run(func, tmp_path)


def test_time_synchronous(tmp_path):
    """a full beam: CTC over all alignments, and the others"""

    def func(scorers, log_probs, time):
        arrays = log_probs.copy_compatible_to_dims_raw([nn.batch_dim, time, log_probs.dims[-1]]).numpy()
        wholes = [enumerate_all(x[:n], blank=END) for x, n in zip(arrays, LENGTHS, strict=True)]
        for names in subsets([name for name in SCALES if name != "ctc"]):
            mixture = combine([(scorers[name], SCALES[name]) for name in names])
            kwargs: dict[str, Any] = dict(scorer=mixture, bos=END, eos=END)
            found = ctc_beam_search(log_probs, spatial_dim=time, blank=END, beam_size=40, scorer_scale=0.9, **kwargs)
            total = numpy.sum([SCALES[name] * forced(scorers[name], found) for name in names], axis=0)
            for i, whole in enumerate(wholes):
                nbest = found.nbest(i)
                assert {tuple(labels) for _, labels in nbest} == set(whole)
                expected = [whole[tuple(labels)] + 0.9 * total[i, k] for k, (_, labels) in enumerate(nbest)]
                numpy.testing.assert_allclose([s for s, _ in nbest], expected, atol=2e-4, err_msg=str(names))

    run(func, tmp_path)
