"""Transducer: its losses against what a full search finds, its parts, its search with language models."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from returnn_common import nn
from returnn_common.models.decoder.transducer import make_joiner, make_lstm_predictor, make_stateless_predictor
from returnn_common.models.encoder.lstm import make_lstm_encoder
from returnn_common.models.lm.lstm import make_lstm_lm
from returnn_common.models.transducer import make_transducer_model
from returnn_common.search import DecoderScorer, ctc_align
from tests.models.transducer_tiny import TARGETS, VOCAB
from tests.models.transducer_tiny import run as _run


def _losses(model, x, time, y, labels) -> dict[str, Any]:
    losses = model.losses(x, in_spatial_dim=time, targets=y, targets_spatial_dim=labels)
    return {name: (loss.value, [nn.batch_dim]) for name, loss in losses.items()}


def _score_of(nbest: list[tuple[float, list[int]]], labels: list[int]) -> float:
    (score,) = (score for score, found in nbest if found == labels)
    return score


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"stateless": True, "kind": "multiplicative"},
        {"kind": "gated", "separate_blank": True},
        {"topology": "monotonic"},
        {"topology": "ctc", "encoder_pooling": ()},
        {"topology": "rnnt", "separate_blank": True},
    ],
)
def test_loss_is_the_score_that_a_full_search_gives_the_targets(options: dict):
    """two labels per frame are all that the targets have"""

    def func(model, x, time, y, labels):
        limit = {} if options.get("topology") in ("monotonic", "ctc") else {"max_labels_per_frame": 2}
        hyps = model.search(x, in_spatial_dim=time, beam_size=130, **limit)
        assert hyps.labels.sparse_dim == model.vocab_dim
        losses = _losses(model, x, time, y, labels)["transducer"][0].raw_tensor
        for i, targets in enumerate(TARGETS):
            assert float(losses[i]) == pytest.approx(-_score_of(hyps.nbest(i), targets), abs=1e-4)
        return {}

    _run(func, **options)


def test_separate_blank_is_a_sigmoid():
    def func(model, x, y, time):
        encoded, encoded_time = model.encode(x, in_spatial_dim=time)
        predicted, _ = model.predict(
            nn.constant(VOCAB, dims=[nn.batch_dim], sparse_dim=model.labels_dim, dtype="int32"),
            model.initial_state(batch_dims=[nn.batch_dim]),
        )
        order = [nn.batch_dim, encoded_time, model.labels_dim]
        probs = nn.softmax(model.join(encoded, predicted), axis=model.labels_dim)
        return {"probs": (probs, order), "logits": (model.joiner(encoded, predicted), order)}

    result = _run(func, separate_blank=True)
    probs, logits = result["probs"][0], result["logits"][0].astype("float64")
    blank = 1 / (1 + np.exp(-logits[:, -1]))
    labels = np.exp(logits[:, :-1]) / np.exp(logits[:, :-1]).sum(-1, keepdims=True)
    np.testing.assert_allclose(probs[:, -1], blank, rtol=1e-4)
    np.testing.assert_allclose(probs[:, :-1], labels * (1 - blank[:, None]), rtol=1e-4)


def test_ctc_heads_and_norms():
    def func(model, x, time, y, labels):
        losses = model.losses(x, in_spatial_dim=time, targets=y, targets_spatial_dim=labels)
        assert list(losses) == ["ctc_2", "impossible", "transducer"]
        assert losses["ctc_2"].scale == 0.7 and losses["transducer"].scale == 1.0
        assert losses["impossible"].as_error
        norms = {name: losses[name].inv_norm_factor for name in ("ctc_2", "transducer")}
        collected: dict[str, Any] = {}
        _, encoded_time = model.encode(x, in_spatial_dim=time, collected_outputs=collected)
        ctc = nn.ctc_losses(
            [nn.CtcHead("ctc", model.aux_ctc_outputs[0](collected["1"]))],
            spatial_dim=encoded_time,
            targets=y,
            targets_spatial_dim=labels,
            blank_index=VOCAB,
        )
        return {
            **{name: (value, [nn.batch_dim]) for name, value in norms.items()},
            "expected": (ctc["ctc"].value, [nn.batch_dim]),
            "actual": (losses["ctc_2"].value, [nn.batch_dim]),
        }

    result = _run(func, aux_ctc_layers=[2], aux_ctc_scale=0.7)
    for name in ("ctc_2", "transducer"):
        np.testing.assert_array_equal(result[name], [2, 2, 1])
    np.testing.assert_allclose(result["actual"], result["expected"], rtol=1e-6)
    assert result["actual"].max() > 0.1


def test_impossible_of_the_transducer_counts():
    """[1, 1] needs three frames for CTC and two for the other; there are two"""

    def func(model, x, time, y, labels):
        return _losses(model, x, time, y, labels)

    result = _run(func, aux_ctc_layers=[2])
    np.testing.assert_array_equal(result["impossible"], [0, 0, 0])
    assert result["ctc_2"][1] == 0 and (result["transducer"] > 0).all()


def test_fast_emission_changes_gradients_only():
    def func(model, x, time, y, labels):
        return _losses(model, x, time, y, labels)

    one, two = (_run(func, grad_of="transducer", fast_emission=value) for value in (0.0, 0.5))
    np.testing.assert_array_equal(one["transducer"], two["transducer"])
    assert np.abs(one.grads["joiner.output.bias"] - two.grads["joiner.output.bias"]).max() > 1e-3


def test_blocks_of_frames_have_the_same_loss_and_gradients():
    calls = []

    def func(model, x, time, y, labels):
        joiner = model.joiner
        model.joiner = lambda *args: calls.append(1) or joiner(*args)
        losses = _losses(model, x, time, y, labels)
        model.joiner = joiner
        return losses

    whole, blocks = (_run(func, grad_of="transducer", separate_blank=True, **x) for x in ({}, {"frames_per_block": 1}))
    assert len(calls) == 1 + 3
    np.testing.assert_allclose(blocks["transducer"], whole["transducer"], rtol=1e-5)
    assert list(blocks.outputs) == list(whole.outputs)
    for name, grad in whole.grads.items():
        np.testing.assert_allclose(blocks.grads[name], grad, atol=1e-5, err_msg=name)


def test_beam_of_one_is_greedy_and_the_limit_counts():
    def func(model, x, time):
        greedy = model.search(x, in_spatial_dim=time)
        assert greedy.scores.remaining_dims(nn.batch_dim) == [greedy.beam_dim] and greedy.beam_dim.dimension == 1
        limited = model.search(x, in_spatial_dim=time, max_labels_per_frame=1)
        for hyps, limit in [(greedy, 5), (limited, 1)]:
            assert [len(hyps.nbest(i)[0][1]) for i in range(3)] == [limit * n for n in (3, 2, 1)]
        return {}

    def talk(model, **values):
        model.joiner.output.bias.raw_tensor.data[:] = nn.convert_to_tensor(np.float32([9, 0, 0])).raw_tensor
        return func(model, **values)

    _run(lambda model, x, time: talk(model, x=x, time=time))


def test_search_by_the_length_of_alignments():
    """no limit in a frame; else, what a full search frame by frame finds"""

    def func(model, x, time):
        found = model.search(x, in_spatial_dim=time, beam_size=60, method="alignments")
        frames = model.search(x, in_spatial_dim=time, beam_size=130, max_labels_per_frame=3)
        num_compared = 0
        for i in range(3):
            scores = {tuple(labels): score for score, labels in frames.nbest(i)}
            for score, labels in found.nbest(i):
                if len(labels) <= 2:
                    assert score == pytest.approx(scores[tuple(labels)], abs=1e-4)
                    num_compared += 1
        assert num_compared > 10
        one = model.search(x, in_spatial_dim=time, method="alignments")
        assert one.beam_dim.dimension == 1 and one.labels.sparse_dim == model.vocab_dim
        with pytest.raises(ValueError, match="method, expected one of frames, alignments, got 'labels'"):
            model.search(x, in_spatial_dim=time, method="labels")
        with pytest.raises(ValueError, match="max_labels_per_frame, expected None with the method 'alignments', .* 2"):
            model.search(x, in_spatial_dim=time, method="alignments", max_labels_per_frame=2)
        model.topology = "monotonic"
        with pytest.raises(ValueError, match="expected the topology rnnt, the model has monotonic"):
            model.search(x, in_spatial_dim=time, method="alignments")
        return {}

    _run(func)


@pytest.mark.parametrize("options", [{}, {"stateless": True, "kind": "gated", "separate_blank": True}])
def test_search_in_half_precision(options: dict):
    """as RETURNN's torch_amp does it"""

    def func(model, x, time):
        model.joiner.output.bias.raw_tensor.data[0] += 2.0  # so that there are labels
        exact = model.search(x, in_spatial_dim=time, beam_size=130, max_labels_per_frame=2)
        greedy = model.search(x, in_spatial_dim=time)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = model.search(x, in_spatial_dim=time, beam_size=130, max_labels_per_frame=2)
            assert model.search(x, in_spatial_dim=time).nbest(2)[0][1] == greedy.nbest(2)[0][1]
        for i in range(3):
            expected = {tuple(labels): score for score, labels in exact.nbest(i)}
            assert len(expected) == len(found.nbest(i)) > 2
            for score, labels in found.nbest(i):
                assert score == pytest.approx(expected[tuple(labels)], abs=0.5)
        return {}

    _run(func, **options)


@pytest.mark.parametrize("with_end", [False, True])
def test_search_with_language_models(with_end: bool):
    """scores: transducer + lm_scale * lm - internal_lm_scale * internal lm"""
    bos, eos = (VOCAB, VOCAB) if with_end else (1, None)

    def func(model, x, time):
        lm_dim = nn.FeatureDim("lm-labels", VOCAB + with_end)
        lm = DecoderScorer(make_lstm_lm(lm_dim, num_layers=1, model_dim=4, embed_dim=3))
        options: dict[str, Any] = {"in_spatial_dim": time, "beam_size": 130, "max_labels_per_frame": 2}
        alone = model.search(x, **options)
        options.update(bos=bos, eos=eos)
        with_lm = model.search(x, **options, lm=lm, lm_scale=0.6)
        with_both = model.search(x, **options, lm=lm, lm_scale=0.6, internal_lm_scale=0.2)
        for i in range(3):
            assert len(alone.nbest(i)) == len(with_lm.nbest(i)) == len(with_both.nbest(i))
        for hyps, internal_scale in [(with_lm, 0.0), (with_both, 0.2)]:
            labels = nn.set_sparse_dim(hyps.labels, lm_dim)
            lm_scores, internal = (
                _forced(scorer, labels, hyps, bos=bos, eos=eos) for scorer in (lm, model.internal_lm(lm_dim, bos=bos))
            )
            for i in range(3):
                for k, (score, found) in enumerate(hyps.nbest(i)):
                    expected = _score_of(alone.nbest(i), found) + 0.6 * lm_scores[i][k]
                    assert score == pytest.approx(expected - internal_scale * internal[i][k], abs=1e-3)
        return {}

    _run(func)


def _forced(scorer, labels: nn.Tensor, hyps, *, bos: int, eos: int | None) -> np.ndarray:
    """:return: its scores of the hypotheses [batch, beam], with end of sentence if there is one"""
    state = scorer.initial_state(batch_dims=[nn.batch_dim, hyps.beam_dim])
    dims = [nn.batch_dim, hyps.beam_dim]
    previous = nn.constant(bos, dims=dims, sparse_dim=scorer.vocab_dim, dtype="int32")
    lengths = hyps.lengths.copy_compatible_to_dims_raw(dims)
    total = np.zeros(tuple(lengths.shape))
    for step in range(int(lengths.max()) + 1):
        log_probs, state = scorer.score(previous, state)
        log_probs = log_probs.copy_compatible_to_dims_raw([*dims, scorer.vocab_dim]).detach().numpy()
        step_labels = np.zeros(total.shape, "int64")
        if step < int(lengths.max()):
            label = nn.gather(labels, indices=nn.constant(step, dims=(), dtype="int32"), axis=hyps.spatial_dim)
            step_labels[:] = label.copy_compatible_to_dims_raw(dims).numpy()
            previous = nn.set_sparse_dim(label, scorer.vocab_dim)
        if eos is not None:
            step_labels[(lengths == step).numpy()] = eos
        chosen = np.take_along_axis(log_probs, step_labels[..., None], axis=-1)[..., 0]
        is_end = (lengths == step).numpy() if eos is not None else np.zeros(total.shape, bool)
        total += np.where((lengths > step).numpy() | is_end, chosen, 0.0)
    return total


def test_parts_of_hypotheses_are_the_scores_of_a_full_search():
    """two labels per frame are all that hypotheses of two labels need"""

    def func(model, x, time):
        lm = DecoderScorer(make_lstm_lm(nn.FeatureDim("lm-labels", VOCAB + 1), num_layers=1, model_dim=4, embed_dim=3))
        options: dict[str, Any] = {"in_spatial_dim": time, "lm": lm, "bos": VOCAB, "eos": VOCAB}
        scales: dict[str, float] = {"lm_scale": 0.6, "internal_lm_scale": 0.2}
        hyps = model.search(x, beam_size=130, max_labels_per_frame=2, **options, **scales)
        parts = model.score_hypotheses(hyps, x, **options)
        weights = model.part_scales(**scales)
        assert weights.pop("length_exponent") == 0.0
        assert set(parts) == set(weights) == {*model.part_names, "lm"}
        dims = [nn.batch_dim, hyps.beam_dim]
        weighted = [weights[k] * parts[k].copy_compatible_to_dims_raw(dims).detach().numpy() for k in parts]
        total = np.sum(weighted, axis=0)
        num_compared = 0
        for i in range(3):
            for k, (score, labels) in enumerate(hyps.nbest(i)):
                if len(labels) <= 2:
                    assert total[i, k] == pytest.approx(score, abs=1e-3)
                    num_compared += 1
                else:
                    assert total[i, k] > score - 1e-3  # the search has a limit
        assert num_compared == 3 * (1 + 2 + 4)
        assert set(model.score_hypotheses(hyps, x, in_spatial_dim=time)) == set(model.part_names)
        return {}

    _run(func, separate_blank=True)


def test_alignment_by_the_ctc_head():
    def func(model, x, time, y, labels):
        log_probs, encoded_time = model.ctc_log_probs(x, in_spatial_dim=time)
        alignment, align_time = model.align(x, in_spatial_dim=time, labels=y, labels_spatial_dim=labels, use_ctc=True)
        assert align_time == encoded_time
        expected = ctc_align(log_probs, spatial_dim=encoded_time, labels=y, labels_spatial_dim=labels, blank=VOCAB)
        return {
            "actual": (alignment.starts, [nn.batch_dim, labels]),
            "expected": (expected.starts, [nn.batch_dim, labels]),
        }

    result = _run(func, aux_ctc_layers=[1, 2], encoder_pooling=())
    np.testing.assert_array_equal(result["actual"], result["expected"])

    def without(model, x, time):
        with pytest.raises(ValueError, match="TransducerModel: expected aux_ctc_layers, for there is no CTC head"):
            model.ctc_log_probs(x, in_spatial_dim=time)
        return {}

    _run(without)


def test_internal_lm_hears_nothing():
    """softmax over the labels of the joiner with zeros for the encoder's output"""

    def func(model, x):
        scorer = model.internal_lm()
        dims = [nn.batch_dim]
        state = scorer.initial_state(batch_dims=dims)
        previous = nn.constant(0, dims=dims, sparse_dim=model.vocab_dim, dtype="int32")
        model_state, model_label = model.initial_state(batch_dims=dims), VOCAB  # the start, whatever is passed
        for label in (1, 0):
            log_probs, state = scorer.score(previous, state)
            labels = nn.constant(model_label, dims=dims, sparse_dim=model.labels_dim, dtype="int32")
            predicted, model_state = model.predict(labels, model_state)
            logits = model.joiner(nn.zeros([model.joiner.encoder_dim]), predicted)
            logits = logits.copy_compatible_to_dims_raw([nn.batch_dim, model.labels_dim]).detach().numpy()
            expected = logits[:, :VOCAB] - np.logaddexp.reduce(logits[:, :VOCAB], axis=-1, keepdims=True)
            actual = log_probs.copy_compatible_to_dims_raw([nn.batch_dim, model.vocab_dim]).detach().numpy()
            np.testing.assert_allclose(actual, expected, atol=1e-5)
            previous = nn.constant(label, dims=dims, sparse_dim=model.vocab_dim, dtype="int32")
            model_label = label
        return {}

    _run(func, kind="gated")


def test_sizes_are_enough():
    """parts given by their sizes, as ints; the default parts"""
    nn.select_backend_torch()
    with nn.set_default_device_ctx("meta"):
        model = make_transducer_model(80, 30)
        assert model.predictor.out_dim.dimension == 640 and model.joiner.labels_dim.dimension == 31
        assert model.blank_index == 30 and model.specaugment is not None
        encoder, predictor = make_lstm_encoder(80), make_stateless_predictor(30)
        parts = {"encoder": encoder, "predictor": predictor}
        model = make_transducer_model(None, 30, **parts, joiner=make_joiner(encoder.out_dim, predictor.out_dim, 30))
        assert model.features is not None and model.predictor is predictor


@pytest.mark.parametrize(
    "options,message",
    [
        ({"predictor": lambda: make_lstm_predictor(31)}, "expected a predictor over 30 labels, got .*31"),
        ({"joiner": lambda: make_joiner(512, 640, 31)}, "expected a joiner over 30 labels, got .*31"),
        ({"joiner": lambda: make_joiner(6, 640, 30)}, r"expected a joiner of .*512.* and .*640.*, got one of .*6"),
        ({"aux_ctc_layers": lambda: [13]}, "make_transducer_model: aux layer 13 is not one of 1..12"),
        ({"encoder": lambda: make_lstm_encoder(40)}, "make_transducer_model: encoder takes .*40.* but in_dim is 80"),
    ],
)
def test_errors_of_the_builder(options: dict, message: str):
    nn.select_backend_torch()
    with nn.set_default_device_ctx("meta"), pytest.raises(ValueError, match=message):
        make_transducer_model(80, 30, **{name: make() for name, make in options.items()})


def test_errors_of_the_model():
    with pytest.raises(ValueError, match="TransducerModel: expected topology as one of rnnt, monotonic, ctc, got 'x'"):
        _run(lambda model: {}, topology="x")

    def func(model, x, time):
        with pytest.raises(ValueError, match="TransducerModel: expected an lm for internal_lm_scale 0.5"):
            model.search(x, in_spatial_dim=time, internal_lm_scale=0.5)
        with pytest.raises(ValueError, match="scorer_scale, bos and eos expect a scorer, got scorer=None"):
            model.search(x, in_spatial_dim=time, lm_scale=0.5)
        with pytest.raises(
            ValueError, match="TransducerLmScorer: expected a vocabulary of 2 labels, or one more .*, got .*5"
        ):
            model.internal_lm(nn.FeatureDim("other", 5))
        with pytest.raises(ValueError, match="TransducerLmScorer: bos, expected an index from 0 to 1 of .*, got 2"):
            model.internal_lm(bos=2)
        return {}

    _run(func)
