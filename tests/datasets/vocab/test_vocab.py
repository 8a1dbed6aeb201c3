"""Tests for the vocabularies: against RETURNN's own classes, which encode while training."""

from __future__ import annotations

import pickle
import string

import pytest
import sentencepiece
from returnn.datasets.util.vocabulary import Vocabulary

from returnn_common.datasets import (
    BpeVocab,
    CharacterVocab,
    SentencePieceVocab,
    WordVocab,
    check_transcripts,
    describe_misfits,
    find_misfits,
)

_TEXTS = ["THE CAT'S HAT", "A", "HE SAW THE HATS THAT THE CATS HAD", "  TWO  SPACES "]


@pytest.fixture(scope="module")
def sentencepiece_vocab(tmp_path_factory) -> SentencePieceVocab:
    folder = tmp_path_factory.mktemp("sentencepiece")
    (folder / "text").write_text("\n".join(_TEXTS * 20))
    sentencepiece.SentencePieceTrainer.train(  # type: ignore[attr-defined]
        input=str(folder / "text"), model_prefix=str(folder / "spm"), vocab_size=22, bos_id=-1, minloglevel=2
    )
    return SentencePieceVocab(folder / "spm.model")


@pytest.fixture(scope="module")
def bpe_vocab(tmp_path_factory) -> BpeVocab:
    folder = tmp_path_factory.mktemp("bpe")
    (folder / "codes").write_text("#version: 0.2\nT H\nTH E</w>\nA T</w>\n")
    letters = sorted(set("".join(_TEXTS)) - {" "})
    labels = ["<s>", "</s>", *letters, *(f"{letter}@@" for letter in letters), "TH@@", "THE", "AT"]
    (folder / "vocab").write_text("\n".join(labels) + "\n")
    return BpeVocab(folder / "codes", folder / "vocab")


@pytest.fixture(params=["characters", "words", "sentencepiece", "bpe"])
def vocab(request, sentencepiece_vocab, bpe_vocab):
    return {
        "characters": CharacterVocab(),
        "words": WordVocab(sorted(set(" ".join(_TEXTS).split()))),
        "sentencepiece": sentencepiece_vocab,
        "bpe": bpe_vocab,
    }[request.param]


def test_same_as_returnn(vocab):
    theirs = Vocabulary.create_vocab(**vocab.get_opts())
    assert theirs.num_labels == vocab.get_num_classes()
    for text in _TEXTS:
        ids = vocab.encode(text)
        assert ids == list(theirs.get_seq(text))
        assert all(0 <= i < vocab.get_num_classes() for i in ids)
        assert vocab.find_unknown(text) == []


def test_decode_is_the_inverse(vocab):
    for text in _TEXTS[:3]:
        assert vocab.decode(vocab.encode(text)) == text
    assert vocab.encode("") == [] and vocab.decode([]) == ""


def test_pickle_and_repr(vocab):
    copied = pickle.loads(pickle.dumps(vocab))
    assert repr(copied) == repr(vocab) and type(vocab).__name__ in repr(vocab)
    assert copied.encode(_TEXTS[0]) == vocab.encode(_TEXTS[0])


def test_unknown(vocab):
    assert vocab.find_unknown("A Ö A") == ["Ö"]
    with pytest.raises(ValueError, match="lacks 'Ö' in 'A Ö A'"):
        vocab.encode("A Ö A")


@pytest.mark.parametrize("index", [-1, 1000])
def test_index_out_of_range(vocab, index):
    last = vocab.get_num_classes() - 1
    with pytest.raises(ValueError, match=f"expected label indices from 0 to {last}, got {index}"):
        vocab.decode([index])


def test_begin_and_end_of_sentence(vocab, sentencepiece_vocab, bpe_vocab):
    expected = (None, None)
    if vocab is sentencepiece_vocab:
        expected = (None, 2)  # SentencePiece keeps its default index
    elif vocab is bpe_vocab:
        expected = (0, 1)
    assert (vocab.get_bos_idx(), vocab.get_eos_idx()) == expected


def test_characters_of_librispeech():
    vocab = CharacterVocab()
    assert vocab.get_num_classes() == 28
    assert vocab.encode("AZ' ") == [0, 25, 26, 27]
    assert CharacterVocab("ba").encode("ab") == [1, 0]
    assert set(string.ascii_uppercase) == set(vocab.decode(range(26)))


def test_word_order():
    assert WordVocab(["ZERO", "ONE"]).encode(" ONE  ZERO ") == [1, 0]


def test_bad_labels():
    with pytest.raises(ValueError, match="CharacterVocab: expected labels without duplicates, got 'A' twice"):
        CharacterVocab("ABA")
    with pytest.raises(ValueError, match="WordVocab: expected labels without duplicates, got 'A' twice"):
        WordVocab(["A", "A"])
    with pytest.raises(ValueError, match="CharacterVocab: expected at least one label, got none"):
        CharacterVocab("")
    with pytest.raises(ValueError, match="WordVocab: expected words without spaces, got 'A B'"):
        WordVocab(["A B"])
    with pytest.raises(TypeError, match="WordVocab: expected a sequence of words, got the str 'AB'"):
        WordVocab("AB")


def test_missing_files(tmp_path):
    vocab = SentencePieceVocab(tmp_path / "no.model")
    assert vocab.get_opts() == {"class": "SentencePieces", "model_file": str(tmp_path / "no.model")}
    with pytest.raises(FileNotFoundError, match="SentencePieceVocab: no such file: .*no.model"):
        vocab.get_num_classes()
    with pytest.raises(FileNotFoundError, match="BpeVocab: no such file: .*codes"):
        BpeVocab(tmp_path / "codes", tmp_path / "vocab").encode("A")


def test_file_of_another_kind(tmp_path):
    (tmp_path / "text").write_text("no model")
    with pytest.raises(ValueError, match="text is no SentencePiece model"):
        SentencePieceVocab(tmp_path / "text").get_num_classes()


def test_check_transcripts():
    texts = {f"1-1-{i}": "CAFÉ NO 1" for i in range(5)} | {"2-1-0": "ÉÉ", "2-1-1": "FINE"}
    check_transcripts(CharacterVocab(), {"a": "FINE"})
    with pytest.raises(ValueError) as error:
        check_transcripts(CharacterVocab(), texts)
    message = str(error.value)
    assert message.startswith("6 of 7 transcripts cannot be written with CharacterVocab(")
    assert (
        "lacks 'É' U+00C9 (7 times, in 1-1-0, 1-1-1, 1-1-2, ...), '1' (5 times, in 1-1-0, 1-1-1, 1-1-2, ...)" in message
    )
    with pytest.raises(ValueError, match=r"lacks 'É' U\+00C9 \(2 times, in x\)$"):
        check_transcripts(CharacterVocab(), {"x": "ÉÉ"})


def test_check_transcripts_lists_only_the_first():
    with pytest.raises(ValueError, match=r"lacks 'A' \(1 time, in x\), .*, and 16 more$"):
        check_transcripts(CharacterVocab(" "), {"x": string.ascii_uppercase})


def test_misfits(vocab, sentencepiece_vocab):
    texts = {"a": "A ÖÉ ÉA ÉÖA", "b": "A", "c": "AÉ"}
    found = find_misfits(vocab, texts)
    if isinstance(vocab, WordVocab):
        assert found == {
            word: {name: 1} for name, words in [("a", "ÉA ÉÖA ÖÉ"), ("c", "AÉ")] for word in words.split()
        } | {"AÉ": {"c": 1}}
    else:
        assert found == {"É": {"a": 3, "c": 1}, "Ö": {"a": 2}}
        assert list(found) == ["É", "Ö"], "the most frequent first"
        assert describe_misfits(found) == "'É' U+00C9 (4 times, in a, c), 'Ö' U+00D6 (2 times, in a)"
        assert describe_misfits(found, max_parts=1, max_names=1) == "'É' U+00C9 (4 times, in a, ...), and 1 more"
    assert find_misfits(vocab, {"b": "A"}) == {}


def test_words_of_a_model_of_words(tmp_path):
    sentencepiece.SentencePieceTrainer.train(  # type: ignore[attr-defined]
        sentence_iterator=iter(["A B"] * 9),
        model_prefix=str(tmp_path / "w"),
        vocab_size=5,
        model_type="word",
        minloglevel=2,
    )
    assert SentencePieceVocab(tmp_path / "w.model").find_unknown("A BA") == ["▁BA"]


def test_a_label_that_is_missing_for_a_character_that_is_not(tmp_path):
    (tmp_path / "codes").write_text("#version: 0.2\n")
    (tmp_path / "vocab").write_text("A\nB@@\n")
    vocab = BpeVocab(tmp_path / "codes", tmp_path / "vocab")
    assert vocab.find_unknown("BA AB CA C") == ["A@@", "B", "C", "C"]
