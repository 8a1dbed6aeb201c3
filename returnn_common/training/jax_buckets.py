"""
Shapes for RETURNN's JAX engine, which compiles the training step for each shape of a batch.
"""

from __future__ import annotations

from math import ceil
from typing import Any

__all__ = ["jax_buckets"]


def jax_buckets(
    *,
    batch_size: int,
    max_seqs: int,
    max_length: int,
    max_labels: int | None,
    num_buckets: int = 4,
    data_key: str = "data",
    labels_key: str = "classes",
) -> dict[str, Any]:
    """
    ``globals().update(jax_buckets(...))`` in a config lets RETURNN's JAX engine pad each batch to the first of a few
    shapes ("buckets") that holds it. Each is compiled once, at the start (up to a minute, later from RETURNN's cache).
    Without it, nearly every batch has a shape of its own, and there is a compilation for each.

    The buckets' lengths grow geometrically from ``batch_size / max_seqs`` to ``max_length``, by the factor f, and each
    takes as many sequences as a batch can have whose longest doesn't fit in the bucket before. So a step computes on at
    most f times ``batch_size`` values (more only for a single sequence that is longer than that). The padding, also
    that by sequences of length 0, changes no result.

    :param batch_size: as in the config: longest sequence times number of sequences, in values of ``data_key``
    :param max_seqs: as in the config
    :param max_length: of a sequence of ``data_key``, after augmentation. A longer one ends the training with an error.
    :param max_labels: of a sequence of ``labels_key``; None: there are no labels, as for a language model
    :param num_buckets: how many; one is enough if ``max_seqs`` sequences of ``max_length`` fit in a batch
    :param data_key: of the input in ``extern_data``
    :param labels_key: of the labels in ``extern_data``
    :return: the options ``jax_jit`` and ``jax_time_buckets``
    :raises ValueError: for sizes below 1
    """
    sizes = {
        "batch_size": batch_size,
        "max_seqs": max_seqs,
        "max_length": max_length,
        "max_labels": max_labels,
        "num_buckets": num_buckets,
    }
    for name, size in sizes.items():
        if size is not None and size < 1:
            raise ValueError(f"jax_buckets: expected {name} >= 1, got {size}")
    labels = {} if max_labels is None else {labels_key: max_labels}
    buckets, num_seqs = [], max_seqs
    shortest = batch_size / max_seqs
    for i in range(num_buckets):
        share = (i + 1) / num_buckets
        is_last = i == num_buckets - 1 or max_length <= shortest
        length = max_length if is_last else ceil(shortest * (max_length / shortest) ** share)
        buckets.append({"batch_dim": num_seqs, data_key: length, **labels})
        num_seqs = min(max_seqs, max(1, batch_size // (length + 1)))
        if is_last:
            break
    return {
        "jax_jit": {"buckets": buckets},
        "jax_time_buckets": 0,  # else RETURNN runs each of them thrice to measure
    }
