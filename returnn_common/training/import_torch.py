"""
Weights of PyTorch's own layers for our modules. They are mapped by name, and a name that isn't known is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy

from ._import_rules import Rule, apply_rules, count_layers, linear_rules, norm_rules, split_heads, to_numpy

__all__ = ["import_torch_lstm", "import_torch_transformer_decoder", "import_torch_transformer_encoder"]

_LSTM_NAME = re.compile(r"(?P<part>weight_ih|weight_hh|bias_ih|bias_hh)_l(?P<layer>\d+)(?P<reverse>_reverse)?")


def import_torch_lstm(state_dict: Mapping[str, Any], *, prefix: str = "layers.") -> dict[str, numpy.ndarray]:
    """
    From ``torch.nn.LSTM`` (https://docs.pytorch.org/docs/stable/generated/torch.nn.LSTM.html), of any number of layers.

    Unidirectional: ``weight_ih_l0`` becomes ``layers.0.ff_weight``, as in :func:`make_lstm_lm`.
    Bidirectional: ``layers.0.forward_lstm.ff_weight`` and ``layers.0.backward_lstm.ff_weight``, as in
    :func:`make_lstm_encoder`. The bias is the sum of PyTorch's two, zeros if it has none.

    :param state_dict: of the LSTM alone, name -> tensor or array
    :param prefix: of the names in our model, before the number of the layer
    :return: parameter name -> array, as float32
    :raises ValueError: for a name that ``torch.nn.LSTM`` doesn't have, or that is for what our LSTM can't do
        (projections); or if a name is missing
    """
    found: dict[tuple[int, bool], dict[str, numpy.ndarray]] = {}
    unknown = []
    for name, value in state_dict.items():
        match = _LSTM_NAME.fullmatch(name)
        if match is None:
            unknown.append(name)
            continue
        parts = found.setdefault((int(match["layer"]), bool(match["reverse"])), {})
        parts[match["part"]] = to_numpy(value)
    if unknown:
        projected = " (projections are not supported)" if any(name.startswith("weight_hr") for name in unknown) else ""
        raise ValueError(f"import_torch_lstm: unknown names {sorted(unknown)}{projected}")
    _check_complete(found)
    bidirectional = any(reverse for _, reverse in found)
    params = {}
    for (layer, reverse), parts in sorted(found.items()):
        name = f"{prefix}{layer}."
        if bidirectional:
            name += "backward_lstm." if reverse else "forward_lstm."
        no_bias = numpy.zeros(parts["weight_ih"].shape[:1], "float32")
        params[name + "ff_weight"] = parts["weight_ih"]
        params[name + "rec_weight"] = parts["weight_hh"]
        params[name + "bias"] = parts.get("bias_ih", no_bias) + parts.get("bias_hh", no_bias)
    return params


def _check_complete(found: Mapping[tuple[int, bool], Mapping[str, Any]]) -> None:
    directions = sorted({reverse for _, reverse in found}) or [False]
    wanted = set().union(*found.values()) | {"weight_ih", "weight_hh"}
    if wanted & {"bias_ih", "bias_hh"}:
        wanted |= {"bias_ih", "bias_hh"}
    if directions == [True]:
        directions = [False, True]
    missing = [
        f"{part}_l{layer}" + ("_reverse" if reverse else "")
        for layer in range(max((layer for layer, _ in found), default=0) + 1)
        for reverse in directions
        for part in sorted(wanted)
        if part not in found.get((layer, reverse), {})
    ]
    if missing:
        raise ValueError(f"import_torch_lstm: missing names {missing}")


def import_torch_transformer_encoder(state_dict: Mapping[str, Any], *, num_heads: int) -> dict[str, numpy.ndarray]:
    """
    From ``torch.nn.TransformerEncoder`` of layers with ``norm_first=True`` and ``norm=LayerNorm(...)``, or from one
    such ``TransformerEncoderLayer``
    (https://docs.pytorch.org/docs/stable/generated/torch.nn.TransformerEncoder.html).

    Names are those of :func:`make_transformer_encoder` and :func:`make_transformer_text_encoder` with absolute
    positions: ``layers.0.self_att.qkv.weight``, ``final_layer_norm.scale``, and so on; of a single layer without
    ``layers.0.``. PyTorch's has no embedding and no positions, so that what our encoder has before its layers isn't
    among them. Whether the norms come first, and whether the activation is ReLU, can't be seen from parameters.

    :param state_dict: of the encoder or of the layer alone, name -> tensor or array
    :param num_heads: ``nhead``
    :return: parameter name -> array, as float32
    :raises ValueError: for a name that isn't known, or is missing, or a size that doesn't fit
    """
    importer = "import_torch_transformer_encoder"
    return _import_stack(state_dict, importer=importer, num_heads=num_heads, attentions={"self_attn": "self_att"})


def import_torch_transformer_decoder(state_dict: Mapping[str, Any], *, num_heads: int) -> dict[str, numpy.ndarray]:
    """
    From ``torch.nn.TransformerDecoder`` or a ``TransformerDecoderLayer``, as
    :func:`import_torch_transformer_encoder` does from encoders, for :func:`make_transformer_decoder`.

    :param state_dict: of the decoder or of the layer alone, name -> tensor or array
    :param num_heads: ``nhead``
    :return: parameter name -> array, as float32, without the embedding
    :raises ValueError: for a name that isn't known, or is missing, or a size that doesn't fit
    """
    importer = "import_torch_transformer_decoder"
    attentions = {"self_attn": "self_att", "multihead_attn": "cross_att"}
    return _import_stack(state_dict, importer=importer, num_heads=num_heads, attentions=attentions)


def _import_stack(
    state_dict: Mapping[str, Any], *, importer: str, num_heads: int, attentions: Mapping[str, str]
) -> dict[str, numpy.ndarray]:
    if any(name.startswith("self_attn.") for name in state_dict):
        rules = _layer_rules("", attentions=attentions, num_heads=num_heads)
    else:
        rules = norm_rules("final_layer_norm", "norm")
        for i in range(count_layers(state_dict, "layers.")):
            rules += _layer_rules(f"layers.{i}.", attentions=attentions, num_heads=num_heads)
    return apply_rules(rules, state_dict, importer=importer)


def _layer_rules(prefix: str, *, attentions: Mapping[str, str], num_heads: int) -> list[Rule]:
    """layers have the same prefix here and there"""
    rules = []
    for theirs, ours in attentions.items():
        rules += _attention_rules(prefix + ours, prefix + theirs, num_heads=num_heads)
        rules += linear_rules(f"{prefix}{ours}.proj", f"{prefix}{theirs}.out_proj")
    for i, ours in enumerate([*attentions.values(), "ff"]):
        rules += norm_rules(f"{prefix}{ours}_layer_norm", f"{prefix}norm{i + 1}")
    rules += linear_rules(f"{prefix}ff.linear_ff", f"{prefix}linear1")
    rules += linear_rules(f"{prefix}ff.linear_out", f"{prefix}linear2")
    return rules


def _attention_rules(ours: str, theirs: str, *, num_heads: int) -> list[Rule]:
    """Queries, keys and values are one matrix there; of our cross-attention, queries are another one."""
    weight, bias = (f"{theirs}.in_proj_weight",), (f"{theirs}.in_proj_bias",)

    def _qkv(x: numpy.ndarray) -> numpy.ndarray:
        return split_heads(x.T, 3, num_heads)

    def _q(x: numpy.ndarray) -> numpy.ndarray:
        return x.T[..., : x.shape[0] // 3]

    def _kv(x: numpy.ndarray) -> numpy.ndarray:
        return split_heads(x.T[..., x.shape[0] // 3 :], 2, num_heads)

    parts = {"qkv": _qkv} if ours.endswith("self_att") else {"q": _q, "kv": _kv}
    rules = []
    for name, convert in parts.items():
        rules += [Rule(f"{ours}.{name}.weight", weight, convert), Rule(f"{ours}.{name}.bias", bias, convert)]
    return rules
