"""
What fused modules respect, as RETURNN's do: changed parameters, hooks, parametrisations, subclasses, rates that are
tensors, second derivatives, tracing, devices.
"""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
import torch
from returnn.frontend.decoder.transformer import FeedForward
from returnn.frontend.encoder.conformer import ConformerConvSubsample, ConformerEncoder, ConformerEncoderLayer

from returnn_common import nn
from returnn_common.nn.fused.polyphase import convolve_twice

from .fused_runs import fused_copy, on_torch  # noqa: F401 - a fixture of every test here

IN, OUT = nn.FeatureDim("in", 7), nn.FeatureDim("out", 8)


def _pair(module):
    """:return: the module with parameters that all matter, and a fused one with the same"""
    for name, param in module.named_parameters():
        param.raw_tensor.data.normal_(0.0, 0.3)
        if "variance" in name:
            param.raw_tensor.data.abs_()
    return module, fused_copy(module)


def _attention(**options):
    options = {"num_heads": 2, "att_dropout": 0.0, **options}
    return nn.RelPosSelfAttention(OUT, OUT, key_dim_total=OUT, value_dim_total=OUT, **options)


def _encoder(*, padding: str = "same"):
    return ConformerEncoder(
        IN,
        OUT,
        num_layers=1,
        input_layer=ConformerConvSubsample(IN, out_dims=[3, 4], filter_sizes=[3, 3], strides=[2, 2], padding=padding),
        encoder_layer_opts={
            "ff_dim": nn.FeatureDim("ff", 16),
            "num_heads": 2,
            "conv_kernel_size": 5,
            "conv_norm": nn.BatchNorm(OUT),
        },
    )


def _frames(dim, num: int = 9, *, dtype=torch.float32):
    """:return: random tensor ``{time, dim}``, time"""
    time_dim = nn.Dim(num, name="time")
    values = np.random.default_rng(1).standard_normal((num, int(dim.dimension)))
    return nn.convert_to_tensor(torch.tensor(values, dtype=dtype), dims=[time_dim, dim]), time_dim


def _assert_same(a, b, **tolerance):
    b = b.copy_transpose(a.dims)
    torch.testing.assert_close(b.raw_tensor, a.raw_tensor, **{"rtol": 1e-4, "atol": 1e-5, **tolerance})


def _scale_through_data(param):
    param.raw_tensor.data.mul_(2.0)


def _replace_data(param):
    param.raw_tensor.data = param.raw_tensor.data * 2.0


def _assign(param):
    param.assign(param * 2.0)


@pytest.mark.parametrize("change", [_scale_through_data, _replace_data, _assign])
def test_changed_parameter(change):
    """though positions are kept from one batch to the next"""
    modules = _pair(_attention())
    x, time_dim = _frames(OUT)
    with torch.no_grad():
        before = [module(x, axis=time_dim) for module in modules]
        for module in modules:
            change(module.linear_pos.weight)
        after = [module(x, axis=time_dim) for module in modules]
    _assert_same(*before)
    _assert_same(*after)
    assert (after[0].raw_tensor - before[0].raw_tensor).abs().max() > 1e-3


def test_positions_of_half_precision_are_not_kept():
    attention, fused = _pair(_attention())
    x, time_dim = _frames(OUT)
    with torch.no_grad():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            fused(x, axis=time_dim)
        _assert_same(attention(x, axis=time_dim), fused(x, axis=time_dim), rtol=1e-5, atol=1e-6)


def test_positions_in_double_precision():
    nn.set_default_float_dtype("float64")
    try:
        attention, fused = _pair(_attention())
        x, time_dim = _frames(OUT, dtype=torch.float64)
        _assert_same(attention(x, axis=time_dim), fused(x, axis=time_dim), rtol=1e-11, atol=1e-12)
    finally:
        nn.set_default_float_dtype("float32")


def test_hooks_of_parts():
    """are called, and what they return counts"""
    encoder, fused = _pair(_encoder())
    x, time_dim = _frames(IN, 30)
    names = ["layers.0.ffn1.linear_ff", "layers.0.ffn2.linear_out", "input_layer.conv_layers.1"]
    names += ["layers.0.conv_block.positionwise_conv1", "layers.0.self_att.qkv", "layers.0.final_layer_norm"]
    for name in names:
        outs, calls = [], []

        def hook(module, args, kwargs, result, calls=calls):
            calls.append(module)
            return (result[0] * 2.0, result[1]) if isinstance(result, tuple) else result * 2.0

        for model in (encoder, fused):
            part = dict(model.named_modules())[name]
            handle = part.register_forward_hook(hook)
            outs.append(model(x, in_spatial_dim=time_dim)[0])
            handle.remove()
            assert calls.pop() is part, name
        _assert_same(*outs)


@pytest.mark.parametrize("train", [False, True])
def test_parametrised_parts(train):
    """each parameter is what its parametrisation says at that time, and its gradient goes through it"""
    encoder, fused = _pair(_encoder())
    nn.init_train_step_run_ctx(train_flag=train, step=0)
    x, time_dim = _frames(IN, 30)
    factor, outs = [2.0], []
    for model in (encoder, fused):
        for layer in model.modules():
            if isinstance(layer, ConformerEncoderLayer | FeedForward):
                layer.dropout = 0.0
            if isinstance(layer, nn.RelPosSelfAttention):
                layer.att_dropout = 0.0
            for name, param in list(vars(layer).items()):
                if isinstance(param, nn.Parameter) and not param.auxiliary:
                    nn.register_parametrization(layer, name, lambda x: x * factor[0])
        model.input_dropout = 0.0
    for factor[0] in (2.0, 1.5):
        with torch.set_grad_enabled(train):
            outs = [model(x, in_spatial_dim=time_dim)[0] for model in (encoder, fused)]
        _assert_same(*outs)
    if train:
        for out in outs:
            (out.raw_tensor**2).sum().backward()
        for (name, old), (_, new) in zip(encoder.named_parameters(), fused.named_parameters(), strict=True):
            if not old.auxiliary:
                a, b = old.raw_tensor.grad, new.raw_tensor.grad
                torch.testing.assert_close(b, a, rtol=1e-3, atol=1e-4, msg=lambda text, name=name: f"{name}: {text}")


def test_weight_dropout():
    """draws once a call, so that the same seed gives the same as RETURNN's module"""
    linear, fused = _pair(nn.Linear(IN, OUT))
    x, _ = _frames(IN)
    nn.init_train_step_run_ctx(train_flag=True, step=0)
    outs = []
    for module in (linear, fused):
        nn.weight_dropout(module, "weight", drop_prob=0.5)
        nn.set_random_seed(3)
        outs.append(module(x))
    _assert_same(*outs)
    kind = type(nn.fuse(nn.Linear(IN, OUT)))
    assert type(nn.remove_parametrization(fused, "weight")) is kind


class _TwiceConv(nn.Conv2d):
    def __call__(self, *args, **kwargs):
        out, dims = super().__call__(*args, **kwargs)
        return out * 2.0, dims


def test_subclass_among_the_convolutions():
    encoder = _encoder()
    encoder.input_layer.conv_layers["1"].__class__ = _TwiceConv
    x, time_dim = _frames(IN, 30)
    _assert_same(*(model(x, in_spatial_dim=time_dim)[0] for model in _pair(encoder)))


def test_feed_forward_with_another_last_part():
    module = FeedForward(OUT, ff_dim=5)
    module.linear_out = nn.Linear(module.linear_ff.out_dim, IN)
    x, _ = _frames(OUT)
    outs = [module(x) for module in _pair(module)]
    assert outs[1].feature_dim == IN
    _assert_same(*outs)


def test_source_with_the_output_dim():
    x = nn.convert_to_tensor(torch.randn(8, 7), dims=[OUT, IN])
    _assert_same(*(module(x) for module in _pair(nn.Linear(IN, OUT))))


def test_dropout_rate_as_tensor():
    nn.init_train_step_run_ctx(train_flag=True, step=0)
    x, time_dim = _frames(OUT)
    rate = nn.convert_to_tensor(0.5)
    _, feed_forward = _pair(FeedForward(OUT, ff_dim=5, dropout=rate))
    assert (feed_forward(x).raw_tensor - feed_forward(x).raw_tensor).abs().max() > 1e-3
    _, attention = _pair(_attention(att_dropout=rate))
    assert (attention(x, axis=time_dim).raw_tensor - attention(x, axis=time_dim).raw_tensor).abs().max() > 1e-3
    layer = _pair(_encoder())[1].layers["0"]
    layer.dropout = layer.ffn1.dropout = layer.ffn2.dropout = layer.self_att.att_dropout = rate
    assert (layer(x, spatial_dim=time_dim).raw_tensor - layer(x, spatial_dim=time_dim).raw_tensor).abs().max() > 1e-3


@pytest.mark.parametrize("rate", [1.0, -0.5])
def test_impossible_dropout_rate(rate):
    nn.init_train_step_run_ctx(train_flag=True, step=0)
    module = nn.fuse(FeedForward(OUT, ff_dim=5, dropout=rate))
    with pytest.raises(ValueError, match=f"dropout: expected a rate >= 0 and < 1, got {rate}"):
        module(_frames(OUT)[0])


def test_second_derivatives_of_convolutions():
    def randn(*shape):
        return torch.randn(*shape, dtype=torch.float64, generator=generator).requires_grad_()

    generator = torch.Generator().manual_seed(1)
    inputs = [randn(1, 5, 4), randn(2, 1, 3, 3), randn(2, 2, 3, 3), randn(2), randn(2)]

    def compute(x, first, second, *biases):
        return convolve_twice(x, None, [first, second], biases, [(2, 2), (2, 2)])

    assert torch.autograd.gradgradcheck(compute, inputs)
    inputs[0].requires_grad_(False)
    assert torch.autograd.gradgradcheck(compute, inputs)


def test_tracing_keeps_lengths_open():
    """as the export to ONNX does it"""

    class Traced(torch.nn.Module):
        """of a module, from raw tensors to raw tensors"""

        def __init__(self, module):
            super().__init__()
            self.module = module

        def forward(self, values, sizes):
            """:return: frames of the encoder"""
            num = nn.Tensor("num", [], dtype="int32", raw_tensor=torch.ones_like(sizes).sum().to(torch.int32))
            batch_dim = nn.Dim(num, name="batch")
            time_dim = nn.Dim(nn.Tensor("sizes", [batch_dim], dtype="int32", raw_tensor=sizes), name="time")
            source = nn.Tensor("source", [batch_dim, time_dim, IN], dtype="float32", raw_tensor=values)
            out, out_dim = self.module(source, in_spatial_dim=time_dim)
            return out.copy_masked(0.0).copy_transpose([batch_dim, out_dim, OUT]).raw_tensor

    encoder, fused = _pair(_encoder())
    for param in fused.parameters():
        param.raw_tensor.requires_grad_(False)
    example = torch.randn(2, 30, 7), torch.tensor([30, 21], dtype=torch.int32)
    with torch.no_grad():
        traced = torch.jit.trace(Traced(fused), example, check_trace=False)
        for lengths in ([30, 21], [50], [41, 17, 41]):
            values = torch.randn(len(lengths), max(lengths), 7)
            args = values, torch.tensor(lengths, dtype=torch.int32)
            torch.testing.assert_close(traced(*args), Traced(encoder)(*args), rtol=1e-4, atol=1e-5)


def test_no_module():
    with pytest.raises(TypeError, match=r"fuse: expected a module, got \[1\]"):
        nn.fuse([1])  # type: ignore[type-var]


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("padding", ["same", "valid"])
def test_whatever_is_on_padding(padding, train):
    """outputs, statistics and gradients are the same as with zeros there"""
    fused = _pair(_encoder(padding=padding))[1]
    fused.input_dropout = fused.layers["0"].dropout = fused.layers["0"].self_att.att_dropout = 0.0
    fused.layers["0"].ffn1.dropout = fused.layers["0"].ffn2.dropout = 0.0
    nn.init_train_step_run_ctx(train_flag=train, step=0)
    lengths, found = [30, 21], []
    for fill in (0.0, float("nan"), float("inf")):
        values = torch.randn(2, 30, 7, generator=torch.Generator().manual_seed(1))
        values[1, 21:] = fill
        batch_dim = nn.Dim(2, name="batch")
        time_dim = nn.Dim(nn.convert_to_tensor(np.array(lengths, "int32"), dims=[batch_dim]), name="time")
        fused.layers["0"].conv_block.norm.running_mean.raw_tensor.data.zero_()
        with torch.set_grad_enabled(train):
            out, out_dim = fused(nn.convert_to_tensor(values, dims=[batch_dim, time_dim, IN]), in_spatial_dim=time_dim)
            out = out.copy_masked(0.0).copy_transpose([batch_dim, out_dim, OUT]).raw_tensor
        params = [param.raw_tensor for param in fused.parameters() if not param.auxiliary]
        grads = torch.autograd.grad(out.square().sum(), params) if train else []
        statistics = fused.layers["0"].conv_block.norm.running_mean.raw_tensor.clone()
        found.append([out, statistics, *grads])
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            torch.testing.assert_close(a, b)


def test_meta_device():
    with nn.set_default_device_ctx("meta"):
        model = nn.fuse(_encoder())
        time_dim = nn.Dim(30, name="time")
        for context in (contextlib.nullcontext(), torch.no_grad()):
            with context:
                source = nn.convert_to_tensor(torch.zeros(30, 7, device="meta"), dims=[time_dim, IN])
                out, out_dim = model(source, in_spatial_dim=time_dim)
            assert out.raw_tensor.shape == (8, 8) and out.raw_tensor.device.type == "meta"
            assert out_dim.dimension == 8
