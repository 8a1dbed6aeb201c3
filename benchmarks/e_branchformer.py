"""
E-Branchformer encoders beside ESPnet's: a training step, and inference, as ``conformer.py`` does it.

4 layers of width 256, feed-forward 512, cgMLP 1536, 4 heads, kernels 31, 4-fold subsampling by two 3x3 convolutions of
256 channels; no layers left out.

    python benchmarks/e_branchformer.py
    python benchmarks/e_branchformer.py --seconds 1 --batch 1 --rounds 30
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

# isort: split
from benchmarks.conformer import HEADS, KERNEL, LAYERS, MELS, WIDTH, Encoder, compare, make_ours

# isort: split
from returnn_common.models.encoder.e_branchformer import make_e_branchformer_encoder

_make_ours = partial(make_ours, partial(make_e_branchformer_encoder, layer_drop=0.0))


def make_espnet() -> Encoder:
    """as in its recipes"""
    from espnet2.asr.encoder.e_branchformer_encoder import EBranchformerEncoder

    module = EBranchformerEncoder(
        MELS,
        WIDTH,
        attention_heads=HEADS,
        attention_layer_type="rel_selfattn",
        pos_enc_layer_type="rel_pos",
        rel_pos_type="latest",
        cgmlp_linear_units=6 * WIDTH,
        cgmlp_conv_kernel=KERNEL,
        linear_units=2 * WIDTH,
        num_blocks=LAYERS,
        use_ffn=True,
        macaron_ffn=True,
        merge_conv_kernel=KERNEL,
        input_layer="conv2d",
    )
    return Encoder(module, lambda features, lengths: module(features, lengths)[:2])


MAKERS = {"ours": _make_ours, "returnn": partial(_make_ours, fused=False), "espnet": make_espnet}


if __name__ == "__main__":
    compare("E-Branchformer", MAKERS)
