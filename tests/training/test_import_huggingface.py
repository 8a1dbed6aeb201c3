"""Weights of Hugging Face's Wav2Vec2-Conformer: equal outputs, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from returnn.frontend.encoder.conformer import ConformerEncoder

from returnn_common import nn
from returnn_common.models.encoder.conformer import make_conformer_encoder
from returnn_common.training.import_huggingface import import_wav2vec2_conformer_layers
from returnn_common.training.import_weights import load_parameters, part_of, set_layer_norm_epsilon
from tests.engines import Input, run_on
from tests.training.imported import references


def _make_layers(features) -> ConformerEncoder:
    sizes = {"num_layers": 2, "out_dim": features, "num_heads": 2, "conv_kernel_size": 5}
    encoder = make_conformer_encoder(features, **sizes)
    encoder.input_layer = encoder.input_projection = None  # features go to the layers
    set_layer_norm_epsilon(encoder, 1e-5)
    return encoder


def test_layers():
    state, arrays = references.load("wav2vec2_conformer")
    params = import_wav2vec2_conformer_layers(state)
    rows = [arrays[f"x.{i}"] for i in range(3)]
    lengths = [len(row) for row in rows]
    x = np.full((3, max(lengths), references.MODEL), 100.0, "float32")
    for i, row in enumerate(rows):
        x[i, : len(row)] = row

    def func(model, x, time):
        out, _ = model(x, in_spatial_dim=time)
        return {"out": (out, [nn.batch_dim, time, model.out_dim])}

    dims = {"time": lengths, "features": references.MODEL}
    result = run_on("torch", func, {"x": Input(x, "batch time features")}, dims, make_model=_make_layers, params=params)
    assert set(params) == set(result.params)
    for i, length in enumerate(lengths):
        np.testing.assert_allclose(result["out"][i, :length], arrays[f"out.{i}"], atol=2e-5)


def test_into_the_layers_of_an_encoder_with_a_front_end():
    nn.select_backend_torch()
    params = import_wav2vec2_conformer_layers(references.load("wav2vec2_conformer")[0])
    sizes = {"num_layers": 2, "out_dim": references.MODEL, "num_heads": 2, "conv_kernel_size": 5}
    model = make_conformer_encoder(10, **sizes)
    load_parameters(model.layers, part_of(params, "layers."))
    set_layer_norm_epsilon(model.layers, 1e-5)
    named = dict(model.named_parameters())
    for name, value in params.items():
        np.testing.assert_array_equal(named[name].raw_tensor.detach(), value)


def test_transformers_itself_gives_the_frozen_arrays():
    pytest.importorskip("transformers", reason="transformers isn't installed: its model was frozen")
    made = references.MAKERS["wav2vec2_conformer"][1]()
    state, arrays = references.load("wav2vec2_conformer")
    arrays |= {f"state.{key}": value for key, value in state.items()}
    assert made.keys() == arrays.keys()
    for key, value in arrays.items():
        np.testing.assert_allclose(made[key], value, atol=1e-5, err_msg=key)


def test_what_is_refused():
    state, _ = references.load("wav2vec2_conformer")
    importer = "import_wav2vec2_conformer_layers"
    with pytest.raises(ValueError, match=rf"^{importer}: unknown names \['layer_norm.weight', 'pos_conv_embed.bias'\]"):
        import_wav2vec2_conformer_layers({**state, "layer_norm.weight": np.ones(8), "pos_conv_embed.bias": np.zeros(8)})
    rotary = {name: value for name, value in state.items() if "pos" not in name}
    message = r"missing names \['0.self_attn.pos_bias_u'\] \(expected position_embeddings_type 'relative'\)"
    with pytest.raises(ValueError, match=message):
        import_wav2vec2_conformer_layers(rotary)
    del state["1.conv_module.batch_norm.running_var"]
    with pytest.raises(ValueError, match=r"missing names \['1.conv_module.batch_norm.running_var'\]"):
        import_wav2vec2_conformer_layers(state)
