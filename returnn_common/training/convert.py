"""
Conversion of checkpoints between RETURNN's engines: train on one, recognise or go on on another.

All engines know a model's parameters by the frontend's names, such as ``encoder.layers.0.norm.scale``. The TensorFlow
layers engine ("tensorflow-net-dict") writes that one as ``encoder/layers/0/norm/scale/param``, and beside the
parameters the state of its random generators. Shapes are the same everywhere.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy

from .. import nn
from .checkpoints import (
    Checkpoint,
    compare_parameters,
    find_checkpoint,
    read_checkpoint,
    strip_suffix,
    write_checkpoint,
)

__all__ = ["BACKENDS", "Parameters", "convert_checkpoint", "load_checkpoint", "read_parameters"]

BACKENDS = ("torch", "tensorflow", "tensorflow-net-dict", "jax")

# What the engines save under these names beside the parameters.
_COUNTERS = {
    "tensorflow": ("global_step", "epoch"),
    "tensorflow-net-dict": ("global_step",),
    "jax": ("_step", "_epoch"),
}
_NET_DICT_PARAM = "/param"
_NET_DICT_RANDOM_STATE = "/StateVar"


@dataclass
class Parameters:
    """
    Parameters of a model, from any engine's checkpoint.

    ``backend``: RETURNN's option, one of :data:`BACKENDS`. ``epoch``: None if neither the file nor its name says it.
    ``step``: the global step. ``values``: by the frontend's name; those of floating-point type as float64.
    ``dtypes``: by name, the type in the file, such as "float32" or "bfloat16".
    """

    backend: str
    epoch: int | None
    step: int
    values: dict[str, numpy.ndarray]
    dtypes: dict[str, str]


def convert_checkpoint(
    path: str | os.PathLike[str], out: str | os.PathLike[str], *, backend: str, model: nn.Module | None = None
) -> str:
    """
    Write a checkpoint of any engine as one that another engine loads.

    Parameters keep their types; epoch and step are carried over (as the epoch, RETURNN's TensorFlow layers engine takes
    the number at the end of the name, as in ``model.010``). The state of the optimizer and of random generators isn't:
    a training that goes on from ``out`` begins with a fresh optimizer. ``out`` appears whole or not at all.

    A model with tied parameters (one parameter under several names) needs ``model`` for "torch" if the checkpoint was
    written by another engine: only PyTorch's saves and wants it under each of its names.

    :param path: checkpoint, with or without suffix
    :param out: path to write, with or without suffix; replaced if it exists
    :param backend: RETURNN's option: "torch", "tensorflow", "tensorflow-net-dict" or "jax"
    :param model: the checkpoint must have exactly its parameters; None: whatever it has is converted
    :return: ``out`` without suffix
    :raise FileNotFoundError: there is no checkpoint
    :raise ValueError: unknown backend, not a checkpoint of a frontend model, ``out`` is ``path`` itself,
        or its parameters are not those of ``model`` (the message names them)
    """
    if backend not in BACKENDS:
        raise ValueError(f"convert_checkpoint: backend must be one of {', '.join(BACKENDS)}, got {backend!r}")
    engine = "tensorflow" if backend.startswith("tensorflow") else backend
    (source_engine, base), out_base = find_checkpoint(path), strip_suffix(out)
    if source_engine == engine and os.path.realpath(base) == os.path.realpath(out_base):
        raise ValueError(f"convert_checkpoint: {out_base} would replace the checkpoint that is to be converted")
    parameters = read_parameters(path)
    if model is not None:
        parameters = fit_to_model(parameters, model, path=os.fspath(path), all_names=backend == "torch")
    return write_checkpoint(make_checkpoint(parameters, backend=backend, engine=engine), out_base)


def read_parameters(path: str | os.PathLike[str]) -> Parameters:
    """
    :param path: checkpoint of any engine, with or without suffix
    :return: its parameters under the frontend's names
    :raise FileNotFoundError: there is none
    :raise ValueError: it can't be read, or is not one of a frontend model
    """
    try:
        checkpoint = read_checkpoint(path)
    except (FileNotFoundError, ValueError, ImportError):
        raise
    except Exception as exc:  # each engine's library has its own for damaged files
        message = " ".join(f"{type(exc).__name__}: {exc}".split())
        raise ValueError(f"checkpoint {os.fspath(path)} cannot be read: {message:.300}") from exc
    variables = {**checkpoint.floats, **{name: numpy.asarray(value) for name, value in checkpoint.others.items()}}
    dtypes = {name: _dtype_name(dtype) for name, dtype in checkpoint.dtypes.items()}
    dtypes.update({name: value.dtype.name for name, value in variables.items() if name not in dtypes})
    backend = checkpoint.engine
    # The frontend's names have no slash, and each variable of a layer has one.
    if backend == "tensorflow" and any("/" in name for name in variables):
        backend = "tensorflow-net-dict"
    counters = {name: variables.pop(name) for name in _COUNTERS.get(backend, ()) if name in variables}
    if backend == "tensorflow-net-dict":
        names = {name: _from_net_dict_name(name, path) for name in variables}
    else:
        names = {name: name for name in variables}
    epoch = checkpoint.extra.get("epoch", counters.get("epoch", counters.get("_epoch")))
    return Parameters(
        backend=backend,
        epoch=int(epoch) if epoch is not None else _epoch_from_name(path),
        step=checkpoint.step,
        values={name: variables[old] for old, name in names.items() if name is not None},
        dtypes={name: dtypes[old] for old, name in names.items() if name is not None},
    )


def load_checkpoint(model: nn.Module, path: str | os.PathLike[str]) -> Parameters:
    """
    Give a model, on PyTorch or JAX, the parameters of a checkpoint of any engine. Either all get their value or none.

    :param model: its parameters must be those of the checkpoint; one that RETURNN does not need for going on
        (``non_critical_for_restore``) and that is not there keeps its value
    :param path: checkpoint, with or without suffix
    :return: what was read, under the model's names
    :raise FileNotFoundError: there is no checkpoint
    :raise ValueError: it can't be read, or its parameters are not those of ``model`` (the message names them)
    """
    parameters = fit_to_model(
        read_parameters(path), model, path=os.fspath(path), all_names=False, owner="load_checkpoint"
    )
    for name, param in model.named_parameters():
        if name in parameters.values:
            param.initial = numpy.asarray(parameters.values[name]).astype(param.dtype)
    return parameters


def make_checkpoint(parameters: Parameters, *, backend: str, engine: str) -> Checkpoint:
    """
    :param parameters: of a model
    :param backend: for which the checkpoint is, one of :data:`BACKENDS`
    :param engine: of the checkpoint's files, see :class:`.checkpoints.Checkpoint`
    :return: what that engine loads
    """
    step, epoch = parameters.step, parameters.epoch
    values = parameters.values
    if backend == "tensorflow-net-dict":
        values = {_to_net_dict_name(name): value for name, value in values.items()}
    types = dict(zip(values, (parameters.dtypes[name] for name in parameters.values), strict=True))
    # Float64 is how `Checkpoint` holds floats of any type; the type in the file may be unknown to NumPy.
    floats = {name: value for name, value in values.items() if "float" in types[name]}
    others: dict[str, Any] = {name: value for name, value in values.items() if name not in floats}
    if engine == "torch":
        import torch

        others = {name: torch.from_numpy(numpy.array(value)) for name, value in others.items()}
    for name, count in zip(_COUNTERS.get(backend, ()), (step, epoch), strict=False):
        if count is not None:
            others[name] = numpy.array(count, "int64")
    return Checkpoint(
        engine=engine,
        step=step,
        floats=floats,
        others=others,
        dtypes={name: _dtype(types[name], engine=engine) for name in floats},
        extra={"step": step, **({} if epoch is None else {"epoch": epoch})} if engine == "torch" else {},
    )


def _dtype_name(dtype: Any) -> str:
    """:return: "float32" for ``torch.float32`` and for NumPy's"""
    name = str(dtype)
    return name.removeprefix("torch.") if name.startswith("torch.") else numpy.dtype(dtype).name


def _dtype(name: str, *, engine: str) -> Any:
    """:return: what ``Checkpoint.dtypes`` holds for that engine"""
    if engine == "torch":
        import torch

        return getattr(torch, name)
    if engine == "tensorflow":
        import tensorflow

        return tensorflow.as_dtype(name).as_numpy_dtype
    import jax.numpy

    return jax.numpy.dtype(name)


def _to_net_dict_name(name: str) -> str:
    """RETURNN replaces the underscore at the start of a layer's name, which TensorFlow doesn't take there."""
    scopes = [f".{ord('_')}.{scope[1:]}" if scope.startswith("_") else scope for scope in name.split(".")]
    return "/".join(scopes) + _NET_DICT_PARAM


def _from_net_dict_name(name: str, path: str | os.PathLike[str]) -> str | None:
    """
    :return: None for the state of a random generator
    :raise ValueError: for a variable of any other kind
    """
    if name.endswith(_NET_DICT_RANDOM_STATE):
        return None
    if not name.endswith(_NET_DICT_PARAM):
        raise ValueError(f"{os.fspath(path)} is not a checkpoint of a frontend model: it has the variable {name!r}")
    scopes = name.removesuffix(_NET_DICT_PARAM).split("/")
    return ".".join(scope.replace(f".{ord('_')}.", "_", 1) for scope in scopes)


def _epoch_from_name(path: str | os.PathLike[str]) -> int | None:
    """As RETURNN finds it."""
    match = re.match(r".*\.([0-9]+)", os.path.basename(strip_suffix(path)))
    return int(match.group(1)) or None if match else None


def fit_to_model(
    parameters: Parameters, model: nn.Module, *, path: str, all_names: bool, owner: str = "convert_checkpoint"
) -> Parameters:
    """
    :param parameters: of a checkpoint
    :param model: which they must fit
    :param path: of the checkpoint, for the message
    :param owner: whose argument the model is, for the message
    :param all_names: a tied parameter under each of its names, else under the first
    :return: the same parameters, under the model's names
    :raise ValueError: if they are not the model's
    """
    first_names = {id(param): name for name, param in model.named_parameters()}
    aliases: dict[str, str] = {}  # each name -> the first one
    expected, found = {}, {}
    for name, param in _named_parameters_with_aliases(model):
        aliases[name] = first = first_names[id(param)]
        expected[first] = str([dim.dimension for dim in param.dims])
        if param.non_critical_for_restore and name not in parameters.values:
            found.setdefault(first, expected[first])
    sources = {}
    for name, value in parameters.values.items():
        first = aliases.get(name, name)
        sources.setdefault(first, name)
        found[first] = str(list(value.shape))
    differences = compare_parameters(found, expected, a_name=path, b_name="the model")
    if differences:
        raise ValueError(f"{owner}: parameters differ: {differences}")
    names = aliases if all_names else {name: name for name in first_names.values()}
    sources = {name: sources[first] for name, first in names.items() if first in sources}
    return Parameters(
        backend=parameters.backend,
        epoch=parameters.epoch,
        step=parameters.step,
        values={name: parameters.values[source] for name, source in sources.items()},
        dtypes={name: parameters.dtypes[source] for name, source in sources.items()},
    )


def _named_parameters_with_aliases(module: nn.Module, *, prefix: str = "") -> Iterator[tuple[str, nn.Parameter]]:
    """With each name of those that have several, as PyTorch's engine saves them, not only the first."""
    for name, value in vars(module).items():
        if isinstance(value, nn.Parameter):
            yield prefix + name, value
        elif isinstance(value, nn.Module):
            yield from _named_parameters_with_aliases(value, prefix=f"{prefix}{name}.")
