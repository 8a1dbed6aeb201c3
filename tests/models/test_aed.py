"""Attention-based encoder-decoder: its losses against a forced search and a reference for CTC, and its search."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest

from returnn_common import nn
from returnn_common.models.aed import make_aed_model
from returnn_common.models.decoder.transformer import make_transformer_decoder
from returnn_common.models.encoder.conformer import make_conformer_encoder
from returnn_common.models.lm.lstm import make_lstm_lm
from returnn_common.nn._decoder_losses import _with_noise
from returnn_common.search import DecoderScorer, combine, score_labels
from tests.engines import ENGINES, Input, run_on
from tests.models.ctc_tiny import ENCODER, FEATURES, LENGTHS, TARGETS, VOCAB, features, label_rows, reference_loss

DECODER = {"num_layers": 1, "model_dim": 8, "num_heads": 2, "dropout": 0.0}


def _make(in_dim, vocab, *, eos=None, **options):
    encoder = make_conformer_encoder(in_dim, **ENCODER, conv_norm="layer", dropout=0.0)
    decoder = make_transformer_decoder(encoder.out_dim, VOCAB + (eos is None), **DECODER)
    return make_aed_model(in_dim, vocab, **{"encoder": encoder, "decoder": decoder, "eos": eos, **options})


def _run(func, *, train=False, **options):
    inputs = {
        "x": Input(features(LENGTHS), "batch time feat"),
        "y": Input(label_rows(TARGETS), "batch labels", sparse="vocab"),
    }
    dims = {"time": LENGTHS, "feat": FEATURES, "labels": [len(row) for row in TARGETS], "vocab": VOCAB}
    return run_on(
        "torch", func, inputs, dims, make_model=lambda feat, vocab: _make(feat, vocab, **options), train=train
    )


def _losses(model, x, time, y, labels):
    losses = model.losses(x, in_spatial_dim=time, targets=y, targets_spatial_dim=labels)
    return {name: (loss.value, [nn.batch_dim]) for name, loss in losses.items()}


def _scorer(model, x, time):
    encoded, encoded_time = model.encode(x, in_spatial_dim=time)
    return DecoderScorer(model.decoder, encoder=model.decoder.transform_encoder(encoded, axis=encoded_time))


@pytest.mark.parametrize("eos", [None, 0])
def test_cross_entropy_is_the_score_of_the_forced_targets(eos: int | None):
    def func(model, x, time, y, labels):
        scores = score_labels(
            _scorer(model, x, time),
            nn.set_sparse_dim(y, model.decoder.vocab_dim),
            spatial_dim=labels,
            bos=model.bos,
            eos=model.eos,
        )
        return {**_losses(model, x, time, y, labels), "scores": (scores, [nn.batch_dim])}

    result = _run(func, eos=eos)
    np.testing.assert_allclose(result["ce"], -result["scores"], rtol=1e-4)
    assert set(result.outputs) == {"ce", "fer", "scores"}


def test_norm_factors_count_the_end_of_sentence():
    def func(model, x, time, y, labels):
        losses = model.losses(x, in_spatial_dim=time, targets=y, targets_spatial_dim=labels)
        assert losses["fer"].as_error and not losses["ce"].as_error
        assert losses["ctc_2"].scale == 0.7
        return {name: (losses[name].inv_norm_factor, [nn.batch_dim]) for name in ("ce", "fer", "ctc_2")}

    result = _run(func, aux_ctc_layers=[2], aux_ctc_scale=0.7)
    lengths = np.array([len(row) for row in TARGETS])
    for name, expected in [("ce", lengths + 1), ("fer", lengths + 1), ("ctc_2", lengths)]:
        np.testing.assert_array_equal(result[name], expected)


def test_frame_errors_are_wrong_best_labels():
    def func(model, x, time, y, labels):
        scorer = _scorer(model, x, time)
        state, previous, best = scorer.initial_state(batch_dims=[nn.batch_dim]), None, []
        for step in range(max(len(row) for row in TARGETS) + 1):
            if previous is None:
                previous = nn.constant(
                    model.bos, dims=[nn.batch_dim], sparse_dim=model.decoder.vocab_dim, dtype="int32"
                )
            log_probs, state = scorer.score(previous, state)
            best.append(nn.reduce_argmax(log_probs, axis=model.decoder.vocab_dim).raw_tensor.tolist())
            if step < max(len(row) for row in TARGETS):
                column = nn.gather(y, axis=labels, indices=nn.constant(step, dims=(), dtype="int32"))
                previous = nn.set_sparse_dim(column, model.decoder.vocab_dim)
        errors = [
            sum(best[i][row] != label for i, label in enumerate([*targets, model.eos]))
            for row, targets in enumerate(TARGETS)
        ]
        np.testing.assert_array_equal(_losses(model, x, time, y, labels)["fer"][0].raw_tensor.numpy(), errors)
        return {}

    _run(func)


def test_ctc_heads_on_inner_and_last_layer():
    def func(model, x, time, y, labels):
        collected = {}
        _, encoded_time = model.encode(x, in_spatial_dim=time, collected_outputs=collected)
        outputs = _losses(model, x, time, y, labels)
        for layer, linear in zip(model.aux_ctc_layers, model.aux_ctc_outputs, strict=True):
            log_probs = nn.log_softmax(linear(collected[str(layer - 1)]), axis=model.labels_dim)
            outputs[f"log_probs_{layer}"] = (log_probs, [nn.batch_dim, encoded_time, model.labels_dim])
        return outputs

    result = _run(func, aux_ctc_layers=(1, 2))
    assert {"ce", "fer", "ctc_1", "ctc_2", "impossible"} < set(result.outputs)
    for layer in (1, 2):
        output = result.outputs[f"log_probs_{layer}"]
        for i, targets in enumerate(TARGETS):
            log_probs = output.array[i, : output.lengths[1][i]].astype("float64")
            np.testing.assert_allclose(result[f"ctc_{layer}"][i], reference_loss(log_probs, targets), rtol=1e-4)


def test_label_smoothing_in_training_only():
    def func(model, x, time, y, labels):
        return _losses(model, x, time, y, labels)

    evaluated = [_run(func, label_smoothing=s, specaugment=None)["ce"] for s in (0.0, 0.2)]
    np.testing.assert_array_equal(*evaluated)
    trained = [_run(func, train=True, label_smoothing=s, specaugment=None)["ce"] for s in (0.0, 0.2)]
    np.testing.assert_allclose(trained[0], evaluated[0], rtol=1e-5)
    assert (np.abs(trained[1] - trained[0]) > 1e-3).all()


@pytest.mark.parametrize("lm_scale", [0.0, 0.5])
def test_scores_are_those_of_the_forced_hypotheses(lm_scale: float):
    def func(model, x, time):
        lm = DecoderScorer(make_lstm_lm(model.decoder.vocab_dim, num_layers=1, model_dim=4, embed_dim=3))
        hypotheses = model.search(x, in_spatial_dim=time, beam_size=3, lm=lm, lm_scale=lm_scale, max_len=5)
        assert hypotheses.labels.sparse_dim == model.vocab_dim
        scorer = _scorer(model, x, time)
        forced = score_labels(
            combine([(scorer, 1.0), (lm, lm_scale)]),
            nn.set_sparse_dim(hypotheses.labels, model.decoder.vocab_dim),
            spatial_dim=hypotheses.spatial_dim,
            bos=model.bos,
            eos=model.eos,
        )
        dims = [nn.batch_dim, hypotheses.beam_dim]
        return {"scores": (hypotheses.scores, dims), "forced": (forced, dims), "lengths": (hypotheses.lengths, dims)}

    result = _run(func)
    np.testing.assert_allclose(result["scores"], result["forced"], rtol=1e-4)
    assert result["lengths"].max() <= 5


class _WithLm(nn.Module):
    def __init__(self, aed: nn.Module):
        super().__init__()
        self.aed = aed
        self.lm = make_lstm_lm(aed.decoder.vocab_dim, num_layers=1, model_dim=4, embed_dim=3)


def test_search_on_the_net_dict():
    """the other engines: tests/search/test_decoders.py"""

    def func(model, x, time):
        lm = DecoderScorer(model.lm)
        hypotheses = model.aed.search(x, in_spatial_dim=time, beam_size=2, lm=lm, lm_scale=0.5, max_len=3)
        dims = [nn.batch_dim, hypotheses.beam_dim]
        return {"labels": (hypotheses.labels, [*dims, hypotheses.spatial_dim]), "scores": (hypotheses.scores, dims)}

    inputs = {"x": Input(features(LENGTHS), "batch time feat")}
    dims = {"time": LENGTHS, "feat": FEATURES, "vocab": VOCAB}
    expected, result = (
        run_on(e, func, inputs, dims, make_model=lambda feat, vocab: _WithLm(_make(feat, vocab)))
        for e in ("torch", "tensorflow-net-dict")
    )
    np.testing.assert_array_equal(result["labels"], expected["labels"])
    np.testing.assert_allclose(result["scores"], expected["scores"], atol=1e-4)


def test_longest_hypothesis_has_as_many_labels_as_frames():
    """where the end of sentence is never probable"""
    found = []

    def func(model, x, time):
        scorer_type = DecoderScorer.score

        def _never_ends(self, prev_labels, state):
            log_probs, state = scorer_type(self, prev_labels, state)
            labels = nn.range_over_dim(model.decoder.vocab_dim)
            return nn.where(labels == model.eos, -1e4, log_probs), state

        with mock.patch.object(DecoderScorer, "score", _never_ends):
            hypotheses = model.search(x, in_spatial_dim=time, beam_size=1)
        _, frames = model.encode(x, in_spatial_dim=time)
        found.extend([hypotheses.lengths.raw_tensor.reshape(-1).tolist(), frames.dyn_size.tolist()])
        return {}

    _run(func)
    assert found[0] == found[1]


def test_default_decoder_and_encoder():
    nn.select_backend_torch()
    with nn.set_default_device_ctx("meta"):
        model = make_aed_model(None, 10, aux_ctc_layers=[4, 8])
    assert (model.features.out_dim.dimension, len(model.encoder.layers), len(model.decoder.layers)) == (80, 12, 6)
    assert (model.bos, model.eos, model.decoder.vocab_dim.dimension, model.blank_index) == (10, 10, 11, 10)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"eos": VOCAB}, "expected eos as an index of .*4.*, got 4"),
        ({"aux_ctc_layers": [3]}, "make_aed_model: aux layer 3 is not one of 1..2"),
        ({"label_smoothing": 1.0}, "expected 0 <= label_smoothing < 1, got 1.0"),
        ({"decoder": make_transformer_decoder, "eos": 0}, "expected a decoder with 4 labels .eos among them., got .*7"),
        ({"decoder": make_transformer_decoder}, "expected a decoder with 5 labels .end of sentence behind them., got"),
    ],
)
def test_mismatches_are_refused(options: dict, message: str):
    nn.select_backend_torch()
    if "decoder" in options:
        options = {**options, "decoder": make_transformer_decoder(8, 7, **DECODER)}
    with pytest.raises(ValueError, match=message):
        _make(FEATURES, VOCAB, **options)


def test_scale_without_lm():
    def func(model, x, time):
        model.search(x, in_spatial_dim=time, lm_scale=0.5)

    with pytest.raises(ValueError, match="AedModel: expected an lm for lm_scale 0.5"):
        _run(func)


@pytest.mark.parametrize("train", [False, True])
def test_label_noise_in_training_only(train: bool):
    def run(noise: float) -> np.ndarray:
        def func(model, x, time, y, labels):
            model.label_noise = noise
            return _losses(model, x, time, y, labels)

        return _run(func, train=train, label_smoothing=0.0, specaugment=None)["ce"]

    assert (np.abs(run(0.5) - run(0.0)).max() > 1e-3) == train


@pytest.mark.parametrize("engine", ENGINES)
def test_share_of_noise(engine: str):
    """on each engine: of many labels, that share is replaced, by all labels alike"""

    def func(y, time):
        return {"y": (_with_noise(y, share=0.5), [nn.batch_dim, time])}

    labels = np.full((2, 5000), 1, "int32")
    inputs = {"y": Input(labels, "batch time", sparse="vocab")}
    noisy = run_on(engine, func, inputs, {"time": [5000, 5000], "vocab": VOCAB}, train=True)["y"]
    counts = np.bincount(noisy.reshape(-1), minlength=VOCAB) / noisy.size
    np.testing.assert_allclose(counts, [0.125, 0.625, 0.125, 0.125], atol=0.02)
