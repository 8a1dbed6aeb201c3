"""Times of words: from labels of each kind of vocabulary."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from returnn_common.datasets.vocab import CharacterVocab, PhonemeVocab, WordVocab, make_vocab
from returnn_common.recog.times import WordTime, frame_shift, word_times


def _subwords(pieces):
    """:return: decode, as SentencePiece's"""
    return lambda ids: "".join(pieces[i] for i in ids).replace("\u2581", " ").strip()


def _bpe(pieces):
    """:return: decode, as BPE's"""
    return lambda ids: " ".join(pieces[i] for i in ids).replace("@@ ", "").removesuffix("@@")


def _times(decode, labels, starts, ends, **kwargs):
    kwargs = {"frame_shift": 1.0, **kwargs}
    words = word_times(labels, decode=decode, starts=starts, ends=ends, **kwargs)
    assert " ".join(word.text for word in words) == " ".join(decode(labels).split())
    return [(word.text, word.start, word.end) for word in words]


def test_words():
    vocab = WordVocab(["yes", "no"])
    assert _times(vocab.decode, [1, 0, 1], [2, 5, 6], [3, 6, 9]) == [("no", 2, 3), ("yes", 5, 6), ("no", 6, 9)]


def test_characters_with_spaces():
    vocab = CharacterVocab("ab ")
    labels = vocab.encode("ab  a")
    assert _times(vocab.decode, labels, [1, 3, 4, 6, 7], [2, 4, 5, 7, 9]) == [("ab", 1, 4), ("a", 7, 9)]
    assert _times(vocab.decode, [2, 0, 2], [0, 1, 2], [1, 2, 3]) == [("a", 1, 2)]
    assert _times(vocab.decode, [2], [0], [1]) == []
    assert _times(vocab.decode, [], [], []) == []


def test_subwords():
    decode = _subwords(["\u2581he", "llo", "\u2581", "x", "\u2581of\u2581the"])
    assert _times(decode, [0, 1, 2, 3, 3], [0, 2, 4, 6, 7], [1, 3, 5, 7, 9]) == [("hello", 0, 3), ("xx", 6, 9)]
    # Two words in one label: two and three of its five characters
    assert _times(decode, [0, 4, 3], [0, 10, 15], [1, 15, 16]) == [("he", 0, 1), ("of", 10, 12), ("thex", 12, 16)]
    decode = _bpe(["he@@", "llo", "x"])
    assert _times(decode, [0, 1, 2, 0], [0, 2, 4, 6], [1, 3, 5, 7]) == [("hello", 0, 3), ("x", 4, 5), ("he", 6, 7)]


@pytest.mark.parametrize("name", ["chars", "bytes", "spm1k", "bpe1k"])
def test_characters_of_several_bytes(name):
    """a word lasts from the first to the last byte of its characters, wherever they are in it"""
    vocab = make_vocab(name, byte_fallback=True)
    texts = ["ÉTÉ", "漢字", "🎉"]
    labels, starts, expected = [], [], []
    for text in texts:
        before = len(labels)
        labels = vocab.encode(" ".join(texts[: len(expected) + 1]))
        is_space = name in ("chars", "bytes", "spm1k") and before > 0  # a label of its own
        starts = list(range(len(labels)))
        expected.append((text, before + is_space, len(labels)))
    found = _times(vocab.decode, labels, starts, [start + 1 for start in starts])
    if name == "spm1k":  # the first label is the space before the first word
        expected[0] = (expected[0][0], 1, expected[0][2])
    assert found == expected


def test_phonemes(tmp_path):
    """take the place of words"""
    (tmp_path / "dict").write_text("the DH AH\ncat K AE T\n")
    vocab = PhonemeVocab(tmp_path / "dict")
    labels = vocab.encode("THE CAT")
    expected = [(phoneme, i, i + 1) for i, phoneme in enumerate("DH AH | K AE T".split())]
    assert _times(vocab.decode, labels, range(6), range(1, 7)) == expected


def test_random_texts():
    """each word's labels are those whose characters it has, whatever the vocabulary"""
    rng = np.random.default_rng(0)
    pieces = ["\u2581a", "b", "\u2581", "cd", "\u2581ef", "g"]
    for _ in range(300):
        labels = list(map(int, rng.integers(0, len(pieces), rng.integers(0, 12))))
        starts = np.cumsum(rng.integers(1, 4, len(labels))) * 4
        ends = starts + rng.integers(1, 4, len(labels))
        expected: list[Any] = []
        open_word = False
        for c, start, end in zip(labels, starts, ends, strict=True):
            text = pieces[c].removeprefix("\u2581")
            if text != pieces[c]:
                open_word = False
            if text:
                expected = (
                    [*expected[:-1], (expected[-1][0] + text, expected[-1][1], end)]
                    if open_word
                    else [*expected, (text, start, end)]
                )
                open_word = True
        assert _times(_subwords(pieces), labels, starts, ends) == expected


def test_long_text_is_decoded_in_parts():
    num_decoded = 0

    def decode(ids):
        nonlocal num_decoded
        num_decoded += len(ids)
        return "".join("ab "[i] for i in ids)

    labels = [0, 1, 2] * 1000
    assert len(_times(decode, labels, range(3000), range(1, 3001))) == 1000
    assert num_decoded < 30_000


def test_seconds():
    model = SimpleNamespace(encoder=SimpleNamespace(downsample_factor=4))
    assert frame_shift(model) == pytest.approx(0.04)
    assert frame_shift(model, feature_step=0.02) == pytest.approx(0.08)
    decode = WordVocab(["a", "b"]).decode
    ((text, start, end),) = _times(decode, [1], [3], [5], frame_shift=0.04, offset=60.0)
    assert (text, start, end) == ("b", pytest.approx(60.12), pytest.approx(60.2))


def test_confidence():
    decode = _bpe(["a@@", "b", "c"])
    scores = np.log([0.1, 0.5, 0.25, 1.0, 0.75, 1.0])
    words = word_times([0, 1, 2], decode=decode, starts=[1, 3, 4], ends=[3, 4, 5], frame_shift=1.0, frame_scores=scores)
    assert words == [WordTime("ab", 1, 4, pytest.approx(1.75 / 3)), WordTime("c", 4, 5, pytest.approx(0.75))]
    label_scores = np.log([0.375, 1.0, 0.75])
    assert words == word_times(
        [0, 1, 2], decode=decode, starts=[1, 3, 4], ends=[3, 4, 5], frame_shift=1.0, label_scores=label_scores
    )
    (word,) = word_times([2], decode=decode, starts=[0], ends=[1], frame_shift=1.0)
    assert word.confidence is None


def test_labels_of_one_frame_share_it():
    """a transducer can emit several"""
    vocab = WordVocab(["a", "b", "c", "d"])
    starts, ends = [2, 2, 4, 4], [3, 3, 5, 5]
    expected = [("a", 2, 2.5), ("b", 2.5, 3), ("c", 4, 4.5), ("d", 4.5, 5)]
    assert _times(vocab.decode, [0, 1, 2, 3], starts, ends) == expected
    decode = _bpe(["he@@", "llo", "x"])
    scores = np.log([0.5, 0.25, 1.0])
    words = word_times([0, 1, 2], decode=decode, starts=[3] * 3, ends=[4] * 3, frame_shift=3.0, label_scores=scores)
    assert words == [WordTime("hello", 9, pytest.approx(11), pytest.approx(0.375)), WordTime("x", 11, 12, 1.0)]


@pytest.mark.parametrize(
    "kwargs,message",
    [
        (dict(starts=[0]), "expected starts and ends of 2 labels, got 1 and 2"),
        (dict(ends=[1, 2, 3]), "expected starts and ends of 2 labels, got 2 and 3"),
        (dict(starts=[0, 0]), "label 1, expected frames behind 1, at least one, got 0 to 2"),
        (dict(starts=[0, 0], ends=[0, 0]), "label 0, expected frames behind 0, .* got 0 to 0: no alignment, or an imp"),
        (dict(starts=[-1, 1]), "label 0, expected frames behind 0, at least one, got -1 to 1"),
        (dict(frame_shift=0.0), "frame_shift, expected seconds above 0, got 0.0"),
        (dict(starts=[0, 0], ends=[2, 2]), "label 1, expected frames behind 2, at least one, got 0 to 2"),
        (dict(frame_scores=[0.0]), "frame_scores, expected at least 2 frames, got 1"),
        (dict(label_scores=[0.0]), "label_scores, expected those of 2 labels, got 1"),
        (dict(label_scores=[0.0, 0.0], frame_scores=[0.0, 0.0]), "expected frame_scores or label_scores, got both"),
    ],
)
def test_errors(kwargs, message):
    args: dict[str, Any] = dict(starts=[0, 1], ends=[1, 2], frame_shift=1.0)
    with pytest.raises(ValueError, match="word_times: " + message):
        word_times([0, 1], decode=WordVocab(["a", "b"]).decode, **{**args, **kwargs})
