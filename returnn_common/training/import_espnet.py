"""
Weights of ESPnet's models (https://github.com/espnet/espnet) for our modules of the same architecture:
:mod:`returnn_common.models.encoder.espnet` and :mod:`returnn_common.models.decoder.transformer_espnet`.

An ESPnet checkpoint holds the parameters of a whole model: take the parts with :func:`.import_weights.part_of`, such as
``part_of(state_dict, "encoder.")``. They are mapped by name, and a name that isn't known is refused, since it belongs
to an option that our module doesn't have (another front end, absolute positions, no macaron blocks, ...).

Differs from ESPnet in what is equal up to rounding only: its encoders multiply what goes to the layers by
``sqrt(out_dim)``, which the imported linear layer of the front end contains; and the epsilon of its layer norms is
1e-12, here 1e-6.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy

from ._import_rules import (
    Rule,
    apply_rules,
    attention_rules,
    batch_norm_rules,
    convolution_rules,
    count_layers,
    linear_rules,
    norm_rules,
    read_num_heads,
    relative_position_rules,
    to_numpy,
)

__all__ = [
    "import_espnet_conformer_encoder",
    "import_espnet_ctc_output",
    "import_espnet_e_branchformer_encoder",
    "import_espnet_transformer_decoder",
]

_COUNTER = r".*\.num_batches_tracked"  # of batch norm; isn't used
_HINT = " (expected {})"
_CONFORMER = "input_layer conv2d, rel_pos_type latest, macaron_style, use_cnn_module, normalize_before"
_E_BRANCHFORMER = "input_layer conv2d, rel_pos_type latest, use_ffn, macaron_ffn, no use_linear_after_conv"
_DECODER = "input_layer embed, normalize_before, use_output_layer, no concat_after, no qk_norm"


def import_espnet_conformer_encoder(state_dict: Mapping[str, Any]) -> dict[str, numpy.ndarray]:
    """
    From ``espnet2.asr.encoder.conformer_encoder.ConformerEncoder``, for :func:`make_espnet_conformer_encoder`.

    :param state_dict: of the encoder alone, name -> tensor or array
    :return: parameter name -> array, as float32
    :raises ValueError: for a name that isn't known, or is missing, or a size that doesn't fit
    """
    importer, hint = "import_espnet_conformer_encoder", _HINT.format(_CONFORMER)
    heads = read_num_heads(state_dict, "encoders.0.self_attn.pos_bias_u", importer=importer, hint=hint)
    rules = _front_end_rules(state_dict) + norm_rules("final_layer_norm", "after_norm")
    for i in range(count_layers(state_dict, "encoders.")):
        ours, theirs = f"layers.{i}", f"encoders.{i}"
        rules += _half_feed_forward_rules(ours, theirs)
        rules += _self_attention_rules(ours, f"{theirs}.self_attn", num_heads=heads)
        rules += norm_rules(f"{ours}.self_att_layer_norm", f"{theirs}.norm_mha")
        rules += norm_rules(f"{ours}.conv_layer_norm", f"{theirs}.norm_conv")
        block, module = f"{ours}.conv_block", f"{theirs}.conv_module"
        rules += linear_rules(f"{block}.positionwise_conv1", f"{module}.pointwise_conv1")
        rules += convolution_rules(f"{block}.depthwise_conv", f"{module}.depthwise_conv")
        rules += batch_norm_rules(f"{block}.norm", f"{module}.norm")
        rules += linear_rules(f"{block}.positionwise_conv2", f"{module}.pointwise_conv2")
    return apply_rules(rules, state_dict, importer=importer, ignore=_COUNTER, hint=hint)


def import_espnet_e_branchformer_encoder(state_dict: Mapping[str, Any]) -> dict[str, numpy.ndarray]:
    """
    From ``espnet2.asr.encoder.e_branchformer_encoder.EBranchformerEncoder``, for
    :func:`make_espnet_e_branchformer_encoder`.

    :param state_dict: of the encoder alone, name -> tensor or array
    :return: parameter name -> array, as float32
    :raises ValueError: for a name that isn't known, or is missing, or a size that doesn't fit
    """
    importer, hint = "import_espnet_e_branchformer_encoder", _HINT.format(_E_BRANCHFORMER)
    heads = read_num_heads(state_dict, "encoders.0.attn.pos_bias_u", importer=importer, hint=hint)
    rules = _front_end_rules(state_dict) + norm_rules("final_layer_norm", "after_norm")
    for i in range(count_layers(state_dict, "encoders.")):
        ours, theirs = f"layers.{i}", f"encoders.{i}"
        rules += _half_feed_forward_rules(ours, theirs)
        rules += _self_attention_rules(ours, f"{theirs}.attn", num_heads=heads)
        rules += norm_rules(f"{ours}.self_att_layer_norm", f"{theirs}.norm_mha")
        rules += norm_rules(f"{ours}.cgmlp_layer_norm", f"{theirs}.norm_mlp")
        gate, mlp = f"{ours}.cgmlp", f"{theirs}.cgmlp"
        for rule in linear_rules(f"{gate}.linear_ff", f"{mlp}.channel_proj1.0"):
            rules.append(Rule(rule.name, rule.sources, _gate_first(rule)))
        rules += norm_rules(f"{gate}.norm", f"{mlp}.csgu.norm")
        rules += convolution_rules(f"{gate}.conv", f"{mlp}.csgu.conv")
        rules += linear_rules(f"{gate}.linear_out", f"{mlp}.channel_proj2")
        rules += convolution_rules(f"{ours}.merge.depthwise_conv_fusion", f"{theirs}.depthwise_conv_fusion")
        rules += linear_rules(f"{ours}.merge.merge_proj", f"{theirs}.merge_proj")
    return apply_rules(rules, state_dict, importer=importer, ignore=_COUNTER, hint=hint)


def import_espnet_transformer_decoder(state_dict: Mapping[str, Any], *, num_heads: int) -> dict[str, numpy.ndarray]:
    """
    From ``espnet2.asr.decoder.transformer_decoder.TransformerDecoder``, for :func:`make_espnet_transformer_decoder`.

    :param state_dict: of the decoder alone, name -> tensor or array
    :param num_heads: ``attention_heads``; the parameters don't tell
    :return: parameter name -> array, as float32
    :raises ValueError: for a name that isn't known, or is missing, or a size that doesn't fit
    """
    rules = [Rule("input_embedding.weight", ("embed.0.weight",))]
    rules += norm_rules("final_layer_norm", "after_norm") + linear_rules("logits", "output_layer")
    for i in range(count_layers(state_dict, "decoders.")):
        ours, theirs = f"layers.{i}", f"decoders.{i}"
        sources = [f"{theirs}.self_attn.linear_{x}" for x in "qkv"]
        rules += attention_rules(f"{ours}.self_att.qkv", sources, num_heads=num_heads)
        rules += linear_rules(f"{ours}.self_att.proj", f"{theirs}.self_attn.linear_out")
        sources = [f"{theirs}.src_attn.linear_{x}" for x in "kv"]
        rules += attention_rules(f"{ours}.cross_att.kv", sources, num_heads=num_heads)
        rules += linear_rules(f"{ours}.cross_att.q", f"{theirs}.src_attn.linear_q")
        rules += linear_rules(f"{ours}.cross_att.proj", f"{theirs}.src_attn.linear_out")
        rules += _feed_forward_rules(f"{ours}.ff", f"{theirs}.feed_forward")
        for number, name in enumerate(("self_att", "cross_att", "ff"), start=1):
            rules += norm_rules(f"{ours}.{name}_layer_norm", f"{theirs}.norm{number}")
    importer = "import_espnet_transformer_decoder"
    return apply_rules(rules, state_dict, importer=importer, hint=_HINT.format(_DECODER))


def import_espnet_ctc_output(state_dict: Mapping[str, Any]) -> dict[str, numpy.ndarray]:
    """
    From ``espnet2.asr.ctc.CTC``, for the linear layer ``output`` of :func:`make_ctc_model` with an encoder as in
    ESPnet. Blank is the first label there and becomes the last, so that label i there is i - 1 here.

    :param state_dict: of the CTC module alone, name -> tensor or array
    :return: parameter name -> array, as float32
    :raises ValueError: for a name that isn't known, or is missing, or a size that doesn't fit
    """
    rules = linear_rules("output", "ctc_lo")
    rules = [Rule(rule.name.removeprefix("output."), rule.sources, _blank_last(rule)) for rule in rules]
    return apply_rules(rules, state_dict, importer="import_espnet_ctc_output")


def _front_end_rules(state_dict: Mapping[str, Any]) -> list[Rule]:
    """Two convolutions and a linear layer, whose input has the frequencies inside of the channels there."""
    # Newer versions have the positions in one sequence with the linear layer.
    theirs = "embed.out.0" if "embed.out.0.weight" in state_dict else "embed.out"
    channels = len(to_numpy(state_dict["embed.conv.2.bias"])) if "embed.conv.2.bias" in state_dict else 1

    def _linear(weight: numpy.ndarray) -> numpy.ndarray:
        size = weight.shape[0]
        weight = weight.reshape(size, channels, -1).swapaxes(1, 2).reshape(size, -1)
        return weight.T * numpy.float32(math.sqrt(size))

    return [
        *convolution_rules("input_layer.conv.conv_layers.0", "embed.conv.0"),
        *convolution_rules("input_layer.conv.conv_layers.1", "embed.conv.2"),
        Rule("input_layer.linear.weight", (f"{theirs}.weight",), _linear),
        Rule("input_layer.linear.bias", (f"{theirs}.bias",), lambda bias: bias * numpy.float32(math.sqrt(len(bias)))),
    ]


def _half_feed_forward_rules(ours: str, theirs: str) -> list[Rule]:
    """of Conformer and E-Branchformer, with all norms that both have"""
    return [
        *norm_rules(f"{ours}.ffn1_layer_norm", f"{theirs}.norm_ff_macaron"),
        *_feed_forward_rules(f"{ours}.ffn1", f"{theirs}.feed_forward_macaron"),
        *norm_rules(f"{ours}.ffn2_layer_norm", f"{theirs}.norm_ff"),
        *_feed_forward_rules(f"{ours}.ffn2", f"{theirs}.feed_forward"),
        *norm_rules(f"{ours}.final_layer_norm", f"{theirs}.norm_final"),
    ]


def _feed_forward_rules(ours: str, theirs: str) -> list[Rule]:
    return linear_rules(f"{ours}.linear_ff", f"{theirs}.w_1") + linear_rules(f"{ours}.linear_out", f"{theirs}.w_2")


def _self_attention_rules(ours: str, theirs: str, *, num_heads: int) -> list[Rule]:
    sources = [f"{theirs}.linear_{x}" for x in "qkv"]
    return [
        *attention_rules(f"{ours}.self_att.qkv", sources, num_heads=num_heads),
        *linear_rules(f"{ours}.self_att.proj", f"{theirs}.linear_out"),
        *relative_position_rules(f"{ours}.self_att", theirs),
    ]


def _gate_first(rule: Rule):
    def _convert(*arrays: numpy.ndarray) -> numpy.ndarray:
        content, gate = numpy.split(rule.convert(*arrays), 2, axis=-1)
        return numpy.concatenate([gate, content], axis=-1)

    return _convert


def _blank_last(rule: Rule):
    def _convert(array: numpy.ndarray) -> numpy.ndarray:
        return numpy.roll(rule.convert(array), -1, axis=-1)

    return _convert
