"""
Transducer losses beside torchaudio's ``rnnt_loss``: CPU time and peak memory of forward and backward, on one thread.

The first group gets logits, the second the two halves of a transducer with a joint network, ``Linear(tanh(e + p))``,
whose time and memory count. Each run is a process of its own, which makes the inputs, runs once on tiny ones, and then
once. The runs take turns. Memory is how much the peak of the process grows while it runs. Without torchaudio, only our
figures are printed.

    python benchmarks/transducer_loss.py
    python benchmarks/transducer_loss.py --rounds 3 --variants "logits: torchaudio" "logits: rnnt"
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before anything loads a library that reads it
os.environ.setdefault("DISABLE_CUDA", "1")

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

# isort: split
from benchmarks._common import Comparison, save

# isort: split
import torch
from returnn.util.basic import BehaviorVersion

from returnn_common import nn

BLANK = 0
PEERS = {"logits": "logits: torchaudio", "halves": "halves: torchaudio"}
COMPARED = {"logits: rnnt": "logits: torchaudio", "halves: pruned": "halves: torchaudio"}
VARIANTS = [
    *("logits: torchaudio", "logits: rnnt", "logits: monotonic", "logits: ctc"),
    *("halves: torchaudio", "halves: whole", "halves: by blocks", "halves: pruned"),
]


@dataclass(frozen=True)
class Sizes:
    """of the inputs; width: of the halves"""

    batch: int = 8
    frames: int = 250
    labels: int = 40
    vocab: int = 1000
    width: int = 256
    band: int = 5


class Inputs:
    """Random ones; all sequences are equally long. Dims, raw tensors and what to differentiate."""

    def __init__(self, kind: str, sizes: Sizes):
        self.sizes = sizes
        torch.manual_seed(0)
        batch, time, positions = sizes.batch, sizes.frames, sizes.labels + 1
        batch_dim = nn.Dim(batch, name="batch")
        self.time_dim, labels_dim = nn.Dim(time, name="time"), nn.Dim(sizes.labels, name="labels")
        self.vocab_dim, self.width_dim = nn.FeatureDim("vocab", sizes.vocab), nn.FeatureDim("width", sizes.width)
        self.dims = {"e": [batch_dim, self.time_dim], "p": [batch_dim, labels_dim + 1]}
        self.labels = torch.randint(1, sizes.vocab, (batch, sizes.labels), dtype=torch.int32)
        if kind == "logits":
            shapes = {"x": (batch, time, positions, sizes.vocab)}
        else:
            shapes = {
                **{"e": (batch, time, sizes.width), "p": (batch, positions, sizes.width)},
                **{"e_logits": (batch, time, sizes.vocab), "p_logits": (batch, positions, sizes.vocab)},
            }
        self.raw = {name: torch.randn(shape, requires_grad=True) for name, shape in shapes.items()}
        self.out = nn.Linear(self.width_dim, self.vocab_dim)
        self.targets: dict = {
            "targets": self.tensor(self.labels, [batch_dim, labels_dim]),
            **{"input_spatial_dim": self.time_dim, "targets_spatial_dim": labels_dim, "blank_index": BLANK},
        }

    @staticmethod
    def tensor(raw: torch.Tensor, dims: list[nn.Dim]) -> nn.Tensor:
        return nn.convert_to_tensor(raw, dims=dims)

    def half(self, name: str) -> nn.Tensor:
        """:return: e, p, e_logits, p_logits"""
        feature_dim = self.vocab_dim if name.endswith("logits") else self.width_dim
        return nn.convert_to_tensor(self.raw[name], dims=[*self.dims[name[0]], feature_dim], feature_dim=feature_dim)

    def joint(self, encoder: nn.Tensor, predictor: nn.Tensor) -> nn.Tensor:
        """:return: logits"""
        return self.out(nn.tanh(nn.combine_bc(encoder, "+", predictor)))


def compute(variant: str, x: Inputs) -> torch.Tensor:
    """:return: the sum of the losses. When pruned, both are differentiated, and the value is that of the second"""
    kind, how = variant.split(": ")
    if kind == "logits" and how == "torchaudio":
        return _torchaudio(x.raw["x"], x)
    if kind == "logits":
        dims = [*x.dims["e"], x.dims["p"][1], x.vocab_dim]
        logits = nn.convert_to_tensor(x.raw["x"], dims=dims, feature_dim=x.vocab_dim)
        return nn.transducer_loss(logits=logits, **x.targets, topology=how).raw_tensor.sum()
    halves = {"encoder": x.half("e"), "predictor": x.half("p")}
    if how in ("torchaudio", "whole"):
        logits = x.joint(*halves.values())
        if how == "whole":
            return nn.transducer_loss(logits=logits, **x.targets).raw_tensor.sum()
        return _torchaudio(logits.copy_compatible_to_dims_raw([*x.dims["e"], x.dims["p"][1], x.vocab_dim]), x)
    targets = nn.TransducerTargets(**x.targets)
    if how == "by blocks":
        return nn.joint_transducer_loss(x.joint, **halves, targets=targets).value.raw_tensor.sum()
    simple = {"encoder_logits": x.half("e_logits"), "predictor_logits": x.half("p_logits")}
    result = nn.pruned_transducer_loss(x.joint, **halves, **simple, targets=targets, band=x.sizes.band)
    assert bool(result.pruned.possible.raw_tensor.all())
    simple_loss = result.simple.value.raw_tensor.sum()  # it is trained, too
    return result.pruned.value.raw_tensor.sum() + (simple_loss - simple_loss.detach())


def _torchaudio(logits: torch.Tensor, x: Inputs) -> torch.Tensor:
    from torchaudio.functional import rnnt_loss

    lengths = (torch.full([x.sizes.batch], n, dtype=torch.int32) for n in (x.sizes.frames, x.sizes.labels))
    return rnnt_loss(logits, x.labels, *lengths, blank=BLANK, reduction="sum")


def measure(variant: str, sizes: Sizes) -> dict[str, float]:
    """:return: seconds of CPU time, MiB, and the loss"""
    nn.select_backend_torch()
    BehaviorVersion.set_min_behavior_version(29)
    nn.init_forward_step_run_ctx(step=0)
    torch.set_num_threads(1)
    kind = variant.split(": ")[0]
    compute(variant, Inputs(kind, Sizes(batch=1, frames=40, labels=3, vocab=5, width=2))).backward()
    inputs = Inputs(kind, sizes)
    peak, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    loss = compute(variant, inputs)
    loss.backward()
    seconds = time.process_time() - start
    mib = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak) / 1024
    return {"seconds": seconds, "mib": mib, "loss": loss.item() / sizes.batch}


def run(command: Callable[[str], list[str]], variants: list[str], rounds: int) -> dict[str, list[dict[str, float]]]:
    """:param command: variant -> what to start"""
    results: dict[str, list[dict[str, float]]] = {variant: [] for variant in variants}
    for _ in range(rounds):
        for variant in variants:
            output = subprocess.run(command(variant), capture_output=True, text=True, check=True).stdout
            results[variant].append(json.loads(output.splitlines()[-1]))
    return results


def report(results: dict[str, list[dict[str, float]]]):
    """one line for each variant, with the ratios to the peer of its group"""
    for variant, runs in results.items():
        seconds, mib = (statistics.median(x[key] for x in runs) for key in ("seconds", "mib"))
        each = " ".join(f"{x['seconds']:.2f}" for x in runs)
        line = f"{variant:20} {seconds:6.2f} s ({each})  {mib:7.0f} MiB  loss {runs[0]['loss']:9.3f}"
        for kind, peer in PEERS.items():
            if peer in results and peer != variant and (kind == variant.split(": ")[0] or peer == PEERS["logits"]):
                ratios = [
                    statistics.median(x[key] for x in runs) / statistics.median(x[key] for x in results[peer])
                    for key in ("seconds", "mib")
                ]
                line += f"  {ratios[0]:.3f} of the time and {ratios[1]:.2f} of the memory of {peer}"
        print(line)


def has_torchaudio() -> bool:
    """:return: whether it is installed and loads"""
    try:
        from torchaudio.functional import rnnt_loss
    except (ImportError, OSError) as error:
        print(f"torchaudio is not there, so only our own figures: {str(error).splitlines()[0]}")
        return False
    return callable(rnnt_loss)


def main():
    """the command"""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=VARIANTS)
    for name, value in asdict(Sizes()).items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--json", type=Path, metavar="FILE", help="append the figures to this file, a line each")
    parser.add_argument("--one", action="store_true", help="one run in this process, as JSON")
    args = parser.parse_args()
    sizes = Sizes(**{name: getattr(args, name) for name in asdict(Sizes())})
    if args.one:
        print(json.dumps(measure(args.variants[0], sizes)))
        return
    variants = args.variants if has_torchaudio() else [x for x in args.variants if "torchaudio" not in x]
    options = [f"--{name}={value}" for name, value in asdict(sizes).items()]
    print(f"torch {torch.__version__}, {sizes}")
    results = run(lambda x: [sys.executable, __file__, "--one", "--variants", x, *options], variants, args.rounds)
    report(results)
    for ours, peer in COMPARED.items():
        if args.json is not None and ours in results:
            seconds = {name: [x["seconds"] for x in results[name]] for name in (ours, peer) if name in results}
            save(Comparison(f"Transducer loss, {ours}", seconds, ours, [peer], {}), args.json)


if __name__ == "__main__":
    main()
