"""
The frames of a batch below each other, as rows of a matrix.

Modules in the faster form have, beside their call on a :class:`returnn.tensor.Tensor`, ``on_rows(rows, ...)``, where
the rows are PyTorch's tensor ``{rows, features}``, and ``fits(frames)``, whether they may be called so. A module that
is made of others calls them so: where the input is a second of speech, a tensor of RETURNN's for each intermediate
result takes longer than to compute it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from returnn.tensor import Dim, Tensor

from .raw import has_autocast, padding_of, raw_of, tensor_of

if TYPE_CHECKING:
    import torch

__all__ = ["Frames"]


@dataclass(frozen=True)
class Frames:
    """whose rows they are"""

    dims: tuple[Dim, ...]  # of the batch, then time
    shape: tuple[int, ...]  # of these
    dtype: str  # of the rows
    device: str | None
    has_cast: bool  # whether parameters of another type are cast to the rows'

    @classmethod
    def of(cls, source: Tensor, spatial_dim: Dim, feature_dim: Dim) -> tuple[torch.Tensor, Frames]:
        """
        :param source: on PyTorch, with these two dims and others
        :param spatial_dim: time
        :param feature_dim: of the rows
        :return: rows ``{rows, features}``, and whose they are
        """
        raw, batch_dims = raw_of(source, spatial_dim, feature_dim)
        *shape, size = raw.shape
        has_cast = source.dtype != "float64" and has_autocast(raw.device)
        frames = cls((*batch_dims, spatial_dim), tuple(shape), source.dtype, source.device, has_cast)
        return raw.reshape(-1, size), frames

    def tensor(self, rows: torch.Tensor, feature_dim: Dim) -> Tensor:
        """:return: the way back"""
        return tensor_of(rows.view(*self.shape, rows.shape[-1]), *self.dims, feature_dim)

    def fit(self, parameter: Tensor | None) -> bool:
        """:return: whether a parameter has the rows' type, or is cast to it; or is None"""
        return parameter is None or self.has_cast or parameter.dtype == self.dtype

    @property
    def length(self) -> int:
        """of the time dim, with padding"""
        return self.shape[-1]

    @cached_property
    def padding(self) -> torch.Tensor | None:
        """True on padding in time, ``{sequences, time}``; None if there is none"""
        padding = padding_of(self.dims[-1], self.dims, device=self.device)
        return None if padding is None else padding.expand(self.shape).reshape(-1, self.length)
