"""
A while loop in whose body modules can be called on every engine.

Differs from :func:`returnn.frontend.while_loop` on the net dict only. There, RETURNN makes each layer in the net of a
module on the call stack, or of the one that was called last. When a module of the model runs the loop, or the loop's
state came out of one, that net is outside of the loop, and the loop fails. And it doesn't find out about all dims.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import returnn.frontend as rf
from returnn.frontend.nested import tree  # the same functions on nested structures as RETURNN's own
from returnn.tensor import Tensor

__all__ = ["while_loop"]

S = TypeVar("S")


def while_loop(cond: Callable[[S], bool | Tensor], body: Callable[[S], S], initial: S) -> S:
    """
    ``while cond(state): state = body(state)``.

    :param cond: state -> scalar on the CPU
    :param body: state -> next state, of the same structure and, in a graph, with the same dims
    :param initial: state at first, any nested structure of tensors
    :return: last state
    """
    if rf.get_selected_backend() != "returnn_layers_tf":
        return rf.while_loop(cond, body, initial)
    from returnn.tf.frontend_layers import Layer

    net = Layer.top()
    before = set(net.children.values())
    with _layers_in_entered_net():
        last = rf.cond(cond(initial), lambda: _run_layers(cond, body, initial), lambda: initial)
        copies = _bring_near(net, [layer for layer in net.children.values() if layer not in before])
    # RETURNN drops layers that nothing seems to need. It doesn't see that a part of the state which is not used after
    # the loop still needs its initial value.
    for x in _tensors(last):
        x.raw_tensor.layer_extra_dependencies.extend(y.raw_tensor for y in [*_tensors(initial), *copies])
    return last


def _run_layers(cond: Callable[[S], bool | Tensor], body: Callable[[S], S], initial: S) -> S:
    """
    Like RETURNN's own, it runs the body at least once. But the order of the layers is ours. RETURNN finds out about
    dims by going from each layer to those that it needs, and so comes back to where it was. There it knows a part of
    the state by the initial value, and takes any other layer for a scalar. So all parts of the state have to come
    before any other layer: each one needs the next one first, and the end of the loop needs the first one.
    """
    from returnn.tf import frontend_layers as rfl

    loop = rfl.Loop(max_seq_len=rf.constant(2**31 - 1, dims=()))
    loop.state.state = initial
    with loop:
        state = body(tree.map_structure(_copy, loop.state.state))
        parts: list[Tensor] = []
        for x in reversed(tree.flatten(state)):
            parts.insert(0, _after(parts[:1], x))
        state = tree.unflatten_as(initial, parts)
        loop.state.state = state
        loop.end(_after(parts[:1], rf.logical_not(cond(state))), include_eos=True)
    return loop.state.state


def _copy(x: Tensor) -> Tensor:
    """So that no layer with several inputs meets a part of the state where RETURNN gives up to follow these inputs."""
    from returnn.tf import frontend_layers as rfl

    return rfl.make_layer({"class": "copy", "from": x}, name="previous")


def _after(before: list[Tensor], x: Tensor) -> Tensor:
    """:return: x, for which RETURNN looks at before first"""
    from returnn.tf import frontend_layers as rfl

    zero = rf.constant(0, dims=(), dtype=x.dtype, sparse_dim=x.sparse_dim)
    first = rfl.make_layer({"class": "copy", "from": zero, "extra_deps": before}, name="first")
    return rfl.make_layer({"class": "eval", "from": [first, x], "eval": "(source(0), source(1))[1]"}, name="next")


@contextlib.contextmanager
def _layers_in_entered_net() -> Iterator[None]:
    """
    New layers come into the net that was entered last (of a loop, a branch, or the root), whatever is on the call
    stack: modules have no nets of their own. Names of parameters don't depend on that.
    """
    from returnn.tf.frontend_layers import Layer

    def _current_ctx(cls: type[Layer], *, ignore_top_stack_frames: int = 0) -> Layer:
        del ignore_top_stack_frames
        net = cls.top()
        while not net.is_subnet:
            assert net.parent
            net = net.parent
        return net

    original = Layer.__dict__["current_ctx"]
    setattr(Layer, "current_ctx", classmethod(_current_ctx))  # noqa: B010 pyright wants no assignment to a method
    try:
        yield
    finally:
        setattr(Layer, "current_ctx", original)  # noqa: B010


def _bring_near(net: Any, layers: list[Any]) -> list[Any]:
    """
    A loop finds a layer in a subnetwork outside, such as a parameter, only if the subnetwork's own output is also
    needed by something before. So the loop gets copies from the net which it is in.

    :param net: the one that the loop is in
    :param layers: of the loop and of its condition, in net
    :return: the copies
    """
    from returnn.tf import frontend_layers as rfl

    copies: dict[Any, Tensor] = {}
    near = net.get_abs_name_ctx_list()

    def _near(x: Any) -> Any:
        if not isinstance(x, Tensor) or not isinstance(x.raw_tensor, rfl.Layer) or not x.raw_tensor.parent:
            return x
        if x.raw_tensor.parent in near or not inside.isdisjoint(x.raw_tensor.get_abs_name_ctx_list()):
            return x
        if x.raw_tensor not in copies:
            name = net.get_new_child(f"{x.raw_tensor.name}_for_loop")
            copies[x.raw_tensor] = rfl.make_layer({"class": "copy", "from": x}, name=name)
        return copies[x.raw_tensor]

    inside = set(layers)
    while layers:
        layer = layers.pop()
        layers.extend(layer.children.values())
        if layer.layer_dict:
            layer.layer_dict = tree.map_structure(_near, layer.layer_dict)
    return list(copies.values())


def _tensors(state: Any) -> list[Any]:
    return [x for x in tree.flatten(state) if isinstance(x, Tensor)]
