"""
All benchmarks: a table of the ratios to the fastest peers, and a picture. What is not installed is left out.

    python benchmarks/all.py --out benchmarks-results
    python benchmarks/all.py --out benchmarks-results --only conformer lstm --quick

Each is a process of its own, one after the other. FOLDER gets ``figures.jsonl`` (every run), ``table.md``, and, with
matplotlib, ``table.png``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

# name -> script, options, options of a quick look
JOBS: dict[str, tuple[str, list[str], list[str]]] = {
    "conformer": ("conformer.py", [], ["--rounds", "1"]),
    "conformer-1s": ("conformer.py", ["--seconds", "1", "--batch", "1", "--rounds", "60"], ["--rounds", "3"]),
    "conformer-bfloat16": ("conformer.py", ["--precision", "bfloat16"], ["--rounds", "1"]),
    "e-branchformer": ("e_branchformer.py", [], ["--rounds", "1"]),
    "lstm": ("lstm.py", [], ["--rounds", "1"]),
    "log-mel": ("log_mel.py", [], ["--rounds", "3"]),
    "log-mel-1s": ("log_mel.py", ["--seconds", "1", "--batch", "1", "--rounds", "100"], ["--rounds", "3"]),
    "search": ("search.py", [], ["--rounds", "1", "--steps", "20"]),
    "ctc-search": ("ctc_search.py", [], ["--rounds", "1", "--utterances", "2"]),
    "transducer-loss": ("transducer_loss.py", [], ["--rounds", "1", "--frames", "50"]),
    "tokenizers": ("tokenizers.py", [], ["--rounds", "1", "--lines", "100"]),
    "data": ("data.py", [], ["--rounds", "1", "--utterances", "32", "--workers", "0"]),
    "net-dict": ("config.py", [], ["--rounds", "1", "--layers", "2"]),
    "startup": ("startup.py", [], ["--rounds", "1"]),
}


def run(name: str, *, figures: Path, quick: bool) -> int:
    """:return: exit status"""
    script, options, quickly = JOBS[name]
    command = [sys.executable, str(Path(__file__).with_name(script)), *options, "--json", str(figures)]
    print(f"\n== {name}", flush=True)
    return subprocess.run([*command, *(quickly if quick else [])]).returncode


def table(rows: list[dict[str, Any]]) -> str:
    """:return: in Markdown, a line for each piece of work, with the machine's float32 rate in that run; versions"""
    lines = ["| work | ours | fastest peer | ratio | GFLOP/s |", "|---|---|---|---|---|"]
    for row in (row for row in rows if row["ours"] in row["medians"]):
        medians = row["medians"]
        peers = {name: medians[name] for name in row["peers"] if name in medians}
        best = min(peers, key=lambda name: peers[name]) if peers else None
        peer = f"{best}: {1000 * peers[best]:.4g} ms" if best else ""
        ratio = f"{row['ratio']:.2f}" if best else ""
        ours = f"{1000 * medians[row['ours']]:.4g} ms"
        lines.append(f"| {row['title']} | {ours} | {peer} | {ratio} | {row['gflops']:.0f} |")
    return "\n".join([*lines, "", *sorted({row["versions"] for row in rows})]) + "\n"


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """a bar for each ratio"""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = [row for row in rows if row["ratio"] is not None]
    figure, axes = pyplot.subplots(figsize=(9, 1 + 0.35 * len(rows)), layout="constrained")
    ratios = [row["ratio"] for row in rows]
    bars = axes.barh([row["title"] for row in rows], ratios, color=["C0" if x <= 1 else "C1" for x in ratios])
    axes.bar_label(bars, fmt="%.2f", padding=3)
    axes.axvline(1.0, color="0.4", linewidth=1)
    axes.invert_yaxis()
    axes.set_xlabel("our time / that of the fastest peer")
    figure.savefig(path)
    pyplot.close(figure)


def main() -> int:
    """:return: exit status: 1 if one of them failed"""
    parser = argparse.ArgumentParser(description="All benchmarks: a table and a picture.")
    parser.add_argument("--out", type=Path, default=Path("benchmarks-results"), metavar="FOLDER")
    parser.add_argument("--only", nargs="+", choices=JOBS, default=list(JOBS), metavar="NAME", help=", ".join(JOBS))
    parser.add_argument("--quick", action="store_true", help="few rounds: to see whether they run")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    figures = args.out / "figures.jsonl"
    figures.write_text("")
    failed = [name for name in args.only if run(name, figures=figures, quick=args.quick)]
    rows = [json.loads(line) for line in figures.read_text().splitlines()]
    text = table(rows)
    (args.out / "table.md").write_text(text)
    print(f"\n{text}")
    try:
        draw(rows, args.out / "table.png")
    except ImportError:
        print("No picture: matplotlib is not installed.")
    for name in failed:
        print(f"{name} failed", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
