"""
What the importers of weights share: rules that say from which parameters of elsewhere each of ours is made.

Every source parameter must be in a rule, and every rule must find its sources; both kinds of failure name them.
Layouts: a linear layer's weight is ``{out, in}`` there, ``{in, out}`` here; convolutions are alike. Attention has
queries, keys and values one after the other there; here each head has its own three.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy

__all__ = [
    "Rule",
    "apply_rules",
    "attention_rules",
    "batch_norm_rules",
    "convolution_rules",
    "count_layers",
    "linear_rules",
    "norm_rules",
    "read_num_heads",
    "relative_position_rules",
    "split_heads",
    "to_numpy",
]

_MAX_LISTED = 8
# Of our nn.BatchNorm and of RETURNN's; PyTorch's.
_OUR_BATCH_NORM_EPS, _TORCH_BATCH_NORM_EPS = 1e-3, 1e-5


@dataclass(frozen=True)
class Rule:
    """
    :param name: our parameter
    :param sources: names there
    :param convert: their arrays -> ours
    """

    name: str
    sources: tuple[str, ...]
    convert: Callable[..., numpy.ndarray] = lambda x: x


def apply_rules(
    rules: Iterable[Rule], state_dict: Mapping[str, Any], *, importer: str, ignore: str | None = None, hint: str = ""
) -> dict[str, numpy.ndarray]:
    """
    :param rules:
    :param state_dict: name -> tensor or array
    :param importer: its name, for messages
    :param ignore: pattern of names that hold no parameter, such as counters
    :param hint: at the end of the message about names that don't fit
    :return: our name -> array, as float32
    :raises ValueError: for names that no rule knows, missing ones, or arrays that can't be what the rule takes them for
    """
    rules = list(rules)
    wanted = {source for rule in rules for source in rule.sources}
    unknown = sorted(name for name in state_dict if name not in wanted and not (ignore and re.fullmatch(ignore, name)))
    missing = sorted(wanted - set(state_dict))
    problems = [
        f"{what} names {_listed(names)}" for what, names in (("unknown", unknown), ("missing", missing)) if names
    ]
    if problems:
        raise ValueError(f"{importer}: {', '.join(problems)}{hint}")
    params = {}
    for rule in rules:
        arrays = [to_numpy(state_dict[source]) for source in rule.sources]
        try:
            params[rule.name] = numpy.ascontiguousarray(rule.convert(*arrays))
        except ValueError as exc:
            shapes = ", ".join(f"{s} {list(a.shape)}" for s, a in zip(rule.sources, arrays, strict=True))
            raise ValueError(f"{importer}: {rule.name} can't be made of {shapes}: {exc}") from exc
    return params


def to_numpy(value: Any) -> numpy.ndarray:
    """:param value: array, or PyTorch's tensor on any device and of any float type"""
    if hasattr(value, "detach"):
        value = value.detach().cpu().float().numpy()
    return numpy.asarray(value, "float32")


def count_layers(state_dict: Mapping[str, Any], prefix: str) -> int:
    """:return: one more than the largest number that follows the prefix; 1 if there is none, whose names are missing"""
    numbers = [re.match(re.escape(prefix) + r"(\d+)\.", name) for name in state_dict]
    return 1 + max((int(match[1]) for match in numbers if match), default=0)


def read_num_heads(state_dict: Mapping[str, Any], name: str, *, importer: str, hint: str = "") -> int:
    """
    :param name: of a bias of relative positions ``{heads, d}``
    :return: number of heads
    :raises ValueError: if it isn't there
    """
    if name not in state_dict:
        raise ValueError(f"{importer}: missing names {_listed([name])}{hint}")
    return int(state_dict[name].shape[0])


def linear_rules(ours: str, theirs: str, *, with_bias: bool = True) -> list[Rule]:
    """also of a convolution over one frame; ours always has a bias"""

    def _weight(weight: numpy.ndarray) -> numpy.ndarray:
        weight = weight.squeeze(-1) if weight.ndim == 3 else weight
        return _matrix(weight).T

    bias = Rule(f"{ours}.bias", (f"{theirs}.bias",))
    if not with_bias:
        bias = Rule(f"{ours}.bias", (f"{theirs}.weight",), _no_bias)
    return [Rule(f"{ours}.weight", (f"{theirs}.weight",), _weight), bias]


def norm_rules(ours: str, theirs: str) -> list[Rule]:
    """layer norm"""
    return [Rule(f"{ours}.scale", (f"{theirs}.weight",)), Rule(f"{ours}.bias", (f"{theirs}.bias",))]


def convolution_rules(ours: str, theirs: str, *, with_bias: bool = True) -> list[Rule]:
    """of any number of axes, depthwise or not; ours always has a bias"""
    bias = Rule(f"{ours}.bias", (f"{theirs}.bias",))
    if not with_bias:
        bias = Rule(f"{ours}.bias", (f"{theirs}.weight",), _no_bias)
    return [Rule(f"{ours}.filter", (f"{theirs}.weight",)), bias]


def batch_norm_rules(ours: str, theirs: str) -> list[Rule]:
    """The other epsilon goes into gamma, so that the running variance remains one."""

    def _gamma(weight: numpy.ndarray, variance: numpy.ndarray) -> numpy.ndarray:
        variance = variance.astype("float64")
        ratio = numpy.sqrt((variance + _OUR_BATCH_NORM_EPS) / (variance + _TORCH_BATCH_NORM_EPS))
        return (weight * ratio).astype("float32")

    return [
        Rule(f"{ours}.gamma", (f"{theirs}.weight", f"{theirs}.running_var"), _gamma),
        Rule(f"{ours}.beta", (f"{theirs}.bias",)),
        Rule(f"{ours}.running_mean", (f"{theirs}.running_mean",)),
        Rule(f"{ours}.running_variance", (f"{theirs}.running_var",)),
    ]


def attention_rules(ours: str, sources: Iterable[str], *, num_heads: int) -> list[Rule]:
    """
    Linear layers side by side: ``sources`` are those for queries, keys, values (or keys, values), ``ours`` is one.

    :raises ValueError: when applied, if the sizes are no multiples of num_heads
    """
    sources = list(sources)

    def _join(*parts: numpy.ndarray) -> numpy.ndarray:
        return split_heads(numpy.concatenate([_matrix(part).T for part in parts], axis=-1), len(parts), num_heads)

    def _join_biases(*parts: numpy.ndarray) -> numpy.ndarray:
        return split_heads(numpy.concatenate(parts), len(parts), num_heads)

    return [
        Rule(f"{ours}.weight", tuple(f"{source}.weight" for source in sources), _join),
        Rule(f"{ours}.bias", tuple(f"{source}.bias" for source in sources), _join_biases),
    ]


def split_heads(x: numpy.ndarray, kinds: int, num_heads: int) -> numpy.ndarray:
    """
    :param x: ``{..., kinds * heads * d}``, such as queries, keys, values
    :return: ``{..., heads * kinds * d}``
    :raises ValueError: if the size is no multiple of ``kinds * num_heads``
    """
    if num_heads < 1 or x.shape[-1] % (kinds * num_heads):
        raise ValueError(f"{x.shape[-1] // kinds} is no multiple of num_heads {num_heads}")
    split = x.reshape(*x.shape[:-1], kinds, num_heads, -1)
    return numpy.moveaxis(split, -3, -2).reshape(x.shape)


def relative_position_rules(ours: str, theirs: str) -> list[Rule]:
    """
    Of the positions' encoding (Dai et al. 2019, https://arxiv.org/abs/1901.02860, appendix B), there sines and cosines
    of ``i - j`` take turns, here all sines of ``j - i`` come first.
    """

    def _linear(weight: numpy.ndarray) -> numpy.ndarray:
        weight = _matrix(weight).T
        return numpy.concatenate([-weight[0::2], weight[1::2]])

    return [
        Rule(f"{ours}.linear_pos.weight", (f"{theirs}.linear_pos.weight",), _linear),
        Rule(f"{ours}.pos_bias_u", (f"{theirs}.pos_bias_u",)),
        Rule(f"{ours}.pos_bias_v", (f"{theirs}.pos_bias_v",)),
    ]


def _matrix(weight: numpy.ndarray) -> numpy.ndarray:
    if weight.ndim != 2:
        raise ValueError(f"expected a matrix, got the shape {list(weight.shape)}")
    return weight


def _no_bias(weight: numpy.ndarray) -> numpy.ndarray:
    return numpy.zeros(weight.shape[0], "float32")


def _listed(names: list[str]) -> str:
    more = len(names) - _MAX_LISTED
    return str(names[:_MAX_LISTED]) + (f" and {more} more" if more > 0 else "")
