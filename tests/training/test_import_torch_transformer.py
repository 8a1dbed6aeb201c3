"""Weights of torch.nn's Transformer layers: equal outputs, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from returnn_common import nn
from returnn_common.models.decoder.transformer import make_transformer_decoder
from returnn_common.models.encoder.transformer import make_transformer_encoder, make_transformer_text_encoder
from returnn_common.training.import_torch import import_torch_transformer_decoder, import_torch_transformer_encoder
from returnn_common.training.import_weights import part_of, set_layer_norm_epsilon
from tests.engines import Input, run_on
from tests.models.torch_layers import sinusoids

DIM, HEADS, LAYERS, VOCAB = 8, 2, 2, 7
LENGTHS, ENCODED_LENGTHS = [5, 2, 4], [3, 6, 1]
OPTIONS = {"batch_first": True, "norm_first": True, "dropout": 0.0}
RNG = np.random.default_rng(7)
X = RNG.normal(size=(3, 5, DIM)).astype("float32")
LABELS = RNG.integers(0, VOCAB, (3, 5)).astype("int32")
EMBEDDING = RNG.normal(size=(VOCAB, DIM)).astype("float32")
PADDING = torch.arange(5) >= torch.tensor(LENGTHS)[:, None]


def _randomise(module: torch.nn.Module) -> torch.nn.Module:
    """also norms and biases, which start as ones and zeros"""
    torch.manual_seed(11)
    with torch.no_grad():
        for param in module.parameters():
            param.add_(torch.randn_like(param) * 0.3)
    return module.eval()


def _encoder() -> torch.nn.Module:
    layer = torch.nn.TransformerEncoderLayer(DIM, HEADS, 4 * DIM, **OPTIONS)
    norm = torch.nn.LayerNorm(DIM)
    return _randomise(torch.nn.TransformerEncoder(layer, LAYERS, norm=norm, enable_nested_tensor=False))


def _decoder() -> torch.nn.Module:
    layer = torch.nn.TransformerDecoderLayer(DIM, HEADS, 4 * DIM, **OPTIONS)
    return _randomise(torch.nn.TransformerDecoder(layer, LAYERS, norm=torch.nn.LayerNorm(DIM)))


def _call_encoder(model, x, time):
    out, _ = model(x, in_spatial_dim=time)
    return {"out": (out, [nn.batch_dim, time, model.out_dim])}


def _assert_equal(ours: np.ndarray, theirs: torch.Tensor):
    for i, length in enumerate(LENGTHS):
        np.testing.assert_allclose(ours[i, :length], theirs[i, :length].detach(), atol=2e-5)


def test_encoder_of_features():
    theirs = _encoder()
    params = import_torch_transformer_encoder(theirs.state_dict(), num_heads=HEADS)

    def make(features):
        sizes = {"num_layers": LAYERS, "num_heads": HEADS}
        encoder = make_transformer_encoder(features, out_dim=features, positions="absolute", subsampling=1, **sizes)
        set_layer_norm_epsilon(encoder, 1e-5)
        return encoder

    inputs, dims = {"x": Input(X, "batch time features")}, {"time": LENGTHS, "features": DIM}
    result = run_on("torch", _call_encoder, inputs, dims, make_model=make, params=params)
    assert set(params) == set(result.params)
    _assert_equal(result["out"], theirs(_with_positions(torch.tensor(X)), src_key_padding_mask=PADDING))


def test_encoder_of_text():
    theirs = _encoder()
    params = import_torch_transformer_encoder(theirs.state_dict(), num_heads=HEADS)
    params["input_embedding.weight"] = EMBEDDING

    def make(labels):
        encoder = make_transformer_text_encoder(labels, num_layers=LAYERS, out_dim=DIM, num_heads=HEADS)
        set_layer_norm_epsilon(encoder, 1e-5)
        return encoder

    inputs, dims = {"x": Input(LABELS, "batch time", sparse="labels")}, {"time": LENGTHS, "labels": VOCAB}
    result = run_on("torch", _call_encoder, inputs, dims, make_model=make, params=params)
    assert set(params) == set(result.params)
    x = _with_positions(torch.tensor(EMBEDDING)[torch.tensor(LABELS).long()])
    _assert_equal(result["out"], theirs(x, src_key_padding_mask=PADDING))


def test_decoder():
    theirs = _decoder()
    params = import_torch_transformer_decoder(theirs.state_dict(), num_heads=HEADS)
    params["input_embedding.weight"] = EMBEDDING
    encoded = RNG.normal(size=(3, 6, DIM)).astype("float32")

    def func(model, x, time, encoded, encoded_time):
        state = model.default_initial_state(batch_dims=[nn.batch_dim])
        encoder = model.transform_encoder(encoded, axis=encoded_time)
        out, _ = model(x, spatial_dim=time, state=state, encoder=encoder)
        return {"out": (out, [nn.batch_dim, time, model.vocab_dim])}

    def make(encoder, labels):
        decoder = make_transformer_decoder(encoder, labels, num_layers=LAYERS, model_dim=DIM, num_heads=HEADS)
        set_layer_norm_epsilon(decoder, 1e-5)
        return decoder

    inputs = {
        "x": Input(LABELS, "batch time", sparse="labels"),
        "encoded": Input(encoded, "batch encoded_time encoder"),
    }
    dims = {"time": LENGTHS, "labels": VOCAB, "encoded_time": ENCODED_LENGTHS, "encoder": DIM}
    result = run_on("torch", func, inputs, dims, make_model=make, params=params)
    assert set(params) == set(result.params)
    embedding = torch.tensor(EMBEDDING)
    out = theirs(
        _with_positions(embedding[torch.tensor(LABELS).long()]),
        torch.tensor(encoded),
        tgt_mask=torch.triu(torch.ones(5, 5, dtype=torch.bool), diagonal=1),
        tgt_key_padding_mask=PADDING,
        memory_key_padding_mask=torch.arange(6) >= torch.tensor(ENCODED_LENGTHS)[:, None],
    )
    _assert_equal(result["out"], out @ embedding.T)


def _with_positions(x: torch.Tensor) -> torch.Tensor:
    return x * DIM**0.5 + torch.tensor(sinusoids(5, DIM))


def test_single_layers():
    for make, importer in (
        (_encoder, import_torch_transformer_encoder),
        (_decoder, import_torch_transformer_decoder),
    ):
        state = make().state_dict()
        whole = importer(state, num_heads=HEADS)
        layer = importer(part_of(state, "layers.1."), num_heads=HEADS)
        assert set(layer) == set(part_of(whole, "layers.1."))
        for name, value in layer.items():
            np.testing.assert_array_equal(value, whole[f"layers.1.{name}"])


def test_part_of_torch_transformer():
    whole = {f"encoder.{name}": value for name, value in _encoder().state_dict().items()}
    whole |= {f"decoder.{name}": value for name, value in _decoder().state_dict().items()}
    assert set(whole) == set(torch.nn.Transformer(DIM, HEADS, LAYERS, LAYERS, 4 * DIM, batch_first=True).state_dict())
    encoder = import_torch_transformer_encoder(part_of(whole, "encoder."), num_heads=HEADS)
    decoder = import_torch_transformer_decoder(part_of(whole, "decoder."), num_heads=HEADS)
    np.testing.assert_array_equal(encoder["final_layer_norm.scale"], whole["encoder.norm.weight"])
    np.testing.assert_array_equal(decoder["final_layer_norm.scale"], whole["decoder.norm.weight"])


def test_half_precision():
    state = _encoder().state_dict()
    exact = import_torch_transformer_encoder(state, num_heads=HEADS)
    halves = import_torch_transformer_encoder({n: v.bfloat16() for n, v in state.items()}, num_heads=HEADS)
    for name, value in exact.items():
        assert halves[name].dtype == np.float32
        np.testing.assert_allclose(halves[name], value, atol=0.02)


def test_what_is_refused():
    encoder, decoder = _encoder().state_dict(), _decoder().state_dict()
    with pytest.raises(ValueError, match=r"^import_torch_transformer_encoder: unknown names \['embedding.weight'\]$"):
        import_torch_transformer_encoder({**encoder, "embedding.weight": torch.zeros(1)}, num_heads=HEADS)
    unknown = r"unknown names \['layers.0.multihead_attn.in_proj_bias', .*'layers.1.multihead_attn.\w+'\] and 4 more$"
    with pytest.raises(ValueError, match=unknown):
        import_torch_transformer_encoder(decoder, num_heads=HEADS)
    without = {name: value for name, value in decoder.items() if name not in ("norm.bias", "layers.0.linear1.bias")}
    missing = r"decoder: missing names \['layers.0.linear1.bias', 'norm.bias'\]$"
    with pytest.raises(ValueError, match=missing):
        import_torch_transformer_decoder(without, num_heads=HEADS)
    with pytest.raises(ValueError, match=r"decoder: missing names \['layers.0.linear1.bias', .*\] and 12 more$"):
        import_torch_transformer_decoder({}, num_heads=HEADS)


def test_sizes_that_do_not_fit():
    state = _encoder().state_dict()
    message = (
        r"^import_torch_transformer_encoder: layers.0.self_att.qkv.weight can't be made of "
        r"layers.0.self_attn.in_proj_weight \[24, 8\]: 8 is no multiple of num_heads 3$"
    )
    with pytest.raises(ValueError, match=message):
        import_torch_transformer_encoder(state, num_heads=3)
    message = r"layers.0.ff.linear_ff.weight can't be made of .* \[5\]: expected a matrix, got the shape \[5\]"
    with pytest.raises(ValueError, match=message):
        import_torch_transformer_encoder({**state, "layers.0.linear1.weight": torch.zeros(5)}, num_heads=HEADS)
