"""
Relative and rotary positions, computed once.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

__all__ = ["relative_positions", "rotations"]


def relative_positions(num_frames: int, size: int, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """
    Sinusoids of the distances from ``-(num_frames - 1)`` to ``num_frames - 1``, the same as
    :func:`returnn.frontend.relative_positional_encoding`, kept for the next batches.

    :param num_frames: at least 1
    :param size: of the encoding, an even number
    :return: ``{2 num_frames - 1, size}``
    """
    capacity = max(64, 1 << (num_frames - 1).bit_length())
    table = _table(capacity, size, dtype, device)
    return table[capacity - num_frames : capacity + num_frames - 1]


@lru_cache(maxsize=16)
def _table(capacity: int, size: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    import torch

    precision = torch.promote_types(dtype, torch.float32)
    with torch.inference_mode(False), torch.no_grad():  # so that it can be used in training as well
        distance = torch.arange(-(capacity - 1), capacity, dtype=precision, device=device)
        scale = -2.0 * math.log(1e4) / size
        frequency = torch.exp(torch.arange(size // 2, dtype=precision, device=device) * scale)
        angle = distance[:, None] * frequency
        return torch.sin(torch.cat([angle, angle + math.pi / 2.0], dim=1)).to(dtype)


def rotations(
    num_frames: int, size: int, *, dtype: torch.dtype, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """
    For :func:`returnn_common.nn.rotary.rotate`: with the features of each pair swapped in x', it is
    ``cosine * x + sine * x'``.

    :param num_frames: at least 1
    :param size: of the features, an even number
    :return: cosine and sine (with its sign), each ``{num_frames, size}``, kept for the next batches
    """
    cosine, sine = _rotations(max(64, 1 << (num_frames - 1).bit_length()), size, dtype, device)
    return cosine[:num_frames], sine[:num_frames]


@lru_cache(maxsize=16)
def _rotations(capacity: int, size: int, dtype: torch.dtype, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    import torch

    precision = torch.promote_types(dtype, torch.float32)
    with torch.inference_mode(False), torch.no_grad():
        scale = -2.0 * math.log(1e4) / size
        frequency = torch.exp(torch.arange(size // 2, dtype=precision, device=device) * scale)
        angle = torch.arange(capacity, dtype=precision, device=device)[:, None] * frequency
        sine = angle.sin()
        return angle.cos().repeat_interleave(2, dim=1).to(dtype), torch.stack([-sine, sine], dim=2).flatten(1).to(dtype)
