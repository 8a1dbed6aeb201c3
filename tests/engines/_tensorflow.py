"""TensorFlow low-level: a graph, built as RETURNN's engine_rf does, and run once in a session"""

from __future__ import annotations

from typing import Any

import numpy
import returnn.frontend as rf
import returnn.tf.compat as tf_compat
import tensorflow as tf
from returnn.tensor import Tensor, batch_dim
from returnn.tf.frontend_low_level import TFBackend

from ._common import Job, Result, dynamic_dims, make_output


def run(job: Job) -> Result:
    """see run_on"""
    config = tf_compat.v1.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)
    with tf.Graph().as_default(), tf_compat.v1.Session(config=config) as session:
        rf.select_backend_tf()
        rf.set_random_seed(42)
        dims = job.make_dims()
        tensors, feed = _placeholders(job, dims)
        with TFBackend.deferred_parameter_creation():
            model = job.model(dims)
        params, variables, trainable = {}, {}, set()
        if model is not None:
            TFBackend.create_parameters(model)
            params = dict(model.named_parameters())
            variables = {name: TFBackend._get_param_var(p) for name, p in params.items()}
            in_graph = {id(v) for v in tf_compat.v1.trainable_variables()}
            trainable = {name for name, v in variables.items() if id(v) in in_graph}
        step = tf.constant(job.step, dtype="int64")
        job.init_run_ctx(train_flag=job.train, step=Tensor("step", dims=(), dtype="int64", raw_tensor=step))
        outputs, loss = job.call(model, tensors, dims)

        fetches = {
            name: (
                tensor.copy_compatible_to_dims_raw(order),
                {axis: dim.dyn_size_ext.raw_tensor for axis, dim in dynamic_dims(order).items()},
            )
            for name, (tensor, order) in outputs.items()
        }
        wanted: dict[str, Any] = {}
        if loss is not None:
            wanted = {name: variables[name] for name in sorted(trainable)}
            wanted.update({name: tensors[name].raw_tensor for name in job.differentiable()})
        grads = tf.gradients(loss.raw_tensor, list(wanted.values()), unconnected_gradients="zero") if wanted else []
        grads = {n: tf.convert_to_tensor(g) for n, g in zip(wanted, grads, strict=True)}

        session.run(tf_compat.v1.global_variables_initializer(), feed_dict=feed)
        for name, value in job.param_values(params, trainable).items():
            variables[name].load(value, session)
        before = session.run(variables) if variables else {}
        values, grads = session.run((fetches, grads), feed_dict=feed)
        res = {name: make_output(x, outputs[name][1], sizes) for name, (x, sizes) in values.items()}
        return Result(res, before, grads)


def _placeholders(job: Job, dims) -> tuple[dict[str, Tensor], dict[tf.Tensor, numpy.ndarray]]:
    feed = {}
    tensors = job.make_templates(dims)
    for name, x in tensors.items():
        x.raw_tensor = TFBackend.create_placeholder_raw(x)
        feed[x.raw_tensor] = job.inputs[name].array
        if batch_dim in x.dims and batch_dim.dyn_size_ext is None:
            size = tf.shape(x.raw_tensor)[x.dims.index(batch_dim)]
            batch_dim.dyn_size_ext = Tensor("batch", dims=(), dtype="int32", raw_tensor=size)
    for name, lengths in job.sizes().items():
        size = dims[name].dyn_size_ext
        size.raw_tensor = TFBackend.create_placeholder_raw(size)
        feed[size.raw_tensor] = lengths
    return tensors, feed
