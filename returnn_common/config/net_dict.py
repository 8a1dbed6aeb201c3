"""
From a RETURNN config to the net dict of RETURNN's TensorFlow layers, as objects and as Python source.

    net_dict = make_net_dict("train.config")  # or the dict of a config, or a module
    net_dict.network["encoder"]               # nested dicts, with Dim objects
    Path("net_dict.config").write_text(net_dict.code)

The source imports RETURNN alone, and ``python -m returnn net_dict.config`` trains.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from returnn.tensor import Dim
from returnn.tensor.marked_dim import MarkedDim

from ._clean_dims import CleanDims, map_dims, restore_dim_math
from ._deep import call_deep
from ._layers import build_layers, find_dims, restored_dims
from ._layout import Expression
from ._net_code import RESERVED_NAMES, ROOM, NetCode, Part, join_parts
from ._net_options import STEPS, checked_options, data_with_dims, is_plain, other_options
from ._snapshot import Snapshot
from .description import DescribedModel, Describer, Description
from .dims_code import DimsCode
from .sources import read_config

__all__ = ["BACKEND", "HEAD", "NetDict", "make_net_dict"]

BACKEND = "tensorflow-net-dict"
HEAD = '#!rnn.py\n"""The network of a RETURNN config, as layers of TensorFlow. It was written by a program."""\n\n'
_LEFT_OUT = """
# Left out, since it needs more than RETURNN, as datasets of returnn_common do: {names}
# Where RETURNN needs it, give it as dicts of RETURNN's own datasets, in this file or in another that imports this one.
"""


class NetDict:
    """
    A network of RETURNN's layers with its ``extern_data``, which share dims; and the code of both, in parts.

    Any net dict can be given, also one written by hand, or put together from several. Sharing of dims survives
    pickling, and so does the code; copies keep the same dims. Of a network and ``extern_data`` that were pickled
    together as they are, RETURNN loses which dims were derived from which; here they get it back.

    :param network: name -> layer, with Dim objects, nested
    :param extern_data: name -> options of the data
    :param dims: names of dims in the code; those that have none get one from their description
    :param options: the other options of the config, which the code gets as well
    :param parameters: name -> (shape, dtype), where they are known
    :param description: of the model and the data, see :class:`.description.Describer`, on which the hash depends
        instead of the layers; or the error of that
    """

    def __init__(
        self,
        network: Mapping[str, Any],
        extern_data: Mapping[str, Any],
        *,
        dims: Mapping[str, Dim] | None = None,
        options: Mapping[str, Any] | None = None,
        parameters: Mapping[str, tuple[tuple[int, ...], str]] | None = None,
        description: Description | ValueError = None,
    ):
        for name, value in {"network": network, "extern_data": extern_data}.items():
            if not isinstance(value, Mapping):
                raise TypeError(f"NetDict: expected {name} as a dict, got {type(value).__name__} {value!r}")
        self.network = dict(network)
        self.extern_data = dict(extern_data)
        self.options = dict(options or {})
        self.parameters = dict(parameters or {})
        self.left_out: list[str] = []
        self._given_dims = dict(dims or {})
        self._description = description
        self._described = Snapshot([self.network, self.extern_data]) if description is not None else None
        self._written: tuple[Snapshot, dict[str, Any]] | None = None
        self._restore_dim_math()  # they may come from a pickle

    def replaced(
        self, network: Mapping[str, Any], extern_data: Mapping[str, Any], *, dims: Mapping[str, Dim]
    ) -> NetDict:
        """:return: the same model, with its layers or dims written otherwise, so that its hash stays"""
        made = copy.copy(self)
        made.network, made.extern_data, made._given_dims = dict(network), dict(extern_data), dict(dims)
        made._described = Snapshot([made.network, made.extern_data])
        return made

    def describe(self) -> Description:
        """
        :return: the model and the data, without the names of layers; without a model, or if somebody has changed the
            layers or the data since, those. It doesn't include the other options.
        :raises ValueError: if the model has something that can't be described, such as a lambda
        """
        if self._described is not None and self._described.matches([self.network, self.extern_data]):
            if isinstance(self._description, ValueError):
                raise ValueError(*self._description.args)
            return self._description
        return Describer().config({"extern_data": self.extern_data, "network": self.network})

    def __sis_state__(self) -> dict[str, Any]:
        """what Sisyphus' hash depends on"""
        return {"network": self.describe(), "options": Describer().config(self.options)}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_written": None}

    def __setstate__(self, state: dict[str, Any]):
        self.__dict__.update(state)
        self._restore_dim_math()

    def _restore_dim_math(self):
        restore_dim_math(find_dims([self.network, self.extern_data, self._given_dims]))

    def __repr__(self) -> str:
        return f"<NetDict {', '.join(self.extern_data)} -> {', '.join(self.network)}>"

    @property
    def dims(self) -> dict[str, Dim]:
        """name in the code -> dim, in the order of their declaration: before a dim comes what it's derived from"""
        return dict(self._parts["dims"])

    @property
    def dims_code(self) -> str:
        """All dims: what the two other parts need before them."""
        return self._parts["code"]["dims"].code

    @property
    def extern_data_code(self) -> str:
        """``extern_data = ...``"""
        return self._parts["code"]["extern_data"].code

    @property
    def network_code(self) -> str:
        """``network = ...``, with the functions and arrays that are in it"""
        return self._parts["code"]["network"].code

    def network_prolog(self, *, values: bool = True) -> str:
        """
        :param values: False: only what the network needs before it
        :return: code of the dims and the network alone, with room for RETURNN to build it
        """
        code = self._parts["code"]
        network = code["network"] if values else replace(code["network"], values={})
        return join_parts([ROOM, code["dims"], network])

    @property
    def network_expression(self) -> Expression:
        """the network as code that isn't laid out yet, in which paths are kept"""
        return self._parts["code"]["network"].values["network"]

    @property
    def options_code(self) -> str:
        """the other options of the config"""
        return join_parts([self._parts["code"][name] for name in ("options", "more options")])

    @property
    def code(self) -> str:
        """All of it: a config for RETURNN. Evaluated, it gives the same ``extern_data`` and ``network``."""
        return HEAD + join_parts([ROOM, *self._parts["code"].values()])

    def options_parts(self, code: NetCode) -> dict[str, Part]:
        """:return: the other options: what is plain data, with a comment on what can't be written; and the rest"""
        plain = {name: value for name, value in self.options.items() if is_plain(value)}
        parts = {
            "options": code.part({"backend": BACKEND, **plain}),
            "more options": code.part({name: value for name, value in self.options.items() if name not in plain}),
        }
        if self.left_out:
            parts["options"].lines = _LEFT_OUT.format(names=", ".join(self.left_out)).strip().splitlines()
        return parts

    @property
    def _parts(self) -> dict[str, Any]:
        state = [self.network, self.extern_data, self.options, self.left_out]
        if self._written is None or not self._written[0].matches(state):
            self._written = Snapshot(state), self._write()
        return self._written[1]

    def _write(self) -> dict[str, Any]:
        code = NetCode(self._given_dims, values=[self.extern_data, self.network])
        extern_data = code.part({"extern_data": self.extern_data})
        network = code.part({"network": self.network})
        options = self.options_parts(code)
        parts = {
            **{"options": options["options"], "dims": code.dims_part, "extern_data": extern_data, "network": network},
            **{"more options": options["more options"]},
        }
        return {"code": parts, "dims": code.dims.names}


def make_net_dict(config: Any, *, epoch: int = 1) -> NetDict:
    """
    Runs ``get_model`` and the step of the config's ``task`` (default: "train", if there is a ``train_step``) with
    RETURNN's layers backend. Nothing of RETURNN's state, such as the selected backend, is changed by that.

    In the result, the dims of ``extern_data`` and all static dims are the config's own, the others are new.

    :param config: dict, module, or path of a file: ``get_model``, ``train_step`` or ``forward_step``, ``extern_data``,
        ``behavior_version`` (default: that of this process), and any others. Of these, plain data goes into the code
        as well.
    :param epoch: for ``get_model``
    :raises TypeError: if the config is something else, or holds what can't be written
    :raises ValueError: if it lacks one of those
    """
    options = checked_options(read_config(config, options={"backend": BACKEND}))
    extern_data = {name: data_with_dims(name, entry) for name, entry in options["extern_data"].items()}
    own = find_dims(extern_data)
    model = DescribedModel(options["get_model"], {"extern_data": extern_data, "step": options[STEPS[options["task"]]]})
    changed = {**options, "extern_data": extern_data, "get_model": model}
    with restored_dims(own):
        layers = call_deep(lambda: build_layers(changed, epoch=epoch))
        dims = CleanDims(own, find_dims([layers.network, layers.dims]))
    network = map_dims(layers.network, dims.clean)
    names = _name_dims(extern_data, network, order=[dims.clean(dim) for dim in layers.dims])
    others, left_out = other_options(options)
    made = NetDict(
        network,
        extern_data,
        dims=names,
        options=others,
        parameters=layers.parameters,
        description=model.description,
    )
    made.left_out = left_out
    return made


def _name_dims(extern_data: Any, network: Any, *, order: Iterable[Dim]) -> dict[str, Dim]:
    """:return: name -> dim, as they come; in sets, where nothing comes first, in that order"""
    ranks: dict[Dim, int] = {}
    for dim in order:
        ranks.setdefault(dim, len(ranks))
    code = DimsCode(reserved=RESERVED_NAMES)

    def rank(value: Any) -> int:
        return ranks.get(value.tag if isinstance(value, MarkedDim) else value, len(ranks))

    def visit(value: Any):
        if isinstance(value, (Dim, MarkedDim)):
            code.ref(value)
        elif isinstance(value, Mapping):
            for k, v in value.items():
                visit(k)
                visit(v)
        elif isinstance(value, (list, tuple)):
            for x in value:
                visit(x)
        elif isinstance(value, (set, frozenset)):
            for x in sorted((x for x in value if isinstance(x, (Dim, MarkedDim))), key=rank):
                visit(x)

    visit(extern_data)
    visit(network)
    return code.names
