"""Batches of similar lengths: what RETURNN makes of the options."""

from __future__ import annotations

import pytest

from benchmarks.batching import draw_durations, make_batches, share_of_padding
from returnn_common.training import bucket_batches


@pytest.mark.parametrize("by", ["lengths", "range"])
@pytest.mark.parametrize("max_attention", [None, 20_000_000])
def test_bounds(by, max_attention):
    lengths = draw_durations(3000)
    given = draw_durations(500, seed=2) if by == "lengths" else (150, 3500)
    batches = make_batches(lengths, bucket_batches(batch_size=20_000, lengths=given, max_attention=max_attention))
    assert sorted(n for batch in batches for n in batch) == sorted(lengths)
    several = [batch for batch in batches if len(batch) > 1]
    assert max(len(batch) * max(batch) for batch in several) <= 20_000
    attention = max(len(batch) * max(batch) ** 2 for batch in several)
    assert (attention <= 20_000_000) == (max_attention is not None)
    neighbours = [lengths[i : i + 16] for i in range(0, len(lengths), 16)]
    assert share_of_padding(batches) < (0.06 if by == "lengths" else 0.1) < 0.2 < share_of_padding(neighbours)


def test_longer_than_known():
    batches = make_batches([5, 900, 5, 1000], bucket_batches(batch_size=20, lengths=[5, 6, 7], num_buckets=2))
    assert sorted(batches) == [[5, 5], [900], [1000]]


def test_geometric_bounds():
    given = {"batch_size": 64, "lengths": (1, 8), "num_buckets": 4, "max_attention": 64}
    options = bucket_batches(**given, length_key="x")
    assert options["torch_batching"]["buckets"][:-1] == [(1, 64), (2, 16), (4, 4), (8, 1)]
    assert options["torch_batching"]["length_key"] == "x"
    options = bucket_batches(**given, max_seqs=10)
    assert options["torch_batching"]["buckets"][:-1] == [(1, 10), (2, 10), (4, 4), (8, 1)]


@pytest.mark.parametrize(
    "options, message",
    [
        ({"batch_size": 0}, "expected batch_size >= 1, got 0"),
        ({"max_attention": -1}, "expected max_attention >= 1, got -1"),
        ({"max_seqs": 0}, "expected max_seqs >= 1, got 0"),
        ({"num_buckets": 1}, "expected num_buckets >= 2, got 1"),
        ({"lengths": []}, r"expected lengths >= 1, got \[\]"),
        ({"lengths": [3, 0, 2]}, r"expected lengths >= 1, got \[0, 2, 3\]"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(ValueError, match=message):
        bucket_batches(**{"batch_size": 10, "lengths": (1, 5), **options})
