"""
Configs for i6_core's ``ReturnnConfig``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from ..config import NetDict, StagedNetDict
from ..config._delayed import is_delayed, plain_value
from ..config._writer import Writer
from ..config.description import Describer
from ..config.dims_code import DimsCode
from ._contents import find_paths
from .code_wrapper import CodeWrapper

__all__ = ["returnn_config"]

_Network = NetDict | StagedNetDict


def returnn_config(
    config: Mapping[str, Any] | _Network,
    *,
    post_config: Mapping[str, Any] | None = None,
    inline: Iterable[str] = (),
) -> dict[str, Any]:
    """
    Arguments for i6_core's ``ReturnnConfig``::

        ReturnnConfig(**returnn_config(config, post_config={"log_verbosity": 4}))

    Plain data and Sisyphus' paths stay as they are, in their structure, so that jobs can look at them and change them.
    What is no code as it stands (dims, functions, objects) becomes a :class:`CodeWrapper`; what they need (imports,
    dims, functions that are written out) goes to ``python_prolog``. Hashes are as for :func:`.stable_hash`: dims are
    numbered by their first occurrence, ``extern_data`` first.

    Of a :class:`..config.NetDict`, the hash is that of the model and the data, whatever the names of the layers. Of
    several (:class:`..config.StagedNetDict`), all are in the prolog, with ``get_network``, and all count for the hash.

    :param config: options by name, see :func:`..config.to_python`; or a network, or several
    :param post_config: further ones that don't count for the hash
    :param inline: see :func:`..config.to_python`
    :return: ``config``, ``post_config``, ``python_prolog``
    :raises ValueError: see :func:`..config.to_python` and :func:`.stable_hash`, and for an option that is in both
    :raises TypeError: see :func:`..config.to_python`
    """
    if not isinstance(config, Mapping | _Network):
        raise TypeError(f"returnn_config: expected a dict of options or a network, got {type(config).__name__}")
    post_config = dict(post_config or {})
    network = config if isinstance(config, _Network) else None
    if isinstance(config, _Network):
        config = {"backend": "tensorflow-net-dict", **config.options, "extern_data": config.extern_data}
    if both := sorted(set(config) & set(post_config)):
        raise ValueError(f"returnn_config: expected each option once, got {', '.join(both)} in config and post_config")
    wrapper = _Wrapper({**config, **post_config}, inline=tuple(inline), network=network)
    wrapper.describer.config(config)  # numbers the dims
    order = sorted(wrapper.writer.options, key=lambda name: name != "extern_data")
    wrapped = {name: wrapper.option(name) for name in order}
    return {
        "config": {**{name: wrapped[name] for name in config}, **wrapper.layers()},
        "post_config": {name: wrapped[name] for name in post_config},
        "python_prolog": wrapper.prolog(),
    }


class _Wrapper:
    def __init__(self, options: Mapping[str, Any], *, inline: tuple[str, ...], network: _Network | None):
        self.writer = Writer(options, inline=inline)
        self._network = network
        self._paths: tuple[Any, ...] = ()  # in the layers
        if network is not None:
            self._name = "network" if isinstance(network, NetDict) else "get_network"
            self._paths = tuple(find_paths(network.network if isinstance(network, NetDict) else network.networks))
            self.writer.dims = DimsCode(reserved=[*options, self._name], names=network.dims)
        self.describer = Describer()

    def option(self, name: str) -> Any:
        """:return: the value of an option, with code where that is needed"""
        value = self.writer.options[name]
        code = self.writer.option(name)
        if isinstance(code, str) and code == name:  # imported or defined under that name
            return self._code(code, value, where=name)
        return self._value(value, where=name)

    def _value(self, value: Any, *, where: str) -> Any:
        if is_delayed(value) or getattr(value, "_sis_path", None) is True:
            return value
        value = plain_value(value)
        if value is None or type(value) in (bool, int, str, bytes) or (type(value) is float and math.isfinite(value)):
            return value
        if type(value) in (list, tuple):
            return type(value)(self._value(part, where=f"{where}[{i}]") for i, part in enumerate(value))
        if type(value) is dict and all(_is_plain_key(key) for key in value):
            return {plain_value(key): self._value(part, where=f"{where}.{key}") for key, part in value.items()}
        return self._code(self.writer.value(value, where=where), value, where=where)

    def _code(self, code: Any, value: Any, *, where: str) -> CodeWrapper:
        return CodeWrapper(code, hashed=self.describer.value(value, where=where), paths=tuple(find_paths(value)))

    def layers(self) -> dict[str, CodeWrapper]:
        """:return: options of RETURNN that refer to the prolog; or the network itself, if it has paths"""
        network = self._network
        if network is None:
            return {}
        hashed = network.describe()
        if not self._paths:
            return {self._name: CodeWrapper(self._name, hashed=hashed)}
        if isinstance(network, NetDict):
            return {"network": CodeWrapper(network.network_expression, hashed=hashed, paths=self._paths)}
        networks = CodeWrapper(network.networks_expression, hashed="", paths=self._paths)
        return {"networks": networks, "get_network": CodeWrapper("get_network", hashed=hashed)}

    def prolog(self) -> CodeWrapper:
        """:return: what all the code needs; what it is counts where it is used, and not here"""
        writer = self.writer
        layers = [] if self._network is None else [self._network.network_prolog(values=not self._paths)]
        parts = [
            "from __future__ import annotations\n" if writer.lazy_annotations else "",
            writer.imports_code(),
            writer.dims_code() if not layers else "",
            *layers,
            *writer.definitions,
        ]
        return CodeWrapper("\n".join(part for part in parts if part), hashed="prolog")


def _is_plain_key(key: Any) -> bool:
    key = plain_value(key)
    return all(map(_is_plain_key, key)) if type(key) is tuple else type(key) in (str, int, float, bool, type(None))
