"""
Weights of models of Hugging Face's transformers (https://github.com/huggingface/transformers) for our modules. They are
mapped by name, and a name that isn't known is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy

from ._import_rules import (
    apply_rules,
    attention_rules,
    batch_norm_rules,
    convolution_rules,
    count_layers,
    linear_rules,
    norm_rules,
    read_num_heads,
    relative_position_rules,
)

__all__ = ["import_wav2vec2_conformer_layers"]

_COUNTER = r".*\.num_batches_tracked"  # of batch norm; isn't used
_HINT = " (expected position_embeddings_type 'relative')"


def import_wav2vec2_conformer_layers(state_dict: Mapping[str, Any]) -> dict[str, numpy.ndarray]:
    """
    From the encoder's layers of ``Wav2Vec2ConformerModel`` with ``position_embeddings_type="relative"`` and
    ``hidden_act="swish"``, for the layers of :func:`make_conformer_encoder` with batch norm. Its biases of convolutions
    are zeros, as there are none there.

    Refused: ``position_embeddings_type="rotary"``, which turns what goes into the projections to queries and keys,
    where ours (:func:`make_rotary_conformer_encoder`) turns queries and keys, as the paper does: no parameters make
    them equal. Also refused is what stands around the layers (the convolution for positions, the last norm): select
    the layers by ``part_of(state_dict, "wav2vec2_conformer.encoder.layers.")``.

    :param state_dict: of ``encoder.layers`` alone, such as ``0.ffn1.intermediate_dense.weight``, -> tensor or array
    :return: parameter name, such as ``layers.0.ffn1.linear_ff.weight``, -> array, as float32
    :raises ValueError: for a name that isn't known, or is missing, or a size that doesn't fit
    """
    importer = "import_wav2vec2_conformer_layers"
    heads = read_num_heads(state_dict, "0.self_attn.pos_bias_u", importer=importer, hint=_HINT)
    rules = []
    for i in range(count_layers(state_dict, "")):
        ours, theirs = f"layers.{i}", f"{i}"
        for name in ("ffn1", "ffn2"):
            rules += norm_rules(f"{ours}.{name}_layer_norm", f"{theirs}.{name}_layer_norm")
            rules += linear_rules(f"{ours}.{name}.linear_ff", f"{theirs}.{name}.intermediate_dense")
            rules += linear_rules(f"{ours}.{name}.linear_out", f"{theirs}.{name}.output_dense")
        attention = f"{theirs}.self_attn"
        rules += norm_rules(f"{ours}.self_att_layer_norm", f"{theirs}.self_attn_layer_norm")
        rules += attention_rules(f"{ours}.self_att.qkv", [f"{attention}.linear_{x}" for x in "qkv"], num_heads=heads)
        rules += linear_rules(f"{ours}.self_att.proj", f"{attention}.linear_out")
        rules += relative_position_rules(f"{ours}.self_att", attention)
        block, module = f"{ours}.conv_block", f"{theirs}.conv_module"
        rules += norm_rules(f"{ours}.conv_layer_norm", f"{module}.layer_norm")
        rules += linear_rules(f"{block}.positionwise_conv1", f"{module}.pointwise_conv1", with_bias=False)
        rules += convolution_rules(f"{block}.depthwise_conv", f"{module}.depthwise_conv", with_bias=False)
        rules += batch_norm_rules(f"{block}.norm", f"{module}.batch_norm")
        rules += linear_rules(f"{block}.positionwise_conv2", f"{module}.pointwise_conv2", with_bias=False)
        rules += norm_rules(f"{ours}.final_layer_norm", f"{theirs}.final_layer_norm")
    return apply_rules(rules, state_dict, importer=importer, ignore=_COUNTER, hint=_HINT)
