"""Predictors: whole = step by step, what they see; joiners against NumPy; what each argument does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from returnn_common import nn
from returnn_common.models.decoder.transducer import make_joiner, make_lstm_predictor, make_stateless_predictor
from tests.engines import ENGINES, Input, run_on

VOCAB = 4
LENGTHS = [6, 3, 1]
LSTM: dict[str, Any] = {"num_layers": 2, "model_dim": 5, "embed_dim": 3, "dropout": 0.0}
STATELESS: dict[str, Any] = {"context_size": 3, "model_dim": 5, "dropout": 0.0}
PREDICTORS = {"lstm": (make_lstm_predictor, LSTM), "stateless": (make_stateless_predictor, STATELESS)}
both = pytest.mark.parametrize("name", PREDICTORS)


def _labels() -> np.ndarray:
    return np.random.default_rng(3).integers(0, VOCAB + 1, (len(LENGTHS), max(LENGTHS))).astype("int32")


def _flat(state: Any) -> list[Any]:
    """with the order of dims"""
    return [(x, [nn.batch_dim, *x.remaining_dims(nn.batch_dim)]) for x in nn.nested.tree.flatten(state)]


def _run(name: str, engine: str = "torch", *, labels=None, train: bool = False, steps: bool = True, **options):
    """:return: "whole"; "step_i"; states: after the whole "last_k", after each step "last_i_k" """
    make, tiny = PREDICTORS[name]

    def func(model, y, time):
        y = nn.set_sparse_dim(y, model.in_dim)
        state = model.default_initial_state(batch_dims=[nn.batch_dim])
        out, last = model(y, spatial_dim=time, state=state)
        outputs = {"whole": (out, [nn.batch_dim, time, model.out_dim])}
        outputs.update({f"last_{k}": x for k, x in enumerate(_flat(last))})
        for i in range(max(LENGTHS) if steps else 0):
            label = nn.gather(y, indices=nn.constant(i, dims=(), dtype="int32"), axis=time)
            out, state = model(label, spatial_dim=nn.single_step_dim, state=state)
            outputs[f"step_{i}"] = (out, [nn.batch_dim, model.out_dim])
            outputs.update({f"last_{i}_{k}": x for k, x in enumerate(_flat(state))})
        return outputs

    return run_on(
        engine,
        func,
        {"y": Input(_labels() if labels is None else labels, "batch time", sparse="labels")},
        {"time": LENGTHS, "labels": VOCAB + 1},
        make_model=lambda: make(VOCAB, **{**tiny, **options}),
        train=train,
    )


@both
@pytest.mark.parametrize("engine", ENGINES)
def test_whole_equals_step_by_step(name: str, engine: str):
    result, expected = _run(name, engine), _run(name)
    num_states = sum(key.startswith("last_0_") for key in result.outputs)
    assert num_states == {"lstm": 4, "stateless": 2}[name]
    np.testing.assert_allclose(result["whole"], expected["whole"], atol=1e-5)
    for i, n in enumerate(LENGTHS):
        for t in range(n):
            np.testing.assert_allclose(result[f"step_{t}"][i], result["whole"][i, t], atol=1e-5)
        for k in range(num_states):
            np.testing.assert_allclose(result[f"last_{k}"][i], result[f"last_{n - 1}_{k}"][i], atol=1e-5)


@pytest.mark.parametrize("context_size", [1, 2, 3])
def test_stateless_sees_the_last_labels_only(context_size: int):
    plain = _run("stateless", context_size=context_size)["whole"]
    labels = _labels()
    labels[:, 1] = (labels[:, 1] + 1) % (VOCAB + 1)
    changed = np.abs(_run("stateless", labels=labels, context_size=context_size)["whole"] - plain).max(axis=2) > 1e-6
    assert changed[0].tolist() == [1 <= t < 1 + context_size for t in range(max(LENGTHS))]


def test_stateless_equals_numpy():
    result = _run("stateless")
    params, labels = result.params, _labels()
    embedded = np.concatenate([np.zeros((3, 2, 5)), params["embedding.weight"][labels]], axis=1)
    for i, n in enumerate(LENGTHS):
        for t in range(n):
            expected = (
                sum(embedded[i, t + 2 - k] @ params[f"conv.{k}.weight"] for k in range(3)) + params["conv.0.bias"]
            )
            np.testing.assert_allclose(result["whole"][i, t], np.maximum(expected, 0.0), atol=1e-5)


@both
def test_dropout_acts_in_training_only(name: str):
    plain = _run(name, steps=False)["whole"]
    np.testing.assert_array_equal(_run(name, dropout=0.5, steps=False)["whole"], plain)
    np.testing.assert_array_equal(_run(name, train=True, steps=False)["whole"], plain)
    assert np.abs(_run(name, train=True, dropout=0.5, steps=False)["whole"] - plain).max() > 1e-2


@pytest.mark.parametrize(
    "name,options,shapes",
    [
        ("lstm", {"num_layers": 1}, {"embedding.weight": (5, 3), "layers.0.rec_weight": (20, 5)}),
        ("lstm", {"model_dim": 7}, {"layers.1.rec_weight": (28, 7), "layers.1.ff_weight": (28, 7)}),
        ("lstm", {"embed_dim": 7}, {"embedding.weight": (5, 7), "layers.0.ff_weight": (20, 7)}),
        ("stateless", {"model_dim": 7}, {"embedding.weight": (5, 7), "conv.2.weight": (7, 7)}),
        ("stateless", {"context_size": 4}, {"conv.3.weight": (5, 5)}),
    ],
)
def test_sizes(name: str, options: dict, shapes: dict):
    params = _run(name, steps=False, **options).params
    assert {key: params[key].shape for key in shapes} == shapes
    assert "layers.1.ff_weight" not in params or options.get("num_layers") != 1


def _join(kind: str, engine: str = "torch", **options):
    rng = np.random.default_rng(1)

    def func(model, x, y, time, positions, labels):
        logits = model(x, y)
        return {"logits": (logits, [nn.batch_dim, time, positions, model.labels_dim])}

    options = {"kind": kind, "model_dim": 6, **options}
    return run_on(
        engine,
        func,
        {
            "x": Input(rng.normal(size=(2, 4, 3)).astype("float32"), "batch time enc"),
            "y": Input(rng.normal(size=(2, 3, 5)).astype("float32"), "batch positions pred"),
        },
        {"time": [4, 2], "positions": [3, 1], "enc": 3, "pred": 5, "labels": VOCAB},
        make_model=lambda enc, pred, labels: make_joiner(enc, pred, labels, **options),
    )


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


@pytest.mark.parametrize("kind", ["additive", "multiplicative", "gated"])
def test_joiner_equals_numpy(kind: str):
    result = _join(kind)
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(2, 4, 1, 3)), rng.normal(size=(2, 1, 3, 5))

    def linear(name: str, value: np.ndarray) -> np.ndarray:
        return value @ result.params[f"{name}.weight"] + result.params.get(f"{name}.bias", 0.0)

    a, p = linear("encoder_in", x), linear("predictor_in", y)
    if kind == "gated":
        gate = _sigmoid(linear("encoder_gate", x) + linear("predictor_gate", y))
        hidden = gate * np.tanh(a) + (1 - gate) * np.tanh(p)
    else:
        hidden = np.tanh(a + p if kind == "additive" else a * p)
    expected = linear("output", hidden)
    assert expected.shape == (2, 4, 3, VOCAB + 1)
    np.testing.assert_allclose(result["logits"][0], expected[0], atol=1e-5)
    np.testing.assert_allclose(result["logits"][1, :2, :1], expected[1, :2, :1], atol=1e-5)


@pytest.mark.parametrize("engine", [e for e in ENGINES if e != "torch"])
def test_joiner_on_engines(engine: str):
    """the one with all operations"""
    np.testing.assert_allclose(_join("gated", engine)["logits"], _join("gated")["logits"], atol=1e-5)


def test_joiner_in_one_frame_and_with_a_beam():
    def func(model, x, y, enc, pred):
        beam = nn.Dim(2, name="beam")
        whole = model(x, y)
        predicted = nn.expand_dim(y, beam)
        frame = model(x, predicted)
        assert set(frame.dims) == {nn.batch_dim, beam, model.labels_dim}
        np.testing.assert_allclose(
            nn.gather(frame, indices=1, axis=beam).raw_tensor.detach(), whole.raw_tensor.detach(), atol=1e-6
        )
        return {}

    run_on(
        "torch",
        func,
        {"x": Input(np.ones((2, 3), "float32"), "batch enc"), "y": Input(np.ones((2, 5), "float32"), "batch pred")},
        {"enc": 3, "pred": 5},
        make_model=lambda enc, pred: make_joiner(enc, pred, VOCAB, model_dim=6),
    )


def test_joiner_dropout():
    nn.select_backend_torch()
    joiner = make_joiner(3, 5, VOCAB, model_dim=6, dropout=0.5)
    encoded, predicted = nn.ones([joiner.encoder_dim]), nn.ones([joiner.predictor_dim])
    nn.init_train_step_run_ctx(train_flag=True, step=0)
    trained = joiner(encoded, predicted).raw_tensor.detach().numpy()
    nn.init_forward_step_run_ctx(step=0)
    evaluated = [joiner(encoded, predicted).raw_tensor.detach().numpy() for _ in range(2)]
    np.testing.assert_array_equal(*evaluated)
    assert np.abs(trained - evaluated[0]).max() > 1e-3


@pytest.mark.parametrize(
    "make,message",
    [
        (lambda: make_lstm_predictor(3, num_layers=0), "LSTM predictor: expected num_layers >= 1, got 0"),
        (lambda: make_lstm_predictor(3, dropout=1.0), "LSTM predictor: expected 0 <= dropout < 1, got 1.0"),
        (lambda: make_stateless_predictor(3, context_size=0), "expected context_size >= 1, got 0"),
        (lambda: make_stateless_predictor(3, dropout=-1.0), "expected 0 <= dropout < 1, got -1.0"),
        (lambda: make_joiner(3, 3, 3, dropout=2.0), "joiner: expected 0 <= dropout < 1, got 2.0"),
        (
            lambda: make_joiner(3, 3, 3, kind="sum"),
            "joiner: expected kind as one of additive, multiplicative, gated, got 'sum'",
        ),
        (lambda: _call_predictor(make_lstm_predictor(3)), "LSTM predictor: expected start and labels over .*, got"),
        (lambda: _call_predictor(make_stateless_predictor(3)), "stateless predictor: expected start and labels over"),
        (lambda: _call_joiner(swap=False), "joiner: expected predicted with .*predictor"),
        (lambda: _call_joiner(swap=True), "joiner: expected encoded with .*encoder"),
    ],
)
def test_errors(make, message: str):
    nn.select_backend_torch()
    with pytest.raises(ValueError, match=message):
        make()


def _call_predictor(predictor):
    labels = nn.constant(0, dims=[], sparse_dim=predictor.vocab_dim, dtype="int32")
    return predictor(labels, spatial_dim=nn.single_step_dim, state=predictor.default_initial_state(batch_dims=[]))


def _call_joiner(*, swap: bool):
    joiner = make_joiner(3, 5, 3)
    encoded, predicted = nn.ones([joiner.encoder_dim]), nn.ones([joiner.predictor_dim])
    return joiner(predicted, encoded) if swap else joiner(encoded, encoded)
