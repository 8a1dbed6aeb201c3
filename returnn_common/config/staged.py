"""
Several networks for one training: each from some epoch on, for pretraining or other changes on the way.

    staged = make_staged_net_dict({1: small_config, 5: large_config})
    Path("staged.config").write_text(staged.code)  # with a function get_network(epoch), which RETURNN calls
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from returnn.tensor import Dim

from ._carry_over import find_parameters, find_variables, with_importers
from ._clean_dims import map_dims
from ._layout import Brackets, Expression, one_line
from ._net_code import ROOM, NetCode, Part, join_parts
from ._snapshot import Snapshot
from .description import Describer, Description
from .dims_code import derive_dim
from .net_dict import HEAD, NetDict, make_net_dict

__all__ = ["StagedNetDict", "make_staged_net_dict"]

_GET_NETWORK = '''
def get_network(epoch, **_other):
    """Called by RETURNN; the parameters that both networks have are carried over."""
    return networks[max(first for first in networks if first <= epoch)]
'''


class StagedNetDict:
    """
    Networks that share their ``extern_data`` and dims, each for the epochs from its first one on.

    As of :class:`.NetDict`, its copies keep the dims, and sharing of dims survives pickling.

    :param stages: first epoch -> network; all have the same dims
    """

    def __init__(self, stages: Mapping[int, NetDict]):
        self.stages = dict(sorted(stages.items()))
        self._written: tuple[Snapshot, dict[str, Part]] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"stages": self.stages, "_written": None}

    def __repr__(self) -> str:
        return f"<StagedNetDict {self.stages}>"

    def describe(self) -> Description:
        """
        :return: the epochs, with what :meth:`.NetDict.describe` says of their networks
        :raises ValueError: see there
        """
        return tuple((epoch, stage.describe()) for epoch, stage in self.stages.items())

    def __sis_state__(self) -> dict[str, Any]:
        """what Sisyphus' hash depends on"""
        return {"networks": self.describe(), "options": Describer().config(self.options)}

    @property
    def options(self) -> dict[str, Any]:
        """the other options of the config: the first stage's"""
        return next(iter(self.stages.values())).options

    @property
    def networks(self) -> dict[int, dict[str, Any]]:
        """first epoch -> network"""
        return {epoch: stage.network for epoch, stage in self.stages.items()}

    @property
    def extern_data(self) -> dict[str, Any]:
        """of all of them"""
        return next(iter(self.stages.values())).extern_data

    @property
    def dims(self) -> dict[str, Dim]:
        """name -> dim, of all networks"""
        return {name: dim for stage in self.stages.values() for name, dim in stage.dims.items()}

    def get_network(self, epoch: int) -> dict[str, Any]:
        """
        :param epoch: counted from 1, as RETURNN does
        :raises ValueError: for an epoch below 1
        """
        return self.stages[self._first_epoch(epoch)].network

    def _first_epoch(self, epoch: int) -> int:
        if epoch < 1:
            raise ValueError(f"epoch: expected at least 1, got {epoch}")
        return max(first for first in self.stages if first <= epoch)

    @property
    def dims_code(self) -> str:
        """all dims: those of ``extern_data``, then what each of the stages adds"""
        return self._code["dims"].code

    @property
    def extern_data_code(self) -> str:
        """``extern_data = ...``"""
        return self._code["extern_data"].code

    @property
    def networks_code(self) -> str:
        """``networks = {1: ..., ...}`` and the function ``get_network``"""
        return join_parts(self._network_parts)

    def network_prolog(self, *, values: bool = True) -> str:
        """
        :param values: False: only what the networks need before them, and ``get_network``, which takes ``networks``
        :return: code of the dims, the networks and ``get_network`` alone, with room for RETURNN to build them
        """
        if values:
            return join_parts([ROOM, self._code["dims"], *self._network_parts])
        networks = [replace(self._code[f"network_{epoch}"], values={}) for epoch in self.stages]
        return join_parts([ROOM, self._code["dims"], *networks, Part(definitions=[_GET_NETWORK])])

    @property
    def networks_expression(self) -> Expression:
        """``networks`` as code that isn't laid out yet, in which paths are kept"""
        codes = [(f"{epoch}: ", self._code[f"network_{epoch}"].values[f"network_{epoch}"]) for epoch in self.stages]
        return Brackets("{", tuple(codes), "}")

    @property
    def code(self) -> str:
        """All of it, and the other options of the first stage's config: a config for RETURNN."""
        before = [self._code[name] for name in ("options", "dims", "extern_data")]
        return HEAD + join_parts([ROOM, *before, *self._network_parts, self._code["more options"]])

    def stage_code(self, epoch: int) -> str:
        """
        For programs that write a file for each network, and the rest, ``dims_code`` of the first stage included, to the
        main config.

        :param epoch: in that stage
        :return: source with ``network``, and before it the dims that the main config doesn't have. It takes the others
            from RETURNN's global config.
        """
        first, *_ = self.stages.values()
        stage = self.stages[self._first_epoch(epoch)]
        known = {name: dim for name, dim in stage.dims.items() if name in first.dims}
        code = NetCode(stage.dims)
        network = code.part({"network": stage.network})
        taken = [f"{name} = get_global_config().typed_dict[{name!r}]".replace("'", '"') for name in known]
        imports = ["from returnn.config import get_global_config"] if taken else []
        lines = [line for line in code.dims.lines if line.partition(" = ")[0] not in known]
        return join_parts([Part(imports, lines=taken), Part(code.dims_part.imports, lines=lines), network])

    @property
    def _network_parts(self) -> list[Part]:
        names = ", ".join(f"{epoch}: network_{epoch}" for epoch in self.stages)
        networks = [self._code[f"network_{epoch}"] for epoch in self.stages]
        return [
            *networks,
            Part(lines=[f"networks = {{{names}}}"]),
            Part(definitions=[_GET_NETWORK]),
        ]

    @property
    def _code(self) -> dict[str, Part]:
        state = [self.networks, self.extern_data, self.options]
        if self._written is None or not self._written[0].matches(state):
            self._written = Snapshot(state), self._write()
        return self._written[1]

    def _write(self) -> dict[str, Part]:
        code = NetCode(self.dims)
        parts = {"extern_data": code.part({"extern_data": self.extern_data})}
        parts.update(next(iter(self.stages.values())).options_parts(code))
        for epoch, network in self.networks.items():
            parts[f"network_{epoch}"] = code.part({f"network_{epoch}": network})
        parts["dims"] = code.dims_part
        return parts


def make_staged_net_dict(configs: Mapping[int, Any]) -> StagedNetDict:
    """
    Runs :func:`.make_net_dict` for each of the configs. What the networks have in common, dims that are named alike and
    are of the same size and origin, gets one dim.

    :param configs: first epoch of a stage -> its config. The first stage begins in epoch 1.
    :raises TypeError: if the epochs are no ints
    :raises ValueError: if the first stage is missing, the stages have different ``extern_data``, or RETURNN could not
        carry over a parameter from one to a later one: it has another shape or type there, or is in another layer
    """
    for epoch in configs:
        if isinstance(epoch, bool) or not isinstance(epoch, int):
            raise TypeError(f"make_staged_net_dict: expected epochs as int, got {epoch!r}")
    if not configs or min(configs) != 1:
        raise ValueError(f"make_staged_net_dict: expected a first stage from epoch 1 on, got {sorted(configs)}")
    made = {epoch: make_net_dict(configs[epoch], epoch=epoch) for epoch in sorted(configs)}
    shared = _SharedDims()
    stages: dict[int, NetDict] = {}
    variables: list[set[str]] = []
    for epoch, stage in made.items():
        dims = shared.add(stage.dims)
        names = {shared.names[id(dim)]: dim for dim in dims.values()}

        def shared_dim(dim: Dim, dims: dict[int, Dim] = dims) -> Dim:
            found = dims.get(id(dim.get_same_base()), dim)
            return found.copy(match_priority=dim.match_priority) if dim.match_priority else found

        network, extern_data = (map_dims(x, shared_dim) for x in (stage.network, stage.extern_data))
        variables.append(set(find_variables(network)))
        if any(not earlier <= variables[-1] for earlier in variables):
            network = with_importers(network)
        stages[epoch] = stage.replaced(network, extern_data, dims=names)
    _check_extern_data(stages)
    _check_parameters(stages)
    return StagedNetDict(stages)


class _SharedDims:
    """
    Gives dims of several networks to each other: the nth of a name, size and origin stands for the nth such dim in all
    the others.
    """

    def __init__(self):
        self.names: dict[int, str] = {}  # id of a shared dim -> its name
        self._shared: dict[Any, list[Dim]] = {}
        self._reserved: set[str] = set()

    def add(self, dims: Mapping[str, Dim]) -> dict[int, Dim]:
        """
        :param dims: of a network, by name, in the order of their declaration
        :return: id of a dim -> the shared one
        """
        found: dict[int, Dim] = {}
        counts: dict[Any, int] = {}
        for name, dim in dims.items():
            operation = dim.derived_from_op
            inputs = (
                [x.dimension if x.is_constant_static_dim() else found.get(id(x), x) for x in operation.inputs]
                if operation
                else []
            )
            origin = (operation.kind, *(x if isinstance(x, int) else id(x) for x in inputs)) if operation else None
            key = dim.name, dim.dimension, dim.kind and dim.kind.name, origin
            count = counts[key] = counts.get(key, 0) + 1
            known = self._shared.setdefault(key, [])
            if len(known) < count:
                if operation and any(x is not y for x, y in zip(inputs, operation.inputs, strict=True)):
                    dim = derive_dim(operation.kind, inputs) or dim
                known.append(dim)
                self.names[id(dim)] = self._unique(name)
            found[id(dims[name])] = known[count - 1]
        return found

    def _unique(self, name: str) -> str:
        stem, candidate, number = name.removesuffix("_dim"), name, 1
        while candidate in self._reserved:
            number += 1
            candidate = f"{stem}_{number}_dim"
        self._reserved.add(candidate)
        return candidate


def _check_extern_data(stages: Mapping[int, NetDict]):
    (first_epoch, first), *others = stages.items()
    for epoch, stage in others:
        for name in {**first.extern_data, **stage.extern_data}:
            ours, theirs = (_describe_data(x, name) for x in (first, stage))
            if ours != theirs:
                raise ValueError(
                    f"stages {first_epoch} and {epoch}: expected the same extern_data, but {name!r} is {ours} in the "
                    f"one and {theirs} in the other"
                )


def _describe_data(stage: NetDict, name: str) -> str:
    if name not in stage.extern_data:
        return "missing"
    return one_line(NetCode(stage.dims).part({"data": stage.extern_data[name]}).values["data"])


def _check_parameters(stages: Mapping[int, NetDict]):
    known: dict[str, tuple[int, Any, str | None]] = {}
    for epoch, stage in stages.items():
        layers = dict(find_parameters(stage.network))
        for name, (shape, dtype) in stage.parameters.items():
            layer = layers.get(name)
            before, description, old_layer = known.setdefault(name, (epoch, (shape, dtype), layer))
            if description != (shape, dtype):
                raise ValueError(
                    f"stages {before} and {epoch}: parameter {name} is {_describe(*description)} in the one "
                    f"and {_describe(shape, dtype)} in the other"
                )
            if layer and old_layer and layer != old_layer:
                raise ValueError(
                    f"stages {before} and {epoch}: parameter {name} is the layer {old_layer} in the one and {layer} in "
                    "the other, by which name RETURNN would carry it over"
                )


def _describe(shape: tuple[int, ...], dtype: str) -> str:
    return f"{' x '.join(map(str, shape)) or 'a scalar'} {dtype}"
