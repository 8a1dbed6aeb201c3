"""
Weights of PyTorch's own layers for our modules. They are mapped by name, and a name that isn't known is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy

__all__ = ["import_torch_lstm"]

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
        parts[match["part"]] = _to_numpy(value)
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


def _to_numpy(value: Any) -> numpy.ndarray:
    """:param value: array, or PyTorch's tensor on any device and of any float type"""
    if hasattr(value, "detach"):
        value = value.detach().cpu().float().numpy()
    return numpy.asarray(value, "float32")
