"""
Runs of the zoo's entries on the engines; each is done once per process, however many tests look at it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable

import numpy as np

from returnn_common import nn
from tests.engines import Result, run_on
from tests.zoo import ZOO, Entry
from tests.zoo_kinds import FEATURES, VOCAB

__all__ = ["evaluate", "get_entry", "has_dropout", "make", "parameter_shapes", "rows", "train"]

_BY_NAME = {entry.name: entry for entry in ZOO}
assert len(_BY_NAME) == len(ZOO), "two entries of the zoo have the same name"


def get_entry(name: str) -> Entry:
    """:return: the entry of the table"""
    return _BY_NAME[name]


def has_dropout(entry: Entry) -> bool:
    """:return: whether something in it is random in training, as much as wanted"""
    return "dropout" in inspect.signature(entry.make).parameters


def make(entry: Entry, dropout: float = 0.0) -> Callable[..., nn.Module]:
    """:return: for run_on, which hands over the dims"""
    return functools.partial(entry.make, dropout=dropout) if has_dropout(entry) else entry.make


@functools.cache
def evaluate(name: str, engine: str, lengths: tuple[int, ...], fill: float = 0.0, dropout: float = 0.0) -> Result:
    """
    :param lengths: of the batch
    :param fill: in the padding
    :return: outputs in evaluation
    """
    entry = get_entry(name)
    inputs, dims = entry.kind.make_inputs(lengths, fill)
    return run_on(engine, entry.kind.call, inputs, dims, make_model=make(entry, dropout))


@functools.cache
def train(name: str, engine: str, fill: float = 0.0, dropout: float = 0.0) -> Result:
    """
    :return: outputs and gradients of the loss in training
    """
    entry = get_entry(name)
    inputs, dims = entry.kind.make_inputs(entry.kind.train_lengths, fill)
    return run_on(engine, entry.kind.call, inputs, dims, make_model=make(entry, dropout), train=True, grad_of="loss")


def rows(result: Result, index: int) -> dict[str, np.ndarray]:
    """:return: output name -> that of one batch entry, without padding"""
    found = {}
    for name, output in result.outputs.items():
        row = output.array[index]
        for axis, lengths in output.lengths.items():
            row = np.take(row, range(lengths[index] if np.ndim(lengths) else int(lengths)), axis=axis - 1)
        found[name] = row
    return found


def parameter_shapes(entry: Entry) -> dict[str, str]:
    """:return: name -> "8x32 float32", at full size"""
    nn.select_backend_torch()
    sizes = {"features": nn.FeatureDim("features", FEATURES), "labels": nn.FeatureDim("labels", VOCAB)}
    with nn.set_default_device_ctx("meta"):
        if entry.full is not None:
            model = entry.full(80)
        else:
            function = make(entry)
            model = function(**{k: sizes[k] for k in inspect.signature(function).parameters if k in sizes})
    return {
        name: f"{'x'.join(str(d.dimension) for d in param.dims) or 'scalar'} {param.dtype}"
        for name, param in model.named_parameters()
    }
