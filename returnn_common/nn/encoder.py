"""
What every encoder offers.
"""

from __future__ import annotations

from typing import Protocol

from returnn.tensor import Dim, Tensor

__all__ = ["Encoder"]


class Encoder(Protocol):
    """
    Any module with these is an encoder: ours, RETURNN's own, yours. Nobody inherits from it.

    in_dim: features of the source. out_dim: features of the output. downsample_factor: of the time, 1 for none.
    """

    in_dim: Dim
    out_dim: Dim

    @property
    def downsample_factor(self) -> int | float: ...

    def __call__(
        self, source: Tensor, *, in_spatial_dim: Dim, collected_outputs: dict[str, Tensor] | None = None
    ) -> tuple[Tensor, Dim]:
        """
        :param source: ``{batch, time, in_dim}``
        :param in_spatial_dim: time
        :param collected_outputs: is filled with the output of each layer, by its number from "0" on
        :return: ``{batch, time', out_dim}``, and the dim time'
        """
        ...
