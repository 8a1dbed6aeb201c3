"""Tests of the word error rate against other scorers and plain dynamic programming."""

from __future__ import annotations

import doctest
import math
import random
from pathlib import Path

import jiwer
import kaldialign
import pytest

from returnn_common.recog import scoring
from returnn_common.recog.nbest import write_nbest
from returnn_common.recog.scoring import align_words, format_alignment, oracle_wer, read_texts, score_wer


def _distance(ref: list[str], hyp: list[str]) -> int:
    """Levenshtein distance, from its definition."""
    row = list(range(len(hyp) + 1))
    for i, r in enumerate(ref, 1):
        last, row[0] = row[0], i
        for j, h in enumerate(hyp, 1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (r != h))
    return row[-1]


def _random_texts(num: int, *, seed: int, min_words: int = 0) -> dict[str, str]:
    rng = random.Random(seed)
    # "*", "None", "-1" and "<eps>" are words like any other.
    words = ["A", "B", "C", "*", "None", "<eps>", "-1"]
    return {
        f"utt-{i}": " ".join(rng.choices(words[: rng.randint(1, 7)], k=rng.randint(min_words, 9))) for i in range(num)
    }


def test_alignments_are_minimal_and_consistent():
    refs, hyps = _random_texts(500, seed=1), _random_texts(500, seed=2)
    result = score_wer(hyps, refs)
    for utterance in result.utterances:
        ref, hyp = refs[utterance.seq_tag].split(), hyps[utterance.seq_tag].split()
        assert [r for r, _ in utterance.alignment if r is not None] == ref
        assert [h for _, h in utterance.alignment if h is not None] == hyp
        assert (None, None) not in utterance.alignment
        assert utterance.errors == _distance(ref, hyp) == kaldialign.edit_distance(ref, hyp)["total"]
        assert utterance.insertions - utterance.deletions == len(hyp) - len(ref)
        assert utterance.num_ref_words == len(ref)
    assert result.errors == sum(_distance(refs[tag].split(), hyps[tag].split()) for tag in refs)
    assert result.num_ref_words == sum(len(text.split()) for text in refs.values())
    assert result.errors == result.substitutions + result.deletions + result.insertions


def test_corpus_rate_equals_jiwer():
    refs, hyps = _random_texts(300, seed=3, min_words=1), _random_texts(300, seed=4)
    theirs = jiwer.process_words(list(refs.values()), list(hyps.values()))
    ours = score_wer(hyps, refs)
    assert ours.wer == pytest.approx(100 * theirs.wer, rel=1e-12)
    assert ours.errors == theirs.substitutions + theirs.deletions + theirs.insertions
    assert ours.insertions - ours.deletions == theirs.insertions - theirs.deletions
    # The corpus's rate isn't the mean of the utterances' rates.
    assert ours.wer != pytest.approx(sum(u.wer for u in ours.utterances) / ours.num_utterances, abs=1)


def test_corpus_rate_weighs_by_words():
    result = score_wer({"long": "A B C D E F G H I", "short": "X"}, {"long": "A B C D E F G H I", "short": "A"})
    assert result.wer == pytest.approx(10.0)
    assert (result.substitutions, result.deletions, result.insertions, result.num_ref_words) == (1, 0, 0, 10)


def test_missing_extra_and_empty():
    references = {"a": "ONE TWO", "b": "THREE FOUR FIVE", "empty": "", "silent": ""}
    hypotheses = {"extra": "SEVEN EIGHT", "a": " ONE \t TWO\n", "empty": "SIX SIX", "silent": " "}
    result = score_wer(hypotheses, references)
    assert (result.substitutions, result.deletions, result.insertions) == (0, 3, 2)
    assert (result.num_ref_words, result.num_utterances) == (5, 4)
    assert result.missing == ["b"] and result.extra == ["extra"]
    assert result.wer == pytest.approx(100.0)
    rates = {u.seq_tag: u.wer for u in result.utterances}
    assert rates == {"a": 0.0, "b": 100.0, "empty": math.inf, "silent": 0.0}
    missing, extra = result.warnings
    assert missing == "1 of 4 references have no hypothesis; all their words count as deletions: b"
    assert extra == "1 hypotheses have no reference and are not counted: extra"
    assert score_wer({"a": "X"}, {"a": "X"}).warnings == []


def test_many_missing_are_counted_all_and_named_in_part():
    result = score_wer({}, {f"u{i}": "A B" for i in range(8)})
    assert (result.deletions, result.wer, len(result.missing)) == (16, 100.0, 8)
    assert result.warnings[0].endswith("u0, u1, u2, u3, u4 and 3 more")


def test_no_reference_words():
    assert score_wer({}, {}).wer == 0.0
    assert score_wer({"a": ""}, {"a": ""}).wer == 0.0
    assert score_wer({"a": "X"}, {"a": ""}).wer == math.inf
    assert score_wer({"a": "X"}, {}).wer == 0.0  # only an extra one


def test_more_errors_than_words():
    assert score_wer({"a": "X Y Z"}, {"a": "A"}).wer == pytest.approx(300.0)


def test_words_are_compared_as_they_are():
    assert score_wer({"a": "one Two, TWO"}, {"a": "ONE Two TWO"}).errors == 2


def test_worst():
    refs = {"a": "A", "b": "A B C", "c": "A B", "d": "A B C", "e": "A"}
    hyps = {"a": "X", "b": "X Y C", "c": "X Y", "d": "X Y C", "e": "A"}
    result = score_wer(hyps, refs)
    assert [u.seq_tag for u in result.worst(10)] == ["c", "b", "d", "a"]
    assert [u.seq_tag for u in result.worst(2)] == ["c", "b"]
    assert result.worst(0) == result.worst(-1) == []


def test_oracle():
    nbest = {
        "a": [(-1.0, "ONE"), (-2.0, "ONE TWO"), (-3.0, "TWO ONE")],
        "b": [],
        "c": [(0.0, "X")],
        "d": [(0.0, "Y"), (-1.0, "Z")],
    }
    refs = {"a": "ONE TWO", "b": "SIX", "d": "A"}
    result = oracle_wer(nbest, refs)
    assert (result.errors, result.num_ref_words, result.missing, result.extra) == (2, 4, ["b"], ["c"])
    assert result.utterances[2].alignment == [("A", "Y")], "the better scored one among equals"
    # Against the definition: the best of all choices.
    rng = random.Random(5)
    texts = [_random_texts(40, seed=seed) for seed in range(10, 14)]
    refs = _random_texts(40, seed=20)
    lists = {tag: [(-float(i), text[tag]) for i, text in enumerate(texts)] for tag in refs}
    best = sum(min(_distance(refs[tag].split(), text[tag].split()) for text in texts) for tag in refs)
    assert oracle_wer(lists, refs).errors == best
    assert best < score_wer({tag: rng.choice(texts)[tag] for tag in refs}, refs).errors


def test_not_a_text():
    with pytest.raises(TypeError, match=r"hypothesis 'a': expected a text \(str\), got \[\(0.0, 'X'\)\]"):
        score_wer({"a": [(0.0, "X")]}, {"a": "X"})  # type: ignore[dict-item]
    with pytest.raises(TypeError, match="reference 'a': .* got None"):
        score_wer({"a": "X"}, {"a": None})  # type: ignore[dict-item]


def test_format_alignment():
    assert doctest.testmod(scoring).attempted > 0 and doctest.testmod(scoring).failed == 0
    assert format_alignment([]) == "REF:\nHYP:"
    words = [f"W{i}" for i in range(30)]
    text = format_alignment(align_words(words, words[:-1] + ["END"]), width=40)
    assert all(len(line) <= 40 for line in text.split("\n"))
    blocks = [block.split("\n") for block in text.split("\n\n")]
    assert len(blocks) > 2
    assert " ".join(block[0][5:] for block in blocks).split() == words
    assert blocks[-1][2].index("S") == blocks[-1][0].index("W29") == blocks[-1][1].index("END")
    assert all(len(block) == 2 for block in blocks[:-1]), "no line of marks where there is no error"


def test_read_texts(tmp_path: Path):
    path = tmp_path / "1-2.trans.txt"
    path.write_bytes("\ufeff1-2-0000 ONE  TWO\r\n1-2-0001\n\n1-2-0002 SCHÖN\u2028X \n".encode())
    assert read_texts(path) == {"1-2-0000": "ONE  TWO", "1-2-0001": "", "1-2-0002": "SCHÖN\u2028X"}
    for name in ["n.py", "n.py.gz"]:
        write_nbest(tmp_path / name, {"a": [(0.0, "X"), (-1.0, "Y")], "b": []})
        assert read_texts(tmp_path / name) == {"a": "X"}
    path.write_text(" {'a': 'X'}")
    assert read_texts(path) == {"a": "X"}
    path.write_text("")
    assert read_texts(path) == {}


def test_read_texts_refuses(tmp_path: Path):
    path = tmp_path / "t"
    with pytest.raises(FileNotFoundError, match="text file .*t: no such file"):
        read_texts(path)
    path.write_text("a X\nb Y\na Z\n")
    with pytest.raises(ValueError, match="t, line 3: utterance 'a' comes twice"):
        read_texts(path)
    path.write_bytes(b"a \xff\xfe")
    with pytest.raises(ValueError, match="t: expected UTF-8 text, lines of 'UTT-ID TEXT'"):
        read_texts(path)
    path.write_text("{'a': 3}")
    with pytest.raises(ValueError, match=r"expected a list of \(score, text\) or a text"):
        read_texts(path)
