"""
How much of the batches is padding, for lengths as LibriSpeech's: of ``bucket_batches``, and of batches of neighbours in
some order, as RETURNN's ``seq_ordering`` makes them. Nothing is timed.

    python benchmarks/batching.py
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from returnn_common.training import bucket_batches

__all__ = ["draw_durations", "make_batches", "share_of_padding"]


def draw_durations(number: int, seed: int = 1) -> list[int]:
    """:return: in frames of 10 ms, like LibriSpeech's: from 1.5 to 35 s, most between 12 and 16"""
    rng = random.Random(seed)
    draw = [lambda: rng.triangular(1.5, 17.0, 15.5), lambda: rng.uniform(17.0, 35.0)]
    return [round(100 * draw[rng.random() < 0.02]()) for _ in range(number)]


def make_batches(lengths: Sequence[int], options: dict[str, Any]) -> list[list[int]]:
    """:return: the lengths in each batch, as RETURNN's PyTorch engine makes them with these options"""
    from returnn.config import Config
    from returnn.torch.data.pipeline import get_batching_iterable_dataset_from_config
    from torch.utils.data import IterableDataset

    class Data(IterableDataset):
        """of these lengths"""

        def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
            for i, n in enumerate(lengths):
                yield {"data": np.zeros(n, "int8"), "complete_frac": np.array(i / len(lengths)), "seq_idx": np.array(i)}

    config = Config({"batch_size": 1, **options})
    batches: Iterable[Any] = get_batching_iterable_dataset_from_config(dataset=Data(), config=config, train=True)
    return [[len(x["data"]) for x in batch] for batch in batches]


def share_of_padding(batches: Sequence[Sequence[int]]) -> float:
    """:return: of all that is computed"""
    return 1 - sum(map(sum, batches)) / sum(max(batch) * len(batch) for batch in batches)


def laplace(lengths: Sequence[int], num_bins: int) -> list[int]:
    """:return: in RETURNN's order "laplace": sorted in each bin, up and down"""
    bins = [sorted(lengths[i::num_bins], reverse=bool(i % 2)) for i in range(num_bins)]
    return [n for part in bins for n in part]


def main() -> None:
    parser = argparse.ArgumentParser(description="The share of padding in batches.")
    parser.add_argument("--sequences", type=int, default=20_000)
    parser.add_argument("--batch-size", type=int, default=20_000, metavar="FRAMES", help="padding included")
    args = parser.parse_args()
    lengths = draw_durations(args.sequences)
    size = {"batch_size": args.batch_size}
    ways = {"as they come": (lengths, size), "sorted": (sorted(lengths), size)}
    for num_bins in (args.sequences // 1000, args.sequences // 100):
        ways[f"laplace, {num_bins} bins"] = laplace(lengths, max(1, num_bins)), size
    sample = draw_durations(1000, seed=2)
    for num_buckets in (10, 20, 40):
        ways[f"{num_buckets} buckets"] = lengths, bucket_batches(**size, lengths=sample, num_buckets=num_buckets)
    bounded = bucket_batches(**size, lengths=sample, max_attention=args.batch_size * 1200)
    ways["20 buckets, attention as of 12 s"] = lengths, bounded
    print(f"{args.sequences} sequences, up to {args.batch_size} frames in a batch")
    for name, (order, options) in ways.items():
        batches = make_batches(order, options)
        attention = max(len(batch) * max(batch) ** 2 for batch in batches if len(batch) > 1)
        print(f"  {name:34} {100 * share_of_padding(batches):5.1f} %  {len(batches)} batches, ", end="")
        print(f"largest attention {attention / args.batch_size:.0f} x batch size")


if __name__ == "__main__":
    main()
