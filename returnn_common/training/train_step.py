"""
The train step that serves every model.
"""

from __future__ import annotations

from typing import Any

from returnn.config import get_global_config

from .. import nn

__all__ = ["train_step"]


def train_step(*, model: Any, extern_data: nn.TensorDict, **_other: Any) -> None:
    """
    RETURNN's ``train_step``: marks each loss of ``model.losses(...)`` for RETURNN.
    The optimizer gets the sum of each loss over the batch, divided by its norm factor (e.g. the number of labels).
    With ``accum_grad_multiple_step``, RETURNN adds the gradients of the steps up and does not divide by their number:
    N steps give N times the gradient of one batch with all their rows. Adam's step stays the same, but
    ``gradient_clip_global_norm`` and the step of plain SGD do not: adapt them.

    Reads ``default_input`` (default "data") and ``target`` (default "classes") from the config.

    :param model: with a method ``losses``, see DESIGN's model contract
    :param extern_data: the batch
    :raises ValueError: if the batch has no such entry
    """
    config = get_global_config()
    source = _entry(extern_data, config.value("default_input", "data"), option="default_input")
    targets = _entry(extern_data, config.value("target", "classes"), option="target")
    losses = model.losses(
        source,
        in_spatial_dim=nn.get_spatial_dim(source),
        targets=targets,
        targets_spatial_dim=nn.get_spatial_dim(targets),
    )
    for name, loss in losses.items():
        nn.get_run_ctx().mark_as_loss(
            loss.value,
            name,
            scale=loss.scale,
            as_error=loss.as_error,
            use_normalized_loss=True,
            custom_inv_norm_factor=loss.inv_norm_factor,
        )


def _entry(extern_data: nn.TensorDict, key: str, *, option: str) -> nn.Tensor:
    if key not in extern_data.data:
        raise ValueError(f"train_step: {option} is {key!r}, but extern_data has only {sorted(extern_data.data)}")
    return extern_data[key]
