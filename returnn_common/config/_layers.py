"""
Runs RETURNN's layers backend on a config's ``get_model`` and step, and leaves RETURNN as if nothing had been.
"""

from __future__ import annotations

import contextlib
import copy
import io
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from returnn.tensor import Dim, Tensor, TensorDict, batch_dim

__all__ = ["Layers", "build_layers", "find_dims", "restored_dims"]


@dataclass
class Layers:
    """
    :param network: RETURNN's net dict, whose dims are as RETURNN left them
    :param dims: of all layers' outputs, in the order of the layers
    :param parameters: name -> (shape, dtype)
    """

    network: dict[str, Any]
    dims: list[Dim]
    parameters: dict[str, tuple[tuple[int, ...], str]]


def build_layers(config: Mapping[str, Any], *, epoch: int) -> Layers:
    """
    To be called within :func:`restored_dims` of the config's ``extern_data``.

    :param config: with ``get_model``, ``extern_data`` (each entry with "dims"), ``task``, ``behavior_version``
    :param epoch: for ``get_model``
    """
    from returnn.config import Config, global_config_ctx
    from returnn.tf import compat as tf_compat
    from returnn.tf import frontend_layers as rfl

    with (
        _restored_globals(config["behavior_version"]),
        tf_compat.v1.Graph().as_default(),
        global_config_ctx(Config(dict(config))),
        contextlib.redirect_stdout(io.StringIO()),  # RETURNN prints each layer
    ):
        network, model = rfl.get_net_dict(epoch=epoch, step=0)
        dims: list[Dim] = []
        layers = [rfl.Layer.top().root]
        while layers:
            layer = layers.pop()
            layers.extend(reversed(layer.children.values()))
            if layer.tensor is not None:
                dims.extend(_dims_of(layer.tensor))
        parameters = {
            name: (tuple(d.dimension or 0 for d in parameter.dims), parameter.dtype)
            for name, parameter in model.named_parameters()
        }
    return Layers(_with_pairs(network), dims, parameters)


def _with_pairs(layers: Mapping[str, Any]) -> dict[str, Any]:
    """
    :return: the same, where pairs tell what becomes of dims, and not a dict. While RETURNN builds layers, it finds dims
        to be the same as others, with which their hashes change, and such a dict breaks.
    """
    found = {name: _with_pairs(value) if isinstance(value, Mapping) else value for name, value in layers.items()}
    if found.get("class") == "reinterpret_data" and isinstance(found.get("set_dim_tags"), dict):
        found["set_dim_tags"] = list(found["set_dim_tags"].items())
    return found


def _dims_of(tensor: Tensor) -> Iterator[Dim]:
    yield from tensor.dims
    if tensor.sparse_dim is not None:
        yield tensor.sparse_dim
    for dim in tensor.dims:
        if dim.dyn_size_ext is not None:
            yield from dim.dyn_size_ext.dims


def find_dims(value: Any) -> list[Dim]:
    """:return: in containers and tensors, each once, and those that they are derived from; without the batch dim"""
    found: dict[int, Dim] = {}
    todo = [value]
    while todo:
        value = todo.pop()
        if isinstance(value, Dim):
            if id(value) in found or value.is_batch_dim():
                continue
            found[id(value)] = value
            if value.derived_from_op:
                todo.extend(value.derived_from_op.inputs)
            todo.extend(d for d in (value.derived_from_tag, value.same_as) if d is not None)
        elif isinstance(value, Tensor):
            todo.extend(_dims_of(value))
        elif isinstance(value, TensorDict):
            todo.extend(value.data.values())
        elif isinstance(value, Mapping):
            todo.extend([*value.keys(), *value.values()])
        elif isinstance(value, (list, tuple, set, frozenset)):
            todo.extend(value)
    return list(found.values())


@contextlib.contextmanager
def restored_dims(dims: Iterable[Dim]) -> Iterator[None]:
    """
    In the context, these dims and the batch dim have no sizes from earlier runs, and nothing is known to be equal to
    them or derived from them. After it, all is as before.
    """
    dims = [batch_dim, *dims]
    before = [{name: getattr(dim, name) for name in Dim.__slots__} for dim in dims]
    for dim in dims:
        _forget(dim)
    try:
        yield
    finally:
        for dim, state in zip(dims, before, strict=True):
            for name, value in state.items():
                setattr(dim, name, value)


def _forget(dim: Dim):
    """what depends on earlier runs"""
    from returnn.tensor._dim_extra import _CacheDimMath

    lengths = dim.dyn_size_ext
    if lengths is not None:  # those over the batch are what RETURNN assumes anyway
        is_default = dim.is_batch_dim() or list(lengths.dims) == [batch_dim]
        lengths = None if is_default else Tensor(lengths.name, lengths.dims, lengths.dtype)
    dim.dyn_size_ext, dim._dyn_size_max_value = lengths, None
    if dim._extra is None:
        return
    extra = copy.copy(dim._extra)  # its own pickling forgets the rest
    if dim.is_batch_dim():
        extra.same_as = None
    extra._relink_dim(dim)
    extra.dyn_size_same = set()
    extra.cache_dim_math = _CacheDimMath()  # where pickling leaves a dict, which misses some of its methods
    dim._extra = extra


@contextlib.contextmanager
def _restored_globals(behavior_version: int) -> Iterator[None]:
    """RETURNN keeps much in globals; nothing that was there before has any influence, and all is there again after."""
    import returnn.frontend as rf
    from returnn.frontend import _backend, rand, run_ctx
    from returnn.tensor import _dim_extra
    from returnn.tf.frontend_layers import Layer
    from returnn.tf.frontend_layers import layer as layer_module
    from returnn.util.basic import BehaviorVersion

    backend = _backend.global_backend.__class__
    version = BehaviorVersion._get_state()
    random = rand._step_rnd_seed, rand._step_rnd.get_state()
    contexts = run_ctx._run_ctx, run_ctx._init_run_ctx
    layers = list(Layer._stack), Layer._recent
    frame = layer_module._AutoSetupNameCtxPrevTopFrame
    compared = _dim_extra.dim_cmp_value
    try:
        _dim_extra.dim_cmp_value = lambda dim: repr(compared(dim))  # else not all can be compared
        Layer._stack[:], Layer._recent = [], None
        layer_module._AutoSetupNameCtxPrevTopFrame = None
        run_ctx._run_ctx = run_ctx._init_run_ctx = None
        BehaviorVersion._reset()
        BehaviorVersion.set(behavior_version)
        with rf.set_default_device_ctx(None):
            yield
    finally:
        _backend.global_backend.__class__ = backend
        BehaviorVersion._reset(version)
        rand._step_rnd_seed = random[0]
        rand._step_rnd.set_state(random[1])
        run_ctx._run_ctx, run_ctx._init_run_ctx = contexts
        Layer._stack[:], Layer._recent = layers
        layer_module._AutoSetupNameCtxPrevTopFrame = frame
        _dim_extra.dim_cmp_value = compared
