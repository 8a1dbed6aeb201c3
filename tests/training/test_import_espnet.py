"""Weights of ESPnet's models: equal outputs, and what is refused."""

from __future__ import annotations

import fnmatch

import numpy as np
import pytest

from returnn_common import nn
from returnn_common.models.ctc import make_ctc_model
from returnn_common.models.decoder.transformer_espnet import make_espnet_transformer_decoder
from returnn_common.models.encoder.conformer import make_conformer_encoder
from returnn_common.models.encoder.e_branchformer import make_e_branchformer_encoder
from returnn_common.models.encoder.espnet import make_espnet_conformer_encoder, make_espnet_e_branchformer_encoder
from returnn_common.training.import_espnet import (
    import_espnet_conformer_encoder,
    import_espnet_ctc_output,
    import_espnet_e_branchformer_encoder,
    import_espnet_transformer_decoder,
)
from returnn_common.training.import_weights import load_parameters, part_of
from tests.engines import Input, run_on
from tests.training.imported import references

SIZES = {"num_layers": 2, "out_dim": references.MODEL, "num_heads": 2}


def _make_conformer(features):
    return make_espnet_conformer_encoder(features, ff_dim=12, conv_kernel_size=5, **SIZES)


def _make_e_branchformer(features):
    sizes = {**SIZES, "ff_dim": 16, "cgmlp_dim": 12}
    return make_espnet_e_branchformer_encoder(features, conv_kernel_size=5, merge_kernel_size=3, **sizes)


def _make_decoder(encoder, labels):
    return make_espnet_transformer_decoder(
        encoder, labels, num_layers=2, model_dim=references.MODEL, num_heads=2, ff_dim=12
    )


ENCODERS = {
    "espnet_conformer": (import_espnet_conformer_encoder, _make_conformer),
    "espnet_e_branchformer": (import_espnet_e_branchformer_encoder, _make_e_branchformer),
}


def pad(rows: list[np.ndarray]) -> np.ndarray:
    """with large numbers, which must not matter"""
    shape = (len(rows), max(len(row) for row in rows), *rows[0].shape[1:])
    padded = np.full(shape, 100 if rows[0].dtype.kind == "f" else 0, rows[0].dtype)
    for i, row in enumerate(rows):
        padded[i, : len(row)] = row
    return padded


@pytest.mark.parametrize("name", ENCODERS)
def test_encoder(name: str):
    importer, make = ENCODERS[name]
    state, arrays = references.load(name)
    params = importer(state)

    def func(model, x, time):
        out, out_time = model(x, in_spatial_dim=time)
        return {"out": (out, [nn.batch_dim, out_time, model.out_dim])}

    rows = [arrays[f"x.{i}"] for i in range(3)]
    inputs, dims = {"x": Input(pad(rows), "batch time features")}, {"time": [len(row) for row in rows]}
    dims["features"] = references.FEATURES
    result = run_on("torch", func, inputs, dims, make_model=make, params=params)
    assert set(params) == set(result.params)
    for i in range(3):
        expected = arrays[f"out.{i}"]
        assert result.outputs["out"].lengths[1][i] == len(expected)
        np.testing.assert_allclose(result["out"][i, : len(expected)], expected, atol=5e-5)


def test_decoder():
    state, arrays = references.load("espnet_decoder")
    params = import_espnet_transformer_decoder(state, num_heads=2)
    labels, encoded = ([arrays[f"{kind}.{i}"] for i in range(3)] for kind in ("labels", "encoded"))

    def func(model, labels, time, encoded, encoded_time):
        state = model.default_initial_state(batch_dims=[nn.batch_dim])
        encoder = model.transform_encoder(encoded, axis=encoded_time)
        whole, _ = model(labels, spatial_dim=time, state=state, encoder=encoder)
        outputs = {"whole": (whole, [nn.batch_dim, time, model.vocab_dim])}
        for t in range(3):
            label = nn.gather(labels, indices=nn.constant(t, dims=(), sparse_dim=time), axis=time)
            step, state = model(label, spatial_dim=nn.single_step_dim, state=state, encoder=encoder)
            outputs[f"{t}"] = (step, [nn.batch_dim, model.vocab_dim])
        return outputs

    inputs = {
        "labels": Input(pad(labels), "batch time", sparse="vocab"),
        "encoded": Input(pad(encoded), "batch encoded_time encoder"),
    }
    dims = {"time": [len(row) for row in labels], "encoded_time": [len(row) for row in encoded]}
    dims |= {"vocab": references.VOCAB, "encoder": references.MODEL}
    result = run_on(
        "torch", func, inputs, dims, make_model=lambda encoder, vocab: _make_decoder(encoder, vocab), params=params
    )
    assert set(params) == set(result.params)
    for i, row in enumerate(labels):
        expected = arrays[f"out.{i}"]
        np.testing.assert_allclose(result["whole"][i, : len(row)], expected, atol=2e-5)
        for t in range(min(3, len(row))):
            np.testing.assert_allclose(result[f"{t}"][i], expected[t], atol=2e-5)


@pytest.mark.parametrize(
    "name, builder, sizes",
    [
        ("espnet_conformer", make_conformer_encoder, {"out_dim": references.MODEL, "conv_kernel_size": 5}),
        ("espnet_e_branchformer", make_e_branchformer_encoder, {"out_dim": references.MODEL, "conv_kernel_size": 5}),
    ],
)
def test_layers_fit_into_the_usual_encoders(name: str, builder, sizes: dict):
    """where their sizes do: the feed-forward dim of both, and the cgMLP, are given by out_dim"""
    state, _ = references.load(name)
    params = part_of(ENCODERS[name][0](state), "layers.")
    nn.select_backend_torch()
    layers = builder(references.FEATURES, num_layers=2, num_heads=2, **sizes).layers
    ours = {key for key, _ in layers.named_parameters()}
    assert ours == set(params)
    with pytest.raises(
        ValueError, match="load_parameters: parameters differ: 0.*(ffn1.linear_ff|cgmlp).* is .* in the weights"
    ):
        load_parameters(layers, params)
    differing = ("*.ffn*", "*.cgmlp.*", "*.merge.*")
    kept = [pattern for pattern in differing if fnmatch.filter(ours, pattern)]
    fitting = {key: value for key, value in params.items() if not any(fnmatch.fnmatch(key, p) for p in differing)}
    load_parameters(layers, fitting, keep=kept)
    weight = dict(layers.named_parameters())["1.self_att.qkv.weight"].raw_tensor.detach().numpy()
    np.testing.assert_array_equal(weight, params["1.self_att.qkv.weight"])


def test_ctc_model():
    """encoder and output: log probabilities, with blank last"""
    state, arrays = references.load("espnet_conformer")
    rng = np.random.default_rng(8)
    theirs = {"ctc_lo.weight": rng.normal(size=(6, references.MODEL)), "ctc_lo.bias": rng.normal(size=6)}
    output = import_espnet_ctc_output(theirs)
    params = {f"encoder.{name}": value for name, value in import_espnet_conformer_encoder(state).items()}
    params |= {f"output.{name}": value for name, value in output.items()}

    def func(model, x, time):
        out, out_time = model.log_probs(x, in_spatial_dim=time)
        return {"out": (out, [nn.batch_dim, out_time, model.labels_dim])}

    def make(features):
        return make_ctc_model(features, 5, encoder=_make_conformer(features), specaugment=None)

    x = arrays["x.0"]
    inputs, dims = {"x": Input(x[None], "batch time features")}, {"time": [len(x)], "features": references.FEATURES}
    result = run_on("torch", func, inputs, dims, make_model=make, params=params)
    assert set(params) == set(result.params)
    logits = arrays["out.0"] @ theirs["ctc_lo.weight"].T + theirs["ctc_lo.bias"]
    expected = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    np.testing.assert_allclose(result["out"][0], expected[:, [1, 2, 3, 4, 5, 0]], atol=1e-4)
    with pytest.raises(
        ValueError, match=r"^import_espnet_ctc_output: unknown names \['x'\], missing names \['ctc_lo.bias'\]$"
    ):
        import_espnet_ctc_output({"ctc_lo.weight": theirs["ctc_lo.weight"], "x": np.zeros(1)})


@pytest.mark.parametrize("name", [name for name, (package, _) in references.MAKERS.items() if package == "espnet2"])
def test_espnet_itself_gives_the_frozen_arrays(name: str):
    pytest.importorskip("espnet2", reason="ESPnet isn't installed: its models were frozen")
    pytest.importorskip("typeguard", reason="ESPnet needs typeguard, which isn't installed")
    made = references.MAKERS[name][1]()
    state, arrays = references.load(name)
    arrays |= {f"state.{key}": value for key, value in state.items()}
    assert made.keys() == arrays.keys()
    for key, value in arrays.items():
        np.testing.assert_allclose(made[key], value, atol=1e-5, err_msg=key)


def test_older_names_of_the_front_end():
    """the linear layer once stood beside the positions instead of before them"""
    state, _ = references.load("espnet_conformer")
    names = {"embed.out.weight", "embed.out.bias", "embed.out.0.weight", "embed.out.0.bias"} & set(state)
    other = {
        name: name.replace("out.0.", "out.") if "out.0." in name else name.replace("out.", "out.0.") for name in names
    }
    assert len(other) == 2
    expected = import_espnet_conformer_encoder(state)
    actual = import_espnet_conformer_encoder({other.get(name, name): value for name, value in state.items()})
    assert all((actual[name] == value).all() for name, value in expected.items())


@pytest.mark.parametrize("name", ENCODERS)
def test_unknown_and_missing_names_of_encoders_are_refused(name: str):
    importer, _ = ENCODERS[name]
    state, _ = references.load(name)
    with pytest.raises(
        ValueError, match=rf"^{importer.__name__}: unknown names \['ctc.weight'\] \(expected input_layer"
    ):
        importer({**state, "ctc.weight": np.zeros(1)})
    absolute = {key: value for key, value in state.items() if "pos_bias" not in key and "linear_pos" not in key}
    with pytest.raises(
        ValueError, match=r"missing names \['encoders.0.\w+.pos_bias_u'\] \(expected .*rel_pos_type latest"
    ):
        importer(absolute)
    without = {key: value for key, value in state.items() if "macaron" not in key and key != "embed.conv.2.bias"}
    with pytest.raises(
        ValueError, match=r"missing names \['embed.conv.2.bias', .*norm_ff_macaron.weight.*expected .*macaron"
    ):
        importer(without)


def test_front_end_of_another_kind_is_refused():
    state, _ = references.load("espnet_conformer")
    state["embed.conv.2.bias"] = np.zeros(7, "float32")
    message = r"input_layer.linear.weight can't be made of embed.out.*weight \[8, 8\]: cannot reshape"
    with pytest.raises(ValueError, match=message):
        import_espnet_conformer_encoder(state)


def test_unknown_and_missing_names_of_the_decoder_are_refused():
    state, _ = references.load("espnet_decoder")
    with pytest.raises(ValueError, match=r"unknown names \['decoders.0.self_attn.q_norm.weight'\] \(.*no qk_norm\)"):
        import_espnet_transformer_decoder({**state, "decoders.0.self_attn.q_norm.weight": np.zeros(1)}, num_heads=2)
    del state["output_layer.bias"]
    with pytest.raises(ValueError, match=r"missing names \['output_layer.bias'\] \(expected .*use_output_layer"):
        import_espnet_transformer_decoder(state, num_heads=2)


def test_wrong_number_of_heads():
    state, _ = references.load("espnet_decoder")
    with pytest.raises(
        ValueError, match="layers.0.self_att.qkv.weight can't be made of .*: 8 is no multiple of num_heads 3"
    ):
        import_espnet_transformer_decoder(state, num_heads=3)
