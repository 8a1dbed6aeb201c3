"""
A loop over the frames of a sequence which all four engines can run and differentiate.

Differs from :func:`returnn.frontend.scan` in that the number of frames is known, and in how the loop is made. RETURNN's
fails on JAX, whose ``while_loop`` has no reverse mode (here: ``jax.lax.scan``), and on the net dict, where it can't
carry the outputs (here: a rec layer). On PyTorch the loop is plain Python.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import returnn.frontend as rf
from returnn.frontend.nested import tree  # the same functions on nested structures as RETURNN's own
from returnn.frontend.tensor_array import TensorArray
from returnn.tensor import Dim, Tensor

from .recorded import loop_eager

__all__ = ["scan_over"]


def scan_over(
    spatial_dim: Dim,
    body: Callable[[Any, Any], tuple[Any, Any]],
    *,
    xs: Any,
    initial: Any,
    ys: Any,
    may_repeat: bool = False,
) -> tuple[Any, Any]:
    """
    ``ys[t], state[t + 1] = body(xs[t], state[t])`` for each frame t, with ``state[0] = initial``.

    What the body needs besides (parameters, the output of an encoder) it takes from outside. It must not draw random
    numbers or ask a dim for its mask: dropout is applied to what goes in or comes out, or its mask is one of the xs.

    :param spatial_dim: with known lengths
    :param body: ``(x, state) -> (y, new state)``, the state with the dims that it had
    :param xs: nested structure of tensors ``{batch, spatial_dim, ...}``, which the body gets frame by frame
    :param initial: nested structure of tensors ``{batch, ...}``
    :param ys: what the body returns as first, as tensors without values: ``{batch, ...}``
    :param may_repeat: see :func:`fold_over`: on PyTorch without gradients, the body runs only for the first frames
    :return: ``ys {batch, spatial_dim, ...}``; the state after each sequence's own last frame
    :raises ValueError: if the body changes the dims of the state or returns other dims than ys tells
    :raises TypeError: if the body is a method of a module. On the net dict, RETURNN would put what a calling module
        does in its methods outside of the loop; this holds for methods that the body calls as well.
    """
    if isinstance(getattr(body, "__self__", None), rf.Module):
        raise TypeError(f"scan_over: expected a function that is no method of a module, got {body}")
    first: Tensor = tree.flatten(initial)[0]
    backend: str = first._raw_backend.name or ""
    if backend == "tf":  # it has all that is needed
        outputs, state, _ = rf.scan(
            spatial_dim=spatial_dim, xs=xs, initial=initial, ys=ys, body=lambda x, s: _checked(body(x, s), s, ys)
        )
        return outputs, state
    mask = None
    if spatial_dim.need_masking():
        sizes = spatial_dim.get_size_tensor(device=first.device)
        mask = rf.compare_bc(rf.range_over_dim(spatial_dim, device=first.device), "<", sizes)

    def step(x: tuple[Any, Tensor | None], state: Any) -> tuple[Any, Any]:
        y, new_state = _checked(body(x[0], state), state, ys)
        if x[1] is not None:
            new_state = tree.map_structure(lambda new, old: _keep(x[1], new, old), new_state, state)
        return y, new_state

    run = {"jax": _scan_jax, "returnn_layers_tf": _scan_layers}.get(backend, _scan_eager)
    if may_repeat and backend == "torch":
        run = _scan_recorded
    return run(spatial_dim, step, xs=(xs, mask), initial=initial, ys=ys)


def _keep(mask: Tensor, new: Tensor, old: Tensor) -> Tensor:
    """the state of a sequence that has ended stays"""
    kept = rf.where(mask, new, old)
    kept.feature_dim = new.feature_dim
    return kept


def _checked(result: tuple[Any, Any], state: Any, ys: Any) -> tuple[Any, Any]:
    y, new_state = result
    for what, actual, expected in [("state", new_state, state), ("output", y, ys)]:
        tree.assert_same_structure(actual, expected)
        for a, b in zip(tree.flatten(actual), tree.flatten(expected), strict=True):
            if a.dims_set != b.dims_set:
                raise ValueError(f"scan_over: expected the {what} of the body with the dims {b.dims}, got {a}")
    return y, new_state


def _map(func: Callable[[Any], Any], structure: Any) -> Any:
    return tree.map_structure(lambda x: None if x is None else func(x), structure)


def _scan_eager(spatial_dim: Dim, step, *, xs, initial, ys):
    frames = _map(lambda x: TensorArray.unstack(x, axis=spatial_dim), xs)
    outputs = tree.map_structure(TensorArray, ys)
    state = initial
    for i in range(int(spatial_dim.get_dim_value())):
        y, state = step(_map(operator.itemgetter(i), frames), state)
        outputs = tree.map_structure(lambda array, new: array.push_back(new), outputs, y)
    return tree.map_structure(lambda array: array.stack(axis=spatial_dim), outputs), state


def _scan_recorded(spatial_dim: Dim, step, *, xs, initial, ys):
    import torch

    outputs, state = loop_eager(spatial_dim, step, xs=xs, initial=initial, ys=ys, may_repeat=True)
    if not outputs:  # no frames
        return _scan_eager(spatial_dim, step, xs=xs, initial=initial, ys=ys)
    stacked = [
        _with_value(template, torch.stack(list(frames)))
        for template, frames in zip(_with_time(ys, spatial_dim), zip(*outputs, strict=True), strict=True)
    ]
    return tree.unflatten_as(ys, stacked), state


def _scan_layers(spatial_dim: Dim, step, *, xs, initial, ys):
    from returnn.tf import frontend_layers as rfl

    del ys  # layers know their dims

    def mark_time(x: Tensor) -> Tensor:
        """a tensor which came from the outside by its dims has no time axis, and RETURNN can't give it one later"""
        return rfl.make_layer(
            {"class": "reinterpret_data", "from": x, "set_axes": {"T": spatial_dim}}, name="mark_time"
        )

    xs = _map(mark_time, xs)
    loop = rfl.Loop(axis=spatial_dim)
    loop.state.carry = initial
    with loop:
        y, loop.state.carry = _call_as(loop.layer_module, step, _map(loop.unstack, xs), loop.state.carry)
        outputs = tree.map_structure(loop.stack, y)
    return outputs, loop.state.carry


def _call_as(module: rf.Module, func: Callable[..., Any], *args: Any) -> Any:
    """
    RETURNN finds the room of a new layer by the modules among the first arguments on the call stack. Without the
    loop's module there, what follows after the call of another module goes to the room of whoever runs the loop.
    """
    assert isinstance(module, rf.Module)
    return func(*args)


def _scan_jax(spatial_dim: Dim, step, *, xs, initial, ys):
    import jax

    xs_flat = [x for x in tree.flatten(xs) if x is not None]
    xs_flat = [x.copy_transpose([spatial_dim, *x.remaining_dims(spatial_dim)]) for x in xs_flat]

    def raw_step(raw_state, raw_xs):
        frames = iter([_frame(x, raw) for x, raw in zip(xs_flat, raw_xs, strict=True)])
        state = tree.unflatten_as(
            initial, [_with_value(s, raw) for s, raw in zip(tree.flatten(initial), raw_state, strict=True)]
        )
        y, new_state = step(_map(lambda _: next(frames), xs), state)
        return _raw(new_state, like=initial), _raw(y, like=ys)

    raw_state, raw_ys = jax.lax.scan(raw_step, _raw(initial, like=initial), [x.raw_tensor for x in xs_flat])
    outputs = [_with_value(y, raw) for y, raw in zip(_with_time(ys, spatial_dim), raw_ys, strict=True)]
    state = [_with_value(s, raw) for s, raw in zip(tree.flatten(initial), raw_state, strict=True)]
    return tree.unflatten_as(ys, outputs), tree.unflatten_as(initial, state)


def _with_time(ys: Any, spatial_dim: Dim) -> list[Tensor]:
    """:return: templates with the time first"""
    return [y.copy_template().copy_add_dim_by_tag(spatial_dim, unbroadcast=True, axis=0) for y in tree.flatten(ys)]


def _raw(tensors: Any, *, like: Any) -> list[Any]:
    pairs = zip(tree.flatten(tensors), tree.flatten(like), strict=True)
    return [tensor.copy_compatible_to_dims_raw(template.dims) for tensor, template in pairs]


def _with_value(template: Tensor, raw: Any) -> Tensor:
    tensor = template.copy_template()
    tensor.raw_tensor = raw
    return tensor


def _frame(x: Tensor, raw: Any) -> Tensor:
    """:param x: time first"""
    return _with_value(x.copy_template_excluding_axis(0), raw)
