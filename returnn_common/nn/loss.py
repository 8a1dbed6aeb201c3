"""
What a model's ``losses`` returns for each of its losses.
"""

from __future__ import annotations

from dataclasses import dataclass

from returnn.tensor import Tensor

__all__ = ["Loss"]


@dataclass(frozen=True)
class Loss:
    """
    One loss of a model. The train step passes it on to RETURNN, which scales and sums it for the optimizer and
    reports it under its name. (RETURNN's own ``Loss`` is what it keeps internally after that.)

    :param value: ``{batch}`` or a scalar, natural log where it is a log probability; not yet scaled
    :param scale: factor for the optimizer, not for what is reported
    :param inv_norm_factor: what the sum of the values is divided by when it is reported, summed over its dims:
        e.g. the number of labels ``{batch}``. None: the number of entries of value.
    :param as_error: only reported, not trained (e.g. a count or an error rate)
    :raises TypeError: if value or inv_norm_factor is not a Tensor
    """

    value: Tensor
    scale: float = 1.0
    inv_norm_factor: Tensor | None = None
    as_error: bool = False

    def __post_init__(self):
        if not isinstance(self.value, Tensor):
            raise TypeError(f"Loss: expected value as Tensor, got {type(self.value).__name__} {self.value!r}")
        if not isinstance(self.inv_norm_factor, (Tensor, type(None))):
            got = self.inv_norm_factor
            raise TypeError(f"Loss: expected inv_norm_factor as Tensor or None, got {type(got).__name__} {got!r}")
