"""
Runs one function, written on RETURNN's frontend, on any of RETURNN's four engines in one process, and gives NumPy back.

    def func(model, x, time, feat):
        y = model(x)
        return {"y": (y, [nn.batch_dim, time, model.out_dim]), "sum": nn.reduce_sum(y, axis=time)}

    result = run_on(
        "torch", func,
        {"x": Input(array, "batch time feat")}, {"time": [5, 3], "feat": 4},
        make_model=lambda feat: nn.Linear(feat, nn.FeatureDim("out", 7)), grad_of="sum")
    result["y"]  # padding is set to zero, so that results can be compared as they are
    result.outputs["y"].lengths  # {1: [5, 3]}: axis -> lengths
    result.grads["weight"], result.grads["x"]

Graph engines (tensorflow, tensorflow-net-dict) build the graph and run it once; torch and jax run eagerly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy

from ._common import Input, Job, Output, Result, forget_globals

__all__ = ["ENGINES", "Input", "Output", "Result", "forget_globals", "run_on"]

ENGINES = ("torch", "tensorflow", "tensorflow-net-dict", "jax")


def run_on(
    engine: str,
    func: Callable[..., dict[str, Any]],
    inputs: Mapping[str, Input],
    dims: Mapping[str, int | Sequence[int] | numpy.ndarray] | None = None,
    *,
    make_model: Callable[..., Any] | None = None,
    params: Mapping[str, numpy.ndarray] | None = None,
    train: bool = False,
    step: int = 0,
    grad_of: str | None = None,
) -> Result:
    """
    :param engine: one of ENGINES
    :param func: called with those inputs (Tensor), dims (Dim) and "model" that its signature names.
        Returns name -> Tensor, or name -> (Tensor, dim order). State the order when a tensor has more than one dim:
        without it, the order is the tensor's own, which can differ between engines.
    :param inputs: name -> Input
    :param dims: name -> size (static), or lengths (sequence over the batch entries; a 0-dim array: one length for all).
        "batch" is always there.
    :param make_model: makes the module inside the engine's context; called with the dims that its signature names
    :param params: parameter name -> values. Parameters not in it: seeded by their name if trainable floats,
        so equal on all engines; otherwise (batch norm's statistics) their own initial value
    :param train: train flag
    :param step: of the run context
    :param grad_of: name of an output: `result.grads` has the gradient of its sum (over valid frames)
        for each trainable parameter and each float input
    :return: outputs, params (values before the run), grads (by parameter or input name)
    """
    job = Job(func, dict(inputs), dict(dims or {}), make_model, dict(params or {}), train, step, grad_of)
    if engine == "torch":
        from ._torch import run
    elif engine == "tensorflow":
        from ._tensorflow import run
    elif engine == "tensorflow-net-dict":
        from ._net_dict import run
    elif engine == "jax":
        from ._jax import run
    else:
        raise ValueError(f"unknown engine {engine!r}, expected one of {ENGINES}")
    with job.clean_run_ctx():
        return run(job)
