"""Tests of texts of recognised labels: as our vocabularies decode them."""

from __future__ import annotations

import numpy as np
import pytest
from returnn.datasets.util.vocabulary import SamplingBytePairEncoding, Vocabulary

from returnn_common.data import get_bundled_path
from returnn_common.datasets import PhonemeVocab, VocabConfig, WordVocab, make_vocab
from returnn_common.recog.label_text import label_text


@pytest.fixture(params=["chars", "bytes", "spm1k", "bpe1k", "words", "phonemes"])
def vocab(request, tmp_path) -> VocabConfig:
    if request.param == "words":
        return WordVocab(["THE", "CAT"])
    if request.param == "phonemes":
        (tmp_path / "dict").write_text("the DH AH\ncat K AE T\n")
        return PhonemeVocab(tmp_path / "dict")
    return make_vocab(request.param, byte_fallback=True)


def test_as_our_vocabularies_decode(vocab):
    theirs = Vocabulary.create_vocab(**vocab.get_opts())
    rng = np.random.default_rng(0)
    drawn = [rng.integers(0, vocab.get_num_classes(), size) for size in [0, 1, 2, *[12] * 40]]
    for ids in [vocab.encode("THE CAT"), *drawn]:
        assert label_text(ids, theirs) == vocab.decode(ids)
    if not isinstance(vocab, PhonemeVocab):
        assert label_text(vocab.encode("THE CAT"), theirs) == "THE CAT"


@pytest.mark.parametrize("name", ["chars", "bytes", "spm1k", "bpe1k"])
def test_characters_of_several_bytes(name):
    vocab = make_vocab(name, byte_fallback=True)
    theirs = Vocabulary.create_vocab(**vocab.get_opts())
    assert label_text(vocab.encode("CAFÉ 漢字 A"), theirs) == "CAFÉ 漢字 A"
    assert label_text(vocab.encode("É")[:-1], theirs) == "\ufffd"


def test_others():
    vocab = SamplingBytePairEncoding(
        vocab_file=str(get_bundled_path("bpe1k.vocab")), breadth_prob=0.5, unknown_label=None
    )
    assert label_text(vocab.get_seq("THE BANANA"), vocab) == "THE BANANA"
    assert label_text([3, 0], None) == "3 0"
