"""
A bidirectional LSTM layer beside ``torch.nn.LSTM``: training (forward and backward) and inference, on one thread.

8 sequences of 200 to 250 frames, 512 features, 512 per direction. Ours stops at each sequence's own end. PyTorch's does
on packed sequences. On the padded batch ("padded"), its backward direction reads the padding, so that its results are
wrong there; that is the faster way to call it, and so a peer as well.

    python benchmarks/lstm.py
    python benchmarks/lstm.py --shortest 250
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

# isort: split
from benchmarks._common import Comparison, add_options, gemm_rate, measure, report, versions

# isort: split
import numpy as np
import torch
from returnn.torch.frontend.bridge import rf_module_to_pt_module
from returnn.util.basic import BehaviorVersion

from returnn_common import nn
from returnn_common.models.encoder.lstm import BidirectionalLSTM

BATCH, FRAMES, WIDTH = 8, 250, 512
PACKED, PADDED = "torch.nn.LSTM, packed", "torch.nn.LSTM, padded"


def make_ours(source: torch.Tensor, lengths: np.ndarray) -> Callable[[bool], torch.Tensor]:
    """:return: forward, in training or not"""
    nn.select_backend_torch()
    BehaviorVersion.set_min_behavior_version(29)
    in_dim = nn.FeatureDim("in", WIDTH)
    layer = BidirectionalLSTM(in_dim, nn.FeatureDim("out", 2 * WIDTH))
    module = rf_module_to_pt_module(layer)

    def forward(train: bool) -> torch.Tensor:
        module.train(train)
        nn.init_train_step_run_ctx(train_flag=train, step=0)
        batch_dim = nn.Dim(BATCH, name="batch")
        time_dim = nn.Dim(nn.convert_to_tensor(lengths, dims=[batch_dim]), name="time")
        return layer(nn.convert_to_tensor(source, dims=[batch_dim, time_dim, in_dim]), spatial_dim=time_dim).raw_tensor

    return forward


def make_peers(source: torch.Tensor, lengths: np.ndarray) -> dict[str, Callable[[bool], torch.Tensor]]:
    """see :func:`make_ours`"""
    from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

    layer = torch.nn.LSTM(WIDTH, WIDTH, bidirectional=True, batch_first=True)

    def packed(train: bool) -> torch.Tensor:
        layer.train(train)
        out, _ = layer(pack_padded_sequence(source, torch.tensor(lengths), batch_first=True))
        return pad_packed_sequence(out, batch_first=True)[0]

    return {PACKED: packed, PADDED: lambda train: layer.train(train)(source)[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description="A bidirectional LSTM layer beside torch.nn.LSTM.")
    parser.add_argument("--shortest", type=int, default=200, help="frames of the shortest sequence, up to 250")
    add_options(parser, rounds=7)
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(versions("torch", "returnn"), f"float32: {gemm_rate():.0f} GFLOP/s", sep="\n")
    rng = np.random.default_rng(1)
    lengths = np.sort(rng.integers(args.shortest, FRAMES + 1, BATCH))[::-1].astype("int32")
    lengths[0] = FRAMES
    source = torch.tensor(rng.standard_normal((BATCH, FRAMES, WIDTH)).astype("float32"))
    forwards = {"ours": make_ours(source, lengths), **make_peers(source, lengths)}
    for train in (False, True):

        def run(forward: Callable[[bool], torch.Tensor], train: bool = train) -> None:
            with torch.set_grad_enabled(train):
                out = forward(train)
                if train:
                    out.square().mean().backward()

        chosen = {name: x for name, x in forwards.items() if args.only is None or name in args.only}
        seconds = measure({name: lambda x=x, run=run: run(x) for name, x in chosen.items()}, rounds=args.rounds)
        title = f"LSTM, {'training' if train else 'inference'}, {BATCH} x {args.shortest} to {FRAMES} frames"
        report(Comparison(title, seconds, "ours", [PACKED, PADDED], {}), json_file=args.json)


if __name__ == "__main__":
    main()
