"""The LSTM decoder: the file's equations in NumPy, whole = step by step, what each argument does, search."""

from __future__ import annotations

import numpy as np
import pytest

from returnn_common import nn
from returnn_common.models.decoder.lstm_attention import make_lstm_attention_decoder
from returnn_common.search import beam_search
from returnn_common.search.scorers import DecoderScorer
from tests.engines import ENGINES, Input, run_on

VOCAB, ENCODER = 5, 6
TINY = {"model_dim": 8, "embed_dim": 3, "att_dim": 4, "num_heads": 2, "dropout": 0.0}
LENGTHS, ENCODER_LENGTHS = [5, 2, 1], [4, 7, 1]


def _inputs(fill: float = 0.0) -> dict[str, Input]:
    rng = np.random.default_rng(5)
    y = rng.integers(0, VOCAB, (3, max(LENGTHS))).astype("int32")
    x = rng.normal(size=(3, max(ENCODER_LENGTHS), ENCODER)).astype("float32")
    for i, n in enumerate(ENCODER_LENGTHS):
        x[i, n:] = fill
    return {"y": Input(y, "batch time", sparse="labels"), "x": Input(x, "batch encoder_time features")}


DIMS = {"time": LENGTHS, "encoder_time": ENCODER_LENGTHS, "features": ENCODER, "labels": VOCAB}


def _run(*, engine: str = "torch", fill: float = 0.0, train: bool = False, num_steps: int = 0, **options):
    """:return: whole, and of so many steps the logits, the LSTM's c and h, and what the attention has accumulated"""

    def func(model, y, time, x, encoder_time):
        encoder = model.transform_encoder(x, axis=encoder_time)
        state = model.default_initial_state(batch_dims=[nn.batch_dim])
        logits, last = model(y, spatial_dim=time, state=state, encoder=encoder)
        order, model_dim = [nn.batch_dim, model.vocab_dim], model.lstm.out_dim
        accumulated_order = [nn.batch_dim, encoder_time, model.attention.heads_dim]
        outputs = {
            "whole": (logits, [nn.batch_dim, time, model.vocab_dim]),
            "accumulated": (last.accumulated, accumulated_order),
        }
        for i in range(num_steps):
            label = nn.gather(y, indices=nn.constant(i, dims=(), dtype="int32"), axis=time)
            logits, state = model(label, spatial_dim=nn.single_step_dim, state=state, encoder=encoder)
            outputs[f"step_{i}"] = (logits, order)
            outputs[f"c_{i}"] = (state.lstm.c, [nn.batch_dim, model_dim])
            outputs[f"h_{i}"] = (state.lstm.h, [nn.batch_dim, model_dim])
            outputs[f"accumulated_{i}"] = (state.accumulated, accumulated_order)
        return outputs

    def make_model(features, labels):
        return make_lstm_attention_decoder(features, labels, **{**TINY, **options})

    return run_on(engine, func, _inputs(fill), DIMS, make_model=make_model, train=train)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def _reference(p: dict[str, np.ndarray], labels: np.ndarray, h: np.ndarray, *, heads: int, zoneout: float = 0.0):
    """
    The equations at the top of the file, for one sequence; of zoneout the expectation.

    :param labels: U
    :param h: T, encoder
    :return: logits: U, vocab; beta after the last label: T, heads
    """
    size = p["lstm.rec_weight"].shape[1]
    s, cell, context, beta = np.zeros(size), np.zeros(size), np.zeros(h.shape[1]), np.zeros((len(h), heads))
    inverse_fertility = _sigmoid(h @ p["attention.inverse_fertility.weight"]) / 2
    logits = []
    for label in labels:
        e = p["embedding.weight"][label]
        gates = p["lstm.ff_weight"] @ np.concatenate([e, context]) + p["lstm.rec_weight"] @ s + p["lstm.bias"]
        i, f, g, o = np.split(gates, 4)
        new_cell = _sigmoid(f) * cell + _sigmoid(i) * np.tanh(g)
        new_s = _sigmoid(o) * np.tanh(new_cell)
        cell = (1 - zoneout) * new_cell + zoneout * cell
        s = (1 - zoneout / 3) * new_s + zoneout / 3 * s
        hidden = h @ p["attention.key.weight"] + p["attention.key.bias"]
        hidden = hidden + s @ p["attention.query.weight"] + beta @ p["attention.feedback.weight"]
        energy = np.tanh(hidden) @ p["attention.energy.weight"]
        alpha = np.exp(energy) / np.exp(energy).sum(axis=0)
        pieces = np.split(h, heads, axis=1)
        context = np.concatenate([alpha[:, k] @ pieces[k] for k in range(heads)])
        beta = beta + alpha * inverse_fertility
        readout = np.concatenate([s, e, context]) @ p["readout.weight"] + p["readout.bias"]
        readout = readout.reshape(-1, 2).max(axis=1)
        logits.append(readout @ p["logits.weight"] + p["logits.bias"])
    return np.array(logits), beta


@pytest.mark.parametrize("heads, zoneout", [(1, 0.0), (2, 0.0), (3, 0.3)])
def test_equals_the_equations(heads: int, zoneout: float):
    result = _run(fill=1e3, num_heads=heads, zoneout=zoneout)
    inputs = _inputs()
    for i, (n, encoder_n) in enumerate(zip(LENGTHS, ENCODER_LENGTHS, strict=True)):
        labels, h = inputs["y"].array[i, :n], inputs["x"].array[i, :encoder_n]
        logits, beta = _reference(result.params, labels, h, heads=heads, zoneout=zoneout)
        np.testing.assert_allclose(result["whole"][i, :n], logits, atol=1e-5)
        np.testing.assert_allclose(result["accumulated"][i, :encoder_n], beta, atol=1e-5)


@pytest.mark.parametrize("zoneout", [0.0, 0.3])
def test_whole_equals_step_by_step(zoneout: float):
    result = _run(num_steps=max(LENGTHS), zoneout=zoneout)
    for i, n in enumerate(LENGTHS):
        for u in range(n):
            np.testing.assert_allclose(result[f"step_{u}"][i], result["whole"][i, u], atol=1e-6)
        np.testing.assert_allclose(result["accumulated"][i], result[f"accumulated_{n - 1}"][i], atol=1e-6)


def test_padding_that_is_not_finite():
    np.testing.assert_array_equal(_run(fill=np.nan)["whole"], _run()["whole"])


def test_zoneout_keeps_old_values_in_training():
    """which are zeros in the first step; the others are as without zoneout, not scaled"""
    plain, trained = (_run(train=True, num_steps=1, zoneout=zoneout) for zoneout in (0.0, 0.6))
    for name, low, high in [("c_0", 0.3, 0.9), ("h_0", 0.02, 0.5)]:
        kept = trained[name] == 0.0
        assert low < kept.mean() < high
        if name == "c_0":
            np.testing.assert_allclose(trained[name][~kept], plain[name][~kept], rtol=1e-5)
    evaluated = _run(num_steps=1, zoneout=0.6)
    np.testing.assert_allclose(evaluated["c_0"], 0.4 * plain["c_0"], rtol=1e-5)
    np.testing.assert_allclose(evaluated["h_0"], 0.8 * plain["h_0"], rtol=1e-5)


@pytest.mark.slow  # other engines for one option; without it: test_zoo
@pytest.mark.parametrize("engine", [engine for engine in ENGINES if engine != "torch"])
def test_zoneout_on_every_engine(engine: str):
    plain, expected = (_run(num_steps=1, zoneout=zoneout) for zoneout in (0.0, 0.6))
    evaluated = _run(engine=engine, num_steps=1, zoneout=0.6)
    for name in expected.outputs:
        np.testing.assert_allclose(evaluated[name], expected[name], atol=1e-5, err_msg=name)
    trained = _run(engine=engine, num_steps=1, zoneout=0.6, train=True)
    kept = np.abs(trained["c_0"]) < 1e-7
    assert 0.3 < kept.mean() < 0.9
    np.testing.assert_allclose(trained["c_0"][~kept], plain["c_0"][~kept], rtol=1e-4)
    assert np.abs(trained["whole"] - evaluated["whole"]).max() > 1e-3


def test_dropout_acts_in_training_only():
    plain = _run()["whole"]
    np.testing.assert_array_equal(_run(dropout=0.5)["whole"], plain)
    np.testing.assert_array_equal(_run(train=True)["whole"], plain)
    assert np.abs(_run(train=True, dropout=0.5)["whole"] - plain).max() > 1e-2


def test_defaults_are_the_papers():
    nn.select_backend_torch()
    with nn.set_default_device_ctx("meta"):
        decoder = make_lstm_attention_decoder(2048, 10025)
    shapes = {name: [d.dimension for d in p.dims] for name, p in decoder.named_parameters()}
    assert shapes["embedding.weight"] == [10025, 621]
    assert shapes["lstm.rec_weight"] == [4000, 1000] and shapes["lstm.ff_weight"] == [4000, 621 + 2048]
    assert shapes["attention.key.weight"] == [2048, 1024] and shapes["attention.feedback.weight"] == [1, 1024]
    assert shapes["readout.weight"] == [1000 + 621 + 2048, 1000] and shapes["logits.weight"] == [500, 10025]
    assert decoder.dropout == 0.3 and decoder.zoneout is None


@pytest.mark.parametrize(
    "options, message",
    [
        ({"model_dim": 7}, "LSTM decoder: expected an even model_dim, got 7"),
        ({"num_heads": 4}, "AdditiveAttention: encoder_dim 6 is not a multiple of num_heads 4"),
        ({"num_heads": 0}, "AdditiveAttention: encoder_dim 6 is not a multiple of num_heads 0"),
        ({"dropout": 1.0}, "LSTM decoder: expected 0 <= dropout < 1, got 1.0"),
        ({"zoneout": -1.0}, "LSTM decoder: expected 0 <= zoneout < 1, got -1.0"),
    ],
)
def test_bad_arguments(options: dict, message: str):
    with pytest.raises(ValueError, match=message):
        make_lstm_attention_decoder(ENCODER, VOCAB, **{**TINY, **options})


@pytest.mark.parametrize(
    "case, message",
    [
        ("labels", "LSTM decoder: expected labels over .*vocab.*, got"),
        ("encoder", "LSTM decoder: expected what transform_encoder returned as encoder, got None"),
        ("features", "AdditiveAttention: expected the dims .*encoder_time.* and .*encoder.*, got"),
        ("axis", "AdditiveAttention: expected the dims .*time.* and .*features.*, got"),
    ],
)
def test_bad_input(case: str, message: str):
    def func(model, y, time, x, encoder_time):
        encoder = model.transform_encoder(x, axis=time if case == "axis" else encoder_time)
        state = model.default_initial_state(batch_dims=[nn.batch_dim])
        return {"y": model(y, spatial_dim=time, state=state, encoder=None if case == "encoder" else encoder)[0]}

    def make_model(features, labels):
        return make_lstm_attention_decoder(
            ENCODER if case == "features" else features, VOCAB if case == "labels" else labels, **TINY
        )

    with pytest.raises(ValueError, match=message):
        run_on("torch", func, _inputs(), DIMS, make_model=make_model)


def test_beam_search_scores_are_those_of_the_whole():
    """the state goes through the search; scores as those of the equations for the labels that were found"""
    eos, beam = 0, 3

    def func(model, x, encoder_time):
        encoder = model.transform_encoder(x, axis=encoder_time)
        scorer = DecoderScorer(model, encoder=encoder)
        found = beam_search(scorer, batch_dims=[nn.batch_dim], beam_size=beam, max_len=4, bos=eos, eos=eos)
        order = [nn.batch_dim, found.beam_dim]
        return {"labels": (found.labels, [*order, found.spatial_dim]), "scores": (found.scores, order)}

    inputs = {"x": _inputs()["x"]}
    result = run_on(
        "torch",
        func,
        inputs,
        DIMS,
        make_model=lambda features, labels: make_lstm_attention_decoder(features, labels, **TINY),
    )
    lengths = result.outputs["labels"].lengths[2]
    for i, n in enumerate(ENCODER_LENGTHS):
        for k in range(beam):
            labels = result["labels"][i, k, : lengths[i, k]]
            logits, _ = _reference(result.params, np.array([eos, *labels]), inputs["x"].array[i, :n], heads=2)
            log_probs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
            expected = sum(log_probs[u, v] for u, v in enumerate([*labels, eos]))
            assert result["scores"][i, k] == pytest.approx(expected, abs=1e-4)
