"""Tests for what all datasets have."""

from __future__ import annotations

import pytest

from .reading import read, tiny_dataset


def test_static_copies(tiny):
    dataset = tiny_dataset(tiny)
    whole, train, main = dataset.copy_as_static(), dataset.copy_train_as_static(), dataset.copy_main_as_static()
    test = dataset.copy_eval_as_static("test")
    assert [copy.get_main_name() for copy in (whole, train, main, test)] == ["dev", "train", "dev", "test"]
    assert [len(read(copy.get_main_dataset())) for copy in (whole, train, main, test)] == [4, 12, 4, 2]
    assert list(whole.get_eval_datasets()) == ["dev", "test"] and list(test.get_eval_datasets()) == ["test"]
    assert len(read(whole.get_config_opts()["train"])) == 12
    assert set(test.get_config_opts()) == {"extern_data", "default_input", "target", "forward_data"}
    for copy in (whole, train, main, test):
        assert copy.get_extern_data() is dataset.get_extern_data()
        assert (copy.get_default_input(), copy.get_default_target()) == ("data", "classes")
    with pytest.raises(ValueError, match="dataset 'test': this copy has no dataset to train on"):
        test.get_train_dataset()
    with pytest.raises(ValueError, match="eval dataset: expected one of dev, test, got 'train'"):
        dataset.copy_eval_as_static("train")
