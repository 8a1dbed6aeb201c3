"""PyTorch: eager"""

from __future__ import annotations

import returnn.frontend as rf
import torch

from . import _eager
from ._common import Job, Result


def run(job: Job) -> Result:
    """see run_on"""
    rf.select_backend_torch()
    rf.set_random_seed(42)
    dims = job.make_dims()
    model = job.model(dims)
    params = dict(model.named_parameters()) if model is not None else {}
    trainable = {name for name, p in params.items() if p.raw_tensor.requires_grad}
    with torch.no_grad():
        for name, value in job.param_values(params, trainable).items():
            params[name].raw_tensor.copy_(torch.tensor(value))
    before = {name: p.raw_tensor.detach().numpy().copy() for name, p in params.items()}

    tensors = _eager.fill(job, dims, to_raw=torch.tensor)
    job.init_run_ctx(train_flag=job.train, step=job.step)
    wanted = {}
    if job.grad_of:
        for name in job.differentiable():
            tensors[name].raw_tensor.requires_grad_()
        wanted = {
            **{n: params[n].raw_tensor for n in trainable},
            **{n: tensors[n].raw_tensor for n in job.differentiable()},
        }
    outputs, loss = job.call(model, tensors, dims)
    grads = {}
    if loss is not None:
        assert isinstance(loss.raw_tensor, torch.Tensor)
        raw = torch.autograd.grad([loss.raw_tensor], list(wanted.values()), allow_unused=True)
        grads = {n: (torch.zeros_like(wanted[n]) if g is None else g).numpy() for n, g in zip(wanted, raw, strict=True)}
    return Result(_eager.collect(outputs, to_numpy=lambda x: x.detach().cpu().numpy()), before, grads)
