"""
Training steps of RETURNN's engine on a GPU: eager, and captured once as a CUDA graph that is replayed for each batch
(RETURNN's option ``torch_cuda_graph``). By the clock, with the loading of data and the optimizer, each in a process of
its own: the second of two epochs, of a Conformer as large as in conformer.py.

    python benchmarks/graph_capture.py --device cuda
    python benchmarks/graph_capture.py --device cuda --precision bfloat16 --json figures.jsonl

On the CPU there is only the eager one: a graph wants a GPU.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

if "cuda" in sys.argv:
    os.environ["DISABLE_CUDA"] = "0"

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

# isort: split
from benchmarks._common import Comparison, add_options, check_device, report, versions

ROOT = Path(__file__).resolve().parents[1]
MELS = 80
MODES = {"eager": {}, "graph": {}, "graph, optimizer in it": {"capture_optimizer": True}}
CONFIG = """
import sys
import time

import numpy as np

sys.path.insert(0, {root!r})

from returnn.tensor import Dim, batch_dim
from returnn_common import nn
from returnn_common.models.encoder.conformer import make_conformer_encoder

task = "train"
backend = "torch"
device = {device!r}
log_verbosity = 2
behavior_version = 29
num_epochs = 2
batch_size = {batch} * {frames}
max_seqs = {batch}
optimizer = {{"class": "adamw", "capturable": {device!r} == "cuda"}}
learning_rate = 1e-4
save_interval = 1000
torch_dataloader_opts = {{"num_workers": 0}}
torch_amp = {amp!r}
torch_cuda_graph = {graph!r}

time_dim = Dim(None, name="time")
mel_dim = Dim({mels}, name="log-mel")
extern_data = {{"data": {{"dims": [batch_dim, time_dim, mel_dim], "dtype": "float32"}}}}
rng = np.random.default_rng(1)
lengths = rng.integers(round(0.8 * {frames}), {frames} + 1, {steps} * {batch})
train = {{
    "class": "StaticDataset",
    "input_dim": {mels},
    "data": [{{"data": rng.standard_normal((n, {mels})).astype("float32")}} for n in lengths],
}}


def get_model(*, epoch, step, **_):
    return make_conformer_encoder(mel_dim, num_layers={layers}, out_dim=256, num_heads=4, conv_kernel_size=31)


def train_step(*, model, extern_data, **_):
    out, out_spatial_dim = model(extern_data["data"], in_spatial_dim=time_dim)
    nn.reduce_mean(nn.square(out), axis=out.dims).mark_as_loss("square")


def epoch_start(*, epoch, **_):
    global start
    start = time.perf_counter()


def epoch_end(*, epoch, dataset_name, **_):
    if epoch == 2 and dataset_name == "train":
        print("seconds per step:", (time.perf_counter() - start) / {steps}, flush=True)


if torch_cuda_graph is None:
    del torch_cuda_graph
else:
    torch_cuda_graph["dim_capacity"] = {{"data": {frames}}}
    torch_cuda_graph["batch_size_bound"] = {batch}
"""


def train(mode: str, args: argparse.Namespace) -> float:
    """:return: seconds per step"""
    options = {
        "root": str(ROOT),
        "device": "cpu" if args.device == "cpu" else "cuda",
        "batch": args.batch,
        "frames": round(args.seconds * 100),
        "steps": args.steps,
        "layers": args.layers,
        "mels": MELS,
        "amp": "bfloat16" if args.precision == "bfloat16" else None,
        "graph": None if mode == "eager" else MODES[mode],
    }
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "train.config")
        config.write_text("#!rnn.py\n" + CONFIG.format(**options))
        run = subprocess.run([sys.executable, "-m", "returnn", str(config)], cwd=folder, text=True, capture_output=True)
    found = [line.partition(":")[2] for line in run.stdout.splitlines() if line.startswith("seconds per step:")]
    if run.returncode or not found:
        sys.exit(f"{mode} failed:\n{run.stdout[-2000:]}\n{run.stderr[-4000:]}")
    return float(found[0])


def main() -> None:
    parser = argparse.ArgumentParser(description="A Conformer in RETURNN's engine: eager beside a CUDA graph.")
    parser.add_argument("--seconds", type=float, default=10.0, help="of the longest utterance")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--steps", type=int, default=100, help="that are measured, in each run")
    parser.add_argument("--precision", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    add_options(parser, rounds=3)
    args = parser.parse_args()
    check_device(args.device)
    print(versions("torch", "returnn"))
    modes = [mode for mode in MODES if args.only is None or mode in args.only]
    if args.device == "cpu":
        print("A graph wants --device cuda.")
        modes = [mode for mode in modes if mode == "eager"]
    seconds: dict[str, list[float]] = {mode: [] for mode in modes}
    for _ in range(args.rounds):
        for mode in modes:
            seconds[mode].append(train(mode, args))
    title = f"Conformer in RETURNN's engine, training step, {args.batch} x {args.seconds:g} s, {args.device}"
    if args.precision != "float32":
        title += f", {args.precision}"
    report(Comparison(title, seconds, "graph", ["eager"], {}), json_file=args.json)


if __name__ == "__main__":
    main()
