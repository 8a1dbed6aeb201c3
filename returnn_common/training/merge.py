"""
Two models in one checkpoint, so that RETURNN, which loads one, loads both: a recogniser and its language model.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace

from .. import nn
from .checkpoints import strip_suffix, write_checkpoint
from .convert import BACKENDS, Parameters, fit_to_model, make_checkpoint, read_parameters

__all__ = ["merge_checkpoints"]


def merge_checkpoints(
    parts: Mapping[str, str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    backend: str,
    models: Mapping[str, nn.Module] | None = None,
) -> str:
    """
    Write the parameters of several checkpoints, of any engines, as one that an engine loads.

    :param parts: name of a submodule, "" for the model itself -> checkpoint, with or without suffix. The submodule's
        parameters are found under its name and a dot, as in ``recog_lm.decoder.output.weight``. Epoch and step are
        those of the first.
    :param out: path to write, with or without suffix; replaced if it exists. It appears whole or not at all.
    :param backend: RETURNN's option: "torch", "tensorflow", "tensorflow-net-dict" or "jax"
    :param models: by the same names; a part must have exactly the parameters of its model. Needed for tied parameters,
        see :func:`.convert.convert_checkpoint`
    :return: ``out`` without suffix
    :raise FileNotFoundError: there is no such checkpoint
    :raise ValueError: no parts, an unknown backend, a checkpoint that cannot be read or does not fit its model, or two
        parts with a parameter of the same name
    """
    if backend not in BACKENDS:
        raise ValueError(f"merge_checkpoints: backend must be one of {', '.join(BACKENDS)}, got {backend!r}")
    if not parts:
        raise ValueError("merge_checkpoints: expected at least one checkpoint, got none")
    merged: Parameters | None = None
    for name, path in parts.items():
        parameters = read_parameters(path)
        if models is not None and name in models:
            parameters = fit_to_model(
                parameters,
                models[name],
                path=os.fspath(path),
                all_names=backend == "torch",
                owner="merge_checkpoints",
            )
        prefix = f"{name}." if name else ""
        values = {prefix + key: value for key, value in parameters.values.items()}
        dtypes = {prefix + key: dtype for key, dtype in parameters.dtypes.items()}
        if merged is None:
            merged = replace(parameters, values={}, dtypes={})
        twice = sorted(merged.values.keys() & values.keys())
        if twice:
            raise ValueError(f"merge_checkpoints: {', '.join(twice[:3])} is in {os.fspath(path)} and in one before it")
        merged.values.update(values)
        merged.dtypes.update(dtypes)
    assert merged is not None
    engine = "tensorflow" if backend.startswith("tensorflow") else backend
    return write_checkpoint(make_checkpoint(merged, backend=backend, engine=engine), strip_suffix(out))
