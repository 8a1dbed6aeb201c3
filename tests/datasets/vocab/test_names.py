"""Tests of the vocabularies that have names: on official transcripts, and against RETURNN's own classes."""

from __future__ import annotations

from pathlib import Path

import pytest
from returnn.datasets.util.vocabulary import Vocabulary

from returnn_common.data import get_bundled_path
from returnn_common.datasets import VOCAB_NAMES, make_vocab

BUNDLED = ["chars", "bytes", "spm1k", "spm5k", "bpe1k"]
TRANSCRIPTS = {"dev-clean-2": 1089, "test-clean": 2611, "train-clean-5": 1519}  # of how many lines


def read_transcripts(shared_data: Path, name: str) -> list[str]:
    lines = (shared_data / "text" / f"librispeech-{name}.txt").read_text("utf8").splitlines()
    return [line.partition(" ")[2] for line in lines]


@pytest.mark.parametrize("name", BUNDLED)
def test_official_transcripts(name, shared_data):
    vocab = make_vocab(name)
    theirs = Vocabulary.create_vocab(**vocab.get_opts())
    assert theirs.num_labels == vocab.get_num_classes()
    unknown = theirs.unknown_label_id
    labels_per_word = []
    for split, num_lines in TRANSCRIPTS.items():
        num_labels, num_words = 0, 0
        texts = read_transcripts(shared_data, split)
        assert len(texts) == num_lines
        for text in texts:
            ids = vocab.encode(text)
            assert vocab.decode(ids) == text
            assert ids == list(theirs.get_seq(text))
            assert unknown not in ids
            num_labels, num_words = num_labels + len(ids), num_words + len(text.split())
        labels_per_word.append(f"{num_labels / num_words:.3f}")
    row = [name, str(vocab.get_num_classes()), *labels_per_word]
    assert name == "bytes" or f"| {' | '.join(row)} |" in get_bundled_path("README.md").read_text("utf8")


@pytest.mark.parametrize(
    "name, num_classes, bos, eos",
    [
        ("chars", 28, None, None),
        ("bytes", 256, None, None),
        ("spm1k", 1000, 1, 2),
        ("spm5k", 5000, 1, 2),
        ("bpe1k", 1057, 1, 2),
    ],
)
def test_sizes(name, num_classes, bos, eos):
    vocab = make_vocab(name)
    assert (vocab.get_num_classes(), vocab.get_bos_idx(), vocab.get_eos_idx()) == (num_classes, bos, eos)
    assert name in VOCAB_NAMES


def test_characters_are_the_default_ones():
    assert make_vocab("chars").encode("AZ' ") == [0, 25, 26, 27]


def test_unknown_name():
    with pytest.raises(ValueError, match=r"make_vocab: expected one of chars, bytes, .*, got 'spm2k'"):
        make_vocab("spm2k")


def test_options_that_do_not_fit():
    for name in ["chars", "bytes", "phonemes"]:
        with pytest.raises(ValueError, match=f"make_vocab: sampling is for subwords, not for '{name}'"):
            make_vocab(name, sampling=0.1)
    with pytest.raises(ValueError, match="make_vocab: byte_fallback is not for 'phonemes'"):
        make_vocab("phonemes", byte_fallback=True)
