"""Assignment to a parameter inside a nested module, on every engine."""

from __future__ import annotations

import returnn.frontend as rf
from returnn.tensor import Tensor

__all__ = ["assign_add"]


def assign_add(parameter: rf.Parameter, value: Tensor, *, module: rf.Module) -> None:
    """
    ``parameter += value``.

    Differs from :class:`returnn.frontend.Parameter`'s ``assign_add`` in that it also works on the net dict when other
    modules call the one which owns the parameter. There, two things go wrong:

    - RETURNN takes the parameter's layer away while it makes another one that reads the new value; but to name this
      layer, it makes a room in the root for each calling module, and wants the layers of all their parameters for that.
      So the owner gets its room before.
    - The layers of parameters lie in subnetworks, each of which has one of its layers for output: the one that is
      used first, often the assigned parameter. RETURNN then writes the subnetwork's name for the parameter's, and finds
      that this isn't a variable. So the parameter's layer moves to the root.

    :param parameter: auxiliary
    :param value: same dims
    :param module: the owner, which must be the innermost module that is being called
    """
    if parameter._raw_backend.name == "returnn_layers_tf":
        _prepare_net_dict(parameter, module=module)
    parameter.assign_add(value)


def _prepare_net_dict(parameter: rf.Parameter, *, module: rf.Module) -> None:
    from returnn.tf import frontend_layers as rfl

    root = rfl.Layer.top().root
    name = module.get_default_name()
    if not any(child.module is module for child in root.children.values()):
        rfl.Layer(module=module, parent=root, suggested_name=name).is_subnet = True
    layer = parameter.raw_tensor
    assert isinstance(layer, rfl.Layer)
    if layer.parent is not root and layer.layer_dict and layer.layer_dict["class"] == "variable":
        layer.assign_parent(root, suggested_name=f"{name}_{parameter.name}")
