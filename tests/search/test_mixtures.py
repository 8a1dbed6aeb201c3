"""Each score that a search returns is the sum of what the parts give when forced: all subsets of them, any scales."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy
import pytest

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
    ctc_prefix_scorer,
    read_arpa,
    score_labels,
)
from tests.engines import ENGINES, Input, run_on
from tests.search.arpa_reference import random_ngrams, write_arpa
from tests.search.ctc_reference import enumerate_all, random_log_probs

SIZE, END = 4, 3  # end of sentence is where CTC has blank
LENGTHS = [3, 1, 2, 3]
NAMES = ["decoder", "other", "ctc", "lm", "ngram", "bias"]
SEQUENCES = [seq for n in range(4) for seq in itertools.product(range(END), repeat=n)]


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


def run(func, tmp_path, *, engine: str = "torch"):
    """:param func: (scorers by name, log probs of CTC, their time) -> outputs or None"""
    rng = numpy.random.default_rng(2)
    arpa = write_arpa(tmp_path / "x.arpa", random_ngrams(["a", "b", "c"], order=3, seed=1))
    inputs = {
        "x": Input(rng.standard_normal((4, 3, 6)).astype("float32"), "batch time feat"),
        "ctc": Input(random_log_probs(rng, 4, 3, SIZE), "batch time vocab"),
    }

    def call(model, x, ctc, time):
        return func(model.scorers(x, time, ctc, arpa=arpa), ctc, time) or {}

    return run_on(engine, call, inputs, {"time": LENGTHS, "feat": 6, "vocab": SIZE}, make_model=_Model)


def mixtures(names: list[str]) -> Iterator[dict[str, float]]:
    """all subsets but the empty one, with random scales, and with all of them negative"""
    rng = numpy.random.default_rng(1)
    for subset in (s for n in range(1, len(names) + 1) for s in itertools.combinations(names, n)):
        yield dict(zip(subset, rng.uniform(-0.6, 1.5, len(subset)), strict=True))
    yield {name: -float(rng.uniform(0.1, 1.0)) for name in names}


def forced_scores(scorers, time) -> dict[str, numpy.ndarray]:
    """:return: for each scorer, what it gives SEQUENCES in each utterance"""
    num = nn.Dim(len(SEQUENCES), name="sequences")
    sizes = numpy.array([len(seq) for seq in SEQUENCES], "int32")
    labels_dim = nn.Dim(nn.convert_to_tensor(sizes, dims=[num]), name="labels")
    padded = numpy.array([[*seq, *[0] * (3 - len(seq))] for seq in SEQUENCES], "int32")
    labels = nn.expand_dim(nn.convert_to_tensor(padded, dims=[num, labels_dim]), nn.batch_dim)
    forced = {}
    for name, scorer in scorers.items():
        of_vocab = nn.set_sparse_dim(labels, scorer.vocab_dim)
        scores = score_labels(scorer, of_vocab, spatial_dim=labels_dim, bos=END, eos=END)
        forced[name] = scores.copy_compatible_to_dims_raw([nn.batch_dim, num]).detach().numpy()
    return forced


def assert_sums(found, expected: numpy.ndarray, scales: dict[str, float]):
    """:param expected: {batch, SEQUENCES}"""
    for i, row in enumerate(expected):
        nbest = found.nbest(i)
        by_labels = [row[SEQUENCES.index(tuple(labels))] for _, labels in nbest]
        assert nbest, scales
        numpy.testing.assert_allclose([s for s, _ in nbest], by_labels, atol=2e-4, err_msg=f"{scales} {i}")


def test_label_synchronous(tmp_path):
    """a narrow beam: pruning changes which hypotheses there are, but not their scores"""

    def func(scorers, log_probs, time):
        del log_probs
        forced = forced_scores(scorers, time)
        assert numpy.isneginf(forced["ctc"]).any()
        for scales in mixtures(NAMES):
            mixture = combine([(scorers[name], scale) for name, scale in scales.items()])
            found = beam_search(mixture, batch_dims=[nn.batch_dim], beam_size=3, max_len=3, bos=END, eos=END)
            assert_sums(found, numpy.sum([scale * forced[name] for name, scale in scales.items()], axis=0), scales)

    run(func, tmp_path)


def test_time_synchronous(tmp_path):
    """a full beam: CTC over all alignments, and the others"""

    def func(scorers, log_probs, time):
        arrays = log_probs.copy_compatible_to_dims_raw([nn.batch_dim, time, log_probs.dims[-1]]).numpy()
        wholes = [enumerate_all(x[:n], blank=END) for x, n in zip(arrays, LENGTHS, strict=True)]
        ctc = numpy.array([[whole.get(seq, -numpy.inf) for seq in SEQUENCES] for whole in wholes])
        forced = forced_scores(scorers, time)
        numpy.testing.assert_allclose(forced.pop("ctc"), ctc, atol=1e-4)
        for scales in mixtures(list(forced)):
            mixture = combine([(scorers[name], scale) for name, scale in scales.items()])
            kwargs: dict[str, Any] = dict(scorer=mixture, bos=END, eos=END)
            found = ctc_beam_search(log_probs, spatial_dim=time, blank=END, beam_size=40, scorer_scale=0.9, **kwargs)
            total = ctc + 0.9 * numpy.sum([scale * forced[name] for name, scale in scales.items()], axis=0)
            assert_sums(found, total, scales)
            for i, whole in enumerate(wholes):
                assert {tuple(labels) for _, labels in found.nbest(i)} == set(whole)

    run(func, tmp_path)


@pytest.mark.slow  # all of them at once: a net dict takes a minute to build, and JAX to compile
@pytest.mark.parametrize("engine", ENGINES[1:])
def test_engines_agree(engine: str, tmp_path, monkeypatch):
    monkeypatch.setattr(ctc_prefix_scorer, "_ROUNDS_IN_GRAPH", 2)  # for 3 frames
    scales = dict(zip(NAMES, [0.7, -0.2, 0.5, 0.3, -0.1, 1.0], strict=True))

    def func(scorers, log_probs, time):
        mixture = combine([(scorers[name], scale) for name, scale in scales.items()])
        by_label = beam_search(mixture, batch_dims=[nn.batch_dim], beam_size=3, max_len=2, bos=END, eos=END)
        mixture = combine([(scorers[name], scale) for name, scale in scales.items() if name != "ctc"])
        kwargs: dict[str, Any] = dict(scorer=mixture, bos=END, eos=END)
        by_frame = ctc_beam_search(log_probs, spatial_dim=time, blank=END, beam_size=3, scorer_scale=0.9, **kwargs)
        outputs = {}
        for name, found in [("labels", by_label), ("frames", by_frame)]:
            dims = [nn.batch_dim, found.beam_dim]
            outputs[f"{name} scores"] = (found.scores, dims)
            outputs[f"{name} found"] = (found.labels, [*dims, found.spatial_dim])
        return outputs

    expected, result = (run(func, tmp_path, engine=e) for e in ("torch", engine))
    for name in expected.outputs:
        numpy.testing.assert_allclose(result[name], expected[name], atol=2e-4, err_msg=name)
