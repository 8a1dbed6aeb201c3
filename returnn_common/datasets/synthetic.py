"""
Sequences to sequences made from a seed: a data set without files, to check that a setup works at all.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from returnn.datasets.map import MapDatasetBase
from returnn.tensor import Dim, batch_dim

from .interface import DatasetConfig
from .vocab import WordVocab

__all__ = ["SequenceTask"]

TASKS = ("copy", "reverse", "sort")
BOUNDARY = "<s>"  # label 0
_SPLITS = {"train": 0, "dev": 1, "test": 2}


class SequenceTask(DatasetConfig):
    """
    Random symbols, and the same in another order. Split "train" is new in each epoch; "dev" has other sequences of the
    same lengths, "test" has other lengths.

    Label 0 is begin and end of sentence: the source has it at both ends, the target is without.
    The symbols 1, 2, ... are drawn with equal probabilities, as is the length. None comes twice, so that what
    follows on a symbol can be learned without counting, and holds for longer sequences.

    :param task: "copy"; "reverse"; or "sort", ascending
    :param num_symbols: without label 0
    :param train_lengths: shortest and longest sequence in "train" and "dev"
    :param test_lengths: those of "test"
    :param num_train: sequences in an epoch
    :param num_test: sequences in "dev", and in "test"
    :param random_seed: of everything
    :raises ValueError: for another task, no sequences, lengths that are no range, or fewer symbols than the longest
    """

    needs_corpus = False
    train_splits, dev_splits, test_splits = ("train",), ("dev",), ("test",)

    def __init__(
        self,
        task: str = "reverse",
        *,
        num_symbols: int = 50,
        train_lengths: tuple[int, int] = (1, 16),
        test_lengths: tuple[int, int] = (17, 19),
        num_train: int = 10_000,
        num_test: int = 500,
        random_seed: int = 0,
    ):
        if task not in TASKS:
            raise ValueError(f"SequenceTask: expected one of {', '.join(TASKS)}, got {task!r}")
        for name, value in [("num_symbols", num_symbols), ("num_train", num_train), ("num_test", num_test)]:
            if value < 1:
                raise ValueError(f"SequenceTask: expected {name} >= 1, got {value!r}")
        for name, (shortest, longest) in [("train_lengths", train_lengths), ("test_lengths", test_lengths)]:
            if not 1 <= shortest <= longest:
                raise ValueError(f"SequenceTask: expected {name} as shortest and longest, got {(shortest, longest)}")
            if longest > num_symbols:
                raise ValueError(f"SequenceTask: expected {name} up to {num_symbols}, the symbols, got {longest}")
        self.vocab = WordVocab([BOUNDARY, *(str(i + 1) for i in range(num_symbols))])
        self._examples = {
            split: _Examples(
                task,
                num_symbols=num_symbols,
                lengths=test_lengths if split == "test" else train_lengths,
                num=num_train if split == "train" else num_test,
                seed=(random_seed, index),
            )
            for split, index in _SPLITS.items()
        }
        self._extern_data: dict[str, dict[str, Any]] | None = None

    def get_extern_data(self) -> dict[str, dict[str, Any]]:
        """see :class:`DatasetConfig`"""
        if self._extern_data is None:
            vocab_dim = Dim(self.vocab.get_num_classes(), name="labels")
            self._extern_data = {
                key: {
                    "dims": [batch_dim, Dim(None, name=f"{key}-time")],
                    "sparse_dim": vocab_dim,
                    "dtype": "int32",
                    "vocab": self.vocab.get_opts(),
                }
                for key in ("data", "classes")
            }
        return self._extern_data

    def get_train_dataset(self) -> dict[str, Any]:
        """see :class:`DatasetConfig`"""
        return self.get_forward_dataset("train")

    def get_eval_datasets(self) -> dict[str, dict[str, Any]]:
        """ "dev" and "test\""""
        return {split: self.get_forward_dataset(split) for split in ("dev", "test")}

    def get_main_name(self) -> str:
        """see :class:`DatasetConfig`"""
        return "dev"

    def get_config_opts(self) -> dict[str, Any]:
        """see :class:`DatasetConfig`"""
        return self.get_config_opts_with_dev()

    def get_forward_dataset(self, split: str) -> dict[str, Any]:
        """
        Any one split.

        :raises ValueError: if there is none of this name
        """
        return {"class": "MapDatasetWrapper", "map_dataset": self._get(split)}

    def get_references(self, split: str) -> dict[str, str]:
        """:return: sequence tag -> target"""
        examples = self._get(split)
        return {
            examples.get_seq_tag(i): self.vocab.decode(examples[i]["classes"].tolist()) for i in range(len(examples))
        }

    def check(self):
        """Nothing can be missing."""

    def _get(self, split: str) -> _Examples:
        if split not in self._examples:
            raise ValueError(f"SequenceTask: split: expected one of {', '.join(_SPLITS)}, got {split!r}")
        return self._examples[split]


class _Examples(MapDatasetBase):
    """
    An example depends on its number alone, so that it is the same in whichever process it is made.
    In the training data, epoch 2 begins behind the last number of epoch 1.
    """

    def __init__(self, task: str, *, num_symbols: int, lengths: tuple[int, int], num: int, seed: tuple[int, int]):
        stream = {"dim": num_symbols + 1, "sparse": True, "shape": (None,), "dtype": "int32"}
        super().__init__(data_types={"data": dict(stream), "classes": dict(stream)})
        self.task, self.num_symbols, self.lengths, self.num, self.seed = task, num_symbols, lengths, num, seed

    def __len__(self) -> int:
        return self.num

    def __getitem__(self, seq_idx: int) -> dict[str, np.ndarray]:
        rng = np.random.default_rng([*self.seed, seq_idx])
        shortest, longest = self.lengths
        num = rng.integers(shortest, longest + 1)
        symbols = 1 + rng.permutation(self.num_symbols)[:num].astype("int32")
        target = {"copy": symbols, "reverse": symbols[::-1].copy(), "sort": np.sort(symbols)}[self.task]
        return {"data": np.pad(symbols, 1), "classes": target}

    def get_seq_order(self, epoch: int | None = None) -> list[int]:
        is_train = self.seed[1] == _SPLITS["train"]
        first = self.num * ((epoch or 1) - 1) if is_train else 0
        return list(range(first, first + self.num))
