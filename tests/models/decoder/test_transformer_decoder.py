"""The Transformer decoder: torch.nn's layers with the same parameters, step by step, RETURNN's names, its arguments."""

from __future__ import annotations

import numpy as np
import pytest
from returnn.frontend.decoder.transformer import TransformerDecoder

from returnn_common import nn
from returnn_common.models.decoder.transformer import make_transformer_decoder
from tests.engines import ENGINES, Input, Result, run_on
from tests.models.torch_layers import fill_layer, layer_norm, sinusoids

VOCAB, MODEL, HEADS = 7, 8, 2
LENGTHS, ENCODED_LENGTHS = [5, 2, 4], [3, 6, 1]
RNG = np.random.default_rng(3)
LABELS = RNG.integers(0, VOCAB, (3, 5)).astype("int32")
ENCODED = RNG.normal(size=(3, 6, MODEL)).astype("float32")
SIZES = {"num_layers": 2, "model_dim": MODEL, "num_heads": HEADS}


def _whole(model, labels, time, encoded, encoded_time):
    state = model.default_initial_state(batch_dims=[nn.batch_dim])
    encoder = model.transform_encoder(encoded, axis=encoded_time)
    logits, _ = model(labels, spatial_dim=time, state=state, encoder=encoder)
    return {"out": (logits, [nn.batch_dim, time, model.vocab_dim])}


def _steps(model, labels, time, encoded, encoded_time):
    encoder = model.transform_encoder(encoded, axis=encoded_time)
    state, outputs = model.default_initial_state(batch_dims=[nn.batch_dim]), {}
    for t in range(4):
        label = nn.gather(labels, indices=nn.constant(t, dims=(), sparse_dim=time), axis=time)
        logits, state = model(label, spatial_dim=nn.single_step_dim, state=state, encoder=encoder)
        outputs[f"{t}"] = (logits, [nn.batch_dim, model.vocab_dim])
    return outputs


def _run(func, engine: str = "torch", *, train: bool = False, make=make_transformer_decoder, **options) -> Result:
    inputs = {
        "labels": Input(LABELS, "batch time", sparse="vocab"),
        "encoded": Input(ENCODED, "batch encoded_time encoder"),
    }
    dims = {"time": LENGTHS, "encoded_time": ENCODED_LENGTHS, "vocab": VOCAB, "encoder": MODEL}

    def _make(encoder, vocab):
        return make(encoder, vocab, **{**SIZES, **options})

    return run_on(engine, func, inputs, dims, make_model=_make, train=train)


def test_same_as_torch():
    """with its causal mask, and the masks of both paddings"""
    import torch

    result = _run(_whole)
    params = result.params
    embedding = torch.tensor(params["input_embedding.weight"])
    x = embedding[torch.tensor(LABELS).long()] * MODEL**0.5 + torch.tensor(sinusoids(5, MODEL))
    frames = torch.arange(6)
    options = {"batch_first": True, "norm_first": True, "dropout": 0.0, "layer_norm_eps": 1e-6}
    for i in range(SIZES["num_layers"]):
        layer = torch.nn.TransformerDecoderLayer(MODEL, HEADS, 4 * MODEL, **options)
        fill_layer(layer, params, f"layers.{i}.", num_heads=HEADS)
        x = layer(
            x,
            torch.tensor(ENCODED),
            tgt_mask=frames[None, :5] > frames[:5, None],
            tgt_key_padding_mask=frames[:5] >= torch.tensor(LENGTHS)[:, None],
            memory_key_padding_mask=frames >= torch.tensor(ENCODED_LENGTHS)[:, None],
        )
    logits = layer_norm(x, params, "final_layer_norm") @ embedding.T
    for i, length in enumerate(LENGTHS):
        np.testing.assert_allclose(result["out"][i, :length], logits[i, :length].detach(), atol=2e-5)


@pytest.mark.parametrize("positions", ["absolute", "rotary"])
@pytest.mark.parametrize("engine", ENGINES)
def test_step_by_step_is_the_whole(engine: str, positions: str):
    whole, steps = _run(_whole, positions=positions), _run(_steps, engine, positions=positions)
    for t in range(4):
        rows = [i for i, length in enumerate(LENGTHS) if t < length]
        np.testing.assert_allclose(steps[f"{t}"][rows], whole["out"][rows, t], atol=1e-5)


def test_names_of_the_parameters_are_those_of_returnn():
    def _make(encoder, vocab, **_options):
        return TransformerDecoder(encoder, vocab, nn.FeatureDim("model", MODEL), num_layers=2, num_heads=HEADS)

    expected, ours = _run(_whole, make=_make), _run(_whole)
    shapes = [{name: x.shape for name, x in result.params.items()} for result in (expected, ours)]
    assert shapes[0] == shapes[1]


def test_what_each_argument_does():
    base = _run(_whole)
    assert base["out"].shape == (3, 5, VOCAB)
    other = {
        "num_layers": _run(_whole, num_layers=1),
        "model_dim": _run(_whole, model_dim=12),
        "num_heads": _run(_whole, num_heads=1),
        "ff_dim": _run(_whole, ff_dim=20),
        "positions": _run(_whole, positions="rotary"),
        "share_embedding": _run(_whole, share_embedding=False),
    }
    for name, result in other.items():
        assert np.abs(result["out"] - base["out"]).max() > 1e-3, name
    assert {name.split(".")[1] for name in other["num_layers"].params if name.startswith("layers")} == {"0"}
    assert other["model_dim"].params["input_embedding.weight"].shape == (VOCAB, 12)
    assert base.params["layers.0.ff.linear_ff.weight"].shape == (MODEL, 4 * MODEL)
    assert other["ff_dim"].params["layers.0.ff.linear_ff.weight"].shape == (MODEL, 20)
    assert set(other["share_embedding"].params) - set(base.params) == {"logits.weight"}
    np.testing.assert_array_equal(_run(_whole, train=True, dropout=0.0)["out"], base["out"])
    assert np.abs(_run(_whole, train=True, dropout=0.5)["out"] - base["out"]).max() > 0.1


def test_dims_can_be_given():
    vocab, model = nn.FeatureDim("vocab", VOCAB), nn.FeatureDim("model", MODEL)
    decoder = make_transformer_decoder(6, vocab, **{**SIZES, "model_dim": model})
    assert (decoder.vocab_dim, decoder.model_dim, decoder.encoder_dim.dimension) == (vocab, model, 6)


def test_defaults_are_the_base_model():
    """table 3 of the paper, without the encoder: 6 layers of attention to both, and feed-forward of 2048"""
    decoder = make_transformer_decoder(512, 1000)
    attention, feed_forward, norm = 4 * 512 * 512 + 4 * 512, 2 * 512 * 2048 + 512 + 2048, 2 * 512
    expected = 6 * (2 * attention + feed_forward + 3 * norm) + norm + 1000 * 512
    assert sum(parameter.num_elements() for parameter in decoder.parameters()) == expected


@pytest.mark.parametrize(
    "options, message",
    [
        ({"num_layers": 0}, "transformer decoder: expected num_layers >= 1, got 0"),
        ({"num_heads": 0}, "transformer decoder: expected num_heads >= 1, got 0"),
        ({"num_heads": 3}, "transformer decoder: model_dim 8 is not a multiple of num_heads 3"),
        ({"positions": "none"}, "transformer decoder: expected positions 'absolute' or 'rotary', got 'none'"),
        ({"dropout": 1.0}, "transformer decoder: expected 0 <= dropout < 1, got 1.0"),
    ],
)
def test_what_does_not_fit(options: dict, message: str):
    with pytest.raises(ValueError, match=message):
        make_transformer_decoder(6, 5, **{**SIZES, **options})
