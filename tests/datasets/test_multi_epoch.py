"""Several passes as one epoch, split between processes."""

from __future__ import annotations

import numpy as np
import pytest
from returnn.datasets import init_dataset

from returnn_common.datasets.multi_epoch import multi_epoch

NUM_SEQS = 7


@pytest.fixture(scope="module")
def hdf(tmp_path_factory) -> str:
    from returnn.datasets.hdf import SimpleHDFWriter

    path = str(tmp_path_factory.mktemp("data") / "data.hdf")
    writer = SimpleHDFWriter(path, dim=1, ndim=2)
    for i in range(NUM_SEQS):
        writer.insert_batch(np.full([1, i + 1, 1], i, "float32"), [i + 1], [f"seq-{i}"])
    writer.close()
    return path


def _tags(hdf: str, *, epoch: int, num_epochs: int, **sharding) -> list[str]:
    inner = {
        "class": "HDFDataset",
        "files": [hdf],
        "cache_byte_size": 0,
        "use_cache_manager": False,
        "seq_ordering": "random",
    }
    dataset = init_dataset(multi_epoch(inner, num_epochs), default_kwargs=sharding)
    dataset.init_seq_order(epoch=epoch)
    tags = []
    while dataset.is_less_than_num_seqs(len(tags)):
        dataset.load_seqs(len(tags), len(tags) + 1)
        tags.append(dataset.get_tag(len(tags)))
    return tags


def test_passes_one_after_the_other(hdf):
    """epoch 2 of two passes each is what the epochs 3 and 4 are of one pass each"""
    tags = _tags(hdf, epoch=2, num_epochs=2)
    assert tags == _tags(hdf, epoch=3, num_epochs=1) + _tags(hdf, epoch=4, num_epochs=1)
    assert sorted(tags[:NUM_SEQS]) == sorted(tags[NUM_SEQS:]) == [f"seq-{i}" for i in range(NUM_SEQS)]


@pytest.mark.parametrize("num_shards", [2, 3])
def test_split(hdf, num_shards: int):
    """between the processes of a distributed training, as RETURNN asks for it: each sequence once in each pass"""
    whole = _tags(hdf, epoch=1, num_epochs=2)
    parts = [_tags(hdf, epoch=1, num_epochs=2, _num_shards=num_shards, _shard_index=i) for i in range(num_shards)]
    assert sorted(sum(parts, [])) == sorted(whole)
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 2  # one in each pass


def test_split_later(hdf):
    """as RETURNN asks for it between several processes that load data"""
    dataset = init_dataset(multi_epoch({"class": "HDFDataset", "files": [hdf], "cache_byte_size": 0}, 1))
    assert dataset.supports_sharding()
    dataset.set_sharding(num_shards=NUM_SEQS, shard_index=3)
    dataset.init_seq_order(epoch=1)
    assert dataset.is_less_than_num_seqs(0) and not dataset.is_less_than_num_seqs(1)


def test_no_epochs():
    with pytest.raises(ValueError, match="multi_epoch: expected num_epochs >= 1, got 0"):
        multi_epoch({}, 0)
