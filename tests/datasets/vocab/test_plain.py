"""Tests of vocabularies as plain data, and of those that only say RETURNN's options."""

from __future__ import annotations

import json

import numpy as np
import pytest

from returnn_common.data import get_bundled_path
from returnn_common.datasets import (
    BpeVocab,
    ByteVocab,
    CharacterVocab,
    PhonemeVocab,
    ReturnnVocab,
    SentencePieceVocab,
    VocabConfig,
    WordVocab,
    make_vocab,
    open_vocab,
)

_TEXT = "THE CAT'S HAT"


class OldVocab(VocabConfig):
    """As in the first returnn_common: it says options, and nothing else."""

    def __init__(self, opts):
        self.opts = opts

    def get_num_classes(self):
        return make_vocab("bpe1k").get_num_classes()

    def get_opts(self):
        return self.opts


@pytest.fixture
def phonemes(tmp_path) -> PhonemeVocab:
    (tmp_path / "dict").write_text("the DH AH\nthe(2) DH IY\n")
    return PhonemeVocab(tmp_path / "dict", sample_pronunciations=True, word_boundary="#")


def test_there_and_back(phonemes):
    vocabs = [
        CharacterVocab(byte_fallback=True),
        ByteVocab(),
        WordVocab(_TEXT.split()),
        make_vocab("spm1k", sampling=0.2),
        make_vocab("bpe1k", sampling=0.2, byte_fallback=True),
        phonemes,
        ReturnnVocab(make_vocab("spm1k").get_opts()),
        OldVocab(make_vocab("bpe1k").get_opts()),
    ]
    for vocab in vocabs:
        opts = json.loads(json.dumps(vocab.get_dataset_opts()))
        again = open_vocab(opts)
        assert again.get_dataset_opts() == vocab.get_dataset_opts()
        assert again.encode(_TEXT) == vocab.encode(_TEXT)
        drawn = [x.encode_for_training(_TEXT, rng=np.random.default_rng(3)) for x in (vocab, again)]
        assert drawn[0] == drawn[1]
        if not isinstance(vocab, OldVocab):
            assert repr(again) == repr(vocab)


@pytest.mark.parametrize("name", ["chars", "bytes", "spm1k", "bpe1k"])
@pytest.mark.parametrize("kind", [ReturnnVocab, OldVocab])
def test_options_of_returnn(name, kind):
    ours = make_vocab(name)
    vocab = kind(ours.get_opts())
    assert vocab.encode(_TEXT) == ours.encode(_TEXT)
    assert vocab.decode(ours.encode(_TEXT)) == _TEXT
    assert vocab.find_unknown("A") == []
    if name != "bytes":
        assert vocab.find_unknown("A É A ÉA") == ["É", "ÉA"]
        with pytest.raises(ValueError, match="lacks 'É' in 'A É É'"):
            vocab.encode("A É É")
    if kind is ReturnnVocab:
        assert vocab.get_num_classes() == ours.get_num_classes()


def test_begin_and_end_of_returnn():
    vocab = ReturnnVocab(make_vocab("spm1k").get_opts())
    assert (vocab.get_bos_idx(), vocab.get_eos_idx()) == (1, 2)
    path = str(get_bundled_path("bpe1k.vocab"))
    opts = {"class": "Vocabulary", "vocab_file": path, "unknown_label": "<unk>", "eos_label": "</s>"}
    assert (ReturnnVocab(opts).get_bos_idx(), ReturnnVocab(opts).get_eos_idx()) == (None, 2)
    assert ReturnnVocab(opts).find_unknown("A XYZ") == ["XYZ"]


class SisyphusPath:
    def __init__(self, path: str):
        self.path = path

    def get_path(self) -> str:
        return self.path

    __str__ = __fspath__ = get_path


def test_paths_of_other_kinds(tmp_path):
    model, codes, labels = (get_bundled_path(name) for name in ["spm1k.model", "bpe1k.codes", "bpe1k.vocab"])
    assert SentencePieceVocab(model).get_opts()["model_file"] == str(model)
    path = SisyphusPath(str(model))
    vocab = SentencePieceVocab(path)
    assert vocab.get_opts()["model_file"] is path, "until it is used, for it is what Sisyphus hashes"
    assert (
        vocab.encode(_TEXT) == make_vocab("spm1k").encode(_TEXT) == open_vocab(vocab.get_dataset_opts()).encode(_TEXT)
    )
    bpe = BpeVocab(SisyphusPath(str(codes)), SisyphusPath(str(labels)))
    assert bpe.encode(_TEXT) == make_vocab("bpe1k").encode(_TEXT)
    for one in (vocab, bpe):
        assert ReturnnVocab(one.get_opts()).encode(_TEXT) == one.encode(_TEXT)
    (tmp_path / "dict").write_text("the DH AH\n")
    assert len(PhonemeVocab(SisyphusPath(str(tmp_path / "dict"))).encode("THE")) == 2
    with pytest.raises(TypeError, match="SentencePieceVocab: model_file: expected a path, got int 3"):
        SentencePieceVocab(3)  # type: ignore[arg-type]
