"""
Reading and writing the checkpoints of RETURNN's engines as plain arrays.

A checkpoint is named as RETURNN names it, by its path without suffix, such as ``model.010``:

- PyTorch: ``model.010.pt``, a dict with "model" (parameters by name), "epoch", "step"
- TensorFlow, low-level and layers: ``model.010.index``, ``.data-00000-of-00001``, ``.meta`` (TensorFlow's V1 saver;
  RETURNN looks for the ``.meta`` file), with "global_step" beside the parameters
- JAX: ``model.010.orbax``, a folder, with "_epoch" and "_step" beside the parameters
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from glob import escape, glob
from typing import Any

import numpy

__all__ = [
    "Checkpoint",
    "compare_parameters",
    "find_checkpoint",
    "find_last_checkpoint",
    "list_epochs",
    "read_checkpoint",
    "strip_suffix",
    "write_checkpoint",
]

# What shows that a checkpoint is there, whole: each engine writes this last, or at once.
_MARKERS = {"torch": ".pt", "tensorflow": ".index", "jax": ".orbax"}
_SUFFIXES = (".pt", ".index", ".meta", ".orbax")
_MAX_LISTED = 8


@dataclass
class Checkpoint:
    """
    Content of a checkpoint.

    ``floats``: parameters of floating-point type, as float64. ``others``: the rest (counters, random state), unchanged.
    ``dtypes``: the type that each of ``floats`` has in the file. ``step``: the global step.
    ``extra``: what a PyTorch checkpoint holds beside its parameters.
    """

    engine: str
    step: int
    floats: dict[str, numpy.ndarray]
    others: dict[str, Any]
    dtypes: dict[str, Any]
    extra: dict[str, Any]


def find_checkpoint(path: str | os.PathLike[str]) -> tuple[str, str]:
    """
    :param path: with or without suffix
    :return: the engine ("torch", "tensorflow" or "jax"), and the path without suffix
    :raise FileNotFoundError: there is none
    :raise ValueError: several engines have one of that name
    """
    path = os.fspath(path)
    base, suffix = path, ""
    for candidate in _SUFFIXES:
        if path.endswith(candidate):
            base, suffix = path[: -len(candidate)], ".index" if candidate == ".meta" else candidate
    found = [engine for engine, marker in _MARKERS.items() if os.path.exists(base + marker) and suffix in ("", marker)]
    if not found:
        tried = ", ".join(base + marker for marker in _MARKERS.values() if suffix in ("", marker))
        raise FileNotFoundError(f"no checkpoint {path}: looked for {tried}")
    if len(found) > 1:
        raise ValueError(f"checkpoint {path} is ambiguous, there is one of each of {', '.join(found)}: add the suffix")
    return found[0], base


def list_epochs(folder: str | os.PathLike[str]) -> list[int]:
    """:return: epochs of which a run has a checkpoint ``epoch.NNN`` in this folder, in order"""
    files = os.listdir(folder) if os.path.isdir(folder) else []
    names = (re.fullmatch(r"epoch\.(\d+)\.(pt|index|orbax)", file) for file in files)
    return sorted({int(name[1]) for name in names if name})


def find_last_checkpoint(folder: str | os.PathLike[str], *, num_epochs: int) -> str:
    """
    :param folder: with the checkpoints of a run
    :param num_epochs: of its whole training
    :return: the average of its last epochs, ``average.NNN``, if it is there, else the last epoch; without suffix
    :raise FileNotFoundError: there is none
    """
    folder = os.fspath(folder)
    epochs = list_epochs(folder)
    names = [f"average.{num_epochs:03d}", *(f"epoch.{epoch:03d}" for epoch in epochs[-1:])]
    for name in names:
        path = os.path.join(folder, name)
        if any(os.path.exists(path + marker) for marker in _MARKERS.values()):
            return find_checkpoint(path)[1]
    raise FileNotFoundError(f"no checkpoint in {folder}")


def read_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """
    :param path: with or without suffix
    :return: its content
    :raise FileNotFoundError: there is none
    :raise ValueError: not a checkpoint of RETURNN's
    """
    engine, base = find_checkpoint(path)
    return {"torch": _read_torch, "tensorflow": _read_tensorflow, "jax": _read_jax}[engine](base)


def write_checkpoint(checkpoint: Checkpoint, path: str | os.PathLike[str]) -> str:
    """
    Write a checkpoint that its engine loads. It appears whole or not at all, replacing one of that name.

    :param checkpoint:
    :param path: with or without suffix
    :return: the path without suffix
    """
    base = strip_suffix(path)
    folder = os.path.dirname(os.path.abspath(base))
    os.makedirs(folder, exist_ok=True)
    write = {"torch": _write_torch, "tensorflow": _write_tensorflow, "jax": _write_jax}[checkpoint.engine]
    with tempfile.TemporaryDirectory(dir=folder, prefix=".tmp-checkpoint-") as tmp:
        write(checkpoint, os.path.join(tmp, os.path.basename(base)))
        _move_into_place(tmp, folder, os.path.basename(base))
    return base


def strip_suffix(path: str | os.PathLike[str]) -> str:
    """:return: the path of a checkpoint as RETURNN names it"""
    base = os.fspath(path)
    for suffix in _SUFFIXES:
        base = base.removesuffix(suffix)
    return base


def compare_parameters(a: Mapping[str, str], b: Mapping[str, str], *, a_name: str, b_name: str) -> str:
    """
    :param a: by the parameter's name, what has to be equal, such as "float32 [3, 4]"
    :param b: likewise
    :param a_name: what ``a`` is, for the message
    :param b_name: what ``b`` is
    :return: which parameters are missing, extra or differ, in words; empty if all are equal
    """
    problems = [f"{name} only in {a_name}" for name in sorted(set(a) - set(b))]
    problems += [f"{name} only in {b_name}" for name in sorted(set(b) - set(a))]
    differing = [name for name in sorted(set(a) & set(b)) if a[name] != b[name]]
    problems += [f"{name} is {a[name]} in {a_name}, {b[name]} in {b_name}" for name in differing]
    more = len(problems) - _MAX_LISTED
    return "; ".join(problems[:_MAX_LISTED]) + (f"; and {more} more" if more > 0 else "")


def _move_into_place(tmp: str, folder: str, name: str) -> None:
    """Move the new files, those last by which a checkpoint is found, after taking these away from an old one."""
    new = sorted(os.listdir(tmp), key=lambda file: (file.endswith((".index", ".meta")), file))
    for file in reversed(new):
        old = os.path.join(folder, file)
        if os.path.isdir(old):
            # Renamed first, so that no half-deleted checkpoint is left under its name.
            os.rename(old, os.path.join(tmp, "old-" + file))
        elif os.path.exists(old) and len(new) > 1:
            os.remove(old)
    if len(new) > 1:
        for stale in glob(escape(os.path.join(folder, name)) + ".data-*"):
            os.remove(stale)
    for file in new:
        os.replace(os.path.join(tmp, file), os.path.join(folder, file))


def _read_torch(base: str) -> Checkpoint:
    import torch

    content = torch.load(base + ".pt", map_location="cpu", weights_only=True)
    if not isinstance(content, dict) or not isinstance(content.get("model"), dict):
        raise ValueError(f"{base}.pt is not a checkpoint of RETURNN's PyTorch engine: no dict with 'model'")
    params = content.pop("model")
    floats = {name: value for name, value in params.items() if value.is_floating_point()}
    return Checkpoint(
        engine="torch",
        step=int(content.get("step", 0)),
        floats={name: value.double().numpy() for name, value in floats.items()},
        others={name: value for name, value in params.items() if name not in floats},
        dtypes={name: value.dtype for name, value in floats.items()},
        extra=content,
    )


def _write_torch(checkpoint: Checkpoint, base: str) -> None:
    import torch

    params = {
        # asarray: NumPy makes a scalar of a 0-dimensional array in arithmetic.
        name: torch.from_numpy(numpy.asarray(value)).to(checkpoint.dtypes[name])
        for name, value in checkpoint.floats.items()
    }
    torch.save({"model": {**params, **checkpoint.others}, **checkpoint.extra}, base + ".pt")


def _read_tensorflow(base: str) -> Checkpoint:
    import tensorflow

    reader = tensorflow.train.load_checkpoint(base)
    dtypes = reader.get_variable_to_dtype_map()
    # Checkpoints of tf.train.Checkpoint hold their graph of objects under this name.
    if "_CHECKPOINTABLE_OBJECT_GRAPH" in dtypes:
        raise ValueError(f"{base} is not a checkpoint of RETURNN's TensorFlow engines: it has an object graph")
    floats = {name: dtype for name, dtype in sorted(dtypes.items()) if dtype.is_floating}
    return Checkpoint(
        engine="tensorflow",
        step=int(reader.get_tensor("global_step")) if "global_step" in dtypes else 0,
        floats={name: numpy.asarray(reader.get_tensor(name)).astype("float64") for name in floats},
        others={name: reader.get_tensor(name) for name in sorted(dtypes) if name not in floats},
        dtypes={name: dtype.as_numpy_dtype for name, dtype in floats.items()},
        extra={},
    )


def _write_tensorflow(checkpoint: Checkpoint, base: str) -> None:
    import tensorflow

    tf1 = tensorflow.compat.v1
    values = {name: numpy.asarray(value).astype(checkpoint.dtypes[name]) for name, value in checkpoint.floats.items()}
    values.update({name: numpy.asarray(value) for name, value in checkpoint.others.items()})
    with tf1.Graph().as_default(), tf1.Session(config=tf1.ConfigProto(device_count={"GPU": 0})) as session:
        variables = {}
        for name, value in values.items():
            # Fed, since values inside the graph would make the .meta file as large as the model.
            placeholder = tf1.placeholder(value.dtype, value.shape)
            variable = tf1.Variable(placeholder, trainable=False, name="value")
            session.run(variable.initializer, {placeholder: value})
            variables[name] = variable
        saver = tf1.train.Saver(variables)
        saver.save(session, base, write_state=False)


def _read_jax(base: str) -> Checkpoint:
    import jax.numpy as jnp
    import orbax.checkpoint

    tree = orbax.checkpoint.PyTreeCheckpointer().restore(os.path.abspath(base) + ".orbax")
    if not isinstance(tree, dict) or any(isinstance(value, (dict, list, tuple)) for value in tree.values()):
        raise ValueError(f"{base}.orbax is not a checkpoint of RETURNN's JAX engine: it is no flat dict of arrays")
    tree = {name: numpy.asarray(value) for name, value in tree.items()}
    floats = {name: value for name, value in tree.items() if jnp.issubdtype(value.dtype, jnp.floating)}
    return Checkpoint(
        engine="jax",
        step=int(tree.get("_step", 0)),
        floats={name: value.astype("float64") for name, value in floats.items()},
        others={name: value for name, value in tree.items() if name not in floats},
        dtypes={name: value.dtype for name, value in floats.items()},
        extra={},
    )


def _write_jax(checkpoint: Checkpoint, base: str) -> None:
    import orbax.checkpoint

    tree = {name: numpy.asarray(value).astype(checkpoint.dtypes[name]) for name, value in checkpoint.floats.items()}
    tree.update(checkpoint.others)
    orbax.checkpoint.PyTreeCheckpointer().save(os.path.abspath(base) + ".orbax", tree)
