"""Tests of the training of subword vocabularies."""

from __future__ import annotations

import io
import random
from collections import Counter
from pathlib import Path

import pytest

from returnn_common.datasets import BpeVocab, SentencePieceVocab
from returnn_common.datasets.vocab.training import add_byte_pieces, train_bpe, train_sentencepiece, train_vocab

_LINES = ["THE CAT'S HAT", "HE SAW THE HATS THAT THE CATS HAD", "A BAD BANANA"]


def _random_lines(seed: int) -> list[str]:
    rng = random.Random(seed)
    return [" ".join("".join(rng.choices("abc", k=rng.randint(1, 6))) for _ in range(8)) for _ in range(20)]


def _naive_merges(lines: list[str], num_merges: int) -> list[tuple[str, str]]:
    """Counts everything anew for each merge."""
    words = [[*word[:-1], f"{word[-1]}</w>"] for line in lines for word in line.split()]
    merges = []
    for _ in range(num_merges):
        counts = Counter(pair for word in words for pair in zip(word, word[1:], strict=False))
        best = max(counts, key=lambda pair: (counts[pair], pair))
        merges.append(best)
        for word in words:
            i = 0
            while i < len(word) - 1:
                if (word[i], word[i + 1]) == best:
                    word[i : i + 2] = ["".join(best)]
                i += 1
    return merges


@pytest.mark.parametrize("seed", range(5))
def test_bpe_merges(seed):
    lines = _random_lines(seed)
    codes = train_bpe(lines, num_merges=25).codes.splitlines()
    assert codes[0] == "#version: 0.2"
    assert [tuple(code.split()) for code in codes[1:]] == _naive_merges(lines, 25)


@pytest.mark.parametrize("seed", range(5))
def test_bpe_codes_of_subword_nmt(seed):
    learn_bpe = pytest.importorskip("subword_nmt.learn_bpe", reason="needs the extra 'references'")
    lines, out = _random_lines(seed), io.StringIO()
    learn_bpe.learn_bpe([f"{line}\n" for line in lines], out, 25)
    assert train_bpe(lines, num_merges=25).codes == out.getvalue()


def test_bpe_labels(tmp_path: Path):
    files = train_bpe(_LINES, num_merges=6)
    labels = files.vocab.splitlines()
    characters = sorted(set("".join(_LINES)) - {" "})
    assert labels[:3] == ["<unk>", "<s>", "</s>"]
    assert labels[3 : 3 + 2 * len(characters)] == [label for char in characters for label in (char, f"{char}@@")]
    assert 0 < len(labels) - 3 - 2 * len(characters) <= 6
    (tmp_path / "codes").write_text(files.codes)
    (tmp_path / "vocab").write_text(files.vocab)
    vocab = BpeVocab(tmp_path / "codes", tmp_path / "vocab")
    ids = {i for line in _LINES for i in vocab.encode(line)}
    assert set(range(3 + 2 * len(characters), len(labels))) <= ids, "no joined symbol is useless"
    reverse = " ".join(_LINES)[::-1]  # any other text of the same characters
    assert vocab.decode(vocab.encode(reverse)) == " ".join(reverse.split())


def test_bpe_errors():
    with pytest.raises(ValueError, match="train_bpe: num_merges, expected at most 1 for this text, got 5"):
        train_bpe(["AB AB"], num_merges=5)
    with pytest.raises(ValueError, match="train_bpe: num_merges, expected an integer of at least 1, got 0"):
        train_bpe(["AB"], num_merges=0)
    with pytest.raises(ValueError, match="train_bpe: expected text, got none"):
        train_bpe([" "], num_merges=1)


@pytest.fixture(scope="module", params=["unigram", "bpe"])
def model(request) -> bytes:
    return train_sentencepiece(_LINES * 9, vocab_size=22, model_type=request.param)


def test_sentencepiece(model, tmp_path):
    (tmp_path / "model").write_bytes(model)
    vocab = SentencePieceVocab(tmp_path / "model")
    assert (vocab.get_num_classes(), vocab.get_bos_idx(), vocab.get_eos_idx()) == (22, 1, 2)
    for line in _LINES:
        assert vocab.decode(vocab.encode(line)) == line
        assert len(vocab.encode(line)) < len(line)
    assert vocab.find_unknown("Ä") == ["Ä"]
    assert len(model) < 1000, "nothing of the normaliser"


def test_the_two_kinds_differ():
    unigram, bpe = (train_sentencepiece(_LINES * 9, vocab_size=22, model_type=kind) for kind in ("unigram", "bpe"))
    assert unigram != bpe


def test_sentencepiece_changes_nothing_of_the_text(tmp_path):
    texts = ["ﬁne Straße", "Ａ é e\u0301 ²"]  # its default normaliser would make other characters of these
    (tmp_path / "model").write_bytes(train_sentencepiece(texts, vocab_size=20, model_type="bpe"))
    vocab = SentencePieceVocab(tmp_path / "model")
    assert [vocab.decode(vocab.encode(text)) for text in texts] == texts


def test_byte_pieces(model, tmp_path):
    (tmp_path / "plain").write_bytes(model)
    (tmp_path / "bytes").write_bytes(add_byte_pieces(model))
    plain, vocab = SentencePieceVocab(tmp_path / "plain"), SentencePieceVocab(tmp_path / "bytes")
    first = plain.get_num_classes()
    assert vocab.get_num_classes() == first + 256
    for line in _LINES:
        assert vocab.encode(line) == plain.encode(line)
    assert plain.find_unknown("É") == ["É"] and vocab.find_unknown("É") == []
    assert vocab.encode("AÉ")[-2:] == [first + 0xC3, first + 0x89]
    for text in ["", " ", "  TWO  SPACES ", "É\tö\n", "漢字 🎉", "<s> </s> <unk>", "\0"]:
        assert vocab.decode(vocab.encode(text)) == text


def test_sentencepiece_errors():
    with pytest.raises(ValueError, match="train_sentencepiece: model_type, expected unigram or bpe, got 'char'"):
        train_sentencepiece(_LINES, vocab_size=20, model_type="char")
    with pytest.raises(ValueError, match="train_sentencepiece: vocab_size, expected an integer of at least 4, got 3"):
        train_sentencepiece(_LINES, vocab_size=3)
    with pytest.raises(ValueError, match="train_sentencepiece: expected text, got none"):
        train_sentencepiece(["", " "], vocab_size=20)
    with pytest.raises(ValueError, match="train_sentencepiece: vocab_size 900, 3 lines: Vocabulary size too high"):
        train_sentencepiece(_LINES, vocab_size=900)
    with pytest.raises(ValueError, match="train_sentencepiece: vocab_size 5, 3 lines: .*required_chars"):
        train_sentencepiece(_LINES, vocab_size=5)


def test_kinds():
    with pytest.raises(ValueError, match="train_vocab: bpe needs a size"):
        train_vocab("bpe", _LINES)
    with pytest.raises(ValueError, match="train_vocab: kind, expected unigram, sentencepiece-bpe, .*, got 'x'"):
        train_vocab("x", _LINES)
    assert train_vocab("words", _LINES, size=2) == {".words": b"THE\nCAT'S\n"}
