"""Tests of drawing one of the ways to write a text: against enumeration, and against SentencePiece's own."""

from __future__ import annotations

import itertools
import math
import pickle
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import sentencepiece

from returnn_common.data import get_bundled_path
from returnn_common.datasets import BpeVocab, CharacterVocab, SentencePieceVocab, make_vocab
from returnn_common.datasets.vocab._sampling import draw_path, join_pairs
from returnn_common.datasets.vocab.training import train_bpe, train_sentencepiece

_SCORES = {"a": -1.0, "b": -2.0, "ab": -1.5, "ba": -2.5, "aba": -4.0, "c": -1.0}
_LINES = ["THE CAT'S HAT", "HE SAW THE HATS THAT THE CATS HAD", "A BAD BANANA"]


def _segmentations(text: str) -> list[tuple[str, ...]]:
    found = []
    for cuts in itertools.product([False, True], repeat=len(text) - 1):
        places = [0, *(i for i, cut in enumerate(cuts, start=1) if cut), len(text)]
        parts = tuple(text[a:b] for a, b in itertools.pairwise(places))
        if all(part in _SCORES for part in parts):
            found.append(parts)
    return found


@pytest.mark.parametrize("alpha", [0.0, 0.5, 2.0])
def test_paths_have_their_probabilities(alpha):
    ways = _segmentations("ababc")
    weights = np.array([math.exp(alpha * sum(_SCORES[part] for part in way)) for way in ways])
    rng = np.random.default_rng(1)
    num = 4000
    drawn = Counter(tuple(draw_path("ababc", _SCORES, alpha=alpha, rng=rng)) for _ in range(num))
    assert set(drawn) <= set(ways) and len(ways) == 6
    probs = weights / weights.sum()
    counts = np.array([drawn[way] for way in ways])
    assert (np.abs(counts - num * probs) < 4.5 * np.sqrt(num * probs * (1 - probs))).all()


def test_path_of_unknown_characters():
    rng = np.random.default_rng(1)
    assert draw_path("xcx", _SCORES, alpha=1.0, rng=rng, unknown_score=-9.0) == ["x", "c", "x"]
    assert draw_path("", _SCORES, alpha=1.0, rng=rng) == []


def test_join_pairs():
    ranks = {("a", "b"): 0, ("ab", "c"): 1, ("b", "c"): 2}
    rank = lambda left, right: ranks.get((left, right))  # noqa: E731
    assert join_pairs("abcbc", rank) == ["abc", "bc"]
    assert join_pairs("abcbc", rank, dropout=1.0, rng=np.random.default_rng(0)) == list("abcbc")
    assert join_pairs("aaa", lambda left, right: 0 if left == right == "a" else None) == ["aa", "a"]
    drawn = Counter("|".join(join_pairs("ab", rank, dropout=0.3, rng=np.random.default_rng(i))) for i in range(1000))
    assert set(drawn) == {"ab", "a|b"} and abs(drawn["a|b"] - 300) < 60


@pytest.fixture(scope="module", params=["unigram", "bpe"])
def model_file(request, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("model") / f"{request.param}.model"
    path.write_bytes(train_sentencepiece(_LINES * 9, vocab_size=22, model_type=request.param))
    return path


def test_sentencepiece_draws_the_same_distribution(tmp_path):
    path = tmp_path / "unigram.model"
    path.write_bytes(train_sentencepiece(_LINES * 9, vocab_size=22))
    vocab, text, num = SentencePieceVocab(path, sampling_alpha=0.3), "THE CAT", 4000
    processor = sentencepiece.SentencePieceProcessor(model_file=str(path))  # type: ignore[call-arg]
    rng = np.random.default_rng(1)
    ours = Counter(tuple(vocab.encode_for_training(text, rng=rng)) for _ in range(num))
    theirs = Counter(tuple(processor.sample_encode_as_ids(text, -1, 0.3)) for _ in range(num))  # type: ignore[attr-defined]
    assert len(ours) > 5
    for way in ours.keys() | theirs.keys():
        mean = (ours[way] + theirs[way]) / 2
        assert abs(ours[way] - theirs[way]) < 4.5 * math.sqrt(2 * mean) + 2, way


def test_best_way_where_alpha_is_large_or_nothing_is_left_out(model_file):
    is_unigram = model_file.stem == "unigram"
    vocab = SentencePieceVocab(model_file, sampling_alpha=200.0 if is_unigram else 0.0)
    rng = np.random.default_rng(1)
    for text in _LINES:
        assert vocab.encode_for_training(text, rng=rng) == vocab.encode(text)


@pytest.mark.parametrize("nbest", [2, 5])
def test_nbest(nbest, tmp_path):
    (tmp_path / "model").write_bytes(train_sentencepiece(_LINES * 9, vocab_size=22))
    vocab = SentencePieceVocab(tmp_path / "model", sampling_alpha=0.0, sampling_nbest=nbest)
    rng = np.random.default_rng(1)
    drawn = {tuple(vocab.encode_for_training("THE CAT", rng=rng)) for _ in range(200)}
    processor = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "model"))  # type: ignore[call-arg]
    best = processor.nbest_encode_as_ids("THE CAT", nbest)  # type: ignore[attr-defined]
    assert drawn == set(map(tuple, best))
    largest = SentencePieceVocab(tmp_path / "model", sampling_alpha=50.0, sampling_nbest=nbest)
    assert largest.encode_for_training("THE CAT", rng=rng) == best[0]


@pytest.fixture(scope="module")
def bpe_files(tmp_path_factory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("bpe")
    files = train_bpe(_LINES, num_merges=6)
    (folder / "codes").write_text(files.codes)
    (folder / "vocab").write_text(files.vocab)
    return folder / "codes", folder / "vocab"


@pytest.fixture(params=["unigram", "nbest", "spm-bpe", "bpe", "bpe1k", "spm1k", "spm1k-bytes"])
def vocab(request, bpe_files, tmp_path):
    if request.param in ("bpe1k", "spm1k", "spm1k-bytes"):
        return make_vocab(request.param[:5], sampling=0.2, byte_fallback=request.param.endswith("bytes"))
    if request.param == "bpe":
        return BpeVocab(*bpe_files, dropout=0.3)
    kind = "bpe" if request.param == "spm-bpe" else "unigram"
    (tmp_path / "model").write_bytes(train_sentencepiece(_LINES * 9, vocab_size=22, model_type=kind))
    return SentencePieceVocab(
        tmp_path / "model", sampling_alpha=0.3, sampling_nbest=4 if request.param == "nbest" else -1
    )


def test_draws(vocab):
    copied = pickle.loads(pickle.dumps(vocab))
    text = _LINES[1]
    drawn = [vocab.encode_for_training(text, rng=np.random.default_rng(i)) for i in range(20)]
    again = [copied.encode_for_training(text, rng=np.random.default_rng(i)) for i in range(20)]
    assert drawn == again, "depends on the generator alone"
    assert len(set(map(tuple, drawn))) > 3
    assert all(vocab.decode(ids) == text for ids in drawn)
    assert vocab.encode(text) == copied.encode(text), "evaluation is always the same"


def test_evaluation_does_not_draw(vocab):
    plain = eval(
        repr(vocab)
        .replace(", sampling_alpha=0.3", "")
        .replace(", sampling_alpha=0.2", "")
        .replace(", sampling_nbest=4", "")
        .replace(", dropout=0.3", "")
        .replace(", dropout=0.2", "")
    )
    assert repr(plain) != repr(vocab)
    for text in _LINES:
        assert vocab.encode(text) == plain.encode(text) == plain.encode_for_training(text, rng=np.random.default_rng(0))
    assert plain.get_opts() == vocab.get_opts()


def test_drawing_refuses_what_is_unknown(vocab):
    if "bytes" in repr(vocab):
        text = "É  漢"
        assert vocab.decode(vocab.encode_for_training(text, rng=np.random.default_rng(0))) == text
    else:
        with pytest.raises(ValueError, match="lacks 'É' in 'A É'"):
            vocab.encode_for_training("A É", rng=np.random.default_rng(0))


def test_bundled_models_agree_with_sentencepiece_on_unknown_characters():
    path = get_bundled_path("spm1k-bytes.model")
    vocab = SentencePieceVocab(path, sampling_alpha=100.0)
    text = "CAFÉ  ö THE"
    assert vocab.encode_for_training(text, rng=np.random.default_rng(0)) == vocab.encode(text)


def test_errors(model_file):
    with pytest.raises(ValueError, match="SentencePieceVocab: sampling_alpha, expected at least 0, got -0.1"):
        SentencePieceVocab(model_file, sampling_alpha=-0.1)
    with pytest.raises(ValueError, match="sampling_nbest, expected -1, or with sampling_alpha at least 2, got 1"):
        SentencePieceVocab(model_file, sampling_alpha=0.1, sampling_nbest=1)
    with pytest.raises(ValueError, match="sampling_nbest, expected -1, or with sampling_alpha at least 2, got 5"):
        SentencePieceVocab(model_file, sampling_nbest=5)
    with pytest.raises(ValueError, match="BpeVocab: dropout, expected a probability from 0 to 1, got 1.5"):
        BpeVocab("codes", "vocab", dropout=1.5)


def test_models_that_cannot_draw(model_file, tmp_path):
    rng = np.random.default_rng(0)
    if model_file.stem == "bpe":
        for opts in [{"sampling_alpha": 1.5}, {"sampling_alpha": 0.5, "sampling_nbest": 2}]:
            with pytest.raises(
                ValueError, match="a BPE model has a sampling_alpha of at most 1, and no sampling_nbest"
            ):
                SentencePieceVocab(model_file, **opts).encode_for_training("A", rng=rng)
    sentencepiece.SentencePieceTrainer.train(  # type: ignore[attr-defined]
        sentence_iterator=iter(_LINES),
        model_prefix=str(tmp_path / "x"),
        vocab_size=15,
        model_type="char",
        minloglevel=2,
    )
    with pytest.raises(ValueError, match="sampling_alpha needs a model of unigrams or BPE, this one is neither"):
        SentencePieceVocab(tmp_path / "x.model", sampling_alpha=0.1).encode_for_training("A", rng=rng)


def test_others_do_not_draw():
    vocab = CharacterVocab()
    assert vocab.encode_for_training("AB", rng=np.random.default_rng(0)) == [0, 1]
