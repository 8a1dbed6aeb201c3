"""
The train step that serves every model.
"""

from __future__ import annotations

from typing import Any

from returnn.config import get_global_config

from .. import nn
from .distributed import normalize_over_processes

__all__ = ["train_step"]


def train_step(*, model: Any, extern_data: nn.TensorDict, **_other: Any) -> None:
    """
    RETURNN's ``train_step``: marks each loss of ``model.losses(...)`` for RETURNN.
    The optimizer gets the sum of each loss over the batch, divided by its norm factor (e.g. the number of labels).
    With ``accum_grad_multiple_step`` (an int), it is divided by that number too, since RETURNN adds the gradients of
    the steps up: two batches of 2 train like one of 4 (with equally many labels in both). With several processes, see
    :func:`.distributed.distributed_training`, the sums are over the batches of all of them.

    Reads ``default_input`` (default "data"), ``target`` (default "classes"; None: the model gets no targets, as a
    language model) and ``accum_grad_multiple_step`` (default 1) from the config.

    :param model: with a method ``losses``, see DESIGN's model contract
    :param extern_data: the batch
    :raises ValueError: if the batch has no such entry
    """
    config = get_global_config()
    source = _entry(extern_data, config.value("default_input", "data"), option="default_input")
    options: dict[str, Any] = {"in_spatial_dim": nn.get_spatial_dim(source)}
    if config.typed_dict.get("target", "classes") is not None:
        targets = _entry(extern_data, config.value("target", "classes"), option="target")
        options.update(targets=targets, targets_spatial_dim=nn.get_spatial_dim(targets))
    losses = model.losses(source, **options)
    # RETURNN also takes a function of the epoch here, whose result isn't known to a step.
    is_function = callable(config.typed_dict.get("accum_grad_multiple_step"))
    num_accumulated = 1 if is_function else config.int("accum_grad_multiple_step", 1)
    for name, loss in losses.items():
        nn.get_run_ctx().mark_as_loss(
            loss.value,
            name,
            scale=loss.scale / num_accumulated,
            as_error=loss.as_error,
            use_normalized_loss=True,
            custom_inv_norm_factor=loss.inv_norm_factor,
        )
    # Only training takes place in all processes.
    if config.typed_value("torch_distributed") is not None and nn.get_run_ctx().train_flag:
        normalize_over_processes(nn.get_run_ctx().losses)


def _entry(extern_data: nn.TensorDict, key: str, *, option: str) -> nn.Tensor:
    if key not in extern_data.data:
        raise ValueError(f"train_step: {option} is {key!r}, but extern_data has only {sorted(extern_data.data)}")
    return extern_data[key]
