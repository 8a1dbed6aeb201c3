"""ARPA files against the definition of back-off, and broken ones."""

from __future__ import annotations

import gzip
import itertools
import math
from pathlib import Path

import numpy
import pytest

from returnn_common.search import read_arpa
from tests.search.arpa_reference import Backoff, arpa_text, random_ngrams, write_arpa

WORDS = ["a", "b", "ä"]
SENTENCES = [s for n in range(5) for s in itertools.product([*WORDS, "d"], repeat=n)]  # "d" is unknown

# With what KenLM 0.3.0 gives for it (log10)
SMALL = r"""
\data\
ngram 1=5
ngram 2=4
ngram 3=2

\1-grams:
-1.2	<unk>
-99	<s>	-0.3
-0.8	</s>
-0.5	one	-0.25
-0.7	two	-0.1

\2-grams:
-0.4	<s> one	-0.2
-0.6	one two	0.1
-0.9	two one
-0.35	two </s>

\3-grams:
-0.15	<s> one two
-0.2	one two </s>

\end\
"""
KENLM = {
    "": -1.1,
    "one": -1.65,
    "one two": -0.75,
    "two one one": -3.7,
    "three": -2.3,
    "one three two": -3.1,
    "one two one": -2.4,
}


@pytest.mark.parametrize("regular", [True, False])
@pytest.mark.parametrize("order", [1, 2, 3, 4, 5])
def test_log_prob(order, regular, tmp_path):
    levels = random_ngrams(WORDS, order=order, seed=order, regular=regular, keep=0.5 if regular else 0.02 + 0.8 / order)
    reference, model = Backoff(levels), read_arpa(write_arpa(tmp_path / "x.arpa", levels))
    assert model.order == order and sorted(model.words) == sorted(word for (word,) in levels[0])
    assert len(model.arc_next) >= sum(len(grams) for grams in levels)
    missing = [g for n in range(2, order) for g in levels[n] if g[:-1] not in levels[n - 1]]
    assert bool(missing) == (not regular and order > 2)
    for sentence in SENTENCES:
        assert model.log_prob(sentence) == pytest.approx(reference.total(sentence), abs=1e-9)


def test_like_kenlm(tmp_path):
    path = tmp_path / "small.arpa"
    path.write_text(SMALL, "utf8")
    model = read_arpa(str(path))
    for sentence, log10 in KENLM.items():
        assert model.log_prob(sentence.split()) == pytest.approx(log10 * math.log(10), abs=1e-5)


def test_kenlm_on_random_models(tmp_path):
    kenlm = pytest.importorskip("kenlm")
    for order in (2, 3, 4):
        path = write_arpa(tmp_path / "x.arpa", random_ngrams(WORDS, order=order, seed=7))
        model, expected = read_arpa(path), kenlm.Model(path)
        for sentence in SENTENCES:
            assert model.log_prob(sentence) == pytest.approx(
                expected.score(" ".join(sentence)) * math.log(10), abs=1e-4
            )


def test_ways_to_write_it(tmp_path):
    """gzip, line ends, a byte order mark, spaces for tabs, minus infinity, an empty section: the same model"""
    expected = read_arpa(write_arpa(tmp_path / "x.arpa", random_ngrams(WORDS, order=3, seed=1)))
    text = arpa_text(random_ngrams(WORDS, order=3, seed=1))
    for data in (
        gzip.compress(text.encode()),
        text.replace("\n", "\r\n").encode(),
        text.replace("\t", "  ").encode(),
        text.encode("utf-8-sig"),
        text.replace("-99.0", "-inf").encode(),
        text.replace("\n\\end", "\n\\4-grams:\n\\end").replace("\n\n\\1", "\nngram 4 = 0\n\n\\1").encode(),
    ):
        path = tmp_path / "y.arpa"
        path.write_bytes(data)
        model = read_arpa(str(path))
        for sentence in SENTENCES[:30]:
            assert model.log_prob(sentence) == expected.log_prob(sentence)
    assert numpy.isfinite(expected.arc_log_prob).all()


def test_without_unknown_word(tmp_path):
    model = read_arpa(write_arpa(tmp_path / "x.arpa", random_ngrams(WORDS, order=2, seed=1, unknown=False)))
    assert model.unknown_word is None
    with pytest.raises(KeyError, match="d"):
        model.log_prob(["d"])


@pytest.mark.parametrize(
    "old,new,message",
    [
        (r"\data", "data", r"line 24: expected \\data\\, got the end of the file"),
        ("ngram 1=5", "ngrams", "line 3: expected 'ngram 1=' and their number, got 'ngrams'"),
        ("ngram 2=4\n", "", "line 4: expected the number of 2-grams, got 'ngram 3=2'"),
        (r"\2-grams", r"\3-grams", r"line 14: expected \\2-grams:, got '\\\\3-grams:'"),
        ("ngram 3=2\n", "", "line 14: expected no backoff weight of the longest n-grams, got '-0.4.t<s> one.t-0.2'"),
        (r"\end", r"\4-grams:", r"line 24: expected \\end\\, got '\\\\4-grams:"),
        ("ngram 2=4", "ngram 2=3", "line 18: expected 3 2-grams, as the header says, got more: '-0.35.ttwo </s>'"),
        ("ngram 2=4", "ngram 2=5", "line 20: expected 5 2-grams, as the header says, got 4"),
        ("-0.7\ttwo\t-0.1", "-0.7\ttwo\t-0.1 3", "line 12: expected a log prob, 1 words, and maybe a backoff weight"),
        ("-0.7\ttwo", "-0.7\ttwo x", "line 12: expected a log prob, 1 words, and maybe"),
        ("-0.7\ttwo", "x\ttwo", "line 12: expected a number, got 'x'"),
        ("-0.7\ttwo", "nan\ttwo", "line 12: expected a number, got 'nan'"),
        ("-0.7\ttwo\t-0.1", "-0.7\ttwo\tinf", "line 12: expected a number, got 'inf'"),
        ("-0.7\ttwo", "0.7\ttwo", "line 12: expected a log prob of at most 0, got '0.7.ttwo.t-0.1'"),
        ("-0.7\ttwo", "-0.7\tone", "line 12: expected each 1-gram once, got 'one' again"),
        ("two one", "one two", "line 17: expected each 2-gram once, got 'one two' again"),
        ("two one", "two three", "line 17: expected words that are 1-grams, got 'three'"),
        ("one two </s>", "one two </s>\t0.1", "line 22: expected no backoff weight of the longest n-grams"),
        ("\n\\end\\\n", "", r"line 22: expected \\end\\, got the end of the file"),
    ],
)
def test_broken(old, new, message, tmp_path):
    path = tmp_path / "small.arpa"
    assert old in SMALL
    path.write_text(SMALL.replace(old, new, 1), "utf8")
    with pytest.raises(ValueError, match=message.replace(".t", r"\\t")) as info:
        read_arpa(str(path))
    assert f"read_arpa: {path}" in str(info.value)


def test_no_words(tmp_path):
    path = tmp_path / "x.arpa"
    path.write_text("\\data\\\nngram 1=0\n\\1-grams:\n\\end\\\n", "utf8")
    with pytest.raises(ValueError, match="line 4: expected at least one 1-gram, got none"):
        read_arpa(str(path))


def test_no_text(tmp_path):
    path = tmp_path / "x.arpa"
    with pytest.raises(FileNotFoundError, match="read_arpa: expected an ARPA file, but there is no file .*x.arpa"):
        read_arpa(str(path))
    path.write_bytes(SMALL.replace("two", "tw\xf6").encode("latin1"))
    with pytest.raises(ValueError, match=r"line 12: expected UTF-8, got b'tw\\xf6'"):
        read_arpa(str(path))
    data = gzip.compress(SMALL.encode())
    for broken in (data[:-20], data[:40] + b"xxxx" + data[44:]):
        path.write_bytes(broken)
        with pytest.raises(ValueError, match="x.arpa: expected a whole gzip file, got"):
            read_arpa(str(path))


def test_missing_file_is_not_a_folder(tmp_path: Path):
    with pytest.raises(FileNotFoundError, match="there is no file"):
        read_arpa(str(tmp_path))
