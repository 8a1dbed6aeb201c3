"""
A loop over frames without what RETURNN's frontend costs in each of them.

On PyTorch, an operation of the frontend takes 10 to 100 µs of Python, one of PyTorch's own 2 to 5 µs. Where tensors are
small, as in a search, that is all of the time. So the operations of one frame are recorded below the frontend, and
repeated for the others. The other engines compile their loops, or run them as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import returnn.frontend as rf
from returnn.frontend.nested import tree  # the same functions on nested structures as RETURNN's own
from returnn.tensor import Dim, Tensor

from ._recording import compile_calls, record
from .loop import while_loop

__all__ = ["fold_over"]

_ATTEMPTS = 3  # the first frames can have dims in another order, or tensors laid out in memory otherwise


def fold_over(
    spatial_dim: Dim, body: Callable[[Any, Any], Any], *, xs: Any, initial: Any, may_repeat: bool = True
) -> Any:
    """
    ``state[t + 1] = body(xs[t], state[t])`` for each frame t, with ``state[0] = initial``.

    Differs from :func:`scan_over` in that a sequence's state goes on changing behind its end, up to the longest one's,
    and in that there are no outputs.

    :param spatial_dim: with known lengths
    :param body: may use tensors from outside
    :param xs: nested structure of tensors ``{batch, spatial_dim, ...}``, which the body gets frame by frame
    :param initial: nested structure of tensors. In a graph, their dims must stay
    :param may_repeat: on PyTorch without gradients, the body runs only for the first frames, and what it did with the
        tensors is then repeated. So it may not draw random numbers, change anything, or look at values from Python.
    :return: the last state
    """
    num_frames = rf.convert_to_tensor(spatial_dim.get_dim_value_tensor())

    def frame(t: int | Tensor, state: Any) -> Any:
        return body(tree.map_structure(lambda x: rf.gather(x, indices=t, axis=spatial_dim), xs), state)

    if not rf.is_executing_eagerly() or rf.is_static_traceable():
        start = rf.constant(0, dims=(), dtype=num_frames.dtype, device="cpu")
        loop = while_loop(lambda s: s[0] < num_frames, lambda s: (s[0] + 1, frame(*s)), (start, initial))
        return loop[1]

    state, size = initial, int(num_frames.raw_tensor or 0)
    may_repeat = may_repeat and all(x._raw_backend.name == "torch" for x in tree.flatten(xs))
    for t in range(size):
        if may_repeat and 1 <= t <= _ATTEMPTS < size:
            state, repeat = _record(body, t, state, xs=xs, spatial_dim=spatial_dim)
            if repeat is not None:
                return repeat(state, t + 1)
        else:
            state = frame(t, state)
    return state


def _record(
    body: Callable[[Any, Any], Any], t: int, state: Any, *, xs: Any, spatial_dim: Dim
) -> tuple[Any, Callable[[Any, int], Any] | None]:
    """
    :return: the state after frame t; and (state, next frame) -> last state, or None where that can't be: state and new
        state differ in their dims or their layout in memory, gradients are wanted, or the frame did what can't be
        repeated
    """
    tensors = tree.flatten(xs)
    axes = [x.get_axis_from_description(spatial_dim) for x in tensors]
    x = tree.map_structure(lambda x: rf.gather(x, indices=t, axis=spatial_dim), xs)
    new_state, calls = record(lambda: body(x, state))
    old, new = tree.flatten(state), tree.flatten(new_state)
    if any(a.dims != b.dims for a, b in zip(old, new, strict=True)):
        return new_state, None
    inputs = [x.raw_tensor for x in [*tree.flatten(x), *old]]
    run = compile_calls(calls, inputs=inputs, outputs=[x.raw_tensor for x in new])
    if run is None:
        return new_state, None

    def repeat(state: Any, t: int) -> Any:
        raw: Sequence[Any] = [x.raw_tensor for x in tree.flatten(state)]
        inputs = [x.raw_tensor.unbind(axis)[t:] for x, axis in zip(tensors, axes, strict=True)]
        for xs_raw in zip(*inputs, strict=True):
            raw = run(*xs_raw, *raw)
        return tree.unflatten_as(state, [_with_value(x, r) for x, r in zip(tree.flatten(state), raw, strict=True)])

    return new_state, repeat


def _with_value(template: Tensor, raw: Any) -> Tensor:
    tensor = template.copy_template()
    tensor.raw_tensor = raw
    return tensor
