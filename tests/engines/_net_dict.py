"""
TensorFlow layers: the frontend makes a net dict, a TFNetwork is built from it and run once in a session.

Written after `returnn.tf.frontend_layers.config_entry_points.get_net_dict`, which does the same from a config.
"""

from __future__ import annotations

import sys
import threading

import returnn.frontend as rf
import returnn.tf.compat as tf_compat
import returnn.tf.frontend_layers as rfl
import tensorflow as tf
from returnn.config import Config, global_config_ctx
from returnn.tensor import Dim, batch_dim
from returnn.tf.network import TFNetwork

from ._common import Job, Result, dynamic_dims, make_output


def run(job: Job) -> Result:
    """see run_on"""
    # The layers are constructed recursively: deep networks need much more stack than the main thread has.
    results, errors = [], []

    def target():
        try:
            results.append(_run(job))
        except BaseException as exc:
            errors.append(exc)

    old_limit, old_stack = sys.getrecursionlimit(), threading.stack_size(256 * 2**20)
    sys.setrecursionlimit(20_000)
    try:
        thread = threading.Thread(target=target)
        thread.start()
        thread.join()
    finally:
        sys.setrecursionlimit(old_limit)
        threading.stack_size(old_stack)
    if errors:
        raise errors[0]
    return results[0]


def _run(job: Job) -> Result:
    config = Config({"task": "train" if job.train else "forward"})
    session_config = tf_compat.v1.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)
    with (
        tf.Graph().as_default(),
        tf_compat.v1.Session(config=session_config) as session,
        global_config_ctx(config),
    ):
        rf.select_backend_returnn_layers_tf()
        rfl.Layer.reset_default_root()
        rf.set_random_seed(42)
        dims = job.make_dims()
        tensors = job.make_templates(dims)
        config.typed_dict["extern_data"] = {
            name: {"dims": x.dims, "dtype": x.dtype, "sparse_dim": x.sparse_dim} for name, x in tensors.items()
        }
        for x in tensors.values():
            rfl.register_extern_data(x)
        model = job.model(dims)
        step = rf.constant(job.step, dims=(), dtype="int64")
        job.init_run_ctx(train_flag=rfl.make_layer({"class": "train_flag"}, name="train_flag"), step=step)
        outputs, loss = job.call(model, tensors, dims)
        orders, names = {}, {}
        for name, (tensor, order) in outputs.items():
            orders[name], names[name] = order, _mark_output(tensor, f"result_{name}")
        loss_name = _mark_output(loss, "result_loss") if loss is not None else None
        root = rfl.Layer.top().root
        holder = model if model is not None else rf.Module()
        net_dict = root.get_returnn_config(root_module=holder).get_net_dict_raw_dict()
        params = dict(model.named_parameters()) if model is not None else {}
        _forget_layers(net_dict, [*dims.values(), *(d for order in orders.values() for d in order)])

        network = TFNetwork(config=config, train_flag=job.train)
        network.construct_from_dict(net_dict)
        network.initialize_params(session)
        layers = {name: network.get_layer(layer_name).output for name, layer_name in names.items()}
        loss_raw = network.get_layer(loss_name).output.placeholder if loss_name else None
        return _run_session(job, session, network, params, layers, orders, loss_raw)


def _mark_output(tensor, name: str) -> str:
    layer = rfl.Layer.top().root.get_new_child(suggested_name=name)
    layer_dict = {"class": "copy", "from": tensor, "is_output_layer": True}
    rfl.Layer.top().root.marked_outputs.append(rfl.make_layer(layer_dict, name=layer))
    assert layer.name
    return layer.name


def _forget_layers(net_dict, dims):
    """The dims' sizes are rfl.Layer now; TFNetwork defines them again as TensorFlow tensors."""

    def visit(value):
        if isinstance(value, Dim):
            value.reset_batch_and_raw()
        elif isinstance(value, dict):
            for v in value.values():
                visit(v)
        elif isinstance(value, (list, tuple, set)):
            for v in value:
                visit(v)

    visit(net_dict)
    visit([batch_dim, *dims])


def _run_session(job, session, network, params, layers, orders, loss_raw) -> Result:
    by_var_name = {v.name.split(":")[0]: v for v in network.get_params_list()}
    variables = {name: by_var_name.get(name.replace(".", "/") + "/param") for name in params}
    variables = {name: v for name, v in variables.items() if v is not None}  # without unused ones
    trainable = {name for name, v in variables.items() if any(v is t for t in network.get_trainable_params())}
    for name, value in job.param_values(params, trainable).items():
        if name in variables:
            variables[name].load(value, session)

    feed, sizes = {}, job.sizes()
    for name, x in network.extern_data.data.items():
        if name not in job.inputs:
            continue
        feed[x.placeholder] = job.inputs[name].array
        for dim_name, dim in zip(job.inputs[name].dims.split(), x.dims, strict=True):
            if dim_name in sizes:
                feed[dim.dyn_size_ext.placeholder] = sizes[dim_name]
    batch_size = next(
        (x.array.shape[x.dims.split().index("batch")] for x in job.inputs.values() if "batch" in x.dims.split()), None
    )
    if batch_size is not None:
        batch = network.extern_data.get_batch_info().dim
        if isinstance(batch, tf.Tensor) and batch.op.type == "Placeholder":
            feed[batch] = batch_size

    wanted = {}
    if loss_raw is not None:
        wanted = {name: variables[name] for name in sorted(trainable)}
        wanted.update({name: network.extern_data.data[name].placeholder for name in job.differentiable()})
    grads = tf.gradients(loss_raw, list(wanted.values()), unconnected_gradients="zero") if wanted else []
    grads = {n: tf.convert_to_tensor(g) for n, g in zip(wanted, grads, strict=True)}
    fetches = {}
    for name, x in layers.items():
        dynamic = {i: x.dims[x.dims.index(d)] for i, d in dynamic_dims(orders[name]).items()}
        fetches[name] = (x.placeholder, {i: d.dyn_size_ext.placeholder for i, d in dynamic.items()})
    before = session.run(variables) if variables else {}
    values, grads = session.run((fetches, grads), feed_dict=feed)
    res = {}
    for name, (array, lengths) in values.items():
        perm = [layers[name].dims.index(d) for d in orders[name]]
        res[name] = make_output(array.transpose(perm), orders[name], lengths)
    return Result(res, before, grads)
