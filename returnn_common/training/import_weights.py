"""
Weights from elsewhere, once an importer gave them our names: into a model, or into a checkpoint that RETURNN loads.

The importers: :mod:`.import_torch` (PyTorch's own layers), :mod:`.import_espnet`, :mod:`.import_huggingface`.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import numpy

from .. import nn
from .checkpoints import Checkpoint, compare_parameters, write_checkpoint
from .convert import convert_checkpoint

__all__ = ["load_parameters", "part_of", "save_parameters", "set_layer_norm_epsilon"]


def part_of(state_dict: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """
    >>> part_of({"encoder.norm.weight": 1, "decoder.norm.weight": 2}, "encoder.")
    {'norm.weight': 1}

    :param state_dict: name -> anything
    :param prefix: with its dot
    :return: those below it, without it
    :raises ValueError: if there are none
    """
    part = {name.removeprefix(prefix): value for name, value in state_dict.items() if name.startswith(prefix)}
    if not part:
        raise ValueError(f"part_of: no name begins with {prefix!r}, there are {sorted(state_dict)[:8]}")
    return part


def load_parameters(model: nn.Module, params: Mapping[str, numpy.ndarray], *, keep: Sequence[str] = ()) -> None:
    """
    Give a model these values. PyTorch and JAX have them at once; on TensorFlow, they are the parameters' initial ones.
    So in a config this can be called in ``get_model``: then they are what training starts from.

    Either all parameters get their value or none.

    :param model: a part of a model does as well, such as ``model.encoder``
    :param params: by the model's names
    :param keep: patterns (as ``*.bias``) of those of the model's parameters that keep the value which they have
    :raises ValueError: for a parameter which the model doesn't have, or which is missing and not kept, or which has
        another shape, or a pattern that fits to no parameter that is missing
    """
    ours = dict(model.named_parameters())
    kept = {pattern: {name for name in ours if name not in params and fnmatchcase(name, pattern)} for pattern in keep}
    unused = sorted(pattern for pattern, names in kept.items() if not names)
    if unused:
        raise ValueError(f"load_parameters: no parameter of the model is left for keep {unused}")
    wanted = {name: param for name, param in ours.items() if not any(name in names for names in kept.values())}
    _check_same(params, wanted, owner="load_parameters")
    for name, param in wanted.items():
        param.initial = numpy.array(params[name], param.dtype)


def save_parameters(
    params: Mapping[str, numpy.ndarray],
    path: str | os.PathLike[str],
    *,
    backend: str = "torch",
    model: nn.Module | None = None,
) -> str:
    """
    Write a checkpoint of epoch 0, for RETURNN's options ``import_model_train_epoch1`` (all of a model) or
    ``preload_from_files`` (all or a part).

    :param params: by our names
    :param path: with or without suffix; replaced if it exists
    :param backend: RETURNN's option: "torch", "tensorflow", "tensorflow-net-dict" or "jax"
    :param model: the parameters must be all of its; for "torch", one that uses a parameter under several names needs it
    :return: the path without suffix
    :raises ValueError: for an unknown backend, or if the parameters are not those of the model
    """
    if model is not None:
        _check_same(params, dict(model.named_parameters()), owner="save_parameters")
    import torch

    checkpoint = Checkpoint(
        engine="torch",
        step=0,
        floats={name: numpy.asarray(value, "float64") for name, value in params.items()},
        others={},
        dtypes={name: torch.float32 for name in params},
        extra={"epoch": 0, "step": 0},
    )
    with tempfile.TemporaryDirectory() as folder:
        weights = write_checkpoint(checkpoint, os.path.join(folder, "weights"))
        return convert_checkpoint(weights, path, backend=backend, model=model)


def set_layer_norm_epsilon(model: nn.Module, epsilon: float) -> None:
    """
    RETURNN's layer norms add 1e-6 to the variance; PyTorch's and Hugging Face's 1e-5, ESPnet's 1e-12. With imported
    weights, outputs differ in the fourth or fifth digit, if the model doesn't do as its source did.

    :param model: or a part of it; all layer norms in it are set
    :param epsilon: positive
    :raises ValueError: if it isn't positive, or there is no layer norm
    """
    if not epsilon > 0:
        raise ValueError(f"set_layer_norm_epsilon: expected epsilon > 0, got {epsilon!r}")
    norms = [module for module in model.modules() if isinstance(module, nn.LayerNorm)]
    if not norms:
        raise ValueError(f"set_layer_norm_epsilon: there is no layer norm in {model}")
    for norm in norms:
        norm.eps = epsilon


def _check_same(params: Mapping[str, numpy.ndarray], wanted: Mapping[str, nn.Parameter], *, owner: str) -> None:
    differences = compare_parameters(
        {name: str(list(numpy.shape(value))) for name, value in params.items()},
        {name: str([dim.dimension for dim in param.dims]) for name, param in wanted.items()},
        a_name="the weights",
        b_name="the model",
    )
    if differences:
        raise ValueError(f"{owner}: parameters differ: {differences}")
