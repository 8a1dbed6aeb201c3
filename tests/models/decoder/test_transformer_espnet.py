"""The Transformer decoder as in ESPnet: steps, sizes, arguments. (That it is as there: tests of imported weights.)"""

from __future__ import annotations

import numpy as np
import pytest

from returnn_common import nn
from returnn_common.models.decoder.transformer_espnet import make_espnet_transformer_decoder
from tests.engines import ENGINES, Input, run_on

VOCAB, SIZES = 7, {"num_layers": 2, "model_dim": 8, "num_heads": 2, "ff_dim": 12}
LENGTHS, ENCODED_LENGTHS = [5, 2, 4], [3, 6, 1]
LABELS = np.random.default_rng(3).integers(0, VOCAB, (3, 5)).astype("int32")
ENCODED = np.random.default_rng(4).normal(size=(3, 6, 10)).astype("float32")


def _whole_and_steps(model, labels, time, encoded, encoded_time):
    state = model.default_initial_state(batch_dims=[nn.batch_dim])
    encoder = model.transform_encoder(encoded, axis=encoded_time)
    logits, _ = model(labels, spatial_dim=time, state=state, encoder=encoder)
    outputs = {"whole": (logits, [nn.batch_dim, time, model.vocab_dim])}
    for t in range(2):
        label = nn.gather(labels, indices=nn.constant(t, dims=(), sparse_dim=time), axis=time)
        logits, state = model(label, spatial_dim=nn.single_step_dim, state=state, encoder=encoder)
        outputs[f"{t}"] = (logits, [nn.batch_dim, model.vocab_dim])
    return outputs


def _run(engine: str = "torch", *, train: bool = False, **options):
    inputs = {
        "labels": Input(LABELS, "batch time", sparse="vocab"),
        "encoded": Input(ENCODED, "batch encoded_time encoder"),
    }
    dims = {"time": LENGTHS, "encoded_time": ENCODED_LENGTHS, "vocab": VOCAB, "encoder": 10}

    def make(encoder, vocab):
        return make_espnet_transformer_decoder(encoder, vocab, **{**SIZES, **options})

    return run_on(engine, _whole_and_steps, inputs, dims, make_model=make, train=train)


@pytest.mark.parametrize("engine", ENGINES)
def test_step_by_step_is_the_whole(engine: str):
    whole, steps = _run(num_layers=1), _run(engine, num_layers=1)
    for t in range(2):
        rows = [i for i, length in enumerate(LENGTHS) if t < length]
        np.testing.assert_allclose(steps[f"{t}"][rows], whole["whole"][rows, t], atol=2e-5)


def test_what_each_argument_does():
    base = _run()
    shapes = {name: value.shape for name, value in base.params.items()}
    assert shapes["input_embedding.weight"] == (VOCAB, 8) and shapes["logits.weight"] == (8, VOCAB)
    assert shapes["logits.bias"] == (VOCAB,)
    assert shapes["layers.1.ff.linear_ff.weight"] == (8, 12) and shapes["layers.1.cross_att.kv.weight"] == (10, 16)
    assert not any(name.startswith("layers.1.") for name in _run(num_layers=1).params)
    assert _run(ff_dim=16).params["layers.0.ff.linear_ff.weight"].shape == (8, 16)
    assert _run(model_dim=12).params["input_embedding.weight"].shape == (VOCAB, 12)
    assert np.abs(_run(num_heads=1)["whole"] - base["whole"]).max() > 1e-3
    np.testing.assert_array_equal(_run(train=True, dropout=0.0)["whole"], base["whole"])
    assert np.abs(_run(train=True, dropout=0.5)["whole"] - base["whole"]).max() > 0.1


@pytest.mark.parametrize(
    "options, message",
    [
        ({"num_layers": 0}, "expected num_layers >= 1, got 0"),
        ({"num_heads": 0}, "expected num_heads >= 1, got 0"),
        ({"num_heads": 3}, "expected an even model_dim, a multiple of num_heads 3, got 8"),
        ({"num_heads": 1, "model_dim": 9}, "expected an even model_dim, a multiple of num_heads 1, got 9"),
        ({"dropout": 1.0}, "expected 0 <= dropout < 1, got 1.0"),
    ],
)
def test_bad_arguments(options: dict, message: str):
    nn.select_backend_torch()
    with pytest.raises(ValueError, match=f"^espnet_transformer_decoder: {message}"):
        make_espnet_transformer_decoder(10, VOCAB, **{**SIZES, **options})
