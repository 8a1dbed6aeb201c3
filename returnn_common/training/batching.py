"""
Batches of similar lengths, of bounded size, for RETURNN's PyTorch engine.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

__all__ = ["bucket_batches"]


def bucket_batches(
    *,
    batch_size: int,
    lengths: Sequence[int] | tuple[int, int],
    max_attention: int | None = None,
    max_seqs: int | None = None,
    num_buckets: int = 20,
    length_key: str = "data",
) -> dict[str, Any]:
    """
    ``globals().update(bucket_batches(...))`` in a config: RETURNN's PyTorch engine then collects sequences in buckets
    by their length, and makes a batch of each bucket that is full. Unlike batches of neighbours in a sorted order,
    these need no order of the data set, and hold different sequences in each epoch. With 20 buckets, 5 % is padding
    for lengths as LibriSpeech's, with 40 3 %, where it is 32 % in batches of sequences as they come
    (``benchmarks/batching.py``).

    A batch of n sequences, the longest of length L, has ``n * L <= batch_size``, and, which bounds the memory of
    self-attention, ``n * L ** 2 <= max_attention``. Only a single sequence can be beyond that.

    :param batch_size: padding included, in values of ``length_key`` (samples of raw audio, or frames)
    :param lengths: of sequences, in the same unit, those of the training data or a sample of them: the buckets then
        hold equally much. Or only the shortest and the longest: the buckets' lengths then grow geometrically, so that
        less than ``1 - (shortest / longest) ** (1 / (num_buckets - 1))`` of a batch is padding. Longer sequences go
        alone.
    :param max_attention: bound of number times squared length; None for none
    :param max_seqs: bound of the number; None for none. (RETURNN's options ``batch_size`` and ``max_seqs`` don't hold
        for buckets.)
    :param num_buckets: at least 2. More make for less padding, and for more sequences that wait for their batch
    :param length_key: whose length counts, in ``extern_data``
    :return: the option ``torch_batching``; for other engines: it changes nothing there
    :raises ValueError: for sizes below 1, fewer than 2 buckets, or no lengths
    """
    for name, size in (("batch_size", batch_size), ("max_attention", max_attention), ("max_seqs", max_seqs)):
        if size is not None and size < 1:
            raise ValueError(f"bucket_batches: expected {name} >= 1, got {size}")
    if num_buckets < 2:
        raise ValueError(f"bucket_batches: expected num_buckets >= 2, got {num_buckets}")
    if not len(lengths) or min(lengths) < 1:
        raise ValueError(f"bucket_batches: expected lengths >= 1, got {sorted(lengths)[:3]}")
    ordered = sorted(int(n) for n in lengths)
    if len(ordered) == 2:
        shortest, longest = ordered
        bounds = [round(shortest * (longest / shortest) ** (i / (num_buckets - 1))) for i in range(num_buckets)]
    else:
        total, seen, bounds = sum(ordered), 0, []
        for length in ordered:
            seen += length
            if seen >= total * (len(bounds) + 1) / num_buckets:
                bounds.append(length)
    buckets = []
    for bound in sorted(set(bounds)):
        number = batch_size // bound
        if max_attention is not None:
            number = min(number, max_attention // bound**2)
        if max_seqs is not None:
            number = min(number, max_seqs)
        buckets.append((bound, max(1, number)))
    buckets.append((sys.maxsize, 1))  # RETURNN drops what is longer than the last one
    return {
        "torch_batching": {"class": "BucketOrderingIterDataPipe", "buckets": buckets, "length_key": length_key},
    }
