"""Tests of the vocabularies that write any text, by its bytes."""

from __future__ import annotations

import pytest
from returnn.datasets.util.vocabulary import Vocabulary

from returnn_common.datasets import CharacterVocab, make_vocab

_TEXTS = ["", "A", "É", "CAFÉ ÉÉN X", "漢字 🎉", "$100 {x} y", "<s> <unk>", "a\u0301", "THE CAT'S HAT", "<0x41>"]
_NAMES = ["chars", "bytes", "spm1k", "spm5k", "bpe1k"]


@pytest.mark.parametrize("name", _NAMES)
def test_any_text(name):
    vocab, plain = make_vocab(name, byte_fallback=True), make_vocab(name)
    for text in _TEXTS:
        assert vocab.find_unknown(text) == []
        ids = vocab.encode(text)
        assert vocab.decode(ids) == text
        assert all(0 <= i < vocab.get_num_classes() for i in ids)
    more = {"bpe1k": 512, "bytes": 0}.get(name, 256)
    assert vocab.get_num_classes() == plain.get_num_classes() + more
    assert vocab.encode("THE CAT'S HAT") == plain.encode("THE CAT'S HAT")
    assert (vocab.get_bos_idx(), vocab.get_eos_idx()) == (plain.get_bos_idx(), plain.get_eos_idx())


@pytest.mark.parametrize("name", ["chars", "bytes", "spm1k"])
def test_all_spaces_are_kept(name):
    vocab = make_vocab(name, byte_fallback=True)
    for text in [" ", "  TWO  SPACES ", "\tÉ\n"]:
        assert vocab.decode(vocab.encode(text)) == text


@pytest.mark.parametrize("name", _NAMES)
def test_labels_of_returnn(name):
    vocab = make_vocab(name, byte_fallback=True)
    theirs = Vocabulary.create_vocab(**vocab.get_opts())
    assert theirs.num_labels == vocab.get_num_classes() == len(theirs.labels)
    assert list(theirs.get_seq("THE CAT'S HAT")) == vocab.encode("THE CAT'S HAT")
    if name == "chars":
        assert [theirs.labels[i] for i in vocab.encode("É")] == ["<0xC3>", "<0x89>"]
    if name == "bpe1k":
        assert [theirs.labels[i] for i in vocab.encode("ÉA É")] == ["<0xC3>@@", "<0x89>@@", "A", "<0xC3>@@", "<0x89>"]


@pytest.mark.parametrize("name", _NAMES)
def test_bytes_that_are_no_text(name):
    vocab = make_vocab(name, byte_fallback=True)
    ids = vocab.encode("É")
    assert "\ufffd" in vocab.decode(ids[:-1])


def test_repr_and_without():
    assert repr(CharacterVocab("ab", byte_fallback=True)) == "CharacterVocab('ab', byte_fallback=True)"
    with pytest.raises(ValueError, match="lacks 'c' in 'abc'"):
        CharacterVocab("ab").encode("abc")
