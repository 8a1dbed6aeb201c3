"""JAX: eager; gradients by jax.value_and_grad"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy
import returnn.frontend as rf

from . import _eager
from ._common import Job, Result, dynamic_dims, make_output


def run(job: Job) -> Result:
    """see run_on"""
    # Each operation is compiled for each shape, and run once or twice.
    jax.config.update("jax_disable_most_optimizations", True)
    rf.select_backend("jax")
    rf.set_random_seed(42)
    dims = job.make_dims()
    model = job.model(dims)
    params = dict(model.named_parameters()) if model is not None else {}
    trainable = {name for name, p in params.items() if getattr(p, "jax_trainable", True)}
    for name, value in job.param_values(params, trainable).items():
        params[name].raw_tensor = jnp.asarray(value)
    before = {name: numpy.array(p.raw_tensor) for name, p in params.items()}

    tensors = _eager.fill(job, dims, to_raw=jnp.asarray)
    job.init_run_ctx(train_flag=job.train, step=job.step)
    if not job.grad_of:
        outputs, _ = job.call(model, tensors, dims)
        return Result(_eager.collect(outputs, to_numpy=numpy.asarray), before)

    orders = {}

    def forward(raw: dict[str, jax.Array]):
        for name, value in raw.items():
            (tensors if name in job.inputs else params)[name].raw_tensor = value
        outputs, loss = job.call(model, tensors, dims)
        raw_outputs = {}
        for name, (tensor, order) in outputs.items():
            orders[name] = order
            sizes = {axis: dim.dyn_size_ext.raw_tensor for axis, dim in dynamic_dims(order).items()}
            raw_outputs[name] = (tensor.copy_compatible_to_dims_raw(order), sizes)
        return loss.raw_tensor, raw_outputs

    wanted = {n: params[n].raw_tensor for n in sorted(trainable)}
    wanted.update({n: tensors[n].raw_tensor for n in job.differentiable()})
    (_, raw_outputs), grads = jax.value_and_grad(forward, has_aux=True)(wanted)
    outputs = {name: make_output(numpy.asarray(raw), orders[name], sizes) for name, (raw, sizes) in raw_outputs.items()}
    return Result(outputs, before, {name: numpy.asarray(g) for name, g in grads.items()})
