"""
A loop over frames without what RETURNN's frontend costs in each of them.

On PyTorch, an operation of the frontend takes 10 to 100 µs of Python, one of PyTorch's own 2 to 5 µs. Where tensors are
small, as in a search, that is all of the time. So the operations of one frame are recorded below the frontend, and
repeated for the others, on the CPU by NumPy if they are small. The other engines compile their loops, or run them as
they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import returnn.frontend as rf
from returnn.frontend.nested import tree  # the same functions on nested structures as RETURNN's own
from returnn.tensor import Dim, Tensor

from ._recording import Repeat, compile_calls, record
from .loop import while_loop

__all__ = ["fold_over", "loop_eager"]

_ATTEMPTS = 3  # after the first frames, dims can be in another order, or tensors laid out in memory otherwise


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
    if not rf.is_executing_eagerly() or rf.is_static_traceable():
        num_frames = rf.convert_to_tensor(spatial_dim.get_dim_value_tensor())

        def frame(loop: tuple[Tensor, Any]) -> tuple[Tensor, Any]:
            x = tree.map_structure(lambda x: rf.gather(x, indices=loop[0], axis=spatial_dim), xs)
            return loop[0] + 1, body(x, loop[1])

        start = rf.constant(0, dims=(), dtype=num_frames.dtype, device="cpu")
        return while_loop(lambda loop: loop[0] < num_frames, frame, (start, initial))[1]
    _, state = loop_eager(
        spatial_dim, lambda x, state: ((), body(x, state)), xs=xs, initial=initial, ys=(), may_repeat=may_repeat
    )
    return state


def loop_eager(
    spatial_dim: Dim,
    step: Callable[[Any, Any], tuple[Any, Any]],
    *,
    xs: Any,
    initial: Any,
    ys: Any,
    may_repeat: bool,
) -> tuple[list[Sequence[Any]], Any]:
    """
    :param step: (x, state) -> (y, new state)
    :param xs: as in :func:`fold_over`, some may be None
    :param ys: templates of y
    :return: for each frame, the raw tensors of y with their templates' dims; the last state
    """
    tensors = [x for x in tree.flatten(xs) if x is not None]
    axes = [x.get_axis_from_description(spatial_dim) for x in tensors]
    may_repeat = may_repeat and all(x._raw_backend.name == "torch" for x in tensors)
    size = int(spatial_dim.get_dim_value())

    def call(x: Any, state: Any) -> tuple[list[Any], Any]:
        y, new_state = step(x, state)
        pairs = zip(tree.flatten(y), tree.flatten(ys), strict=True)
        return [a.copy_compatible_to_dims_raw(b.dims) for a, b in pairs], new_state

    outputs: list[Sequence[Any]] = []
    state = initial
    for t in range(size):
        x = tree.map_structure(lambda x: None if x is None else rf.gather(x, indices=t, axis=spatial_dim), xs)  # noqa: B023
        run = None
        if may_repeat and t <= _ATTEMPTS < size:
            y, state, run = _record(call, x, state)
        else:
            y, state = call(x, state)
        outputs.append(y)
        if run is not None:
            frames = [x.raw_tensor.unbind(axis)[t + 1 :] for x, axis in zip(tensors, axes, strict=True)]
            more, raw = run(zip(*frames, strict=True), [s.raw_tensor for s in tree.flatten(state)])
            outputs.extend(more)
            last = [_with_value(s, r) for s, r in zip(tree.flatten(state), raw, strict=True)]
            return outputs, tree.unflatten_as(state, last)
    return outputs, state


def _record(
    call: Callable[[Any, Any], tuple[list[Any], Any]], x: Any, state: Any
) -> tuple[list[Any], Any, Repeat | None]:
    """
    :return: y; new state; and what repeats it for raw tensors of x and state, or None where that can't be
    """
    # Copies: the body can know a state's tensor from elsewhere as well, where it stays.
    copies = [_with_value(s, s.raw_tensor.clone()) if isinstance(s, Tensor) else s for s in tree.flatten(state)]
    state = tree.unflatten_as(state, copies)
    (y, new_state), calls = record(lambda: call(x, state))
    old, new = tree.flatten(state), tree.flatten(new_state)
    if not all(isinstance(a, Tensor) and isinstance(b, Tensor) for a, b in zip(old, new, strict=True)):
        return y, new_state, None
    if any(a.dims != b.dims for a, b in zip(old, new, strict=True)):
        return y, new_state, None
    run = compile_calls(
        calls,
        inputs=[x.raw_tensor for x in [*tree.flatten(x), *old] if x is not None],
        outputs=[*y, *(x.raw_tensor for x in new)],
        num_states=len(new),
    )
    return y, new_state, run


def _with_value(template: Tensor, raw: Any) -> Tensor:
    tensor = template.copy_template()
    tensor.raw_tensor = raw
    return tensor
