"""Word lists against splitting label sequences into words."""

from __future__ import annotations

import itertools
from typing import Any

import numpy
import pytest

from returnn_common import nn
from returnn_common.datasets.vocab import CharacterVocab
from returnn_common.search import LexiconScorer, beam_search, combine, spell_words
from tests.engines import ENGINES, Input, run_on
from tests.search.ctc_reference import Trigram, assert_same, enumerate_all, random_log_probs, search_on_torch

INF = float("inf")


def is_text(labels, words, *, separator=None, allow_empty=True):
    """whether these are words, with the separator in between"""
    labels = tuple(labels)
    if not labels:
        return allow_empty
    for word in words:
        n = len(word)
        if labels[:n] != tuple(word):
            continue
        rest = labels[n:]
        if not rest:
            return True
        if separator is None and is_text(rest, words, allow_empty=False):
            return True
        if separator is not None and rest[0] == separator:
            if is_text(rest[1:], words, separator=separator, allow_empty=False):
                return True
    return False


def is_begin(labels, words, **kwargs):
    """whether a text begins like that: with at most the rest of a word more, or one word"""
    kwargs["allow_empty"] = True
    rests = [word[i:] for word in words for i in range(len(word) + 1)]
    return any(is_text((*labels, *rest), words, **kwargs) for rest in rests)


def allowed_next(engine, lexicon, sequences, size):
    """:return: [sequence, position, label], whether that label can come after those before"""
    num_steps = len(sequences[0]) + 1

    def func(c):
        state = lexicon.initial_state(batch_dims=[nn.batch_dim])
        previous = nn.constant(0, dims=[nn.batch_dim], dtype="int32", sparse_dim=lexicon.vocab_dim)
        outputs = {}
        for step in range(num_steps):
            log_probs, state = lexicon.score(previous, state)
            outputs[str(step)] = (log_probs, [nn.batch_dim, lexicon.vocab_dim])
            if step < num_steps - 1:
                previous = nn.gather(c, indices=step, axis=c.dims[1])
                previous = nn.set_sparse_dim(previous, lexicon.vocab_dim)
        return outputs

    res = run_on(engine, func, {"c": Input(numpy.array(sequences, "int32"), "batch steps")}, {"steps": num_steps - 1})
    log_probs = numpy.stack([res[str(step)] for step in range(num_steps)], axis=1)
    assert set(numpy.unique(log_probs)) <= {0.0, -INF}
    assert log_probs.shape == (len(sequences), num_steps, size)
    return log_probs == 0


def check(engine, words, *, size, eos, separator=None, length=4, dense_limit=2**22, allow_empty=True):
    lexicon = LexiconScorer(
        words,
        nn.Dim(size, name="vocab"),
        eos=eos,
        separator=separator,
        dense_limit=dense_limit,
        allow_empty=allow_empty,
    )
    sequences = list(itertools.product([c for c in range(size) if c != eos], repeat=length))
    allowed = allowed_next(engine, lexicon, sequences, size)
    known: dict[Any, Any] = {}
    for i, seq in enumerate(sequences):
        for n in range(length + 1):
            begin = seq[:n]
            if begin not in known:
                expected = [is_begin((*begin, c), words, separator=separator) for c in range(size)]
                if eos is not None:
                    expected[eos] = is_text(begin, words, separator=separator, allow_empty=allow_empty)
                known[begin] = expected
            assert list(allowed[i, n]) == known[begin], (words, begin)


@pytest.mark.parametrize("dense_limit", [2**22, 0])
def test_random_words(dense_limit):
    """with and without separator; words that are the begin or a part of others, in any way"""
    rng = numpy.random.default_rng(1)
    for i in range(60):
        eos, separator = [(None, None), (0, None), (3, 0), (None, 1)][i % 4]
        spoken = [c for c in range(4) if c not in (eos, separator)]
        words = [tuple(map(int, rng.choice(spoken, rng.integers(1, 4)))) for _ in range(rng.integers(1, 6))]
        check("torch", words, size=4, eos=eos, separator=separator, length=3 + i % 2, dense_limit=dense_limit)


@pytest.mark.parametrize("engine", ENGINES[1:])
def test_engines(engine):
    check(engine, [(1, 2), (1, 2, 1), (2,)], size=4, eos=0, length=3, dense_limit=2**22 if engine == "jax" else 0)


def test_no_empty_text():
    check("torch", [(1,), (2, 1)], size=3, eos=0, allow_empty=False)
    check("torch", [(1,), (2, 1)], size=4, eos=0, separator=3, allow_empty=False)


def test_equal_ends_of_words_are_one_state():
    words = list(itertools.product(range(5), repeat=2))
    assert LexiconScorer(words, nn.Dim(6, name="vocab"), eos=5).num_states < 15


@pytest.mark.parametrize("with_lm", [False, True])
def test_ctc_search_is_enumeration(with_lm):
    rng = numpy.random.default_rng(2)
    words = [(0,), (0, 1), (2, 0, 2)]
    log_probs = random_log_probs(rng, 20, 4, 4)
    lengths = rng.integers(0, 5, 20)
    lm = Trigram(4, bos=3)
    scorer: Any = LexiconScorer(words, lm.vocab_dim, eos=3)
    if with_lm:
        scorer = combine([(lm, 0.7), (scorer, 1.0)])
    found = search_on_torch(log_probs, lengths, blank=3, beam_size=150, scorer=scorer, scorer_scale=1.0, eos=3)
    for i, length in enumerate(lengths):
        kwargs: dict[str, Any] = dict(scorer=lm, scale=0.7, eos=3) if with_lm else {}
        expected = enumerate_all(log_probs[i, :length], blank=3, **kwargs)
        assert_same(found[i], {k: v for k, v in expected.items() if is_text(k, words)})


def test_label_synchronous_search_is_enumeration():
    lm = Trigram(4, bos=3)
    words = [(0,), (1, 2)]
    found: list[Any] = []

    def search():
        lexicon = LexiconScorer(words, lm.vocab_dim, eos=3)
        scorer = combine([(lm, 1.0), (lexicon, 1.0)])
        hyps = beam_search(scorer, batch_dims=[nn.batch_dim], beam_size=60, max_len=4, bos=3, eos=3, length_exponent=0)
        found.extend(hyps.nbest(0))
        return {}

    run_on("torch", search, {"x": Input(numpy.zeros((1,), "float32"), "batch")}, {})
    expected = {
        seq: lm.total(list(seq), 3)
        for n in range(5)
        for seq in itertools.product(range(3), repeat=n)
        if is_text(seq, words)
    }
    assert_same(found, expected)


def test_spell_words():
    vocab = CharacterVocab("ab ")
    assert spell_words(["ab", "b", "ab"], vocab.encode) == [[0, 1], [1]]
    with pytest.raises(ValueError, match="spell_words: expected at least one word, got none"):
        spell_words([], vocab.encode)
    with pytest.raises(ValueError, match=r"2 of 3 words can't be written with the vocabulary: 'ax', ''"):
        spell_words(["ab", "ax", ""], vocab.encode)
    with pytest.raises(ValueError, match=r"20 of 20 words .*'x7', \.\.\."):
        spell_words([f"x{i}" for i in range(20)], vocab.encode)


@pytest.mark.parametrize(
    "words,kwargs,message",
    [
        ([], {}, "expected at least one word, got none"),
        ([(1,), ()], {}, "word 1, expected at least one label, got none"),
        ([(1, 4)], {}, r"word 0, expected labels from 0 to 3, got \[1, 4\]"),
        ([(-1,)], {}, r"word 0, expected labels from 0 to 3, got \[-1\]"),
        ([(1, 0)], {}, r"word 0, expected no eos \(0\) in it, got \[1, 0\]"),
        ([(1, 2)], dict(separator=2), r"word 0, expected no separator \(2\) in it, got \[1, 2\]"),
        ([(1,)], dict(separator=0), "separator, expected another label than eos, got 0"),
        ([(1,)], dict(separator=4), "separator, expected an index from 0 to 3 .*, got 4"),
        ([(1,)], dict(eos=-1), "eos, expected an index from 0 to 3 .*, got -1"),
        (["ab"], {}, "word 0, expected label indices, got 'ab'"),
    ],
)
def test_errors(words, kwargs, message):
    with pytest.raises(ValueError, match="LexiconScorer: " + message):
        LexiconScorer(words, nn.Dim(4, name="vocab"), **{"eos": 0, **kwargs})


def test_no_spellings():
    with pytest.raises(TypeError, match="LexiconScorer: spellings, expected the label indices of each, .*, got 1"):
        LexiconScorer([1, 2], nn.Dim(4, name="vocab"), eos=0)  # pyright: ignore
