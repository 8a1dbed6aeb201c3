"""Tests of vocabularies from files of which the name says the kind."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from returnn_common.data import get_bundled_path
from returnn_common.datasets import PhonemeVocab, make_vocab
from returnn_common.datasets.vocab import VOCAB_SUFFIXES, read_vocab


@pytest.fixture
def folder(tmp_path) -> Path:
    for name in ["bpe1k.codes", "bpe1k.vocab", "spm1k.model", "librispeech.chars"]:
        shutil.copy(get_bundled_path(name), tmp_path)
    (tmp_path / "my.words").write_text("ONE\nTWO\n")
    (tmp_path / "my.dict").write_text("one W AH N\n")
    return tmp_path


def test_each_kind(folder):
    paths = {path.suffix: path for path in folder.iterdir() if path.suffix != ".vocab"}
    assert set(paths) == set(VOCAB_SUFFIXES)
    for suffix, name in [(".model", "spm1k"), (".codes", "bpe1k"), (".chars", "chars")]:
        assert read_vocab(paths[suffix]).encode("ONE TWO") == make_vocab(name).encode("ONE TWO")
    assert read_vocab(paths[".words"]).encode("TWO ONE") == [1, 0]
    assert isinstance(read_vocab(paths[".dict"]), PhonemeVocab)
    assert repr(make_vocab(str(paths[".model"]))) == repr(read_vocab(paths[".model"]))
    assert "sampling_alpha=0.2" in repr(make_vocab(str(paths[".model"]), sampling=0.2))
    assert "dropout=0.2, byte_fallback=True" in repr(read_vocab(paths[".codes"], sampling=0.2, byte_fallback=True))
    assert read_vocab(paths[".chars"], byte_fallback=True).get_num_classes() == 28 + 256


def test_errors(folder):
    with pytest.raises(ValueError, match=r"read_vocab: expected a file that ends in .model, .*, got 'x.txt'"):
        read_vocab("x.txt")
    with pytest.raises(ValueError, match=r"make_vocab: expected one of chars, .*, or a file .model, .*, got 'x.txt'"):
        make_vocab("x.txt")
    with pytest.raises(ValueError, match="read_vocab: sampling is for subwords, not for '.*my.words'"):
        read_vocab(folder / "my.words", sampling=0.1)
    with pytest.raises(
        ValueError, match="read_vocab: byte_fallback is for characters and BPE, not for '.*spm1k.model'"
    ):
        read_vocab(folder / "spm1k.model", byte_fallback=True)
    (folder / "bad.chars").write_text("A\nBC\n")
    with pytest.raises(ValueError, match="bad.chars, line 2: expected one character, got 'BC'"):
        read_vocab(folder / "bad.chars")
    with pytest.raises(FileNotFoundError):
        read_vocab(folder / "none.chars")
