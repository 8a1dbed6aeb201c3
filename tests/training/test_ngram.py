"""N-gram training against the definition of its smoothing."""

from __future__ import annotations

import itertools
import math

import numpy
import pytest

from returnn_common.search import read_arpa
from returnn_common.training import train_ngram

TEXT = [s.split() for s in ("one two", "one two three", "two", "one one two three three", "", "three one two")]
WORDS = ["one", "two", "three", "ä"]


def witten_bell(word, context, *, vocabulary):
    """reference, by counting in the text"""
    n = len(context) + 1
    grams = [
        tuple(padded[i : i + n])
        for sentence in TEXT
        for padded in [["<s>", *sentence, "</s>"]]
        for i in range(len(padded) - n + 1)
        if n > 1 or padded[i] != "<s>"
    ]
    following = [gram[-1] for gram in grams if gram[:-1] == context]
    lower = witten_bell(word, context[1:], vocabulary=vocabulary) if context else 1 / len(vocabulary)
    if not following:
        return lower
    types = len(set(following))
    return (following.count(word) + types * lower) / (len(following) + types)


@pytest.mark.parametrize("name", ["lm.arpa", "lm.arpa.gz"])
@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_witten_bell(order, name, tmp_path):
    path = str(tmp_path / name)
    train_ngram(TEXT, path, order=order, words=WORDS)
    model = read_arpa(path)
    vocabulary = [*WORDS, "</s>", "<unk>"]
    assert model.order == order and sorted(model.words) == sorted([*vocabulary, "<s>"])
    for n in range(4):
        for words in itertools.product(WORDS, repeat=n):
            padded, expected = ("<s>", *words, "</s>"), 0.0
            for i in range(1, len(padded)):
                context = padded[max(i - order + 1, 0) : i]
                expected += math.log(witten_bell(padded[i], context, vocabulary=vocabulary))
            assert model.log_prob(words) == pytest.approx(expected, abs=1e-5)


def test_sums_to_one(tmp_path):
    """over all words, after each context: the sentences up to a length, and what is longer"""
    path = str(tmp_path / "lm.arpa")
    train_ngram(TEXT, path, order=3)
    model = read_arpa(path)
    words = ["one", "two", "three", "<unk>"]
    shorter = [math.exp(model.log_prob(s)) for n in range(5) for s in itertools.product(words, repeat=n)]
    # Five words or more: what is missing. It gets less and less.
    assert 0.8 < sum(shorter) < 1.0
    for state in range(len(model.length)):
        if state and model.words[model.arc_word[state - 1]] == "</s>":
            continue
        ids = numpy.array([i for i, word in enumerate(model.words) if word != "<s>"])
        arcs, weights = model.find_arc(numpy.full(len(ids), state), ids)
        assert numpy.exp(model.arc_log_prob[arcs] + weights).sum() == pytest.approx(1.0, abs=1e-5)


def test_words_that_do_not_come(tmp_path):
    path = str(tmp_path / "lm.arpa")
    train_ngram(TEXT, path, order=2)
    assert "ä" not in read_arpa(path).words
    few = read_arpa(path).log_prob(["one"])
    train_ngram(TEXT, path, order=2, words=["ä"])
    model = read_arpa(path)
    assert model.log_prob(["ä"]) == pytest.approx(model.log_prob(["<unk>"])) and model.log_prob(["one"]) < few


def test_errors(tmp_path):
    path = str(tmp_path / "lm.arpa")
    with pytest.raises(ValueError, match="train_ngram: expected an order of at least 1, got 0"):
        train_ngram(TEXT, path, order=0)
    with pytest.raises(ValueError, match="train_ngram: expected at least one sentence, got none"):
        train_ngram([], path)
    for word in ("a b", "", "<s>", "a\n", "<unk>", "</s>"):
        with pytest.raises(ValueError, match="expected words without spaces, other than <s>, </s> and <unk>, got"):
            train_ngram([["one", word]], path)
    with pytest.raises(ValueError, match="train_ngram: expected words .* got 'a b'"):
        train_ngram(TEXT, path, words=["a b"])
