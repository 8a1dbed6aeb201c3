"""
Tiny random models of ESPnet and of Hugging Face's transformers: their parameters, an input, their outputs.

Frozen in ``NAME.npz``, so that the importers are tested without these packages. Where a package is installed, the tests
make its models anew, and see that they are what is in the files. To write the files, with both packages installed:

    python -m tests.training.imported.references

(For these parts, ESPnet needs little of what it declares: ``pip install --no-deps espnet``, ``pip install typeguard``.)

ESPnet's convolutions see what is in the padding, so that a sequence's outputs depend on the others in its batch. So
each sequence is run alone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

__all__ = ["FEATURES", "MAKERS", "MODEL", "VOCAB", "load"]

FEATURES, MODEL, HEADS, VOCAB = 10, 8, 2, 7
LENGTHS = (40, 23, 9)  # of features
ENCODED_LENGTHS, LABELS_LENGTHS = (6, 4, 1), (5, 3, 1)
FOLDER = Path(__file__).parent

Arrays = dict[str, np.ndarray]


def load(name: str) -> tuple[Arrays, Arrays]:
    """:return: the state dict; inputs and outputs, of which ``NAME.0`` is that of the first sequence"""
    arrays = np.load(FOLDER / f"{name}.npz")
    state = {key.removeprefix("state."): value for key, value in arrays.items() if key.startswith("state.")}
    return state, {key: value for key, value in arrays.items() if not key.startswith("state.")}


def espnet_conformer() -> Arrays:
    from espnet2.asr.encoder.conformer_encoder import ConformerEncoder

    return _espnet_encoder(
        ConformerEncoder(FEATURES, MODEL, HEADS, 12, 2, macaron_style=True, rel_pos_type="latest", cnn_module_kernel=5)
    )


def espnet_e_branchformer() -> Arrays:
    from espnet2.asr.encoder.e_branchformer_encoder import EBranchformerEncoder

    return _espnet_encoder(
        EBranchformerEncoder(
            FEATURES,
            MODEL,
            HEADS,
            cgmlp_linear_units=12,
            cgmlp_conv_kernel=5,
            num_blocks=2,
            use_ffn=True,
            macaron_ffn=True,
            linear_units=16,
            merge_conv_kernel=3,
        )
    )


def espnet_decoder() -> Arrays:
    from espnet2.asr.decoder.transformer_decoder import TransformerDecoder

    decoder = _randomise(TransformerDecoder(VOCAB, MODEL, HEADS, 12, 2))
    rng, arrays = np.random.default_rng(1), _state(decoder)
    for i, (n, m) in enumerate(zip(LABELS_LENGTHS, ENCODED_LENGTHS, strict=True)):
        labels = rng.integers(0, VOCAB, n).astype("int32")
        encoded = rng.normal(size=(m, MODEL)).astype("float32")
        out, _ = decoder(
            torch.tensor(encoded[None]), torch.tensor([m]), torch.tensor(labels[None]).long(), torch.tensor([n])
        )
        arrays |= {f"labels.{i}": labels, f"encoded.{i}": encoded, f"out.{i}": out[0].detach().numpy()}
    return arrays


def wav2vec2_conformer() -> Arrays:
    """the layers, with the inputs of the first and the outputs of the last"""
    from transformers import Wav2Vec2ConformerConfig
    from transformers.models.wav2vec2_conformer.modeling_wav2vec2_conformer import Wav2Vec2ConformerEncoder

    config = Wav2Vec2ConformerConfig(
        hidden_size=MODEL,
        num_hidden_layers=2,
        num_attention_heads=HEADS,
        intermediate_size=4 * MODEL,
        hidden_act="swish",
        conv_depthwise_kernel_size=5,
        position_embeddings_type="relative",
        num_conv_pos_embedding_groups=2,
        attn_implementation="eager",
    )
    encoder = _randomise(Wav2Vec2ConformerEncoder(config))
    encoder.layer_norm = torch.nn.Identity()
    arrays, rng = _state(encoder.layers), np.random.default_rng(2)
    for i, n in enumerate(LENGTHS):
        x = rng.normal(size=(n, MODEL)).astype("float32")
        out = encoder(torch.tensor(x[None])).last_hidden_state
        arrays |= {f"x.{i}": x, f"out.{i}": out[0].detach().numpy()}
    return arrays


# name -> (package, maker)
MAKERS: dict[str, tuple[str, Callable[[], Arrays]]] = {
    "espnet_conformer": ("espnet2", espnet_conformer),
    "espnet_e_branchformer": ("espnet2", espnet_e_branchformer),
    "espnet_decoder": ("espnet2", espnet_decoder),
    "wav2vec2_conformer": ("transformers", wav2vec2_conformer),
}


def _espnet_encoder(encoder: torch.nn.Module) -> Arrays:
    arrays, rng = _state(_randomise(encoder)), np.random.default_rng(0)
    for i, n in enumerate(LENGTHS):
        x = rng.normal(size=(n, FEATURES)).astype("float32")
        out, _, _ = encoder(torch.tensor(x[None]), torch.tensor([n]))
        arrays |= {f"x.{i}": x, f"out.{i}": out[0].detach().numpy()}
    return arrays


def _randomise(module: torch.nn.Module) -> torch.nn.Module:
    """also what starts as 0 or 1; the same in each version of the package, by the names"""
    rng = np.random.default_rng(3)
    with torch.no_grad():
        for name, value in sorted(module.state_dict().items()):
            if not value.is_floating_point():
                continue
            around = 1.0 if value.ndim == 1 and "norm" in name and not name.endswith(("bias", "mean")) else 0.0
            scale = 0.2 if value.ndim == 1 else value[0].numel() ** -0.5
            noise = torch.tensor(rng.normal(size=tuple(value.shape)) * scale)
            value.copy_((around + noise).abs() if name.endswith("running_var") else around + noise)
    return module.eval()


def _state(module: torch.nn.Module) -> Arrays:
    return {f"state.{name}": value.numpy() for name, value in module.state_dict().items()}


def main() -> None:
    """writes all files"""
    logging.disable(logging.WARNING)
    for name, (_, make) in MAKERS.items():
        np.savez_compressed(FOLDER / f"{name}.npz", **make())


if __name__ == "__main__":
    main()
