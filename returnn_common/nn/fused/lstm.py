"""
PyTorch's LSTM over sequences of different lengths, and their reversal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import returnn.frontend as rf
from returnn.tensor import Dim, Tensor

from .raw import is_on_torch, padding_of

if TYPE_CHECKING:
    import torch

__all__ = ["lstm_by_lengths", "reverse_sequence"]


_WORTH_IT = 0.1  # of all frames; a call of PyTorch's LSTM rearranges its weights first


def lstm_by_lengths(
    source: torch.Tensor,
    lengths: Sequence[int],
    h: torch.Tensor,
    c: torch.Tensor,
    params: Sequence[torch.Tensor],
    *,
    with_states: bool = True,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """
    :param source: ``{time, batch, in}``
    :param lengths: of the sequences, from 0 to all of the time
    :param h: before the first frame, ``{batch, out}``
    :param c: same
    :param params: as ``torch.lstm`` wants them: both weights, and both biases or none
    :param with_states: whether the states at the end matter: else it also goes on over padding where that is faster
    :return: h of each frame ``{time, batch, out}``, anything on padding; h and c after each sequence's last frame
    """
    import torch

    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    is_sorted = order == list(range(len(order)))
    ordered = [lengths[i] for i in order]
    index = torch.tensor(order, dtype=torch.long, device=source.device)
    x, h, c = (t if is_sorted else t.index_select(dim, index) for t, dim in ((source, 1), (h, 0), (c, 0)))
    if not with_states and ordered and ordered[-1] < len(x):  # whatever is on padding must not reach the gradients
        frames = torch.arange(len(x), device=x.device)[:, None]
        x = x.masked_fill((frames >= torch.tensor(ordered, device=x.device))[..., None], 0.0)
    h, c = h[None], c[None]
    outputs, finished, start = [], [], 0
    num_active = sum(length > 0 for length in ordered)
    finished.append((h[:, num_active:], c[:, num_active:]))
    for end in _ends(ordered) if not with_states else sorted(set(ordered) - {0}):
        state = h[:, :num_active].contiguous(), c[:, :num_active].contiguous()
        part = x[start:end, :num_active]
        out, h, c = torch.lstm(part, state, [*params], len(params) == 4, 1, 0.0, False, False, False)
        if num_active < len(ordered):
            out = torch.nn.functional.pad(out, (0, 0, 0, len(ordered) - num_active))
        outputs.append(out)
        num_active = sum(length > end for length in ordered)
        finished.append((h[:, num_active:], c[:, num_active:]))
        start = end
    if start < len(x) or not outputs:
        outputs.append(h.new_zeros(len(x) - start, len(ordered), h.shape[-1]))
    out = torch.cat(outputs) if len(outputs) > 1 else outputs[0]
    h, c = (torch.cat(parts[::-1], dim=1)[0].to(out.dtype) for parts in zip(*finished, strict=True))
    if is_sorted:
        return out, h, c
    back = torch.empty_like(index).scatter_(0, index, torch.arange(len(order), device=source.device))
    return out.index_select(1, back), h.index_select(0, back), c.index_select(0, back)


def _ends(ordered: Sequence[int]) -> list[int]:
    """
    :param ordered: lengths, the longest first
    :return: those at which the finished sequences are worth to be left out from there on; and the longest
    """
    longest = max(ordered, default=0)
    ends, left_out = [], 0
    for end in sorted(set(ordered) - {0, longest}):
        finished = sum(length <= end for length in ordered) - left_out
        if finished * (longest - end) >= _WORTH_IT * longest * len(ordered):
            ends.append(end)
            left_out += finished
    return [*ends, longest] if longest else []


def reverse_sequence(source: Tensor, *, axis: Dim) -> Tensor:
    """
    :func:`returnn.frontend.reverse_sequence`, which computes an index for each frame; if there is no padding, without.

    :param source: ``{..., axis}``
    :param axis: time
    :return: same, each sequence from its own end to its start
    """
    sizes = axis.get_size_tensor()
    if not is_on_torch(source) or padding_of(axis, (*sizes.dims, axis), device=source.device) is not None:
        return rf.reverse_sequence(source, axis=axis)
    out = source.copy_template("reversed")
    out.raw_tensor = source.raw_tensor.flip(source.dims.index(axis))
    return out
