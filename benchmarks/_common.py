"""
What the benchmarks share: runs that take turns, medians, ratios, the machine's own limit, and results as JSON.

Import it first: it sets what libraries read when they are loaded (one thread).
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("DISABLE_CUDA", "1")

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import TypeVar

if str(Path(__file__).resolve().parents[1]) not in sys.path:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

__all__ = [
    "Comparison",
    "add_options",
    "check_device",
    "gemm_rate",
    "installed",
    "measure",
    "report",
    "save",
    "versions",
]

Made = TypeVar("Made")
_PACKAGES = (
    *("torch", "returnn", "torchaudio", "espnet", "speechbrain", "flashlight-text", "pyctcdecode"),
    *("sentencepiece", "soundfile", "miniaudio"),
)


@dataclass
class Comparison:
    """of one piece of work"""

    title: str
    seconds: dict[str, list[float]]  # of each run, by name
    ours: str
    peers: list[str]
    notes: dict[str, str]

    @property
    def medians(self) -> dict[str, float]:
        """seconds"""
        return {name: statistics.median(values) for name, values in self.seconds.items()}

    @property
    def ratio(self) -> float | None:
        """our median to the fastest peer's; None without peers, or without ours"""
        peers = [self.medians[name] for name in self.peers if name in self.seconds]
        return self.medians[self.ours] / min(peers) if peers and self.ours in self.seconds else None


def add_options(parser: argparse.ArgumentParser, *, rounds: int) -> None:
    """the options of every benchmark"""
    parser.add_argument("--rounds", type=int, default=rounds, help=f"of each, taking turns; default {rounds}")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="of those compared, only these")
    parser.add_argument("--json", type=Path, metavar="FILE", help="append the figures to this file, a line each")


def check_device(device: str) -> None:
    """ends the command if PyTorch finds no such device"""
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        sys.exit(f"--device cuda: PyTorch {torch.__version__} finds no GPU here")


def installed(makers: Mapping[str, Callable[[], Made]], only: Iterable[str] | None = None) -> dict[str, Made]:
    """
    :param makers: name -> what makes it, and raises ImportError (or OSError of a library) where a peer is missing
    :param only: names, None for all
    :return: name -> what was made; what is missing is printed
    """
    found = {}
    for name, make in makers.items():
        if only is None or name in only:
            try:
                found[name] = make()
            except (ImportError, OSError) as exc:
                print(f"{name} is not there: {str(exc).splitlines()[0]}")
    return found


def measure(
    runs: Mapping[str, Callable[[], object]], *, rounds: int, clock: Callable[[], float] = time.process_time
) -> dict[str, list[float]]:
    """
    :param runs: name -> the work, once
    :param rounds: each runs so often, in turns, after once without measurement
    :param clock: CPU time of the process unless told otherwise
    :return: seconds
    """
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        run()
    for _ in range(rounds):
        for name, run in runs.items():
            start = clock()
            run()
            seconds[name].append(clock() - start)
    return seconds


@lru_cache
def gemm_rate(dtype: str = "float32", size: int = 1024) -> float:
    """:return: the machine's own limit: GFLOP per second of CPU time, of square matrices"""
    import torch

    a = torch.ones(size, size, dtype=getattr(torch, dtype))
    (seconds,) = measure({"gemm": lambda: a @ a}, rounds=7).values()
    return 2e-9 * size**3 / statistics.median(seconds)


def versions(*packages: str) -> str:
    """:return: of those that are installed"""
    found = []
    for name in packages:
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            continue
    return ", ".join(found)


def report(comparison: Comparison, *, json_file: Path | None = None, unit: str = "ms") -> None:
    """prints medians and ratios, and appends them to the file"""
    if not comparison.seconds:
        sys.exit(f"{comparison.title}: nothing of that is there (see --only)")
    scale = {"ms": 1e3, "s": 1.0, "us": 1e6}[unit]
    medians = comparison.medians
    peers = {name: medians[name] for name in comparison.peers if name in medians}
    print(f"\n{comparison.title}")
    width = max(map(len, medians))
    for name, value in medians.items():
        runs = " ".join(f"{x * scale:.4g}" for x in comparison.seconds[name])
        ratio = f"{value / min(peers.values()):6.2f}" if peers else "     -"
        print(
            f"  {name:{width}} {value * scale:10.4g} {unit}  {ratio}  {comparison.notes.get(name, '')}  (runs: {runs})"
        )
    if comparison.ratio is not None:
        best = min(peers, key=lambda name: peers[name])
        print(f"  {comparison.ours} / {best}: {comparison.ratio:.2f}")
    if json_file is not None:
        save(comparison, json_file)


def save(comparison: Comparison, json_file: Path) -> None:
    """appends it, in a line, with the versions and the machine's own limit"""
    machine = {"versions": versions(*_PACKAGES), "gflops": gemm_rate()}
    figures = {**asdict(comparison), "medians": comparison.medians, "ratio": comparison.ratio, **machine}
    with json_file.open("a") as file:
        file.write(json.dumps(figures) + "\n")
