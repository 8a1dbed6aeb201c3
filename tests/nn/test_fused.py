"""
Fused modules beside RETURNN's own, on PyTorch: outputs, gradients, statistics, dropout. (That the other engines, which
run RETURNN's, give the same is in the table of the zoo.)
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from returnn_common import nn
from returnn_common.nn.fused import subsampling
from returnn_common.nn.fused.batch_norm import FusedBatchNorm
from returnn_common.nn.fused.conformer import FusedConformerEncoder
from returnn_common.nn.fused.convolution import FusedConv1d
from returnn_common.nn.fused.layers import FusedLinear
from returnn_common.nn.fused.polyphase import convolve_twice
from returnn_common.nn.fused.positions import relative_positions

from .fused_runs import assert_same, fused_copy, make_encoder, on_torch, run_encoder  # noqa: F401 - a fixture of every test here


@pytest.mark.parametrize("train", [False, True], ids=["evaluation", "training"])
@pytest.mark.parametrize("lengths", [[30, 41, 17], [41, 41], [1]], ids=str)
@pytest.mark.parametrize("options", [{}, {"kernel_size": 8, "norm": "layer"}], ids=["odd", "even"])
@pytest.mark.parametrize("many_frames", [0, 1000])
def test_same_as_returnn(options, lengths, train, many_frames, monkeypatch):
    monkeypatch.setattr(subsampling, "_MANY_FRAMES", many_frames)
    encoder = make_encoder(**options)
    fused = fused_copy(encoder)
    assert_same(run_encoder(encoder, lengths, train=train), run_encoder(fused, lengths, train=train))


@pytest.mark.parametrize("train", [False, True], ids=["evaluation", "training"])
def test_empty_utterance(train):
    """It harms nobody: with RETURNN's modules, the gradients are then NaN."""
    encoder = make_encoder()
    found = run_encoder(fused_copy(encoder), [41, 0, 3], train=train)
    assert all(np.isfinite(x).all() for x in found.values())
    assert not found["source"][1].any()
    assert np.isnan(run_encoder(encoder, [41, 0, 3], train=train)["grad of input_projection.weight"]).any()


@pytest.mark.parametrize("order", ["tbf", "bft", "ftb"])
def test_order_of_dims(order):
    encoder = make_encoder()
    assert_same(run_encoder(encoder, [30, 41]), run_encoder(fused_copy(encoder), [30, 41], order=order))


def test_without_gradients():
    """Convolutions are then computed in another way."""
    encoder = make_encoder()
    assert_same(
        run_encoder(encoder, [30, 41, 1], grad=False), run_encoder(fused_copy(encoder), [30, 41, 1], grad=False)
    )


@pytest.mark.parametrize("channels", [(8,), (4, 6, 8)], ids=str)
def test_other_numbers_of_convolutions(channels):
    encoder = make_encoder(channels=channels, filters=(3,) * len(channels), strides=(2,) * len(channels))
    assert_same(run_encoder(encoder, [30, 41]), run_encoder(fused_copy(encoder), [30, 41]))


def test_padding_does_not_matter():
    fused = nn.fuse(make_encoder())
    values = np.random.default_rng(1).standard_normal((2, 41, 11)).astype("float32")
    outs, n = [], 5  # of 17 frames
    for x, lengths in ((values, [17, 41]), (values[:1, :17], [17])):
        nn.init_forward_step_run_ctx(step=0)
        batch_dim = nn.Dim(len(lengths), name="batch")
        time_dim = nn.Dim(nn.convert_to_tensor(np.array(lengths, "int32"), dims=[batch_dim]), name="time")
        with torch.no_grad():
            out, _ = fused(nn.convert_to_tensor(x, dims=[batch_dim, time_dim, fused.in_dim]), in_spatial_dim=time_dim)
        outs.append(out.raw_tensor[0, :n].numpy())
    np.testing.assert_allclose(*outs, atol=1e-5)


def test_half_precision_stays_and_is_close():
    encoder = make_encoder()
    expected = run_encoder(encoder, [30, 41], grad=False)["out"]
    half = fused_copy(encoder)
    for param in half.parameters():
        param.dtype = "bfloat16"
        param.raw_tensor = torch.nn.Parameter(param.raw_tensor.data.bfloat16(), requires_grad=False)
    out = run_encoder(half, [30, 41], grad=False, dtype=torch.bfloat16)["out"]
    np.testing.assert_allclose(out, expected, atol=0.15)


def test_autocast():
    encoder = make_encoder()
    expected = run_encoder(encoder, [30, 41], train=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = run_encoder(fused_copy(encoder), [30, 41], train=True, out_dtype=torch.bfloat16)
    np.testing.assert_allclose(found["out"], expected["out"], atol=0.15)
    assert found["grad of layers.0.ffn1.linear_ff.weight"].any()


@pytest.mark.parametrize("broadcast", [False, True], ids=["each", "broadcast"])
def test_dropout(broadcast):
    """On average the same as without; over frames alike or not, as RETURNN's option says."""
    layer = make_encoder(dropout=0.4).layers["0"]
    nn.fuse(layer)
    layer.dropout_broadcast = layer.ffn1.dropout_broadcast = broadcast
    time_dim = nn.Dim(3, name="time")
    x, zeros = nn.zeros([time_dim, layer.out_dim]), nn.zeros([time_dim, layer.out_dim])
    ones = x + 1.0
    nn.init_train_step_run_ctx(train_flag=True, step=0)
    drawn = torch.stack([layer._add(zeros, ones, scale=0.5).raw_tensor for _ in range(2000)])
    np.testing.assert_allclose(sorted(set(drawn.unique().tolist())), [0.0, 0.5 / 0.6], rtol=1e-6)
    np.testing.assert_allclose(drawn.mean(0), 0.5, atol=0.05)
    assert bool((drawn[:, 0] == drawn[:, 1]).all()) == broadcast
    hidden = torch.stack([layer.ffn1(ones).raw_tensor for _ in range(50)])
    assert bool((hidden[:, 0] == hidden[:, 1]).all()) == broadcast and len(hidden.unique(dim=0)) > 40
    nn.init_forward_step_run_ctx(step=0)
    np.testing.assert_array_equal(layer._add(zeros, ones, scale=0.5).raw_tensor, np.full((3, 8), 0.5, "float32"))


def test_dropout_of_attention():
    encoder = make_encoder(att_dropout=0.5)
    attention = nn.fuse(encoder).layers["0"].self_att
    time_dim = nn.Dim(4, name="time")
    x = nn.convert_to_tensor(
        np.random.default_rng(1).standard_normal((4, 8)).astype("float32"), dims=[time_dim, encoder.out_dim]
    )
    expected = attention(x, axis=time_dim).raw_tensor.detach()
    nn.init_train_step_run_ctx(train_flag=True, step=0)
    with torch.no_grad():
        drawn = torch.stack([attention(x, axis=time_dim).raw_tensor for _ in range(3000)])
    assert drawn.std(0).min() > 0.0
    np.testing.assert_allclose(drawn.mean(0), expected, atol=0.1)


@pytest.mark.parametrize(
    "size, strides", [((3, 3), (2, 2)), ((5, 3), (3, 2)), ((3, 5), (1, 2)), ((1, 1), (1, 1)), ((3, 3), (4, 3))], ids=str
)
@pytest.mark.parametrize("shape", [(2, 13, 9), (1, 1, 1), (3, 6, 5)], ids=str)
def test_convolve_twice(shape, size, strides):
    """beside PyTorch's convolutions, with gradients"""
    generator = torch.Generator().manual_seed(1)

    def randn(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()

    x, weights, biases = randn(*shape), [randn(4, 1, 3, 3), randn(5, 4, *size)], [randn(4), randn(5)]
    lengths = torch.tensor([1 + (shape[1] - 1) // 2, 1, 2][: shape[0]])
    valid = (torch.arange(-(-shape[1] // 2)) < lengths[:, None]).double()
    hidden = torch.nn.functional.conv2d(x[:, None], weights[0], biases[0], stride=2, padding=1).relu()
    hidden = hidden * valid[:, None, :, None]
    padding = tuple(n // 2 for n in size)
    expected = torch.nn.functional.conv2d(hidden, weights[1], biases[1], stride=strides, padding=padding)
    found = convolve_twice(x, valid, weights, biases, [(2, 2), strides]).permute(0, 3, 1, 2)
    torch.testing.assert_close(found, expected)
    grad = randn(*expected.shape).detach()
    inputs = [x, *weights, *biases]
    for a, b in zip(torch.autograd.grad(found, inputs, grad), torch.autograd.grad(expected, inputs, grad), strict=True):
        torch.testing.assert_close(a, b)


def test_convolve_twice_finite_differences():
    x = torch.randn(2, 5, 4, dtype=torch.float64, requires_grad=True)
    weights = [torch.randn(3, 1, 3, 3, dtype=torch.float64, requires_grad=True) for _ in range(1)]
    weights.append(torch.randn(2, 3, 3, 3, dtype=torch.float64, requires_grad=True))
    biases = [torch.randn(n, dtype=torch.float64, requires_grad=True) for n in (3, 2)]
    strides = [(2, 2), (2, 2)]
    assert torch.autograd.gradcheck(
        lambda x, *args: convolve_twice(x, None, args[:2], args[2:], strides), [x, *weights, *biases]
    )


@pytest.mark.parametrize("num_frames", [1, 2, 63, 64, 65, 130])
def test_positions(num_frames):
    time_dim, dim = nn.Dim(num_frames, name="time"), nn.FeatureDim("model", 6)
    expected, expected_dim = nn.relative_positional_encoding(
        query_spatial_dim=time_dim, key_value_spatial_dim=time_dim, feat_dim=dim
    )
    found = relative_positions(num_frames, 6, dtype=torch.float32, device=torch.device("cpu"))
    torch.testing.assert_close(found, expected.copy_compatible_to_dims_raw((expected_dim, dim)), atol=1e-5, rtol=1e-5)


def test_positions_of_inference_mode_serve_training():
    device = torch.device("cpu")
    with torch.inference_mode():
        relative_positions(5, 22, dtype=torch.float32, device=device)
    found = relative_positions(5, 22, dtype=torch.float32, device=device)
    (found * torch.ones(22, requires_grad=True)).sum().backward()


def test_what_is_fused():
    dims = nn.FeatureDim("a", 2), nn.FeatureDim("b", 3)

    class Mine(nn.Linear):
        """computes something else"""

    class Model(nn.Module):
        """of everything"""

        def __init__(self):
            super().__init__()
            self.plain, self.mine, self.norm = nn.Linear(*dims), Mine(*dims), nn.BatchNorm(dims[0])

    model = Model()
    names = [name for name, _ in model.named_parameters()]
    assert nn.fuse(model) is model
    assert type(model.plain) is FusedLinear and type(model.mine) is Mine and type(model.norm) is FusedBatchNorm
    assert type(nn.fuse(make_encoder())) is FusedConformerEncoder
    assert [name for name, _ in model.named_parameters()] == names
    assert type(nn.fuse(nn.Linear(*dims))) is FusedLinear


@pytest.mark.parametrize("with_bias", [True, False])
def test_linear(with_bias):
    dims = nn.FeatureDim("a", 2), nn.FeatureDim("b", 3)
    linear, x = nn.Linear(*dims, with_bias=with_bias), nn.random_normal([nn.Dim(4, name="time"), dims[0]])
    fused = fused_copy(linear)
    a, b = linear(x), fused(x)
    np.testing.assert_allclose(a.raw_tensor.detach(), b.copy_transpose(a.dims).raw_tensor.detach(), rtol=1e-5)
    b.raw_tensor.sum().backward()
    assert fused.weight.raw_tensor.grad.stride() == fused.weight.raw_tensor.stride()
    with pytest.raises(ValueError, match="does not have in_dim"):
        fused(nn.zeros([dims[1]]))


def test_packed_tensors_are_returnn_s():
    encoder = make_encoder(norm="layer")
    batch_dim = nn.Dim(2, name="batch")
    time_dim = nn.Dim(nn.convert_to_tensor(np.array([3, 5], "int32"), dims=[batch_dim]), name="time")
    layer = fused_copy(encoder).layers["0"].ffn1
    x = nn.random_normal([batch_dim, time_dim, encoder.out_dim])
    packed = nn.pack(x)
    expected, found = (nn.reduce_sum(layer(y), axis=time_dim) for y in (x, packed))
    np.testing.assert_allclose(found.raw_tensor.detach(), expected.raw_tensor.detach(), rtol=1e-4)


@pytest.mark.parametrize(
    "options", [{"groups": 1}, {"groups": 4, "strides": 2}, {"groups": 4, "padding": "valid"}, {"groups": 2}], ids=str
)
def test_other_convolutions(options):
    """are RETURNN's"""
    dim, batch_dim = nn.FeatureDim("in", 4), nn.Dim(2, name="batch")
    time_dim = nn.Dim(nn.convert_to_tensor(np.array([7, 4], "int32"), dims=[batch_dim]), name="time")
    conv = nn.Conv1d(dim, nn.FeatureDim("out", 4), filter_size=3, **{"padding": "same", **options})
    fused, x = fused_copy(conv), nn.random_normal([batch_dim, time_dim, dim])
    (a, a_dim), (b, b_dim) = conv(x, in_spatial_dim=time_dim), fused(x, in_spatial_dim=time_dim)
    assert type(fused) is FusedConv1d and a_dim == b_dim
    np.testing.assert_array_equal(a.raw_tensor.detach(), b.copy_transpose(a.dims).raw_tensor.detach())


def test_positions_are_those_of_the_current_parameters():
    """though they are kept from one batch to the next"""
    encoder = nn.fuse(make_encoder())
    before = run_encoder(encoder, [30, 41], grad=False)["out"]
    np.testing.assert_array_equal(run_encoder(encoder, [30, 41], grad=False)["out"], before)
    with torch.no_grad():
        encoder.layers["0"].self_att.linear_pos.weight.raw_tensor.mul_(2.0)
    after = run_encoder(encoder, [30, 41], grad=False)["out"]
    assert np.abs(after - before).max() > 1e-3
    np.testing.assert_allclose(run_encoder(encoder, [30, 41])["out"], after, atol=1e-5)
    assert run_encoder(encoder, [30, 20], grad=False)["out"].shape != after.shape
