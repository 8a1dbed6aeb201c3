"""
The loss of a transducer from its two halves, so that the logits of all frames need never exist at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from returnn.tensor import Dim, Tensor

from ._label_scores import label_log_probs
from ._transducer_targets import TransducerLoss, TransducerTargets, find_positions_dim, loss_of_scores
from ._transducer_topologies import range_over
from .checks import check_at_least

__all__ = ["Joint", "joint_transducer_loss", "joint_transducer_scores"]

Joint = Callable[[Tensor, Tensor], Tensor]
"""``(encoder {batch, time, ...}, predictor {batch, positions, ...}) -> logits {batch, time, positions, vocab}``"""


def joint_transducer_loss(
    joint: Joint, *, encoder: Tensor, predictor: Tensor, targets: TransducerTargets, frames_per_block: int = 16
) -> TransducerLoss:
    """
    :func:`transducer_loss` of ``joint(encoder, predictor)``.

    On PyTorch, the joint network runs on a few frames at a time, and again in the backward pass: memory is that of
    these frames' logits, time that of another forward pass. Each block is a tensor of its own with another time dim,
    so the network must treat all frames alike. On the other engines it runs once, on all frames.

    :param joint: ``(encoder, predictor) -> logits`` with vocab as feature dim. Module or function
    :param encoder: ``{batch, time, features}``
    :param predictor: at [u] for what follows after u labels ``{batch, positions, features}``, positions = labels + 1
    :param targets:
    :param frames_per_block: at once
    :return: see :class:`TransducerLoss`
    :raises ValueError: if a dim is missing or has other lengths, or frames_per_block is below 1
    """
    scores, positions_dim = joint_transducer_scores(
        joint, encoder=encoder, predictor=predictor, targets=targets, frames_per_block=frames_per_block
    )
    return loss_of_scores(scores, targets, positions_dim)[0]


def joint_transducer_scores(
    joint: Joint, *, encoder: Tensor, predictor: Tensor, targets: TransducerTargets, frames_per_block: int = 16
) -> tuple[list[Tensor], Dim]:
    """
    What the loss and the alignments need of the logits, see :func:`joint_transducer_loss`, also for the arguments.

    :return: log probabilities ``{batch, time, positions}`` of what may follow in frame t after u labels: blank, the
        next label, and with the topology "ctc" the last label once more; and the dim positions. 0 in the padding
    :raises ValueError: see there
    """
    check_at_least("transducer", 1, frames_per_block=frames_per_block)
    check_encoder("encoder", encoder, targets)
    positions_dim, _ = find_positions_dim("predictor", predictor, targets, time_dim=None)
    mask = targets.sizes(positions_dim).valid()[0]
    symbols = targets.symbols(range_over(positions_dim, predictor))

    def score(encoder: Tensor, predictor: Tensor, mask: Tensor, time_dim: Dim) -> list[Tensor]:
        logits = joint(encoder, predictor)
        _, vocab_dim = find_positions_dim("the joint network's output", logits, targets, time_dim=time_dim)
        targets.check_vocab(vocab_dim)
        return label_log_probs(logits, symbols, axis=vocab_dim, mask=mask)

    by_block = encoder._raw_backend.name == "torch" and int(targets.input_spatial_dim.get_dim_value()) > 0
    if by_block:
        scores = _by_block_torch(score, encoder, predictor, mask, targets.input_spatial_dim, frames_per_block)
    else:
        scores = score(encoder, predictor, mask, targets.input_spatial_dim)
    return scores, positions_dim


def check_encoder(what: str, encoder: Tensor, targets: TransducerTargets):
    """:raises ValueError: if it has no batch or time"""
    expected = [*targets.targets.remaining_dims(targets.targets_spatial_dim), targets.input_spatial_dim]
    if any(dim not in encoder.dims for dim in expected):
        raise ValueError(f"transducer: expected {what} with the dims {expected}, got {encoder}")


def _by_block_torch(
    score: Callable[..., list[Tensor]], encoder: Tensor, predictor: Tensor, mask: Tensor, time_dim: Dim, size: int
) -> list[Tensor]:
    """:return: as score, whose intermediate results are not kept but computed again"""
    import torch
    from torch.utils.checkpoint import checkpoint

    encoder = encoder.copy_transpose([time_dim, *encoder.remaining_dims(time_dim)])
    mask = mask.copy_transpose([time_dim, *mask.remaining_dims(time_dim)])
    dims = mask.dims[1:]

    def block(encoder_raw: Any, predictor_raw: Any, mask_raw: Any) -> list[Any]:
        block_dim = Dim(len(encoder_raw), name="frames")
        parts = [_with_values(x, block_dim, raw) for x, raw in [(encoder, encoder_raw), (mask, mask_raw)]]
        predictor_copy = predictor.copy_template()
        predictor_copy.raw_tensor = predictor_raw
        scores = score(parts[0], predictor_copy, parts[1], block_dim)
        return [x.copy_compatible_to_dims_raw([block_dim, *dims]) for x in scores]

    def run(*parts: Any) -> list[Any]:
        _settle_hooks()
        result = checkpoint(block, *parts, use_reentrant=False)
        assert isinstance(result, list)
        return result

    inputs = zip(encoder.raw_tensor.split(size), mask.raw_tensor.split(size), strict=True)
    blocks = [run(encoder_raw, predictor.raw_tensor, mask_raw) for encoder_raw, mask_raw in inputs]
    joined = [torch.cat(parts, dim=0) for parts in zip(*blocks, strict=True)]
    dtype = str(joined[0].dtype).removeprefix("torch.")
    return [Tensor("score", dims=[time_dim, *dims], dtype=dtype, raw_tensor=x) for x in joined]


def _settle_hooks() -> None:
    """
    RETURNN's weight dropout changes how PyTorch's hooks on saved tensors are entered and left. Once its graph is gone,
    it takes that back when the next one is entered; in a ``with``, that one would be left in a way it wasn't entered.
    """
    import torch

    hooks = torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x)
    hooks.__enter__()
    hooks.__exit__()


def _with_values(x: Tensor, first_dim: Dim, raw: Any) -> Tensor:
    """:return: x with another first dim and these values"""
    template = x.copy_template_replace_dim_tag(0, first_dim)
    template.raw_tensor = raw
    return template
