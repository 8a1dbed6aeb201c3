"""
Two strided convolutions with a rectifier between them as matrix products, for training on the CPU.

The second one sees each stride-th frame and frequency of the first one's output, from each of its filter's positions.
So that output is computed in parts ("phases"): one for each remainder of frame and frequency by the stride. In a phase,
what a position of the filter sees is one block of memory, and the convolution is a sum of matrix products, forward and
backward, without copies. Padding is zero in the first convolution's input, bias included, and so needs no mask.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

__all__ = ["convolve_twice"]


def convolve_twice(
    x: torch.Tensor,
    valid: torch.Tensor | None,
    weights: Sequence[torch.Tensor],
    biases: Sequence[torch.Tensor],
    strides: Sequence[tuple[int, int]],
    *,
    same: bool = True,
) -> torch.Tensor:
    """
    :param x: ``{batch, time, frequency}``, zero on padding
    :param valid: 1 where the first convolution's output counts, 0 where it is padding, ``{batch, time'}``; None for 1
    :param weights: of both, ``{out, in, height, width}``, with odd heights and widths
    :param biases: of both
    :param strides: of both
    :param same: whether zeros are around the input of each, so that each frame is in the middle of a filter; else a
        filter sees no more than the input
    :return: ``{batch, time'', frequency'', out}``, not yet rectified
    """
    import torch

    patches = _patches(x, weights[0].shape[2:], strides[0], same=same)
    ones = torch.ones_like(patches[..., :1])
    if valid is not None:
        patches, ones = patches * valid[..., None, None], ones * valid[..., None, None]
    patches = torch.cat([patches, ones], dim=-1)
    first = torch.cat([weights[0].flatten(1).t(), biases[0][None]])
    plan = _Plan.make(patches.shape[1:3], size=weights[1].shape[2:], strides=strides[1], same=same)
    phases = plan.split(patches)
    # {height, width, in, out}
    taps = weights[1].permute(2, 3, 1, 0).flatten(0, 1).contiguous()
    rows = _function().apply(phases, first, taps, biases[1], plan.taps)
    return plan.join(rows, batch=x.shape[0])


def _patches(x, size: Sequence[int], strides: tuple[int, int], *, same: bool):
    """:return: what the filter sees at each place, ``{batch, time', frequency', height * width}``"""
    import torch

    (height, width), (step, hop) = size, strides
    if same:
        x = torch.nn.functional.pad(x, (width // 2, width // 2, height // 2, height // 2))
    return x.unfold(1, height, step).unfold(2, width, hop).flatten(3)


@dataclass
class _Plan:
    """
    Each phase is a grid of rows, in the order of batch, time, frequency, with margins, so that one row's neighbours in
    the grid are at fixed distances from it.
    """

    shape: tuple[int, int]  # of the second convolution's output
    strides: tuple[int, int]
    before: tuple[int, int]  # margins
    grid: tuple[int, int]
    taps: list[tuple[int, int]]  # for each position of the filter: phase, distance in rows

    @classmethod
    def make(cls, shape: Sequence[int], *, size: Sequence[int], strides: tuple[int, int], same: bool) -> _Plan:
        """
        :param shape: of the second convolution's input
        :param size: of its filter
        :param strides: of it
        :param same: see above
        """
        margins = [n // 2 if same else 0 for n in size]
        out = tuple(
            (length + 2 * margin - n) // s + 1
            for length, margin, n, s in zip(shape, margins, size, strides, strict=True)
        )
        steps = [[divmod(i - margin, s) for i in range(n)] for n, margin, s in zip(size, margins, strides, strict=True)]
        before = tuple(-min(step for step, _ in axis) for axis in steps)
        after = tuple(max(step for step, _ in axis) for axis in steps)
        grid = tuple(a + n + b for a, n, b in zip(before, out, after, strict=True))
        taps = [(p * strides[1] + q, i * grid[1] + j) for i, p in steps[0] for j, q in steps[1]]
        return cls(out, strides, before, grid, taps)  # type: ignore[arg-type]

    def split(self, x):
        """:return: ``{batch, time, frequency, ...} -> {phase, rows, ...}``"""
        (height, width), (step, hop) = self.grid, self.strides
        out = x.new_zeros(step * hop, x.shape[0], height, width, x.shape[3])
        for i in range(step):
            for j in range(hop):
                top, left = self.before
                part = x[:, i::step, j::hop][:, : height - top, : width - left]  # no filter sees what is beyond
                out[i * hop + j, :, top : top + part.shape[1], left : left + part.shape[2]] = part
        return out.flatten(1, 3)

    def join(self, rows, *, batch: int):
        """:return: ``{rows, out} -> {batch, time, frequency, out}``, without the margins"""
        (top, left), (height, width) = self.before, self.shape
        return rows.view(batch, *self.grid, -1)[:, top : top + height, left : left + width]


@lru_cache
def _function() -> Any:
    """:return: the function below, made when PyTorch is there"""
    import torch

    class ConvolveTwice(torch.autograd.Function):
        """on rows"""

        @staticmethod
        def forward(ctx, phases, first, taps, bias, places):
            """
            :param phases: ``{phase, rows, in}``
            :param first: weight of the first convolution, ``{in, channels}``
            :param taps: weights of the second, ``{position, channels, out}``
            :param bias: of the second
            :param places: of each position: phase, and distance in rows
            :return: ``{rows, out}``, 0 in the margins at both ends
            """
            hidden = torch.matmul(phases, first).relu_()
            begin = max(-distance for _, distance in places)
            end = hidden.shape[1] - max(distance for _, distance in places)
            out = hidden.new_zeros(hidden.shape[1], bias.shape[0])
            inner = out[begin:end]
            inner.copy_(bias.expand_as(inner))
            for tap, (phase, distance) in zip(taps, places, strict=True):
                inner.addmm_(hidden[phase, begin + distance : end + distance], tap)
            ctx.save_for_backward(phases, first, taps, hidden)
            ctx.places, ctx.range = places, (begin, end)
            return out

        @staticmethod
        def backward(ctx, grad):
            """gradients of the first four"""
            phases, first, taps, hidden = ctx.saved_tensors
            begin, end = ctx.range
            if torch.is_grad_enabled():  # whose gradients are wanted as well
                return *_gradients(phases, first, taps, grad[begin:end], ctx.places, begin, end), None
            grad = grad[begin:end].contiguous()
            grad_taps = torch.empty_like(taps)
            grad_hidden = torch.zeros_like(hidden)
            for i, (phase, distance) in enumerate(ctx.places):
                seen = slice(begin + distance, end + distance)
                torch.mm(hidden[phase, seen].t(), grad, out=grad_taps[i])
                grad_hidden[phase, seen].addmm_(grad, taps[i].t())
            grad_hidden = torch.ops.aten.threshold_backward(grad_hidden, hidden, 0)
            flat = grad_hidden.flatten(0, 1)
            grad_first = torch.mm(phases.flatten(0, 1).t(), flat)
            grad_phases = torch.matmul(grad_hidden, first.t()) if ctx.needs_input_grad[0] else None
            return grad_phases, grad_first, grad_taps, grad.sum(0), None

    return ConvolveTwice


def _gradients(phases, first, taps, grad, places, begin: int, end: int):
    """:return: gradients as of the function above, of its first four arguments, by operations that have gradients"""
    import torch

    hidden = torch.matmul(phases, first).relu()
    out = torch.zeros_like(grad)
    for tap, (phase, distance) in zip(taps, places, strict=True):
        out = torch.addmm(out, hidden[phase, begin + distance : end + distance], tap)
    inputs = [x for x in (phases, first, taps) if x.requires_grad]
    found = iter(torch.autograd.grad(out, inputs, grad, create_graph=True))
    return *(next(found) if x.requires_grad else None for x in (phases, first, taps)), grad.sum(0)
