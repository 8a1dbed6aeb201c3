"""
Encoders within what RETURNN records as a CUDA graph (``torch_cuda_graph``): all sizes are bounds there, and nothing may
be read on the host. Shown on the CPU: whatever a GPU would have to wait for raises.
"""

from __future__ import annotations

import functools

import pytest
import torch
from returnn.util.basic import BehaviorVersion
from torch.utils._python_dispatch import TorchDispatchMode

from returnn_common import nn
from returnn_common.models.encoder.conformer import make_conformer_encoder
from returnn_common.models.encoder.conformer_fast import make_fast_conformer_encoder
from returnn_common.models.encoder.conformer_rotary import make_rotary_conformer_encoder
from returnn_common.models.encoder.e_branchformer import make_e_branchformer_encoder
from returnn_common.models.encoder.transformer import make_transformer_encoder

SIZES = {"num_layers": 1, "out_dim": 16, "num_heads": 2, "dropout": 0.0}
CONVOLUTIONS = {**SIZES, "conv_kernel_size": 5}
ENCODERS = {
    "conformer": functools.partial(make_conformer_encoder, **CONVOLUTIONS),
    "conformer, layer norm": functools.partial(make_conformer_encoder, **CONVOLUTIONS, conv_norm="layer"),
    "fast conformer": functools.partial(make_fast_conformer_encoder, **CONVOLUTIONS),
    "rotary conformer": functools.partial(make_rotary_conformer_encoder, **CONVOLUTIONS),
    "e-branchformer": functools.partial(make_e_branchformer_encoder, **CONVOLUTIONS, layer_drop=0.0),
    "transformer": functools.partial(make_transformer_encoder, **SIZES),
}
READS = {getattr(torch.ops.aten, name).default for name in ("_local_scalar_dense", "nonzero", "masked_select")}


class _NothingRead(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func in READS:
            raise RuntimeError(f"{func} reads on the host")
        return func(*args, **(kwargs or {}))


@pytest.fixture(autouse=True)
def _on_torch():
    nn.select_backend_torch()
    BehaviorVersion.set_min_behavior_version(29)
    nn.set_random_seed(1)
    nn.init_train_step_run_ctx(train_flag=True, step=0)
    yield
    BehaviorVersion._reset()


def _loss(encoder, lengths: list[int], *, num_seqs: int, num_frames: int, captured: bool) -> torch.Tensor:
    """:return: of these sequences, within a batch of such a size"""
    batch, time = nn.Dim(None, name="batch"), nn.Dim(None, name="time")
    if captured:
        batch.capacity, time.capacity = num_seqs, num_frames
    sizes = torch.tensor(lengths + [0] * (num_seqs - len(lengths)), dtype=torch.int32)
    real = torch.tensor(len(lengths), dtype=torch.int32)
    batch.dyn_size_ext = nn.Tensor("batch", dims=[], dtype="int32", raw_tensor=real)
    time.dyn_size_ext = nn.Tensor("time", dims=[batch], dtype="int32", raw_tensor=sizes)
    raw = torch.zeros(num_seqs, num_frames, encoder.in_dim.dimension)
    for i, length in enumerate(lengths):
        raw[i, :length] = torch.randn(length, raw.shape[-1], generator=torch.Generator().manual_seed(i))
    source = nn.Tensor("in", dims=[batch, time, encoder.in_dim], dtype="float32", raw_tensor=raw)
    out, out_spatial_dim = encoder(source, in_spatial_dim=time)
    return nn.reduce_mean(nn.sin(2.0 * out), axis=[batch, out_spatial_dim, out.feature_dim]).raw_tensor


@pytest.mark.parametrize("make", ENCODERS.values(), ids=ENCODERS)
def test_encoders(make):
    """a captured step has the loss and the gradients of the same step as it is"""
    encoder = make(nn.FeatureDim("in", 40))
    parameters = [p.raw_tensor for p in encoder.parameters() if p.raw_tensor.requires_grad]
    plain = _loss(encoder, [50, 41, 33], num_seqs=3, num_frames=50, captured=False)
    gradients = torch.autograd.grad(plain, parameters)
    with _NothingRead(), nn.set_static_traceable_ctx():
        captured = _loss(encoder, [50, 41, 33], num_seqs=5, num_frames=64, captured=True)
        found = torch.autograd.grad(captured, parameters)
    torch.testing.assert_close(captured, plain, rtol=1e-5, atol=1e-6)
    for old, new in zip(gradients, found, strict=True):
        torch.testing.assert_close(new, old, rtol=1e-3, atol=1e-5)


def test_a_read_is_found():
    with pytest.raises(RuntimeError, match="_local_scalar_dense.default reads on the host"), _NothingRead():
        bool(torch.ones(2).sum() > 1)
