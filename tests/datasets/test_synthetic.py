"""Sequences made from a seed: their contents, splits and epochs, in RETURNN's data loading."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from returnn.datasets import init_dataset
from returnn.datasets.basic import Dataset

from returnn_common.datasets import SequenceTask

OPTIONS = {"num_symbols": 6, "train_lengths": (1, 4), "test_lengths": (5, 6), "num_train": 200, "num_test": 100}


def _read(options: dict, epoch: int = 1) -> dict[str, tuple[list[int], list[int]]]:
    """:return: tag -> source, target"""
    dataset = init_dataset(options)
    assert isinstance(dataset, Dataset)
    dataset.init_seq_order(epoch=epoch)
    result, i = {}, 0
    while dataset.is_less_than_num_seqs(i):
        dataset.load_seqs(i, i + 1)
        result[dataset.get_tag(i)] = tuple(dataset.get_data(i, key).tolist() for key in ("data", "classes"))
        i += 1
    return result


@pytest.mark.parametrize("task, function", [("copy", list), ("sort", sorted), ("reverse", lambda x: x[::-1])])
def test_targets(task: str, function):
    examples = _read(SequenceTask(task, **OPTIONS).get_train_dataset())
    for source, target in examples.values():
        assert source[0] == source[-1] == 0
        assert target == list(function(source[1:-1]))
    symbols = [symbol for _, target in examples.values() for symbol in target]
    assert set(symbols) == {1, 2, 3, 4, 5, 6}
    assert all(len(set(target)) == len(target) for _, target in examples.values())
    assert {len(target) for _, target in examples.values()} == {1, 2, 3, 4}


def test_each_epoch_is_new_in_training_only():
    dataset = SequenceTask(**OPTIONS)
    first, second = (_read(dataset.get_train_dataset(), epoch) for epoch in (1, 2))
    assert len(first) == len(second) == 200 and not set(first) & set(second)
    assert list(first.values()) != list(second.values())
    assert _read(dataset.get_train_dataset(), 1) == first
    for split in ("dev", "test"):
        datasets = dataset.get_eval_datasets()
        assert _read(datasets[split], 1) == _read(datasets[split], 2)
        assert len(_read(datasets[split])) == 100


def test_lengths_of_the_splits():
    dataset = SequenceTask(**OPTIONS)
    for split, expected in [("train", {1, 2, 3, 4}), ("dev", {1, 2, 3, 4}), ("test", {5, 6})]:
        assert {len(target) for _, target in _read(dataset.get_forward_dataset(split)).values()} == expected


def test_splits_and_seeds_differ():
    datasets = [SequenceTask(**OPTIONS, random_seed=seed) for seed in (0, 1, 0)]
    train = [_read(dataset.get_train_dataset()) for dataset in datasets]
    assert train[0] != train[1] and train[0] == train[2]
    assert list(_read(datasets[0].get_main_dataset()).values())[:50] != list(train[0].values())[:50]


def test_references_are_the_targets():
    dataset = SequenceTask(**OPTIONS)
    references = dataset.get_references("test")
    targets = {tag: target for tag, (_, target) in _read(dataset.get_forward_dataset("test")).items()}
    assert {tag: [int(word) for word in text.split()] for tag, text in references.items()} == targets
    dataset.check()


def test_another_process_makes_the_same():
    options = SequenceTask(**OPTIONS).get_train_dataset()
    assert _read(pickle.loads(pickle.dumps(options))) == _read(options)


def test_config():
    dataset = SequenceTask(**OPTIONS)
    opts = dataset.get_config_opts()
    assert (opts["default_input"], opts["target"]) == ("data", "classes")
    assert opts["extern_data"] is dataset.get_extern_data()
    data, classes = (opts["extern_data"][key] for key in ("data", "classes"))
    assert data["sparse_dim"] is classes["sparse_dim"] and data["sparse_dim"].dimension == 7
    assert data["dims"][1] is not classes["dims"][1]
    assert dataset.get_main_name() == "dev" and _read(opts["dev"]) == _read(dataset.get_forward_dataset("dev"))
    assert classes["vocab"]["labels"] == ["<s>", "1", "2", "3", "4", "5", "6"]
    assert not dataset.needs_corpus


def test_lengths_are_equally_frequent():
    dataset = SequenceTask(**{**OPTIONS, "num_train": 4000})
    lengths = [len(target) for _, target in _read(dataset.get_train_dataset()).values()]
    counts = np.bincount(lengths)[1:]
    assert (np.abs(counts - 1000) < 5 * np.sqrt(750)).all()


@pytest.mark.parametrize(
    "options, message",
    [
        ({"task": "shuffle"}, "SequenceTask: expected one of copy, reverse, sort, got 'shuffle'"),
        ({"num_symbols": 0}, "SequenceTask: expected num_symbols >= 1, got 0"),
        ({"num_train": 0}, "SequenceTask: expected num_train >= 1, got 0"),
        ({"num_test": -1}, "SequenceTask: expected num_test >= 1, got -1"),
        ({"train_lengths": (0, 3)}, r"expected train_lengths as shortest and longest, got \(0, 3\)"),
        ({"num_symbols": 18}, "expected test_lengths up to 18, the symbols, got 19"),
        ({"test_lengths": (5, 4)}, r"expected test_lengths as shortest and longest, got \(5, 4\)"),
    ],
)
def test_what_does_not_fit(options: dict, message: str):
    with pytest.raises(ValueError, match=message):
        SequenceTask(**options)


def test_unknown_split():
    with pytest.raises(ValueError, match="SequenceTask: split: expected one of train, dev, test, got 'eval'"):
        SequenceTask(**OPTIONS).get_forward_dataset("eval")
