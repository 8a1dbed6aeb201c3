"""Tests of each kind of vocabulary in a dataset, as RETURNN reads it."""

from __future__ import annotations

from pathlib import Path

import pytest

from returnn_common.datasets import PhonemeVocab, TrainOptions, VocabConfig, make_vocab
from returnn_common.datasets.prepare import prepare_librispeech

from ..prepare.corpus import encode, tone, write_chapter
from ..reading import read, tiny_dataset


@pytest.fixture
def phonemes(tmp_path) -> PhonemeVocab:
    (tmp_path / "dict").write_text("word W ER D\nword W AH D\n")
    return PhonemeVocab(tmp_path / "dict", sample_pronunciations=True)


@pytest.fixture(params=["chars", "bytes", "spm1k", "bpe1k", "phonemes"])
def vocab(request, phonemes) -> VocabConfig:
    if request.param == "phonemes":
        return phonemes
    sampling = 0.1 if request.param == "spm1k" else 0.5 if request.param == "bpe1k" else None
    return make_vocab(request.param, sampling=sampling, byte_fallback=True)


def _labels(options: dict, *, epoch: int = 1) -> dict[str, list[int]]:
    return {tag: classes.tolist() for tag, (_, classes) in read(options, epoch=epoch).items()}


def test_labels(tiny: Path, vocab: VocabConfig):
    dataset = tiny_dataset(tiny, vocab=vocab)
    references = dataset.get_references("train")
    expected = {tag: vocab.encode(text) for tag, text in references.items()}
    assert _labels(dataset.get_forward_dataset("train")) == expected
    first = _labels(dataset.get_train_dataset())
    assert first == _labels(dataset.get_train_dataset())
    classes = dataset.get_extern_data()["classes"]
    assert classes["sparse_dim"].dimension == vocab.get_num_classes()
    if "byte_fallback" in repr(vocab) and "Character" in repr(vocab) or "Byte" in repr(vocab):
        assert first == expected
        return
    others = [_labels(dataset.get_train_dataset(), epoch=epoch) for epoch in (2, 3)]
    assert first not in others and others[0] != others[1], "drawn anew in each epoch"
    assert expected not in (first, *others)
    if not isinstance(vocab, PhonemeVocab):
        for drawn in (first, *others):
            assert {tag: vocab.decode(ids) for tag, ids in drawn.items()} == references


def test_seed(tiny: Path):
    vocab = make_vocab("spm1k", sampling=0.1)
    drawn = [
        _labels(tiny_dataset(tiny, vocab=vocab, training=TrainOptions(random_seed=seed)).get_train_dataset())
        for seed in (0, 0, 1)
    ]
    assert drawn[0] == drawn[1] != drawn[2]


def _prepare(folder: Path, **texts: list[str]) -> Path:
    for split, lines in texts.items():
        recordings = {f"1-1-{i}.flac": encode(tone(seed=i)) for i in range(len(lines))}
        transcript = "".join(f"1-1-{i} {line}\n" for i, line in enumerate(lines))
        write_chapter(folder / "src" / split / "1" / "1", recordings, transcript)
    prepare_librispeech(folder / "src", folder / "dest")
    return folder / "dest"


def test_characters_of_several_bytes(tmp_path: Path):
    """RETURNN's own class of characters has the labels, but refuses such a text"""
    texts = ["CAFÉ", "NAÏVE 漢"]
    corpus = _prepare(tmp_path, train=texts)
    for name in ("chars", "spm1k", "bpe1k"):
        vocab = make_vocab(name, byte_fallback=True)
        labels = _labels(tiny_dataset(corpus, vocab=vocab).get_train_dataset())
        assert {vocab.decode(ids) for ids in labels.values()} == set(texts)


@pytest.mark.parametrize("split", ["train", "dev", "test"])
def test_what_does_not_fit_is_found_before_the_training(split: str, tmp_path: Path):
    texts = {name: ["A", "AÉ", "BÉÉ"] if name == split else ["A", "B"] for name in ("train", "dev", "test")}
    corpus = _prepare(tmp_path, **texts)
    message = (
        rf"2 of 3 transcripts of {split} cannot be written .*, which lacks 'É' U\+00C9 \(3 times, in 1-1-1, 1-1-2\)"
    )
    with pytest.raises(ValueError, match=message):
        tiny_dataset(corpus, vocab="chars").check()
    tiny_dataset(corpus, vocab=make_vocab("chars", byte_fallback=True)).check()
