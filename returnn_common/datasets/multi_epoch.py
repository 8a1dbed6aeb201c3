"""
Several passes over the data as one epoch.
"""

from __future__ import annotations

from typing import Any

from returnn.datasets.meta import MultiEpochDataset

__all__ = ["multi_epoch"]


def multi_epoch(dataset: dict[str, Any], num_epochs: int) -> dict[str, Any]:
    """
    Differs from RETURNN's ``MultiEpochDataset`` in that it can be split between the processes of a distributed
    training.

    :param dataset: as in a config
    :param num_epochs: of that dataset, which make one
    :return: dataset for the config
    :raises ValueError: for less than one
    """
    if num_epochs < 1:
        raise ValueError(f"multi_epoch: expected num_epochs >= 1, got {num_epochs}")
    return {"class": _MultiEpoch, "dataset": dataset, "multi_epoch": num_epochs}


class _MultiEpoch(MultiEpochDataset):
    """RETURNN gives the inner dataset the outer one's part of the data already; it only has to be allowed."""

    def supports_sharding(self) -> bool:
        """whether the inner one does"""
        return self._dataset.supports_sharding()

    def set_sharding(self, *, num_shards: int, shard_index: int):
        """of the inner one"""
        super().set_sharding(num_shards=num_shards, shard_index=shard_index)
        self._dataset.set_sharding(num_shards=num_shards, shard_index=shard_index)
