"""
What the searches share.

All scores inside a search are finite: NEG stands for minus infinity, since the difference of two infinities, or zero
times infinity, is not a number.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from .. import nn

__all__ = [
    "IMPOSSIBLE",
    "NEG",
    "as_scale",
    "check_ctc_log_probs",
    "check_index",
    "check_int",
    "check_scorer",
    "check_sequences",
    "finite",
    "index_dtype",
    "log",
    "longest_of",
    "make_room",
    "mask_of",
    "plain",
    "room_of",
    "scale_log_probs",
    "size_of",
    "type_name",
    "while_loop",
    "with_dims",
]

NEG = -1e30  # the sum of 1e8 of them is still finite in float32
IMPOSSIBLE = -1e29  # a score below is no hypothesis

S = TypeVar("S")


def finite(log_probs: nn.Tensor) -> nn.Tensor:
    """:return: float32, with NEG for minus infinity and for what is not a number"""
    log_probs = nn.cast(log_probs, "float32")
    return nn.where(log_probs > NEG, log_probs, NEG)  # not by maximum(), which keeps NaN


def scale_log_probs(log_probs: nn.Tensor, scale: float) -> nn.Tensor:
    """
    :param log_probs: any shape; minus infinity and NaN are impossible
    :param scale: also 0 or negative
    :return: float32, finite. An impossible label stays impossible, whatever the scale.
    """
    log_probs = finite(log_probs)
    if scale == 1:
        return log_probs
    return nn.where(log_probs < IMPOSSIBLE, NEG, log_probs * float(scale))


def log(x: nn.Tensor) -> nn.Tensor:
    """:return: finite also for 0"""
    return nn.log(nn.maximum(x, 1e-37))  # nn.safe_log fails in net dicts


def while_loop(cond: Callable[[S], nn.Tensor], body: Callable[[S], S], state: S) -> S:
    """
    :param cond: state -> bool scalar on the CPU
    :param body: state -> next state
    :param state: any nested structure. Where the engine is eager, its dims may grow in any way.
    :return: last state
    """
    if nn.is_executing_eagerly() and not nn.is_static_traceable():
        # Not nn.while_loop: with JAX, that fixes the dims.
        while bool(cond(state).raw_tensor):
            state = body(state)
        return state
    return nn.while_loop(cond, body, state)


def with_dims(state: S, dims: Sequence[nn.Dim]) -> S:
    """
    :param state: any nested structure
    :param dims: B
    :return: with B in each of its tensors, so that `nn.nested.where_nested` can choose by a condition {B}
    """
    always = nn.constant(True, dims=dims, dtype="bool")

    def expand(x: Any) -> Any:
        if not isinstance(x, nn.Tensor):
            return x
        if x.dims and not set(x.dims) & set(dims):
            x = nn.expand_dims(x, dims)
        return nn.where(always, x, x)

    return nn.nested.tree.map_structure(expand, state)


def mask_of(spatial_dim: nn.Dim, *, device: str | None) -> nn.Tensor:
    """
    :return: {B, spatial}, whether a frame is one; {spatial}, where the dim is static and RETURNN has no mask for it
    """
    if spatial_dim.is_static():
        return nn.constant(True, dims=[spatial_dim], dtype="bool", device=device)
    return spatial_dim.get_mask(device=device)


def longest_of(spatial_dim: nn.Dim) -> nn.Tensor:
    """:return: number of frames of the longest sequence, scalar"""
    return plain(nn.convert_to_tensor(spatial_dim.get_dim_value_tensor()))


def room_of(history: nn.Tensor, *, without: Sequence[nn.Dim]) -> nn.Dim:
    """:return: the dim of the labels in {B, K, room}, where without is B and K"""
    (room_dim,) = (d for d in history.dims if d not in without)
    return room_dim


def make_room(history: nn.Tensor, *, length: nn.Tensor, more: nn.Tensor, end: int) -> tuple[nn.Tensor, nn.Dim]:
    """
    :param history: labels {B, K, old room}
    :param length: how many there are {B, K}
    :param more: for how many more there shall be room at least, scalar
    :param end: what stands behind the last label
    :return: {B, K, room}, and the dim room
    """
    most = nn.reduce_max(length, axis=length.dims)
    room_dim = nn.Dim(
        nn.copy_to_device(nn.cast(most, more.dtype) + nn.copy_to_device(more, most.device) + 1, "cpu"), name="room"
    )
    positions = plain(nn.range_over_dim(room_dim, dtype="int32", device=history.device))
    old_dim = room_of(history, without=length.dims)
    labels = nn.gather(history, indices=positions, axis=old_dim, clip_to_valid=True)
    return nn.where(nn.compare_bc(positions, "less", nn.cast(length, "int32")), labels, end), room_dim


def size_of(dim: nn.Dim) -> int:
    """of a static dim"""
    assert dim.dimension is not None
    return dim.dimension


def index_dtype() -> str:
    """:return: of indices, so that the engine need not convert them"""
    return "int64" if nn.get_selected_backend() == "torch" else "int32"


def plain(x: Any, dtype: str = "int32") -> nn.Tensor:
    """:return: as integers without sparse dim: net dicts cannot mix tensors with and without. Exact to 2**24"""
    if nn.get_selected_backend() == "returnn_layers_tf":
        return nn.cast(nn.cast(x, "float32"), dtype)
    x = nn.cast(x, dtype).copy()
    x.sparse_dim = None
    return x


def check_int(name: str, what: str, value: Any, *, at_least: int):
    """:raise ValueError: not an int, or too small"""
    if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
        raise ValueError(f"{name}: {what}, expected an int of at least {at_least}, got {value!r}")


def check_index(name: str, what: str, value: Any, dim: nn.Dim):
    """:raise ValueError: no index of that dim"""
    size = dim.dimension or 0
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < size:
        raise ValueError(f"{name}: {what}, expected an index from 0 to {size - 1} of {dim}, got {value!r}")


def as_scale(name: str, what: str, value: Any) -> float:
    """:raise ValueError: not a finite number"""
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not math.isfinite(value):
        raise ValueError(f"{name}: {what}, expected a finite number, got {value!r}")
    return float(value)


def check_scorer(name: str, scorer: Any):
    """:raise TypeError: it has no static `vocab_dim`, and so is no :class:`Scorer`"""
    dim = getattr(scorer, "vocab_dim", None)
    if not isinstance(dim, nn.Dim) or dim.dimension is None:
        raise TypeError(
            f"{name}, expected a scorer, with a static vocab_dim, initial_state and score, got {type_name(scorer)}"
        )


def check_sequences(name: str, sequences: Any):
    """:raise TypeError: not a sequence of sequences"""
    is_sequence = hasattr(type(sequences), "__iter__")
    for x in sequences if is_sequence else [sequences]:
        if not is_sequence or not hasattr(type(x), "__iter__"):
            raise TypeError(f"{name}, expected the label indices of each, like [[1, 2], [3]], got {x!r}")


def type_name(value: Any) -> str:
    """:return: of the type; as more than one library has a Tensor, with the module where it is one"""
    name = type(value).__name__
    return f"{type(value).__module__}.{name}" if name == "Tensor" else name


def check_ctc_log_probs(name: str, log_probs: nn.Tensor, *, spatial_dim: nn.Dim, blank: int) -> nn.Dim:
    """
    :param log_probs: {batch, spatial, labels and blank}
    :return: dim of labels and blank: the feature dim, or the only static dim beside the batch dim
    :raise ValueError, TypeError: there is none, or another argument doesn't fit
    """
    if not isinstance(log_probs, nn.Tensor):
        raise TypeError(f"{name}: log_probs, expected a Tensor, got {type_name(log_probs)}")
    if not log_probs.dtype.startswith(("float", "bfloat")):
        raise TypeError(f"{name}: log_probs, expected a float tensor, got {log_probs.dtype}")
    if spatial_dim not in log_probs.dims:
        raise ValueError(f"{name}: log_probs, expected a tensor with {spatial_dim}, got {log_probs}")
    vocab_dim = log_probs.feature_dim
    if vocab_dim is None or vocab_dim == spatial_dim:
        static = [d for d in log_probs.dims if d != spatial_dim and d.dimension is not None and not d.is_batch_dim()]
        if len(static) != 1:
            raise ValueError(f"{name}: log_probs, expected a feature dim or one static dim, got {log_probs}")
        vocab_dim = static[0]
    check_index(name, "blank", blank, vocab_dim)
    return vocab_dim
