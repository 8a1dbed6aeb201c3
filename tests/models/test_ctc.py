"""The CTC model: losses against NumPy, impossible utterances, short and long inputs, heads, parameters, all engines."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pytest

from returnn_common import nn
from returnn_common.models.ctc import CtcModel, make_ctc_model
from returnn_common.models.encoder.conformer import make_conformer_encoder
from returnn_common.models.features import LogMel
from tests.engines import ENGINES, Input, Result, run_on
from tests.models.ctc_tiny import (
    ENCODER,
    FEATURES,
    LENGTHS,
    TARGETS,
    VOCAB,
    features,
    label_rows,
    make_model,
    raw_audio,
    reference_loss,
    run_losses,
    run_search,
    valid_log_probs,
)

# Rows: two as usual; the labels with their repeats need 5 frames, there are 3; an empty target; 1 frame for 1 label.
MIXED_LENGTHS = [37, 22, 12, 9, 3]
MIXED_TARGETS = [[0, 1, 1, 3], [2, 2], [1, 1, 1], [], [1]]
IMPOSSIBLE = 2


@lru_cache
def on_engine(engine: str) -> Result:
    x = features(MIXED_LENGTHS)
    return run_losses(engine, x, MIXED_LENGTHS, MIXED_TARGETS, grads=True, train=True, aux_layers=(1,))


def test_loss_is_that_of_the_forward_algorithm():
    result = run_losses("torch", features(MIXED_LENGTHS), MIXED_LENGTHS, MIXED_TARGETS)
    log_probs = valid_log_probs(result)
    np.testing.assert_allclose(np.exp(log_probs[0]).sum(-1), 1.0, rtol=1e-5)
    expected = [reference_loss(row, labels) for row, labels in zip(log_probs, MIXED_TARGETS, strict=True)]
    assert np.isinf(expected).tolist() == [i == IMPOSSIBLE for i in range(5)]
    expected[IMPOSSIBLE] = 0.0
    np.testing.assert_allclose(result["ctc"], expected, rtol=1e-5)


@pytest.mark.parametrize("engine", ENGINES)
def test_impossible_utterances(engine: str):
    """FAULTS: one that has too few frames costs nothing, and is counted"""
    result = on_engine(engine)
    expected = np.arange(5) == IMPOSSIBLE
    np.testing.assert_array_equal(result["impossible"], expected)
    for name in ("ctc", "ctc_1"):
        assert np.isfinite(result[name]).all()
        np.testing.assert_array_equal(result[name] == 0.0, expected)
    for name, grad in result.grads.items():
        assert np.isfinite(grad).all(), name
    np.testing.assert_array_equal(result.grads["x"][IMPOSSIBLE], 0.0)


def test_impossible_utterances_change_no_gradient():
    """that the other engines have the same gradients is tested below"""
    rest = [i for i in range(5) if i != IMPOSSIBLE]
    lengths, targets = ([values[i] for i in rest] for values in (MIXED_LENGTHS, MIXED_TARGETS))
    without = run_losses("torch", features(lengths), lengths, targets, grads=True, train=True, aux_layers=(1,))
    result = on_engine("torch")
    np.testing.assert_array_equal(result["ctc"][rest], without["ctc"])
    for name, grad in result.grads.items():
        expected = without.grads[name]
        # not bit by bit, since the sums over the batch have another order
        np.testing.assert_allclose(grad[rest] if name == "x" else grad, expected, rtol=1e-4, atol=1e-5, err_msg=name)


def test_gradients_reach_every_parameter():
    grads = on_engine("torch").grads
    assert {"aux_outputs.0.weight", "output.bias"} < set(grads)
    for name, grad in grads.items():
        assert np.abs(grad).max() > 1e-5, name


def test_parameters():
    """so that checkpoints keep loading"""
    layer = {
        "conv_block.depthwise_conv.bias": (8,),
        "conv_block.depthwise_conv.filter": (8, 1, 3),
        "conv_block.positionwise_conv1.bias": (16,),
        "conv_block.positionwise_conv1.weight": (8, 16),
        "conv_block.positionwise_conv2.bias": (8,),
        "conv_block.positionwise_conv2.weight": (8, 8),
        "self_att.linear_pos.weight": (8, 8),
        "self_att.pos_bias_u": (2, 4),
        "self_att.pos_bias_v": (2, 4),
        "self_att.proj.bias": (8,),
        "self_att.proj.weight": (8, 8),
        "self_att.qkv.bias": (24,),
        "self_att.qkv.weight": (8, 24),
    }
    for name in ("ffn1", "ffn2"):
        layer |= {f"{name}.linear_ff.weight": (8, 32), f"{name}.linear_ff.bias": (32,)}
        layer |= {f"{name}.linear_out.weight": (32, 8), f"{name}.linear_out.bias": (8,)}
    norms = [f"{name}_layer_norm" for name in ("ffn1", "self_att", "conv", "ffn2", "final")]
    for name in ["conv_block.norm", *norms]:
        layer |= {f"{name}.scale": (8,), f"{name}.bias": (8,)}
    expected = {
        "encoder.input_layer.conv_layers.0.bias": (2,),
        "encoder.input_layer.conv_layers.0.filter": (2, 1, 3, 3),
        "encoder.input_layer.conv_layers.1.bias": (4,),
        "encoder.input_layer.conv_layers.1.filter": (4, 2, 3, 3),
        "encoder.input_projection.weight": (8, 8),
        **{f"encoder.layers.{i}.{name}": shape for i in range(2) for name, shape in layer.items()},
        "output.weight": (8, VOCAB + 1),
        "output.bias": (VOCAB + 1,),
        "aux_outputs.0.weight": (8, VOCAB + 1),
        "aux_outputs.0.bias": (VOCAB + 1,),
    }
    assert {name: value.shape for name, value in on_engine("torch").params.items()} == expected


@pytest.mark.parametrize("targets", [[[], []], [[1, 1, 1, 1], [2, 2, 2, 2]]])
def test_nothing_to_learn_in_a_batch(targets: list[list[int]]):
    """all transcripts empty, or all impossible: what the optimizer gets is finite"""
    means = []

    def func(model, x, time, y, labels):
        nn.init_train_step_run_ctx(train_flag=True, step=0)
        for name, loss in model.losses(x, in_spatial_dim=time, targets=y, targets_spatial_dim=labels).items():
            norm = loss.inv_norm_factor
            nn.get_run_ctx().mark_as_loss(
                loss.value, name, use_normalized_loss=True, custom_inv_norm_factor=norm, as_error=loss.as_error
            )
        total = nn.get_run_ctx().total_loss()
        means.append(total.raw_tensor.item())
        return {"total": total}

    lengths = [12, 7]
    result = run_on(
        "torch",
        func,
        {"x": Input(features(lengths), "batch time feat"), "y": Input(label_rows(targets), "batch labels", "vocab")},
        {"time": lengths, "labels": [len(row) for row in targets], "feat": FEATURES, "vocab": VOCAB},
        make_model=lambda feat, vocab: make_model(feat, vocab),
        train=True,
        grad_of="total",
    )
    assert np.isfinite(means).all()
    for name, grad in result.grads.items():
        assert np.isfinite(grad).all(), name


@pytest.mark.parametrize("train", [False, True])
def test_tiny_and_long_inputs(train: bool):
    """FAULTS: 1 to 5 frames; 1 to 700 samples; ten times the usual length"""
    options = {"train": train, "specaugment": "LD", "aux_layers": (1,)}
    for x, lengths in [
        (features([1, 2, 3, 4, 5]), [1, 2, 3, 4, 5]),
        (features([1]), [1]),
        (features([3000]), [3000]),
        (raw_audio([1, 2, 159, 160, 161, 400, 700]), [1, 2, 159, 160, 161, 400, 700]),
        (raw_audio([1]), [1]),
    ]:
        result = run_losses("torch", x, lengths, [[1]] * len(lengths), grads=True, **options)
        assert all(np.isfinite(result[name]).all() for name in result.outputs)
        assert all(np.isfinite(grad).all() for grad in result.grads.values())
        np.testing.assert_array_equal(result["impossible"], 0.0)
        for beam_size in (1, 4) if max(lengths) < 1000 else (1,):
            found, _ = run_search(x, lengths, beam_size=beam_size)
            assert all(len(nbest) >= 1 and np.isfinite(nbest[0][0]) for nbest in found)


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("make_input", [features, raw_audio])
def test_batch_equals_single_and_padding_does_not_matter(make_input, train: bool):
    scale = 160 if make_input is raw_audio else 1
    lengths = [n * scale - scale // 2 for n in LENGTHS]
    options = {"train": train, "aux_layers": (1,)}
    batched = run_losses("torch", make_input(lengths), lengths, TARGETS, **options)
    garbage = run_losses("torch", make_input(lengths, 1e3), lengths, TARGETS, **options)
    for i, n in enumerate(lengths):
        single = run_losses("torch", make_input([n]), [n], TARGETS[i : i + 1], **options)
        for name in ("ctc", "ctc_1"):
            np.testing.assert_allclose(batched[name][i], single[name][0], rtol=1e-4)
            np.testing.assert_allclose(garbage[name][i], single[name][0], rtol=1e-4)


def test_aux_layers_add_losses():
    """each reads the output of its layer, of 1, 2, ..., and changes nothing else"""
    x = features(LENGTHS)
    plain = run_losses("torch", x, LENGTHS, TARGETS, num_layers=3)
    result = run_losses("torch", x, LENGTHS, TARGETS, num_layers=3, aux_layers=(1, 2))
    assert list(plain.outputs) == ["ctc", "impossible", "norm", "total", "log_probs"]
    assert list(result.outputs) == ["ctc", "ctc_1", "ctc_2", "impossible", "norm", "total", "log_probs"]
    for name in ("ctc", "impossible", "log_probs"):
        np.testing.assert_array_equal(result[name], plain[name])
    np.testing.assert_allclose(result["total"], result["ctc"] + 0.3 * (result["ctc_1"] + result["ctc_2"]), rtol=1e-6)
    for index in (0, 1):
        # The model with an encoder that ends there, and that head as its own. Parameters are the same by name.
        linear = {f"output.{name}": result.params[f"aux_outputs.{index}.{name}"] for name in ("weight", "bias")}
        cut = _run_cut(x, num_layers=index + 1, params=linear)
        np.testing.assert_allclose(cut, result[f"ctc_{index + 1}"], rtol=1e-5)


def _run_cut(x: np.ndarray, *, num_layers: int, params: dict[str, np.ndarray]) -> np.ndarray:
    def func(model, x, time, y, labels):
        losses = model.losses(x, in_spatial_dim=time, targets=y, targets_spatial_dim=labels)
        return {"ctc": (losses["ctc"].value, [nn.batch_dim])}

    return run_on(
        "torch",
        func,
        {"x": Input(x, "batch time feat"), "y": Input(label_rows(TARGETS), "batch labels", sparse="vocab")},
        {"time": LENGTHS, "labels": [len(row) for row in TARGETS], "feat": FEATURES, "vocab": VOCAB},
        make_model=lambda feat, vocab: make_model(feat, vocab, num_layers=num_layers),
        params=params,
    )["ctc"]


def test_norm_factors_and_scales():
    def func(model, x, time, y, labels):
        losses = model.losses(x, in_spatial_dim=time, targets=y, targets_spatial_dim=labels)
        assert {name: (loss.scale, loss.as_error) for name, loss in losses.items()} == {
            "ctc": (1.0, False),
            "ctc_1": (0.7, False),
            "impossible": (1.0, True),
        }
        assert losses["impossible"].inv_norm_factor is None
        return {name: losses[name].inv_norm_factor for name in ("ctc", "ctc_1")}

    def make(feat, vocab):
        encoder = make_conformer_encoder(feat, **ENCODER)
        return CtcModel(encoder=encoder, vocab_dim=vocab, features=None, aux_layers=[1], aux_scale=0.7)

    result = run_on(
        "torch",
        func,
        {
            "x": Input(features(MIXED_LENGTHS), "batch time feat"),
            "y": Input(label_rows(MIXED_TARGETS), "batch labels", sparse="vocab"),
        },
        {"time": MIXED_LENGTHS, "labels": [len(row) for row in MIXED_TARGETS], "feat": FEATURES, "vocab": VOCAB},
        make_model=make,
    )
    for name in ("ctc", "ctc_1"):
        assert result[name].tolist() == [4, 2, 3, 1, 1]


def test_raw_audio_is_log_mel_and_the_model():
    lengths = [5000, 3210, 900]
    audio = raw_audio(lengths)
    from_audio = run_losses("torch", audio, lengths, TARGETS)

    def mel(model, x, time):
        out, frames = model(x, in_spatial_dim=time)
        return {"out": (out, [nn.batch_dim, frames, model.out_dim])}

    mels = run_on("torch", mel, {"x": Input(audio, "batch time")}, {"time": lengths}, make_model=LogMel)

    def func(model, x, time, y, labels):
        losses = model.losses(x, in_spatial_dim=time, targets=y, targets_spatial_dim=labels)
        return {"ctc": (losses["ctc"].value, [nn.batch_dim])}

    from_mels = run_on(
        "torch",
        func,
        {"x": Input(mels["out"], "batch time feat"), "y": Input(label_rows(TARGETS), "batch labels", sparse="vocab")},
        {
            "time": mels.outputs["out"].lengths[1],
            "labels": [len(row) for row in TARGETS],
            "feat": 80,
            "vocab": VOCAB,
        },
        make_model=lambda feat, vocab: make_model(feat, vocab),
    )
    assert {name for name in from_audio.params} == set(from_mels.params)
    np.testing.assert_allclose(from_audio["ctc"], from_mels["ctc"], rtol=1e-5)


def test_number_of_mels_is_the_encoders():
    nn.select_backend_torch()
    encoder = make_conformer_encoder(40, **ENCODER)
    model = make_ctc_model(None, VOCAB, encoder=encoder)
    assert model.features.out_dim is encoder.in_dim
    assert make_ctc_model(None, VOCAB, encoder=make_conformer_encoder(80, **ENCODER)).features.out_dim.dimension == 80


def test_default_encoder():
    nn.select_backend_torch()
    with nn.set_default_device_ctx("meta"):
        model = make_ctc_model(None, 10)
    assert len(model.encoder.layers) == 12 and model.encoder.out_dim.dimension == 512
    assert model.features.out_dim is model.encoder.in_dim and model.specaugment.policy.frequency_width == 27
    assert (model.blank_index, model.labels_dim.dimension) == (10, 11)


def test_dims_are_kept():
    nn.select_backend_torch()
    in_dim, vocab_dim = nn.FeatureDim("mel", FEATURES), nn.FeatureDim("labels", VOCAB)
    model = make_model(in_dim, vocab_dim)
    assert model.vocab_dim is vocab_dim and model.encoder.in_dim is in_dim and model.features is None


def test_mismatches_are_refused():
    nn.select_backend_torch()
    encoder = make_conformer_encoder(FEATURES, **ENCODER)
    with pytest.raises(ValueError, match=r"make_ctc_model: encoder takes .*features.*8.*, but in_dim is .*9"):
        make_ctc_model(9, VOCAB, encoder=encoder)
    for layer in (0, 2, -1):
        with pytest.raises(ValueError, match=rf"make_ctc_model: aux layer {layer} is not one of 1..1"):
            make_ctc_model(encoder.in_dim, VOCAB, encoder=encoder, aux_layers=[layer])
    with pytest.raises(TypeError, match="kernel"):
        make_ctc_model(encoder.in_dim, VOCAB, encoder=encoder, kernel=3)
    with pytest.raises(ValueError, match="SpecAugment: unknown policy 'XL'"):
        make_ctc_model(encoder.in_dim, VOCAB, encoder=encoder, specaugment="XL")


def test_encoder_with_in_dim_as_int():
    """an encoder and an int for its in_dim: sizes that are equal fit"""
    nn.select_backend_torch()
    encoder = make_conformer_encoder(FEATURES, **ENCODER)
    assert make_ctc_model(FEATURES, VOCAB, encoder=encoder).encoder is encoder


def test_features_of_another_dim_are_refused():
    def func(model, x, time):
        model.log_probs(x, in_spatial_dim=time)

    with pytest.raises(ValueError, match="speech model: expected features with .*mel.*8.*, got Tensor.*feat"):
        run_on(
            "torch",
            func,
            {"x": Input(features(LENGTHS), "batch time feat")},
            {"time": LENGTHS, "feat": FEATURES},
            make_model=lambda: make_model(nn.FeatureDim("mel", FEATURES), VOCAB),
        )


def test_bfloat16():
    """as RETURNN's torch_amp does it (FAULTS: half precision); one row is nearly all padding"""
    import torch

    lengths, targets = [40, 1], [[0, 1], [2]]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = run_losses("torch", features(lengths, 1e3), lengths, targets, grads=True, aux_layers=(1,))
    exact = run_losses("torch", features(lengths), lengths, targets, aux_layers=(1,))
    for name in ("ctc", "ctc_1"):
        np.testing.assert_allclose(result[name], exact[name], rtol=0.05)
    assert all(np.isfinite(grad).all() for grad in result.grads.values())


def test_dropout_acts_in_training_only():
    x = features(LENGTHS)
    evaluated = [run_losses("torch", x, LENGTHS, TARGETS, dropout=dropout)["ctc"] for dropout in (0.0, 0.5)]
    np.testing.assert_array_equal(*evaluated)
    trained = [run_losses("torch", x, LENGTHS, TARGETS, train=True, dropout=dropout)["ctc"] for dropout in (0.0, 0.5)]
    assert (np.abs(trained[0] - trained[1]) > 1e-3).all()
    np.testing.assert_allclose(trained[0], evaluated[0], rtol=1e-5)


@pytest.mark.parametrize("make_input", [features, raw_audio])
def test_specaugment_acts_in_training_only(make_input):
    lengths = [n * (160 if make_input is raw_audio else 1) for n in LENGTHS]
    x = make_input(lengths)

    def run(policy, **options):
        return run_losses("torch", x, lengths, TARGETS, specaugment=policy, **options)["ctc"]

    np.testing.assert_array_equal(run(None), run("LD"))
    assert run_search(x, lengths, options={"specaugment": "LD"})[0] == run_search(x, lengths)[0]
    assert (np.abs(run("LD", train=True) - run(None, train=True)) > 1e-3).sum() >= 2
