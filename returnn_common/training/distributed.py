"""
Training in several processes, on one machine or on many, with RETURNN's PyTorch engine.

RETURNN has the means (its option ``torch_distributed``, and ``torchrun``, which starts the processes). But as it is,

- every process goes through all of the data, or else the process with the fewest batches ends the epoch for all, and
  the last batches of the others are never seen;
- gradients are averaged over the processes, though each has divided its losses by its own number of labels: a label
  in a batch with few of them counts more than one in a batch with many.

:func:`distributed_training` sets what mends both: an epoch sees each sequence once, and a step with N processes has the
gradient of one process with all N batches together.
"""

from __future__ import annotations

import glob
import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from .resume import _extend, exact_resume

__all__ = ["MODES", "distributed_training", "normalize_over_processes"]

MODES = ("grad", "grad_explicit", "param")
_SUM_OF_GRADIENTS = ("grad", "grad_explicit")

# Not 0: RETURNN leaves a loss with the scale 0 out, but DistributedDataParallel waits for each parameter's gradient.
# Beside the other processes' gradients, this one vanishes in float32.
_NEGLIGIBLE = 1e-30

_repeats = False  # whether the current batch of this process is one that it has seen already


def distributed_training(mode: str, *, backend: str = "torch", sync_steps: int = 100) -> dict[str, Any]:
    """
    In a config, after all else: ``globals().update(distributed_training("grad"))``, with :func:`.train_step` as its
    ``train_step``. Then train with ``torchrun``, see docs/distributed.md. ``batch_size`` and ``max_seqs`` are those of
    each process. It includes :func:`exact_resume`.

    With a GPU, the processes exchange gradients through NCCL, each with the GPU of its local rank; without one (or with
    ``DISABLE_CUDA=1``), through Gloo. Only the first process evaluates and writes.

    :param mode: how the processes train one model. "grad": each step has the gradient of all their batches, which are
        exchanged while they are computed (DistributedDataParallel). "grad_explicit": the same, exchanged afterwards;
        for what DistributedDataParallel doesn't allow, such as CUDA graphs. "param": each process takes steps of its
        own, and their parameters are averaged every ``sync_steps`` steps and at the end of the epoch; less to
        exchange, for slow networks. "": one process; nothing is set.
    :param backend: the config's
    :param sync_steps: for "param"
    :return: options for the config
    :raises ValueError: for another mode, another backend than "torch", or ``sync_steps`` below 1
    """
    if not mode:
        return {}
    if mode not in MODES:
        raise ValueError(f"distributed_training: expected a mode of {', '.join(MODES)}, got {mode!r}")
    if backend != "torch":
        raise ValueError(
            f"distributed_training: RETURNN trains in several processes with backend torch only, got {backend!r}"
        )
    if sync_steps < 1:
        raise ValueError(f"distributed_training: expected sync_steps >= 1, got {sync_steps}")
    options: dict[str, Any] = {"reduce_type": mode, "dataset_distribution": "shard"}
    if mode == "param":
        options["param_sync_step"] = sync_steps
    result = {**exact_resume(), "torch_distributed": options, "startup_callback": _startup}
    if not _has_gpu():  # RETURNN expects to find one, unless it is told so
        options["backend"] = "gloo"
        result["device"] = "cpu"
    return result


def normalize_over_processes(losses: Mapping[str, Any]) -> None:
    """
    Scales each loss so that RETURNN, which divides it by this process's norm factor and then averages gradients over
    the processes, trains on the sum of all processes' losses, divided by the sum of their norm factors:
    ``size * norm / sum(norm)``. To be called by all processes, in each training step, with the same losses. Where
    RETURNN averages parameters instead, nothing is changed.

    :param losses: of RETURNN's run context, all marked
    """
    import torch
    from returnn.torch.distributed import get_ctx

    context = get_ctx()
    if context is None or context.reduce_type() not in _SUM_OF_GRADIENTS:
        return
    trained = [loss for loss in losses.values() if not loss.as_error]
    own = torch.tensor([0.0 if _repeats else _norm(loss) for loss in trained], dtype=torch.float64)
    total = own.clone()
    torch.distributed.all_reduce(total)
    for loss, factor in zip(trained, (context.size() * own / total).tolist(), strict=True):
        loss.scale *= factor if factor > 0.0 else _NEGLIGIBLE  # nan where there is nothing to train on anywhere


def _norm(loss: Any) -> float:
    norm = loss.get_inv_norm_factor()
    return float(norm.raw_tensor if hasattr(norm, "raw_tensor") else norm)


def _has_gpu() -> bool:
    """Without importing PyTorch, since recipes are read where it isn't needed."""
    if os.environ.get("DISABLE_CUDA", "0") not in ("", "0"):
        return False
    return bool(glob.glob("/dev/nvidia[0-9]*")) or os.path.exists("/dev/kfd")


def _startup(*, config: Any, **_fwd_compat: Any) -> None:
    exact_resume()["startup_callback"](config=config)
    options = config.typed_value("torch_distributed")
    if config.value("task", "train") != "train" or options is None:
        return
    if options["reduce_type"] == "grad":
        options["options"] = _keep_buffers_apart()
    from returnn.torch.engine import Engine

    _extend(Engine, "_create_data_loader", _with_even_batches)


def _keep_buffers_apart() -> dict[str, Any]:
    """
    Else DistributedDataParallel sends the first process's buffers (batch norm's statistics) to all others before each
    forward pass, and waits for them in the evaluation, which only the first one does.
    """
    from torch.nn.parallel import DistributedDataParallel

    names = inspect.signature(DistributedDataParallel).parameters
    return {"forward_sync_buffers" if "forward_sync_buffers" in names else "broadcast_buffers": False}


def _with_even_batches(method: Callable[..., Any]) -> Callable[..., Any]:
    def _extended(self: Any, dataset: Any, *, train: bool = False, **kwargs: Any) -> Any:
        loader = method(self, dataset, train=train, **kwargs)
        context = self._torch_distributed_ctx
        if train and context is not None and context.reduce_type() in _SUM_OF_GRADIENTS:
            cls = type(loader)
            # A subclass, since RETURNN insists on its class; of this very object, which keeps processes between epochs.
            # The loader's own iterator is made at once, since that draws a random number.
            methods = {"__iter__": lambda self: _even_batches(cls.__iter__(self))}
            loader.__class__ = type("_EvenLoader", (cls,), methods)
        return loader

    return _extended


def _even_batches(batches: Iterator[Any]) -> Iterator[Any]:
    """
    :param batches: of this process
    :return: the same, and when there are no more, the last one until no process has any, since all have to take part in
        each step; :func:`normalize_over_processes` gives the repeated ones no weight
    """
    global _repeats
    import torch

    last = None
    while True:
        batch = next(batches, None)
        count = torch.tensor(int(batch is not None))
        torch.distributed.all_reduce(count)
        if not count:
            return
        num_processes = torch.distributed.get_world_size()
        if last is None and count < num_processes:  # in all of them, so that none waits
            raise ValueError(
                f"distributed training: expected data for each of the {num_processes} processes, but in this epoch "
                f"there is some for {int(count)} only; use fewer processes, or larger epochs"
            )
        _repeats = batch is None
        last = last if batch is None else batch
        yield last
