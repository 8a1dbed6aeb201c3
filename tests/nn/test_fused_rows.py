"""
Conformers whose layers are computed on rows: gradients, other types, parts that are not in the faster form.
"""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
from returnn.frontend.encoder.conformer import ConformerEncoder

from returnn_common import nn
from returnn_common.nn.fused import subsampling
from returnn_common.nn.fused.rotary import FusedRotarySelfAttention
from returnn_common.nn.rotary import RotarySelfAttention

from .fused_runs import assert_same, fused_copy, in_double, make_encoder, on_torch, run_encoder  # noqa: F401 - a fixture of every test here


@pytest.mark.parametrize("many_frames", [0, 1000])
@pytest.mark.parametrize("filters, strides", [((3, 3), (2, 2)), ((3, 5), (2, 3))], ids=str)
def test_without_padding_around_the_input(filters, strides, many_frames, monkeypatch):
    monkeypatch.setattr(subsampling, "_MANY_FRAMES", many_frames)
    encoder = make_encoder(padding="valid", filters=filters, strides=strides)
    fused = fused_copy(encoder)
    for lengths, train in (([30, 41, 17], True), ([41, 30], False), ([41], True)):
        assert_same(run_encoder(encoder, lengths, train=train), run_encoder(fused, lengths, train=train))


def test_in_double_precision():
    """where RETURNN's modules don't go: their positions are in single precision"""
    encoder = make_encoder()
    fused = in_double(fused_copy(encoder))
    expected = run_encoder(encoder, [30, 41, 17], train=True)
    assert_same(expected, run_encoder(fused, [30, 41, 17], train=True, dtype=torch.float64))


def test_gradients_of_a_layer_are_finite_differences():
    layer = nn.fuse(in_double(make_encoder(channels=(4,), filters=(3,), strides=(2,)))).layers["0"]
    batch_dim = nn.Dim(2, name="batch")
    time_dim = nn.Dim(nn.convert_to_tensor(np.array([4, 3], "int32"), dims=[batch_dim]), name="time")
    nn.init_train_step_run_ctx(train_flag=True, step=0)

    def run(x):
        out = layer(nn.convert_to_tensor(x, dims=[batch_dim, time_dim, layer.out_dim]), spatial_dim=time_dim)
        return out.copy_masked(0.0).raw_tensor

    assert torch.autograd.gradcheck(run, torch.randn(2, 4, 8, dtype=torch.float64, requires_grad=True), atol=1e-4)
    x = torch.randn(2, 4, 8, dtype=torch.float64, requires_grad=True)  # and twice, as a penalty on gradients needs it
    (grad,) = torch.autograd.grad(run(x).square().sum(), x, create_graph=True)
    grad.square().sum().backward()
    assert x.grad is not None and bool(x.grad.isfinite().all()) and bool(x.grad.any())


def test_outputs_of_layers():
    encoder, outputs = make_encoder(), []
    for module in (encoder, fused_copy(encoder)):
        assert isinstance(module, ConformerEncoder)
        collected: dict[str, nn.Tensor] = {}
        time_dim = nn.Dim(41, name="time")
        source = torch.tensor(np.random.default_rng(1).standard_normal((41, 11)), dtype=torch.float32)
        out, out_dim = module(
            nn.convert_to_tensor(source, dims=[time_dim, module.in_dim]),
            in_spatial_dim=time_dim,
            collected_outputs=collected,
        )
        assert list(collected) == ["0", "1"] and collected["1"].dims == out.dims == (out_dim, module.out_dim)
        np.testing.assert_array_equal(collected["1"].raw_tensor.detach(), out.raw_tensor.detach())
        outputs.append(collected["0"].raw_tensor.detach())
    np.testing.assert_allclose(*outputs, rtol=1e-4, atol=1e-5)


_PARTS = """
layers.0
layers.0.ffn1
layers.1.self_att
layers.1.self_att.qkv
layers.0.conv_block.positionwise_conv1
layers.0.conv_block.depthwise_conv
layers.0.ffn2_layer_norm
layers.1.ffn2.linear_out
input_projection
"""


@pytest.mark.parametrize("part", _PARTS.split())
def test_parts_that_compute_something_else(part):
    """are called, whatever is around them"""
    encoder = make_encoder()
    fused = fused_copy(encoder)
    calls = []

    def twice(self, *args, **kwargs):
        calls.append(self)
        result = type(self).__bases__[0].__call__(self, *args, **kwargs)
        return (result[0] * 2.0, *result[1:]) if isinstance(result, tuple) else result * 2.0

    for module in (encoder, fused):
        for name in part.split("."):
            module = getattr(module, name)

        module.__class__ = type("Mine", (type(module),), {"__call__": twice})
    assert_same(run_encoder(encoder, [30, 41]), run_encoder(fused, [30, 41]))
    assert len(calls) == 2
    assert not np.allclose(run_encoder(encoder, [30, 41])["out"], run_encoder(make_encoder(), [30, 41])["out"])


def test_norms_in_another_type():
    """Scale and bias in single precision, the rest in half: as with RETURNN's, sums are in single."""
    norm, dim = nn.LayerNorm(nn.FeatureDim("model", 8)), nn.Dim(5, name="time")
    fused = fused_copy(norm)
    x = nn.cast(nn.random_normal([dim, norm.in_dim]), "bfloat16")
    expected, found = norm(x), fused(x)
    assert expected.dtype == found.dtype
    np.testing.assert_allclose(found.raw_tensor.detach().float(), expected.raw_tensor.detach().float(), atol=0.02)


@pytest.mark.parametrize("options", [{"dropout": 0.5}, {"att_dropout": 0.5}, {"input_dropout": 0.5}], ids=str)
def test_dropout_by_seed(options):
    """in training; the same with the same seed"""
    encoder = nn.fuse(make_encoder(**options))
    outs = []
    for seed, train in ((1, True), (1, True), (2, True), (1, False), (2, False)):
        torch.manual_seed(seed)
        for param in encoder.parameters():
            if param.auxiliary:
                param.raw_tensor.data.fill_(1.0)
        outs.append(run_encoder(encoder, [30, 41], train=train, grad=False)["out"])
    np.testing.assert_array_equal(outs[0], outs[1])
    np.testing.assert_array_equal(outs[3], outs[4])
    assert np.abs(outs[0] - outs[2]).max() > 1e-2


def test_statistics_of_batches():
    """A batch of padding leaves them alone, and so does one with a NaN."""
    norm = nn.fuse(nn.BatchNorm(nn.FeatureDim("model", 2)))
    batch_dim = nn.Dim(1, name="batch")
    nn.init_train_step_run_ctx(train_flag=True, step=0)
    for length, values, expected in ((0, [[1.0, 2.0]], [0.0, 0.0]), (1, [[float("nan"), 2.0]], [0.0, 0.2])):
        time_dim = nn.Dim(nn.convert_to_tensor(np.array([length], "int32"), dims=[batch_dim]), name="time")
        time_dim.capacity = None
        norm(nn.convert_to_tensor(torch.tensor([values])[:, :length], dims=[batch_dim, time_dim, norm.in_dim]))
        np.testing.assert_allclose(norm.running_mean.raw_tensor.detach(), expected, rtol=1e-6)


def _rotary_pair(**options):
    dim = nn.FeatureDim("model", 8)
    attention = RotarySelfAttention(dim, dim, key_dim_total=dim, value_dim_total=dim, num_heads=2, **options)
    for param in attention.parameters():
        param.raw_tensor.data.normal_(0.0, 0.5)
    return attention, fused_copy(attention)


@pytest.mark.parametrize("lengths", [[5, 3, 0], [70], [1, 1]], ids=str)
@pytest.mark.parametrize("order", ["bt", "tb"])
def test_rotary_attention(lengths, order):
    """in values and gradients, whatever lies in the padding"""
    batch_dim, results = nn.Dim(len(lengths), name="batch"), []
    for module in _rotary_pair(att_dropout=0.0):
        time_dim = nn.Dim(nn.convert_to_tensor(np.array(lengths, "int32"), dims=[batch_dim]), name="time")
        values = np.random.default_rng(1).standard_normal((len(lengths), max(lengths), 8)).astype("float32")
        source = torch.tensor(values, requires_grad=True)
        dims = {"b": batch_dim, "t": time_dim}
        raw = source if order == "bt" else source.transpose(0, 1)
        out = module(nn.convert_to_tensor(raw, dims=[*(dims[c] for c in order), module.in_dim]), axis=time_dim)
        out = out.copy_masked(0.0).copy_transpose([batch_dim, time_dim, module.in_dim]).raw_tensor
        weight = torch.tensor(np.random.default_rng(2).standard_normal(out.shape), dtype=torch.float32)
        (out * weight)[[n > 0 for n in lengths]].sum().backward()
        grads = {name: param.raw_tensor.grad for name, param in module.named_parameters()}
        results.append({"out": out.detach(), "source": source.grad, **grads})
    assert type(nn.fuse(_rotary_pair()[0])) is FusedRotarySelfAttention
    for key, expected in results[0].items():
        found = results[1][key]
        valid = torch.tensor(lengths) > 0 if key == "out" else slice(None)
        if key == "source" or not bool(expected.isnan().any()):  # RETURNN's are NaN with an empty utterance
            torch.testing.assert_close(found[valid], expected[valid].nan_to_num(), rtol=1e-4, atol=1e-5, msg=key)
        assert bool(found.isfinite().all())


def test_rotary_attention_with_dropout():
    """of the weights, in training"""
    _, fused = _rotary_pair(att_dropout=0.5)
    time_dim = nn.Dim(4, name="time")
    x = nn.random_normal([time_dim, fused.in_dim])
    expected = fused(x, axis=time_dim).raw_tensor.detach()
    nn.init_train_step_run_ctx(train_flag=True, step=0)
    with torch.no_grad():
        drawn = torch.stack([fused(x, axis=time_dim).raw_tensor for _ in range(2000)])
    assert drawn.std(0).min() > 0.0
    np.testing.assert_allclose(drawn.mean(0), expected, atol=0.15)


@pytest.mark.parametrize("train", [False, True], ids=["evaluation", "training"])
def test_rotary_conformer(train):
    encoder = make_encoder(self_att=RotarySelfAttention)
    fused = fused_copy(encoder)
    assert_same(run_encoder(encoder, [30, 41], train=train), run_encoder(fused, [30, 41], train=train))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = run_encoder(fused, [30, 41], train=False, out_dtype=torch.bfloat16)["out"]
    np.testing.assert_allclose(half, run_encoder(fused, [30, 41])["out"], atol=0.15)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))])
def test_copies(copied):
    """of the class of the original, with its parameters and results"""
    encoder = nn.fuse(make_encoder())
    expected = run_encoder(encoder, [30, 41], grad=False)["out"]
    other = copied(encoder)
    assert [type(part) for part in other.modules()] == [type(part) for part in encoder.modules()]
    for (name, old), (same_name, new) in zip(encoder.named_parameters(), other.named_parameters(), strict=True):
        assert name == same_name
        new.raw_tensor.data.copy_(old.raw_tensor.data)
        new.auxiliary = old.auxiliary  # which RETURNN does not pickle
    np.testing.assert_array_equal(run_encoder(other, [30, 41], grad=False)["out"], expected)
