"""N-gram language models as scorers, against the definition of back-off."""

from __future__ import annotations

import itertools
from typing import Any

import numpy
import pytest
from returnn.datasets.util.vocabulary import Vocabulary

from returnn_common import nn
from returnn_common.search import NgramScorer, beam_search, combine, ctc_beam_search, read_arpa, score_labels
from tests.engines import ENGINES, Input, run_on
from tests.search.arpa_reference import Backoff, random_ngrams, write_arpa
from tests.search.beam_reference import TableScorer, assert_same, enumerate_all, search_on_torch
from tests.search.ctc_reference import enumerate_all as enumerate_ctc

WORDS = ["a", "b", "c", "d"]
LABELS = ["b", "</s>", "c", "a"]
END = 1
SPARSE = dict(dense_limit=0)


def make(tmp_path, labels=LABELS, *, order=3, seed=0, regular=True, words=WORDS, unknown=True, **kwargs):
    levels = random_ngrams(words, order=order, seed=seed, regular=regular, unknown=unknown)
    model = read_arpa(write_arpa(tmp_path / "x.arpa", levels))
    kwargs = dict(eos=END) | kwargs
    return NgramScorer(model, nn.Dim(len(labels), name="vocab"), labels=labels, **kwargs), Backoff(levels)


class Reference:
    """as enumerate_all wants it"""

    def __init__(self, backoff, labels=LABELS):
        self.backoff, self.labels = backoff, labels
        self.vocab_dim = nn.Dim(len(labels), name="vocab")

    def total(self, labels, *, bos, eos, start=0):
        return self.backoff.total([self.labels[i] for i in labels])


def all_scores(scorer, sequences, engine="torch", bos=END):
    """:return: scores of the next label, after begin of sentence and each label {sequences, labels, vocab}"""
    labels = numpy.array(sequences, "int32")

    def func(labels, time, batch):
        state = scorer.initial_state(batch_dims=[batch])
        previous = nn.set_sparse_dim(nn.constant(bos, dims=[batch], dtype="int32"), scorer.vocab_dim)
        result = {}
        for i in range(labels_len + 1):
            scores, state = scorer.score(previous, state)
            result[str(i)] = (nn.maximum(scores, -1e4), [batch, scorer.vocab_dim])
            if i < labels_len:
                previous = nn.set_sparse_dim(nn.gather(labels, indices=i, axis=time), scorer.vocab_dim)
        return result

    labels_len = labels.shape[1]
    result = run_on(engine, func, {"labels": Input(labels, "batch time")}, {"time": labels_len})
    return numpy.stack([result[str(i)] for i in range(labels_len + 1)], 1)


@pytest.mark.parametrize("opts", [{}, SPARSE], ids=["dense", "sparse"])
@pytest.mark.parametrize("order,regular", [(1, True), (2, True), (3, True), (3, False), (4, True), (5, False)])
def test_scores(order, regular, opts, tmp_path):
    """each log prob after all label sequences of up to 4 labels; "d" is no label, "x" is unknown, "<s>" impossible"""
    labels = ["b", "</s>", "c", "x", "a", "<s>"]
    sequences = list(itertools.product([0, 2, 3, 4], repeat=4))
    for seed in range(2):
        scorer, backoff = make(tmp_path, labels, order=order, seed=seed, regular=regular, **opts)
        found = all_scores(scorer, sequences)
        for i, sequence in enumerate(sequences):
            for n in range(5):
                words = ["<unk>" if label == "x" else label for label in labels]
                context = ("<s>", *(words[x] for x in sequence[:n]))
                expected = [backoff.log_prob(word, context) if word != "<s>" else -1e4 for word in words]
                numpy.testing.assert_allclose(found[i, n], expected, atol=2e-4)


def test_only_what_makes_a_difference(tmp_path):
    """words that are no labels, and contexts that are like shorter ones, take no room"""
    full, _ = make(tmp_path, ["a", "</s>", "b", "c", "d"])
    less, _ = make(tmp_path, ["a", "</s>"])
    levels = random_ngrams(WORDS, order=3, seed=0)
    contexts = {()} | {gram for grams in levels[:2] for gram in grams}
    assert less.num_states < full.num_states < len(contexts)


def test_begin_of_sentence_is_what_comes_first(tmp_path):
    """whatever index it has; and only there"""
    scorer, _ = make(tmp_path)
    expected = all_scores(scorer, [[0, 2]])
    for bos in (0, 3):
        numpy.testing.assert_array_equal(all_scores(scorer, [[0, 2]], bos=bos), expected)
    assert abs(all_scores(scorer, [[3, 2]])[:, 1:] - expected[:, 1:]).max() > 0.01


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("opts", [{}, SPARSE], ids=["dense", "sparse"])
def test_engines(engine, opts, tmp_path):
    """search, and forced scores, against enumeration"""
    labels = ["b", "</s>", "x", "y"] if opts else LABELS  # two unknown ones
    scorer, backoff = make(tmp_path, labels, regular=False, **opts)
    reference = Reference(backoff, labels)
    limits = [2, 0, 1]
    with_forced = engine in ("torch", "tensorflow")  # for time

    def func(lens, batch):
        hyps = beam_search(scorer, batch_dims=[batch], max_len=lens, beam_size=13, bos=END, eos=END)
        outputs = {
            "labels": (hyps.labels, [batch, hyps.beam_dim, hyps.spatial_dim]),
            "scores": (hyps.scores, [batch, hyps.beam_dim]),
        }
        if with_forced:
            forced = score_labels(scorer, hyps.labels, spatial_dim=hyps.spatial_dim, bos=END, eos=END)
            outputs["forced"] = (forced, [batch, hyps.beam_dim])
        return outputs

    result = run_on(engine, func, {"lens": Input(numpy.array(limits, "int32"), "batch")})
    scores, lengths = result["scores"], result.outputs["labels"].lengths[2]
    for i, limit in enumerate(limits):
        used = scores[i] > -numpy.inf
        found = [
            (float(score), [int(x) for x in labels[:n]])
            for score, labels, n in zip(scores[i][used], result["labels"][i], lengths[i], strict=False)
        ]
        assert_same(found, enumerate_all(reference, max_len=limit, bos=END, eos=END))
        if with_forced:
            numpy.testing.assert_allclose(result["forced"][i][used], scores[i][used], atol=1e-4)


@pytest.mark.parametrize("opts", [{}, SPARSE], ids=["dense", "sparse"])
def test_shallow_fusion(opts, tmp_path):
    """full beam = enumeration with the mixture; batched = single"""
    scorer, backoff = make(tmp_path, order=4, **opts)
    table, reference = TableScorer(4, seed=3), Reference(backoff)
    mixture: Any = combine([(table, 1.0), (scorer, 0.4)])

    class Sum:
        vocab_dim = table.vocab_dim

        def total(self, labels, **kwargs):
            return table.total(labels, **kwargs) + 0.4 * reference.total(labels, bos=END, eos=END)

    kwargs: dict[str, Any] = dict(bos=END, eos=END)
    starts, limits = [3, 0, 17, 30], [3, 2, 0, 1]
    found = search_on_torch(mixture, starts, max_len=limits, beam_size=45, scorers=[table], **kwargs)
    for nbest, start, limit in zip(found, starts, limits, strict=True):
        assert_same(nbest, enumerate_all(Sum(), max_len=limit, start=start, **kwargs))
        (single,) = search_on_torch(mixture, [start], max_len=limit, beam_size=45, scorers=[table], **kwargs)
        assert [labels for _, labels in single] == [labels for _, labels in nbest]


@pytest.mark.parametrize("opts", [{}, SPARSE], ids=["dense", "sparse"])
def test_ctc(opts, tmp_path):
    """in prefix beam search; blank has the place of end of sentence"""
    scorer, backoff = make(tmp_path, ["b", "c", "</s>"], eos=None, **opts)
    reference = Reference(backoff, ["b", "c", "</s>"])
    rng = numpy.random.default_rng(0)
    x = rng.standard_normal((2, 4, 3)).astype("float32")
    log_probs = x - numpy.log(numpy.exp(x).sum(-1, keepdims=True))
    lengths, found = [4, 2], []

    def func(x, time, vocab, batch):
        x.feature_dim = vocab
        hyps = ctc_beam_search(
            x, spatial_dim=time, blank=2, beam_size=40, scorer=scorer, scorer_scale=0.7, bos=2, eos=2
        )
        found.extend(hyps.nbest(i) for i in range(2))
        return {}

    run_on("torch", func, {"x": Input(log_probs, "batch time vocab")}, {"time": lengths, "vocab": 3})
    for i, length in enumerate(lengths):
        expected = []
        for labels, score in enumerate_ctc(log_probs[i, :length], blank=2).items():
            expected.append((score + 0.7 * reference.total(list(labels), bos=2, eos=2), list(labels)))
        assert_same(found[i], expected, length_exponent=0.0)


def test_labels_of_the_dim(tmp_path):
    levels = random_ngrams(WORDS, order=2, seed=0)
    model, dim = read_arpa(write_arpa(tmp_path / "x.arpa", levels)), nn.Dim(4, name="vocab")
    with pytest.raises(ValueError, match="expected labels, or a vocab_dim with a vocabulary, got .*vocab"):
        NgramScorer(model, dim)
    dim.vocab = Vocabulary.create_vocab_from_labels(LABELS)
    numpy.testing.assert_array_equal(
        all_scores(NgramScorer(model, dim), [[0]]), all_scores(make(tmp_path, order=2)[0], [[0]])
    )


def test_end_of_sentence(tmp_path):
    """any label can be it; without it, the label of that name"""
    named = all_scores(make(tmp_path, eos=None)[0], [[0, 2]])
    numpy.testing.assert_array_equal(all_scores(make(tmp_path, ["b", "?", "c", "a"])[0], [[0, 2]]), named)
    assert abs(all_scores(make(tmp_path, ["b", "?", "c", "a"], eos=None)[0], [[0, 2]]) - named).max() > 0.01


def test_missing_labels(tmp_path):
    labels = ["b", "</s>", "x", "y"]
    unknown, _ = make(tmp_path, labels)
    impossible, _ = make(tmp_path, labels, missing="impossible")
    a, b = all_scores(unknown, [[0, 2]]), all_scores(impossible, [[0, 2]])
    numpy.testing.assert_array_equal(a[:, :2, :2], b[:, :2, :2])
    numpy.testing.assert_array_equal(a[..., 2], a[..., 3])
    assert (b[..., 2:] == -1e4).all() and (a > -1e4).all()


@pytest.mark.parametrize(
    "labels,kwargs,message",
    [
        (["a", "b"], dict(missing="zero"), "missing, expected 'unk' or 'impossible', got 'zero'"),
        (["a", "b"], dict(eos=2), "NgramScorer: eos, expected an index from 0 to 1 of .*vocab.*, got 2"),
        (["A", "</s>"], {}, r"expected labels of the model, like \['<s>', '</s>', 'a', 'b', 'c', 'd'\], got \['A'"),
        (["a", "</s>", "x"], {}, r"which has no <unk> \(or missing='impossible'\), but it lacks 1 of 3: \['x'\]"),
    ],
)
def test_errors(labels, kwargs, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        make(tmp_path, labels, unknown=False, **kwargs)


def test_more_errors(tmp_path, monkeypatch):
    levels = random_ngrams(WORDS, order=2, seed=0)
    model = read_arpa(write_arpa(tmp_path / "x.arpa", levels))
    with pytest.raises(ValueError, match="expected the 3 labels of .*vocab.*, got 2"):
        NgramScorer(model, nn.Dim(3, name="vocab"), labels=["a", "b"])
    for grams in levels:
        for gram in [gram for gram in grams if "</s>" in gram]:
            del grams[gram]
    without_end = read_arpa(write_arpa(tmp_path / "x.arpa", levels))
    with pytest.raises(ValueError, match="expected a model with </s> for the eos, got none among its 1-grams"):
        NgramScorer(without_end, nn.Dim(2, name="vocab"), labels=["a", "b"], eos=0)
    monkeypatch.setattr("returnn_common.search.ngram.MAX_EXACT", 5)
    with pytest.raises(ValueError, match=r"NgramScorer: expected less than 5 n-grams and contexts, got \d+"):
        NgramScorer(model, nn.Dim(4, name="vocab"), labels=["a", "b", "c", "</s>"])


def test_ctc_over_many_frames(tmp_path):
    """where the search repeats operations of the first frames, contexts with more n-grams come later"""
    labels = ["b", "c", "a", "d", "</s>"]
    levels = random_ngrams(WORDS, order=2, seed=0, keep=1.0)
    levels[1] = {gram: value for gram, value in levels[1].items() if gram[0] == "a"}
    model = read_arpa(write_arpa(tmp_path / "x.arpa", levels))
    best = [0, 4] * 10 + [2, 1, 2, 3, 2, 0]  # blank is 4
    log_probs = numpy.full((1, len(best), 5), -20.0, "float32")
    log_probs[0, numpy.arange(len(best)), best] = 0.0
    expected = Backoff(levels).total([labels[i] for i in best if i != 4])
    for opts in ({}, SPARSE):
        scorer = NgramScorer(model, nn.Dim(5, name="vocab"), labels=labels, **opts)
        assert scorer.tensors_only == (not opts)

        def func(x, time, vocab, scorer=scorer):
            x.feature_dim = vocab
            kwargs: dict[str, Any] = dict(beam_size=1, scorer=scorer, scorer_scale=1.0, bos=4, eos=4)
            hyps = ctc_beam_search(x, spatial_dim=time, blank=4, **kwargs)
            ((score, found),) = hyps.nbest(0)
            assert found == [i for i in best if i != 4]
            assert score == pytest.approx(expected, abs=1e-3)
            return {}

        run_on("torch", func, {"x": Input(log_probs, "batch time vocab")}, {"time": [len(best)], "vocab": 5})
