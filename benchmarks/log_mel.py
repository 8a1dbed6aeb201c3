"""
Log-mel features of raw audio, normalised per utterance, beside ESPnet's and torchaudio's: CPU time on one thread.

Each gets 8 utterances of 8 to 10 s at 16 kHz, and computes 80 filters from windows of 25 ms every 10 ms. (The peers'
windows are centred, and reflect the signal at its ends; torchaudio has no normalisation, so it gets ESPnet's.)

    python benchmarks/log_mel.py
    python benchmarks/log_mel.py --seconds 1 --batch 1
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

# isort: split
from benchmarks._common import Comparison, add_options, gemm_rate, installed, measure, report, versions

# isort: split
import numpy as np
import torch
from returnn.util.basic import BehaviorVersion

from returnn_common import nn
from returnn_common.models.features import LogMel

PEERS = ["espnet", "torchaudio"]


def make_ours(audio: torch.Tensor, lengths: torch.Tensor) -> Callable[[], object]:
    """:return: the work, once"""
    nn.select_backend_torch()
    BehaviorVersion.set_min_behavior_version(29)
    features = LogMel(80)

    def run() -> nn.Tensor:
        nn.init_forward_step_run_ctx(step=0)
        batch_dim = nn.Dim(len(audio), name="batch")
        time_dim = nn.Dim(nn.convert_to_tensor(lengths, dims=[batch_dim]), name="time")
        with torch.no_grad():
            return features(nn.convert_to_tensor(audio, dims=[batch_dim, time_dim]), in_spatial_dim=time_dim)[0]

    return run


def make_espnet(audio: torch.Tensor, lengths: torch.Tensor) -> Callable[[], object]:
    """see above"""
    from espnet2.asr.frontend.default import DefaultFrontend
    from espnet2.layers.utterance_mvn import UtteranceMVN

    frontend = DefaultFrontend(fs=16_000, n_fft=512, win_length=400, hop_length=160, n_mels=80)
    normalize = UtteranceMVN(norm_vars=True)

    def run() -> torch.Tensor:
        with torch.no_grad():
            return normalize(*frontend(audio, lengths))[0]

    return run


def make_torchaudio(audio: torch.Tensor, lengths: torch.Tensor) -> Callable[[], object]:
    """see above"""
    from espnet2.layers.utterance_mvn import UtteranceMVN
    from torchaudio.transforms import MelSpectrogram

    mel = MelSpectrogram(16_000, n_fft=512, win_length=400, hop_length=160, n_mels=80)
    normalize = UtteranceMVN(norm_vars=True)

    def run() -> torch.Tensor:
        with torch.no_grad():
            features = mel(audio).clamp_min(1e-10).log().transpose(1, 2)
            return normalize(features, lengths // 160 + 1)[0]

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description="Log-mel features beside ESPnet's and torchaudio's.")
    parser.add_argument("--seconds", type=float, default=10.0, help="of the longest utterance")
    parser.add_argument("--batch", type=int, default=8)
    add_options(parser, rounds=15)
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(versions("torch", "returnn", "torchaudio", "espnet"), f"float32: {gemm_rate():.0f} GFLOP/s", sep="\n")
    rng = np.random.default_rng(1)
    samples = round(args.seconds * 16_000)
    lengths = torch.tensor(np.sort(rng.integers(round(0.8 * samples), samples + 1, args.batch))[::-1].astype("int32"))
    lengths[0] = samples
    audio = torch.tensor(rng.standard_normal((args.batch, samples)).astype("float32") * 0.1)
    makers = {"ours": make_ours, "espnet": make_espnet, "torchaudio": make_torchaudio}
    runs = installed({name: lambda make=make: make(audio, lengths) for name, make in makers.items()}, args.only)
    title = f"Log-mel, {args.batch} x {args.seconds:g} s"
    report(Comparison(title, measure(runs, rounds=args.rounds), "ours", PEERS, {}), json_file=args.json)


if __name__ == "__main__":
    main()
