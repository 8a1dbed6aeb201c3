"""
Conformer encoders beside their peers: a training step, and inference, on one thread.

All have 4 layers of width 256, feed-forward 1024, 4 heads, kernel 31, batch norm, and 4-fold subsampling by two 3x3
convolutions of 256 channels: about 8.2 M parameters. A batch has 8 utterances of 8 to 10 s with 80 log-mels. A step of
training is forward with dropout 0.1, the mean square of the valid frames as loss, backward, and AdamW.

- The peers' convolutions see no padding, so "ours" has RETURNN's with ``padding="valid"``, and as many frames. "ours,
  padded" has the zoo's, which give a frame and a frequency more (5 % more to compute; 10 % for a second of audio).
- torchaudio has no subsampling, so it gets ESPnet's; its attention knows no positions.
- ESPnet and SpeechBrain have relative positions, as ours; "ours, rotary" has rotary ones.
- "returnn" is ours without ``nn.fuse``, which is RETURNN's own encoder.

    python benchmarks/conformer.py
    python benchmarks/conformer.py --seconds 1 --batch 1 --rounds 30
    python benchmarks/conformer.py --precision bfloat16     # ours; the peers stay in float32
    python benchmarks/conformer.py --device cuda
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
if "cuda" in sys.argv:
    os.environ["DISABLE_CUDA"] = "0"

# isort: split
from benchmarks._common import Comparison, add_options, check_device, gemm_rate, installed, measure, report, versions

# isort: split
import numpy as np
import torch
from returnn.util.basic import BehaviorVersion

from returnn_common import nn
from returnn_common.models.encoder.conformer import make_conformer_encoder
from returnn_common.models.encoder.conformer_rotary import make_rotary_conformer_encoder

WIDTH, LAYERS, HEADS, INNER, KERNEL, MELS = 256, 4, 4, 1024, 31, 80
OURS = ["ours", "ours, padded", "ours, rotary"]
PEERS = ["torchaudio", "espnet", "speechbrain"]


@dataclass
class Encoder:
    """of anybody"""

    module: torch.nn.Module  # with the parameters
    forward: Callable[..., tuple[torch.Tensor, torch.Tensor]]  # (features, lengths) -> (output, its lengths)


def make_ours(
    make: Callable[..., Any] = make_conformer_encoder, *, fused: bool = True, padding: str = "valid"
) -> Encoder:
    """:return: one of ours, with as many channels in the first convolution as the peers have"""
    from returnn.frontend.encoder.conformer import ConformerConvSubsample
    from returnn.torch.frontend.bridge import rf_module_to_pt_module

    nn.select_backend_torch()
    nn.set_random_seed(1)
    BehaviorVersion.set_min_behavior_version(29)
    encoder = make(MELS, num_layers=LAYERS, out_dim=WIDTH, num_heads=HEADS, conv_kernel_size=KERNEL)
    channels = [nn.FeatureDim(f"channels-{i}", WIDTH) for i in range(2)]
    encoder.input_layer = ConformerConvSubsample(
        encoder.in_dim, out_dims=channels, filter_sizes=[3, 3], strides=[2, 2], padding=padding
    )
    encoder.input_projection = nn.Linear(encoder.input_layer.out_dim, encoder.out_dim)
    if fused:
        nn.fuse(encoder)
    else:
        unfuse(encoder)

    module = rf_module_to_pt_module(encoder)

    def forward(features: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        nn.init_train_step_run_ctx(train_flag=module.training, step=0)
        batch_dim = nn.Dim(features.shape[0], name="batch")
        time_dim = nn.Dim(nn.convert_to_tensor(lengths, dims=[batch_dim]), name="time")
        source = nn.convert_to_tensor(features, dims=[batch_dim, time_dim, encoder.in_dim])
        out, out_dim = encoder(source, in_spatial_dim=time_dim)
        return out.copy_transpose([batch_dim, out_dim, encoder.out_dim]).raw_tensor, out_dim.dyn_size

    return Encoder(module, forward)


def unfuse(module: nn.Module) -> None:
    """gives it RETURNN's own modules again"""
    for part in module.modules():
        if type(part).__module__.startswith(f"{nn.__name__}.fused"):
            part.__class__ = type(part).__bases__[-1]


def make_torchaudio() -> Encoder:
    """with ESPnet's subsampling"""
    from torchaudio.models import Conformer

    module = torch.nn.ModuleDict(
        {"subsample": _subsample(), "conformer": Conformer(WIDTH, HEADS, INNER, LAYERS, KERNEL, dropout=0.1)}
    )

    def forward(features: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, _ = module["subsample"](features, None)
        return module["conformer"](x, _subsampled(lengths))

    return Encoder(module, forward)


def make_espnet() -> Encoder:
    """as in its recipes"""
    from espnet2.asr.encoder.conformer_encoder import ConformerEncoder

    module = ConformerEncoder(
        MELS,
        WIDTH,
        HEADS,
        INNER,
        LAYERS,
        cnn_module_kernel=KERNEL,
        macaron_style=True,
        rel_pos_type="latest",
        pos_enc_layer_type="rel_pos",
        selfattention_layer_type="rel_selfattn",
        activation_type="swish",
        input_layer="conv2d",
    )
    return Encoder(module, lambda features, lengths: module(features, lengths)[:2])


def make_speechbrain() -> Encoder:
    """with ESPnet's subsampling"""
    from speechbrain.lobes.models.transformer.Conformer import ConformerEncoder
    from speechbrain.nnet.attention import RelPosEncXL

    module = torch.nn.ModuleDict(
        {
            "subsample": _subsample(),
            "positions": RelPosEncXL(WIDTH),
            "conformer": ConformerEncoder(
                LAYERS, WIDTH, INNER, HEADS, KERNEL, dropout=0.1, attention_type="RelPosMHAXL"
            ),
        }
    )

    def forward(features: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, _ = module["subsample"](features, None)
        lengths = _subsampled(lengths)
        padding = torch.arange(x.shape[1], device=x.device) >= lengths[:, None]
        return module["conformer"](x, src_key_padding_mask=padding, pos_embs=module["positions"](x))[0], lengths

    return Encoder(module, forward)


def _subsample() -> torch.nn.Module:
    from espnet.nets.pytorch_backend.transformer.subsampling import Conv2dSubsampling

    return Conv2dSubsampling(MELS, WIDTH, 0.1, pos_enc=torch.nn.Identity())


def _subsampled(lengths: torch.Tensor) -> torch.Tensor:
    return ((lengths - 1) // 2 - 1) // 2


MAKERS = {
    "ours": make_ours,
    "ours, padded": lambda: make_ours(padding="same"),
    "ours, rotary": lambda: make_ours(make_rotary_conformer_encoder),
    "returnn": lambda: make_ours(fused=False),
    "torchaudio": make_torchaudio,
    "espnet": make_espnet,
    "speechbrain": make_speechbrain,
}


def make_batch(batch: int, seconds: float, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """:return: random features and lengths, the longest first, at least 0.8 of the longest"""
    rng = np.random.default_rng(1)
    frames = round(seconds * 100)
    lengths = np.sort(rng.integers(round(0.8 * frames), frames + 1, batch))[::-1].astype("int32")
    lengths[0] = frames
    features = rng.standard_normal((batch, frames, MELS)).astype("float32")
    return torch.tensor(features, device=device), torch.tensor(lengths)


def make_run(
    encoder: Encoder, batch: tuple[torch.Tensor, torch.Tensor], *, train: bool, half: bool
) -> Callable[[], object]:
    """:return: the work, once"""
    features, lengths = batch
    device = features.device.type
    optimizer = torch.optim.AdamW(encoder.module.parameters(), lr=1e-4)

    def run() -> None:
        with torch.set_grad_enabled(train), torch.autocast(device, dtype=torch.bfloat16, enabled=half):
            out, out_lengths = encoder.forward(features, lengths)
        if train:
            optimizer.zero_grad()
            valid = (torch.arange(out.shape[1]) < out_lengths.cpu()[:, None]).to(device)
            ((out.float().square().mean(-1) * valid).sum() / valid.sum()).backward()
            optimizer.step()
        if device == "cuda":
            torch.cuda.synchronize()

    return run


def describe(encoder: Encoder, batch: tuple[torch.Tensor, torch.Tensor]) -> str:
    """:return: how large it is, and what comes out of it"""
    encoder.module.eval()
    with torch.no_grad():
        out, _ = encoder.forward(*batch)
    return f"{sum(p.numel() for p in encoder.module.parameters()) / 1e6:.2f} M, {out.shape[1]} frames"


def compare(model: str, makers: Mapping[str, Callable[[], Encoder]]) -> None:
    """
    the command

    :param model: its name
    :param makers: of encoders, by name
    """
    parser = argparse.ArgumentParser(description=f"{model} encoders beside their peers.")
    parser.add_argument("--seconds", type=float, default=10.0, help="of the longest utterance")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--precision", choices=["float32", "bfloat16"], default="float32", help="of ours (autocast)")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    add_options(parser, rounds=5)
    args = parser.parse_args()
    check_device(args.device)
    torch.set_num_threads(1)
    print(versions("torch", "returnn", "torchaudio", "espnet", "speechbrain"))
    if args.device == "cpu":
        print(", ".join(f"{dtype}: {gemm_rate(dtype):.0f} GFLOP/s" for dtype in ("float32", "bfloat16")))
    batch = make_batch(args.batch, args.seconds, args.device)
    encoders = {}
    for name, encoder in installed(makers, args.only).items():
        encoder.module.to(args.device)
        encoders[name] = encoder
    notes = {name: describe(x, batch) for name, x in encoders.items()}
    for train in (False, True):
        runs = {
            name: make_run(x, batch, train=train, half=args.precision == "bfloat16" and name in OURS)
            for name, x in encoders.items()
        }
        clock = time.process_time if args.device == "cpu" else time.perf_counter
        for encoder in encoders.values():
            encoder.module.train(train)
        what = f"{model}, {'training step' if train else 'inference'}, {args.batch} x {args.seconds:g} s"
        title = f"{what}, {args.device}" + (", ours in bfloat16" if args.precision == "bfloat16" else "")
        seconds = measure(runs, rounds=args.rounds, clock=clock)
        ours = next(name for name in [*OURS, *runs] if name in runs)
        report(Comparison(title, seconds, ours, PEERS, notes), json_file=args.json)


if __name__ == "__main__":
    compare("Conformer", MAKERS)
