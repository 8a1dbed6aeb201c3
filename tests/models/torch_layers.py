"""Copies parameters of our Transformer layers into those of torch.nn, whose norms come first as well."""

from __future__ import annotations

import numpy as np
import torch

__all__ = ["attention_parameters", "fill_layer", "layer_norm", "sinusoids"]


def fill_layer(layer: torch.nn.Module, params: dict[str, np.ndarray], prefix: str, *, num_heads: int):
    """
    :param layer: TransformerDecoderLayer, or TransformerEncoderLayer for one without cross-attention
    :param params: ours
    :param prefix: of the layer, e.g. "layers.0."
    """
    own = {name.removeprefix(prefix): value for name, value in params.items() if name.startswith(prefix)}
    weight, bias = own["self_att.qkv.weight"], own["self_att.qkv.bias"]
    # RETURNN: heads, each with queries, keys, values. torch: queries, keys, values, each with heads.
    weight, bias = (_by_kind(x, num_heads=num_heads) for x in (weight, bias))
    state = attention_parameters("self_attn", weight, bias, own["self_att.proj.weight"], own["self_att.proj.bias"])
    norms = ["self_att_layer_norm", "ff_layer_norm"]
    if "cross_att.kv.weight" in own:
        norms.insert(1, "cross_att_layer_norm")
        kv = [_by_kind(own[f"cross_att.kv.{name}"], num_heads=num_heads, kinds=2) for name in ("weight", "bias")]
        weight, bias = (
            np.concatenate([own[f"cross_att.q.{name}"], x], axis=-1)
            for name, x in zip(("weight", "bias"), kv, strict=True)
        )
        proj = own["cross_att.proj.weight"], own["cross_att.proj.bias"]
        state |= attention_parameters("multihead_attn", weight, bias, *proj)
    for i, name in enumerate(norms):
        state |= {f"norm{i + 1}.weight": own[f"{name}.scale"], f"norm{i + 1}.bias": own[f"{name}.bias"]}
    for i, name in enumerate(["ff.linear_ff", "ff.linear_out"]):
        state |= {f"linear{i + 1}.weight": own[f"{name}.weight"].T, f"linear{i + 1}.bias": own[f"{name}.bias"]}
    layer.load_state_dict({name: torch.tensor(value) for name, value in state.items()})


def attention_parameters(name: str, weight, bias, proj_weight, proj_bias) -> dict[str, np.ndarray]:
    """of torch's MultiheadAttention; ours have the input first"""
    return {
        f"{name}.in_proj_weight": weight.T,
        f"{name}.in_proj_bias": bias,
        f"{name}.out_proj.weight": proj_weight.T,
        f"{name}.out_proj.bias": proj_bias,
    }


def _by_kind(x: np.ndarray, *, num_heads: int, kinds: int = 3) -> np.ndarray:
    """``{..., heads * kinds * d}`` -> ``{..., kinds * heads * d}``"""
    split = x.reshape(*x.shape[:-1], num_heads, kinds, -1)
    return np.moveaxis(split, -2, -3).reshape(x.shape)


def layer_norm(x: torch.Tensor, params: dict[str, np.ndarray], name: str) -> torch.Tensor:
    """RETURNN's has another epsilon than torch's default"""
    scale, bias = (torch.tensor(params[f"{name}.{kind}"]) for kind in ("scale", "bias"))
    return torch.nn.functional.layer_norm(x, scale.shape, scale, bias, eps=1e-6)


def sinusoids(num: int, dim: int) -> np.ndarray:
    """the paper's positions with all sines first, from slowest angle 1 to 1 / 10000 in ``dim / 2`` equal ratios"""
    rates = 10_000.0 ** (-np.arange(dim // 2) / (dim // 2 - 1))
    angles = np.arange(num)[:, None] * rates
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype("float32")
