"""
Conformer encoders of RETURNN and their faster forms, for the tests beside.
"""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from returnn.frontend.encoder.conformer import ConformerConvSubsample, ConformerEncoder
from returnn.util.basic import BehaviorVersion

from returnn_common import nn

__all__ = ["assert_same", "fused_copy", "in_double", "make_encoder", "on_torch", "run_encoder"]


@pytest.fixture(autouse=True)
def on_torch():
    """PyTorch, a behavior version and a seed; whoever imports it has it in each of its tests"""
    nn.select_backend_torch()
    BehaviorVersion.set_min_behavior_version(29)
    nn.set_random_seed(1)
    torch.manual_seed(1)
    nn.init_forward_step_run_ctx(step=0)
    yield
    BehaviorVersion._reset()


def make_encoder(
    *,
    kernel_size: int = 7,
    channels=(6, 8),
    filters=(3, 3),
    strides=(2, 2),
    norm: str = "batch",
    padding: str = "same",
    **kwargs,
):
    """:return: as RETURNN makes it, with parameters that all matter"""
    in_dim, out_dim = nn.FeatureDim("mel", 11), nn.FeatureDim("model", 8)
    encoder = ConformerEncoder(
        in_dim,
        out_dim,
        num_layers=2,
        input_layer=ConformerConvSubsample(
            in_dim,
            out_dims=[nn.FeatureDim(f"channels-{i}", n) for i, n in enumerate(channels)],
            filter_sizes=list(filters),
            strides=list(strides),
            padding=padding,
        ),
        input_dropout=kwargs.pop("input_dropout", 0.0),
        encoder_layer_opts={
            "ff_dim": nn.FeatureDim("ff", 16),
            "num_heads": 2,
            "conv_kernel_size": kernel_size,
            "conv_norm": nn.BatchNorm(out_dim) if norm == "batch" else nn.LayerNorm(out_dim),
            **{"dropout": 0.0, "att_dropout": 0.0, **kwargs},
        },
    )
    for name, param in encoder.named_parameters():
        param.raw_tensor.data.normal_(0.0, 0.3)
        if "variance" in name:
            param.raw_tensor.data.abs_()
    return encoder


def fused_copy(module):
    """:return: fused, with parameters of its own that have the same values"""
    fused = nn.fuse(copy.deepcopy(module))
    for (name, old), (same_name, new) in zip(module.named_parameters(), fused.named_parameters(), strict=True):
        assert name == same_name
        new.raw_tensor.data.copy_(old.raw_tensor.data)
    return fused


def in_double(module):
    """:return: same, in double precision"""
    for param in module.parameters():
        param.dtype = "float64"
        param.raw_tensor = torch.nn.Parameter(param.raw_tensor.data.double(), requires_grad=not param.auxiliary)
    return module


def run_encoder(encoder, lengths, *, train=False, order="btf", grad=True, dtype=torch.float32, out_dtype=None):
    """:return: output, gradients of the source and of the parameters, auxiliary parameters"""
    nn.init_train_step_run_ctx(train_flag=train, step=0)
    batch_dim = nn.Dim(len(lengths), name="batch")
    sizes = nn.convert_to_tensor(np.array(lengths, "int32"), dims=[batch_dim])
    time_dim = nn.Dim(sizes, name="time")
    values = np.random.default_rng(1).standard_normal((len(lengths), max(lengths), 11))
    source = torch.tensor(values, dtype=dtype, requires_grad=grad)
    dims = {"b": batch_dim, "t": time_dim, "f": encoder.in_dim}
    raw = source.permute(*("btf".index(c) for c in order))
    with torch.set_grad_enabled(grad):
        out, out_dim = encoder(nn.convert_to_tensor(raw, dims=[dims[c] for c in order]), in_spatial_dim=time_dim)
        assert out.feature_dim == encoder.out_dim and out.raw_tensor.dtype == (out_dtype or dtype)
        out = out.copy_masked(0.0).copy_transpose([batch_dim, out_dim, encoder.out_dim]).raw_tensor.float()
    params = dict(encoder.named_parameters())
    result = {"out": out.detach().numpy(), "lengths": out_dim.dyn_size.numpy()}
    if grad:
        weight = torch.tensor(np.random.default_rng(2).standard_normal(out.shape), dtype=torch.float32)
        (out * weight).sum().backward()
        result["source"] = source.grad.float().numpy()
        result.update({f"grad of {k}": p.raw_tensor.grad.float().numpy() for k, p in params.items() if not p.auxiliary})
    result.update({k: p.raw_tensor.float().numpy().copy() for k, p in params.items() if p.auxiliary})
    return result


def assert_same(a, b, *, rtol=1e-4, atol=2e-5):
    assert a.keys() == b.keys()
    for key in a:
        scale = max(1.0, np.abs(a[key]).max(initial=0.0))
        np.testing.assert_allclose(a[key] / scale, b[key] / scale, rtol=rtol, atol=atol, err_msg=key)
