"""
How long it takes to start: the command's help, and importing a model, beside importing the peers. By the clock, each in
a process of its own.

    python benchmarks/startup.py
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

# isort: split
from benchmarks._common import Comparison, add_options, measure, report, versions

COMMANDS = {
    "python": "pass",
    "returnn-common --help": "from returnn_common.cli import main; main(['--help'])",
    "a model of ours": "import returnn_common.models.ctc",
    "torch": "import torch",
    "espnet": "import espnet2.asr.encoder.conformer_encoder",
    "speechbrain": "import speechbrain",
}


def start(code: str) -> bool:
    """:return: whether it runs"""
    root = Path(__file__).resolve().parents[1]
    return subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True).returncode == 0


def main() -> None:
    parser = argparse.ArgumentParser(description="How long it takes to start.")
    add_options(parser, rounds=5)
    args = parser.parse_args()
    print(versions("returnn", "torch", "espnet", "speechbrain"))
    chosen = {name: code for name, code in COMMANDS.items() if args.only is None or name in args.only}
    runs = {name: lambda code=code: start(code) for name, code in chosen.items() if start(code)}
    for name in chosen.keys() - runs.keys():
        print(f"{name} does not run")
    seconds = measure(runs, rounds=args.rounds, clock=time.perf_counter)
    report(Comparison("Start", seconds, "returnn-common --help", ["espnet", "speechbrain"], {}), json_file=args.json)


if __name__ == "__main__":
    main()
