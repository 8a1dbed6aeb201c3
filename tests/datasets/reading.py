"""Reads datasets as RETURNN does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from returnn.datasets.basic import init_dataset

from returnn_common.datasets import Librispeech, WordVocab

SPLITS: dict[str, Any] = {"train_splits": ["train"], "dev_splits": ["dev"], "test_splits": ["test"]}
Items = dict[str, tuple[np.ndarray, np.ndarray]]

# As RETURNN initialises the datasets of its config for evaluation.
EVAL_DEFAULTS = {"chunking": "0", "seq_ordering": "sorted", "shuffle_frames_of_nseqs": 0}


class LaterPath:
    """As Sisyphus' ``tk.Path``: knows where it is only when it is asked."""

    def __init__(self, path: str):
        self.path = path

    def get_path(self) -> str:
        return self.path


def tiny_dataset(tiny: Path, **kwargs) -> Librispeech:
    return Librispeech(
        **{"path": tiny, "vocab": WordVocab(["OTHER", "WORD"]), "train_epoch_split": 1, **SPLITS, **kwargs}
    )


def read(dataset_opts: dict, *, epoch: int = 1, shard: tuple[int, int] = (0, 1)) -> Items:
    """:return: utterance -> (data, classes), in the dataset's order"""
    dataset = init_dataset(dataset_opts, default_kwargs=EVAL_DEFAULTS)
    if shard != (0, 1):
        dataset.set_sharding(shard_index=shard[0], num_shards=shard[1])
    dataset.init_seq_order(epoch=epoch)
    items = {}
    index = 0
    while dataset.is_less_than_num_seqs(index):
        dataset.load_seqs(index, index + 1)
        items[dataset.get_tag(index)] = dataset.get_data(index, "data"), dataset.get_data(index, "classes")
        index += 1
    dataset.finish_epoch(free_resources=True)
    return items
