"""
What every encoder offers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from returnn.tensor import Dim, Tensor

__all__ = ["Encoder", "StreamingEncoder"]


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


@runtime_checkable
class StreamingEncoder(Encoder, Protocol):
    """
    An encoder that also encodes chunk after chunk, with a state; both give the same.

    chunk_size: in frames of the output.
    """

    chunk_size: int

    def initial_state(self, *, batch_dims: Sequence[Dim]) -> Any:
        """:return: before the first frame, nested tensors"""
        ...

    def step(self, chunk: Tensor, *, in_spatial_dim: Dim, state: Any) -> tuple[Tensor, Dim, Any]:
        """
        :param chunk: ``{batch, time, in_dim}``, of each sequence the next ``chunk_size * downsample_factor`` frames, or
            a multiple, or none. Where a sequence ends, any number; none may follow
        :param in_spatial_dim: time
        :param state: of :meth:`initial_state`, or of the step before
        :return: ``{batch, time', out_dim}``, the dim time', and the new state
        """
        ...
