"""Losses and perplexities of a language model, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import log_softmax

from returnn_common import nn
from returnn_common.models.language_model import LanguageModel, perplexity
from returnn_common.models.lm.transformer import make_transformer_lm
from tests.engines import ENGINES, Input, Result, run_on

VOCAB, BOS, EOS = 6, 0, 1
LENGTHS = [4, 1, 0, 3]
LABELS = np.random.default_rng(5).integers(2, VOCAB, (4, 4)).astype("int32")
STARTS = [False, False, True, False, True, True]  # whether a word starts


def _run(engine: str = "torch", *, word_starts=STARTS, grad: bool = False) -> Result:
    def _func(model, labels, time):
        previous = nn.concat(
            (nn.constant(BOS, dims=[nn.batch_dim, one], sparse_dim=model.vocab_dim), one), (labels, time)
        )
        previous, in_time = previous
        state = model.decoder.default_initial_state(batch_dims=[nn.batch_dim])
        logits, _ = model.decoder(previous, spatial_dim=in_time, state=state)
        outputs: dict = {"logits": (logits, [nn.batch_dim, in_time, model.vocab_dim])}
        return {**outputs, **_losses(model, labels, time)}

    def _losses(model, labels, time):
        losses = model.losses(labels, in_spatial_dim=time)
        assert not losses["ce"].as_error and losses["ce_word"].as_error
        outputs = {}
        for name, loss in losses.items():
            outputs[name] = (loss.value, [nn.batch_dim])
            outputs[f"{name}-norm"] = (loss.inv_norm_factor, [nn.batch_dim])
        return outputs

    one = nn.Dim(1, name="one")
    return run_on(
        engine,
        _func if engine == "torch" else _losses,
        {"labels": Input(LABELS, "batch time", sparse="vocab")},
        {"time": LENGTHS, "vocab": VOCAB},
        make_model=lambda vocab: LanguageModel(
            make_transformer_lm(vocab, num_layers=1, model_dim=8, num_heads=2),
            bos=BOS,
            eos=EOS,
            word_starts=word_starts,
        ),
        grad_of="ce" if grad else None,
    )


def _expected(logits: np.ndarray) -> tuple[list[float], list[int], list[int]]:
    """:return: nll, numbers of labels, numbers of words"""
    log_probs = log_softmax(logits.astype("float64"), axis=-1)
    rows = [[*LABELS[i, :n].tolist(), EOS] for i, n in enumerate(LENGTHS)]
    nll = [-sum(log_probs[i, t, label] for t, label in enumerate(row)) for i, row in enumerate(rows)]
    return nll, [len(row) for row in rows], [sum(STARTS[label] for label in row) + 1 for row in rows]


def test_losses():
    result = _run()
    nll, num_labels, num_words = _expected(result["logits"])
    for name, counts in [("ce", num_labels), ("ce_word", num_words)]:
        np.testing.assert_allclose(result[name], nll, rtol=1e-5)
        assert result[f"{name}-norm"].tolist() == counts
    assert num_labels == [5, 2, 1, 4] and num_words != num_labels


@pytest.mark.parametrize("engine", [engine for engine in ENGINES if engine != "torch"])
def test_engines_agree(engine: str):
    expected, result = _run(grad=True), _run(engine, grad=True)
    for name in ("ce", "ce-norm", "ce_word", "ce_word-norm"):
        np.testing.assert_allclose(result[name], expected[name], rtol=1e-5)
    assert set(result.grads) == set(expected.grads)
    for name, grad in expected.grads.items():
        np.testing.assert_allclose(result.grads[name], grad, atol=1e-4, err_msg=name)


def test_each_label_is_a_word_without_a_table():
    result = _run(word_starts=None)
    assert result["ce_word-norm"].tolist() == result["ce-norm"].tolist() == [5, 2, 1, 4]


def test_perplexity():
    """of the whole, not the mean of sentences' perplexities"""
    result = perplexity([6.0, 2.0], num_labels=[3.0, 1.0], num_words=[1.0, 1.0])
    assert result.per_label == pytest.approx(np.exp(8 / 4)) and result.per_word == pytest.approx(np.exp(8 / 2))
    assert (result.num_labels, result.num_words) == (4, 2)
    # A uniform model's is the number of labels.
    assert perplexity([5 * np.log(7)], num_labels=[5], num_words=[5]).per_label == pytest.approx(7)


def test_perplexity_of_nothing():
    with pytest.raises(ValueError, match="perplexity: expected at least one sentence, got 0 labels and 0 words"):
        perplexity([], num_labels=[], num_words=[])


def test_table_of_another_size():
    with pytest.raises(ValueError, match="LanguageModel: expected word_starts for 6 labels, got 5"):
        _run(word_starts=STARTS[:5])


def test_labels_without_those_of_the_sentence():
    """of a vocabulary without begin and end of sentence: the first labels of the model's"""
    first = [label % 4 for label in LABELS]

    def _func(model, labels, time):
        nll, num_labels, num_words = model.nll(labels, in_spatial_dim=time)
        return {"nll": nll, "labels": num_labels, "words": num_words}

    results = [
        run_on(
            "torch",
            _func,
            {"labels": Input(np.array(first), "batch time", sparse=sparse)},
            {"time": LENGTHS, "few": 4, "vocab": VOCAB},
            make_model=lambda vocab: LanguageModel(
                make_transformer_lm(vocab, num_layers=1, model_dim=8, num_heads=2),
                bos=4,
                eos=5,
                word_starts=[True, False, False, False, True, False],
            ),
        )
        for sparse in ("vocab", "few")
    ]
    for name in ("nll", "labels", "words"):
        np.testing.assert_array_equal(results[0][name], results[1][name])
    # As of characters, of which 0 is the space: a word starts behind it, and behind the begin of sentence.
    words = [1 + row[:length].tolist().count(0) + 1 for row, length in zip(first, LENGTHS, strict=True)]
    assert results[0]["words"].tolist() == words and len(set(words)) > 1


def test_more_labels_than_the_model_has():
    model = LanguageModel(make_transformer_lm(VOCAB, num_layers=1, model_dim=8, num_heads=2), bos=BOS, eos=EOS)
    for dim in (nn.FeatureDim("more", VOCAB + 1), None):
        labels = nn.Tensor("labels", dims=[nn.batch_dim], dtype="int32", sparse_dim=dim)
        with pytest.raises(ValueError, match="LanguageModel: expected labels over .*, got Tensor"):
            model.nll(labels, in_spatial_dim=nn.batch_dim)


def test_no_targets():
    model = LanguageModel(make_transformer_lm(VOCAB, num_layers=1, model_dim=8, num_heads=2), bos=BOS, eos=EOS)
    labels = nn.Tensor("labels", dims=[nn.batch_dim], dtype="int32")
    with pytest.raises(ValueError, match=r"LanguageModel: expected no targets \(config: target = None\), got Tensor"):
        model.losses(labels, in_spatial_dim=nn.batch_dim, targets=labels, targets_spatial_dim=nn.batch_dim)
