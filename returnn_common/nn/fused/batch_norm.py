"""
Batch norm.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import returnn.frontend as rf
from returnn.tensor import Dim, Tensor

from ..batch_norm import BatchNorm
from .frames import Frames
from .raw import is_on_torch, padding_of, parameter_of, raw_of, tensor_of

if TYPE_CHECKING:
    import torch

__all__ = ["FusedBatchNorm"]


class FusedBatchNorm(BatchNorm):
    """On the CPU: the valid frames are put side by side, and normalised in one."""

    def __call__(self, source: Tensor) -> Tensor:
        """see :class:`returnn_common.nn.BatchNorm`"""
        if (
            self.in_dim not in source.dims
            or not is_on_torch(source, self.gamma)
            or not _reads(source.raw_tensor.device)
        ):
            return super().__call__(source)
        raw, dims = raw_of(source, self.in_dim)
        rows = self.on_rows(raw.reshape(-1, raw.shape[-1]), dims)
        return tensor_of(rows.view(raw.shape), *dims, self.in_dim)

    def fits(self, frames: Frames) -> bool:
        """see :mod:`.frames`"""
        return frames.fit(self.gamma) and _reads(frames.device)

    def on_rows(self, rows: torch.Tensor, dims: Sequence[Dim]) -> torch.Tensor:
        """
        :param rows: raw, ``{rows, in_dim}``
        :param dims: whose entries the rows are
        :return: like rows
        """
        if rf.get_run_ctx().is_train_flag_enabled(func=BatchNorm.__call__):
            valid = _valid_rows(dims)
            if len(rows if valid is None else valid):
                return self._with_statistics_of(rows, valid)
        return self._with_running_statistics(rows)

    def _with_running_statistics(self, rows: torch.Tensor) -> torch.Tensor:
        import torch

        gamma, beta, mean, variance = self._parameters()
        scale = torch.rsqrt(variance + self.eps) * gamma
        return torch.addcmul(beta - mean * scale, rows, scale).to(rows.dtype)

    def _with_statistics_of(self, rows: torch.Tensor, valid: torch.Tensor | None) -> torch.Tensor:
        """:return: normalised over the valid rows, the others 0; the running statistics follow"""
        import torch

        gamma, beta, running_mean, running_variance = self._parameters()
        picked = rows if valid is None else rows.index_select(0, valid)
        out, mean, inverse = torch.native_batch_norm(picked, gamma, beta, None, None, True, 0.0, self.eps)
        with torch.no_grad():
            for running, current in ((running_mean, mean), (running_variance, inverse**-2 - self.eps)):
                delta = (current - running).mul_(self.momentum)
                running.add_(delta.nan_to_num_(nan=0.0, posinf=math.inf, neginf=-math.inf))
        if valid is not None:
            out = torch.zeros_like(rows).index_copy(0, valid, out.to(rows.dtype))
        return out

    def _parameters(self) -> list[torch.Tensor]:
        """:return: gamma, beta, running mean and variance"""
        parameters = self.gamma, self.beta, self.running_mean, self.running_variance
        return [parameter_of(x, self.in_dim) for x in parameters]


def _reads(device: torch.device | str) -> bool:
    """:return: whether how many frames are valid is known there at once, as on no GPU and in no recorded graph"""
    return str(device) == "cpu" and not rf.is_static_traceable()


def _valid_rows(dims: Sequence[Dim]) -> torch.Tensor | None:
    """
    :return: of all entries of these dims, the indices of those that are no padding, ``{rows}``; None for all
    """
    paddings = [padding_of(dim, dims, device="cpu") for dim in dims]
    paddings = [x for x in paddings if x is not None]
    if not paddings:
        return None
    import torch

    padding = torch.zeros([int(dim.get_dim_value()) for dim in dims], dtype=torch.bool)
    for x in paddings:
        padding = padding | x
    return (~padding).view(-1).nonzero().squeeze(1)
