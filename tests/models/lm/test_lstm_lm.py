"""The LSTM language model: PyTorch's with its weights, whole = step by step, what each argument does."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from returnn_common import nn
from returnn_common.models.lm.lstm import make_lstm_lm
from returnn_common.training.import_torch import import_torch_lstm
from tests.engines import Input, run_on

VOCAB = 6
TINY = {"num_layers": 2, "embed_dim": 4, "model_dim": 5, "dropout": 0.0}
LENGTHS = [7, 3, 1]


def _labels() -> np.ndarray:
    return np.random.default_rng(3).integers(0, VOCAB, (len(LENGTHS), max(LENGTHS))).astype("int32")


def _run(*, params=None, train: bool = False, **options):
    """:return: whole; steps, stacked over time; the last c of the last layer: c, and c_steps of all sequences' steps"""

    def func(model, y, time):
        state = model.default_initial_state(batch_dims=[nn.batch_dim])
        logits, last = model(y, spatial_dim=time, state=state)
        name = str(len(model.layers) - 1)
        order = [nn.batch_dim, model.layers[-1].out_dim]
        outputs = {"whole": (logits, [nn.batch_dim, time, model.vocab_dim]), "c": (last[name].c, order)}
        for i in range(max(LENGTHS)):
            label = nn.gather(y, indices=nn.constant(i, dims=(), dtype="int32"), axis=time)
            logits, state = model(label, spatial_dim=nn.single_step_dim, state=state)
            outputs[f"step_{i}"] = (logits, [nn.batch_dim, model.vocab_dim])
            outputs[f"c_{i}"] = (state[name].c, order)
        return outputs

    return run_on(
        "torch",
        func,
        {"y": Input(_labels(), "batch time", sparse="labels")},
        {"time": LENGTHS, "labels": VOCAB},
        make_model=lambda labels: make_lstm_lm(labels, **{**TINY, **options}),
        params=params,
        train=train,
    )


@pytest.mark.parametrize("num_layers", [1, 2])
def test_equals_pytorchs(num_layers: int):
    torch.manual_seed(2)
    embedding, lstm = torch.nn.Embedding(VOCAB, 4), torch.nn.LSTM(4, 5, num_layers=num_layers, batch_first=True)
    linear = torch.nn.Linear(5, VOCAB)
    params = {
        **import_torch_lstm(lstm.state_dict()),
        "embedding.weight": embedding.weight.detach().numpy(),
        "logits.weight": linear.weight.detach().numpy().T,
        "logits.bias": linear.bias.detach().numpy(),
    }
    result = _run(params=params, num_layers=num_layers)
    assert set(result.params) == set(params)
    expected = linear(lstm(embedding(torch.tensor(_labels())))[0]).detach().numpy()
    for i, n in enumerate(LENGTHS):
        np.testing.assert_allclose(result["whole"][i, :n], expected[i, :n], atol=1e-6)


def test_whole_equals_step_by_step():
    result = _run()
    for i, n in enumerate(LENGTHS):
        for t in range(n):
            np.testing.assert_allclose(result[f"step_{t}"][i], result["whole"][i, t], atol=1e-6)
        np.testing.assert_allclose(result["c"][i], result[f"c_{n - 1}"][i], atol=1e-6)


def test_dropout_acts_in_training_only():
    plain = _run()["whole"]
    np.testing.assert_array_equal(_run(dropout=0.5)["whole"], plain)
    np.testing.assert_array_equal(_run(train=True)["whole"], plain)
    assert np.abs(_run(train=True, dropout=0.5)["whole"] - plain).max() > 1e-2


def test_defaults_are_the_setups():
    nn.select_backend_torch()
    with nn.set_default_device_ctx("meta"):
        lm = make_lstm_lm(10025)
    assert lm.vocab_dim.dimension == 10025 and lm.embedding.out_dim.dimension == 512
    assert [(layer.in_dim.dimension, layer.out_dim.dimension) for layer in lm.layers] == [(512, 2048), (2048, 2048)]
    assert lm.dropout == 0.2


@pytest.mark.parametrize(
    "options, message",
    [
        ({"num_layers": 0}, "LSTM language model: expected num_layers >= 1, got 0"),
        ({"dropout": -0.1}, "LSTM language model: expected 0 <= dropout < 1, got -0.1"),
        ({"model_dim": 0}, "lstm-lm: expected a size of at least 1, got 0"),
    ],
)
def test_bad_arguments(options: dict, message: str):
    with pytest.raises(ValueError, match=message):
        make_lstm_lm(VOCAB, **{**TINY, **options})


@pytest.mark.parametrize(
    "sparse, encoder, message",
    [
        ("other", None, "LSTM language model: expected labels over .*labels.*, got"),
        ("labels", nn.State(), "LSTM language model: expected no encoder, got State"),
    ],
)
def test_bad_input(sparse: str, encoder, message: str):
    def func(model, y, time):
        state = model.default_initial_state(batch_dims=[nn.batch_dim])
        return {"y": model(y, spatial_dim=time, state=state, encoder=encoder)[0]}

    with pytest.raises(ValueError, match=message):
        run_on(
            "torch",
            func,
            {"y": Input(_labels(), "batch time", sparse=sparse)},
            {"time": LENGTHS, "labels": VOCAB, "other": VOCAB},
            make_model=lambda labels: make_lstm_lm(labels, **TINY),
        )
