"""
What RETURNN carries over from one network to the next. Of a layer with a network inside, such as a subnetwork, it takes
the variables of all that is inside, and fails if one of them isn't there any more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["find_parameters", "find_variables", "import_variables", "with_importers"]

_WITH_NETWORKS = {"subnetwork", "rec", "cond", "masked_computation"}


def import_variables(layer, values_dict, session):
    """Sets the variables of a layer by their names, and leaves out those that this network doesn't have."""
    prefix = layer.get_absolute_name_scope_prefix()
    variables = {v.op.name: v for v in session.graph.get_collection("variables")}
    for name, value in values_dict.items():
        if prefix + name in variables:
            variables[prefix + name].load(value, session)


def with_importers(network: Mapping[str, Any]) -> dict[str, Any]:
    """:return: the same, in which each layer with a network inside takes what it still has"""
    return {name: _with_importer(layer) for name, layer in network.items()}


def _with_importer(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    found = {key: _with_importer(x) for key, x in value.items()}
    if found.get("class") in _WITH_NETWORKS:
        found["custom_param_importer"] = import_variables
    return found


def find_variables(network: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """:return: absolute names of layers with parameters or the state of a random generator"""
    for name, layer in network.items():
        if isinstance(layer, dict):
            if layer.get("class") in ("variable", "random"):
                yield f"{path}{name}"
            yield from find_variables(layer, f"{path}{name}/")


def find_parameters(network: Mapping[str, Any], path: str = "", scope: str = "") -> Iterator[tuple[str, str]]:
    """:return: name of a parameter, and the absolute name of its layer"""
    for name, layer in network.items():
        if not isinstance(layer, Mapping):
            continue
        own = layer.get("name_scope", name)
        inner = own[1:] if own.startswith("/") else "/".join(part for part in (scope, own) if part)
        if layer.get("class") == "variable":
            yield inner.replace("/", "."), f"{path}{name}"
        for key in ("subnetwork", "unit"):
            if isinstance(layer.get(key), Mapping):
                yield from find_parameters(layer[key], f"{path}{name}/", inner)
