"""What torch and jax share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
from returnn.tensor import Dim, Tensor, batch_dim

from ._common import Job, dynamic_dims, make_output


def fill(job: Job, dims: dict[str, Dim], *, to_raw: Callable[[numpy.ndarray], Any]) -> dict[str, Tensor]:
    """:return: the inputs with values; also sets the lengths of the dims, which RETURNN keeps on the CPU"""
    for name, lengths in job.sizes().items():
        dims[name].dyn_size_ext.raw_tensor = to_raw(lengths)
    tensors = job.make_templates(dims)
    for name, x in tensors.items():
        x.raw_tensor = to_raw(job.inputs[name].array)
        if batch_dim in x.dims and batch_dim.dyn_size_ext is None:
            size = to_raw(numpy.array(job.inputs[name].array.shape[x.dims.index(batch_dim)], dtype="int32"))
            batch_dim.dyn_size_ext = Tensor("batch", dims=(), dtype="int32", raw_tensor=size)
    return tensors


def collect(outputs, *, to_numpy: Callable[[Any], numpy.ndarray]):
    """:return: name -> Output"""
    res = {}
    for name, (tensor, order) in outputs.items():
        sizes = {axis: to_numpy(dim.dyn_size_ext.raw_tensor) for axis, dim in dynamic_dims(order).items()}
        res[name] = make_output(to_numpy(tensor.copy_compatible_to_dims_raw(order)), order, sizes)
    return res
