"""The Transformer language model: torch.nn's layers with the same parameters, step by step, its arguments."""

from __future__ import annotations

import numpy as np
import pytest

from returnn_common import nn
from returnn_common.models.lm.transformer import make_transformer_lm
from tests.engines import Input, Result, run_on
from tests.models.torch_layers import fill_layer, layer_norm, sinusoids

VOCAB, MODEL, HEADS = 7, 8, 2
LENGTHS = [5, 2, 4]
LABELS = np.random.default_rng(3).integers(0, VOCAB, (3, 5)).astype("int32")
SIZES = {"num_layers": 2, "model_dim": MODEL, "num_heads": HEADS}


def _whole(model, labels, time):
    logits, _ = model(labels, spatial_dim=time, state=model.default_initial_state(batch_dims=[nn.batch_dim]))
    return {"out": (logits, [nn.batch_dim, time, model.vocab_dim])}


def _steps(model, labels, time):
    state, outputs = model.default_initial_state(batch_dims=[nn.batch_dim]), {}
    for t in range(4):
        label = nn.gather(labels, indices=nn.constant(t, dims=(), sparse_dim=time), axis=time)
        logits, state = model(label, spatial_dim=nn.single_step_dim, state=state)
        outputs[f"{t}"] = (logits, [nn.batch_dim, model.vocab_dim])
    return outputs


def _run(func=_whole, engine: str = "torch", *, train: bool = False, **options) -> Result:
    return run_on(
        engine,
        func,
        {"labels": Input(LABELS, "batch time", sparse="vocab")},
        {"time": LENGTHS, "vocab": VOCAB},
        make_model=lambda vocab: make_transformer_lm(vocab, **{**SIZES, **options}),
        train=train,
    )


@pytest.mark.parametrize("options", [{}, {"positions": "absolute"}, {"embed_dim": 4, "positions": "absolute"}], ids=str)
def test_same_as_torch(options: dict):
    import torch

    result = _run(**options)
    params = {name: np.array(value) for name, value in result.params.items()}
    embedding = torch.tensor(params["input_embedding.weight"])
    x = embedding[torch.tensor(LABELS).long()]
    if "embed_dim" not in options:
        x = x * MODEL**0.5
    if "positions" in options:
        x = x + torch.tensor(sinusoids(5, embedding.shape[1]))
    if "embed_dim" in options:
        x = x @ torch.tensor(params["input_embedding_proj.weight"])
        embedding = torch.tensor(params["logits.weight"]).T
    frames = torch.arange(5)
    for i in range(SIZES["num_layers"]):
        layer = torch.nn.TransformerEncoderLayer(
            MODEL, HEADS, 4 * MODEL, batch_first=True, norm_first=True, dropout=0.0, layer_norm_eps=1e-6
        )
        fill_layer(layer, params, f"layers.{i}.", num_heads=HEADS)
        x = layer(x, src_mask=frames[None] > frames[:, None])
    logits = layer_norm(x, params, "final_layer_norm") @ embedding.T
    for i, length in enumerate(LENGTHS):
        np.testing.assert_allclose(result["out"][i, :length], logits[i, :length].detach(), atol=2e-5)


@pytest.mark.parametrize("positions", ["none", "absolute", "rotary"])
def test_step_by_step_is_the_whole(positions: str):
    """(on all engines: the decoder's test)"""
    whole, steps = _run(positions=positions), _run(_steps, positions=positions)
    for t in range(4):
        rows = [i for i, length in enumerate(LENGTHS) if t < length]
        np.testing.assert_allclose(steps[f"{t}"][rows], whole["out"][rows, t], atol=1e-5)


def test_order_counts_without_positions():
    """a causal model knows them"""
    out = _run()["out"][0]
    assert LABELS[0].tolist() == [5, 0, 1, 1, 1]
    assert np.abs(out[2] - out[3]).max() > 1e-3 and np.abs(out[3] - out[4]).max() > 1e-3


def test_what_each_argument_does():
    base = _run()
    other = {
        "num_layers": _run(num_layers=1),
        "model_dim": _run(model_dim=12),
        "num_heads": _run(num_heads=1),
        "ff_dim": _run(ff_dim=20),
        "embed_dim": _run(embed_dim=4),
        "positions": _run(positions="rotary"),
        "absolute": _run(positions="absolute"),
    }
    for name, result in other.items():
        assert np.abs(result["out"] - base["out"]).max() > 1e-3, name
    assert other["ff_dim"].params["layers.0.ff.linear_ff.weight"].shape == (MODEL, 20)
    assert other["embed_dim"].params["input_embedding.weight"].shape == (VOCAB, 4)
    np.testing.assert_array_equal(_run(train=True)["out"], base["out"])
    assert np.abs(_run(train=True, dropout=0.5)["out"] - base["out"]).max() > 0.1


@pytest.mark.parametrize(
    "options, message",
    [
        ({"num_layers": 0}, "transformer lm: expected num_layers >= 1, got 0"),
        ({"num_heads": 3}, "transformer lm: model_dim 8 is not a multiple of num_heads 3"),
        (
            {"positions": "relative"},
            "expected positions 'none', 'absolute' or 'rotary', got 'relative'",
        ),
        ({"dropout": -0.1}, "transformer lm: expected 0 <= dropout < 1, got -0.1"),
    ],
)
def test_what_does_not_fit(options: dict, message: str):
    with pytest.raises(ValueError, match=message):
        make_transformer_lm(5, **{**SIZES, **options})
