"""
The log probabilities of a few labels out of a large vocabulary.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import returnn.frontend as rf
from returnn.tensor import Dim, Tensor

__all__ = ["label_log_probs"]

BLOCK = {"cpu": 2**18}  # numbers that are normalised at once: what fits into a CPU's cache
BLOCK_ELSEWHERE = 2**26


def label_log_probs(logits: Tensor, labels: Sequence[Tensor], *, axis: Dim, mask: Tensor) -> list[Tensor]:
    """
    What :func:`returnn.frontend.log_softmax` has at these labels.

    On PyTorch, normalised logits never exist at once, neither forward nor backward.

    :param logits: ``{batch, ..., vocab}`` of any float type, what is not in the mask may be anything
    :param labels: indices without sparse dim, each with some dims of the logits
    :param axis: vocab
    :param mask: bool with some dims of the logits but vocab: where they count
    :return: for each of the labels ``{batch, ...}``, float64 if the logits are, else float32; 0 outside of the mask
    """
    if logits._raw_backend.name == "torch":
        return _log_probs_torch(logits, labels, axis=axis, mask=mask)
    if logits.dtype != "float64":
        logits = rf.cast(logits, "float32")
    logits = rf.where(mask, logits, 0.0)
    total = rf.reduce_logsumexp(logits, axis=axis)
    return [rf.where(mask, rf.gather(logits, indices=label, axis=axis) - total, 0.0) for label in labels]


def _log_probs_torch(logits: Tensor, labels: Sequence[Tensor], *, axis: Dim, mask: Tensor) -> list[Tensor]:
    import torch

    dims = logits.remaining_dims(axis)
    raw = [x.copy_compatible_to_dims_raw(dims).long() for x in labels]
    mask_raw: torch.Tensor = mask.copy_compatible_to_dims_raw(dims)
    logits_raw: torch.Tensor = logits.copy_compatible_to_dims_raw([*dims, axis])
    shape = logits_raw.shape[:-1]
    raw_labels = torch.stack([x.expand(shape) for x in raw], dim=-1)
    rows = None if bool(mask_raw.all()) else mask_raw.expand(shape).reshape(-1).nonzero().squeeze(1)
    result = _torch_function().apply(logits_raw, raw_labels, rows)
    dtype = str(result.dtype).removeprefix("torch.")
    return [Tensor("log_prob", dims=dims, dtype=dtype, raw_tensor=x) for x in result.unbind(dim=-1)]


@functools.cache
def _torch_function() -> Any:
    """:return: ``apply(logits {..., vocab}, labels {..., k}, rows or None) -> log_probs {..., k}``"""
    import torch

    class LabelLogProbs(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, logits: torch.Tensor, labels: torch.Tensor, rows: torch.Tensor | None) -> torch.Tensor:
            ctx.save_for_backward(logits, labels)
            flat, flat_labels = logits.reshape(-1, logits.shape[-1]), labels.reshape(-1, labels.shape[-1])
            dtype = torch.promote_types(logits.dtype, torch.float32)
            result = logits.new_zeros(flat_labels.shape, dtype=dtype)
            for block in _blocks(flat, rows):
                log_probs = torch.log_softmax(flat[block].to(dtype), dim=-1)
                result[block] = log_probs.gather(1, flat_labels[block])
            return result.reshape(labels.shape)

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx: Any, *grads: torch.Tensor) -> Any:
            logits, labels = ctx.saved_tensors
            flat, flat_labels = logits.reshape(-1, logits.shape[-1]), labels.reshape(-1, labels.shape[-1])
            grad = grads[0].reshape(flat_labels.shape)
            needed = (grad != 0).any(dim=1)
            rows = None if bool(needed.all()) else needed.nonzero().squeeze(1)
            result = torch.empty_like(flat) if rows is None else torch.zeros_like(flat)
            for block in _blocks(flat, rows):
                part = torch.softmax(flat[block].to(grad.dtype), dim=-1)
                part *= -grad[block].sum(dim=1, keepdim=True)
                part.scatter_add_(1, flat_labels[block], grad[block])
                result[block] = part.to(result.dtype)
            return result.reshape(logits.shape), None, None

    return LabelLogProbs


def _blocks(flat: Any, rows: Any) -> list[Any]:
    """:return: what picks the rows, all if None, block by block"""
    size = max(1, BLOCK.get(flat.device.type, BLOCK_ELSEWHERE) // max(1, flat.shape[1]))
    if rows is not None:
        return list(rows.split(size)) if len(rows) else []
    return [slice(i, i + size) for i in range(0, flat.shape[0], size)]
