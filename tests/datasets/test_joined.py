"""Utterances joined to longer ones."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from returnn.datasets import init_dataset
from returnn.datasets.generating import StaticDataset

from returnn_common.datasets.joined import join_utterances
from returnn_common.datasets.multi_epoch import multi_epoch

NUM_SEQS = 20
OPTIONS = {"probability": 1.0, "max_labels": 8, "max_frames": 1000}


class _Static(StaticDataset):
    def get_data_dtype(self, key: str) -> str:
        """its name; RETURNN's is NumPy's object, which is no name once the PyTorch engine is loaded"""
        return str(super().get_data_dtype(key))


def _static() -> dict[str, Any]:
    """sequence i has the label i, i % 4 + 1 times, and ten frames for each"""
    data = []
    for i in range(NUM_SEQS):
        labels = np.full([i % 4 + 1], i, "int32")
        data.append({"data": np.repeat(labels, 10)[:, None].astype("float32"), "classes": labels})
    return {
        "class": _Static,
        "data": data,
        "output_dim": {"data": (1, 2), "classes": (NUM_SEQS, 1)},
        "seq_ordering": "random",
        "fixed_random_seed": None,
    }


def _read(options: dict[str, Any], *, epoch: int = 1) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    dataset = init_dataset(options)
    dataset.init_seq_order(epoch=epoch)
    result: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    while dataset.is_less_than_num_seqs(len(result)):
        index = len(result)
        dataset.load_seqs(index, index + 1)
        result[dataset.get_tag(index)] = dataset.get_data(index, "data"), dataset.get_data(index, "classes")
    return result


def _join(**options) -> dict[str, Any]:
    return join_utterances(_static(), **{**OPTIONS, **options})


def test_each_utterance_once():
    """alone or in a pair, whose tag, frames and labels are those of both"""
    seqs = _read(_join())
    parts = [int(part.split("-")[1]) for tag in seqs for part in tag.split(";")]
    assert sorted(parts) == list(range(NUM_SEQS))
    assert any(";" in tag for tag in seqs)
    for tag, (data, labels) in seqs.items():
        expected = [i for i in (int(part.split("-")[1]) for part in tag.split(";")) for _ in range(i % 4 + 1)]
        np.testing.assert_array_equal(labels, expected)
        np.testing.assert_array_equal(data[:, 0], np.repeat(expected, 10))


def test_other_pairs_in_each_epoch():
    assert list(_read(_join())) == list(_read(_join()))
    assert set(_read(_join(), epoch=2)) != set(_read(_join()))


@pytest.mark.parametrize("options", [{"max_labels": 5}, {"max_frames": 50}])
def test_limits(options):
    lengths = Counter(len(labels) for _, labels in _read(_join(**options)).values())
    assert max(lengths) == 5
    assert max(len(labels) for _, labels in _read(_join()).values()) > 5


def test_probability_and_first_epoch():
    assert not any(";" in tag for tag in _read(_join(probability=0.0)))
    assert 0 < sum(";" in tag for tag in _read(_join(probability=0.3))) < sum(";" in tag for tag in _read(_join()))
    assert not any(";" in tag for tag in _read(_join(first_epoch=3), epoch=2))
    assert any(";" in tag for tag in _read(_join(first_epoch=3), epoch=3))


def test_buffer():
    """with one utterance waiting, its pairs are neighbours"""
    order = list(_read(_static()))
    for tag in _read(_join(buffer_size=1)):
        positions = sorted(order.index(part) for part in tag.split(";"))
        assert positions[-1] - positions[0] == len(positions) - 1


def test_as_part_of_several_passes():
    seqs = _read(multi_epoch(_join(), 2))
    assert len(seqs) > NUM_SEQS / 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"probability": 1.5}, "expected a probability from 0 to 1, got 1.5"),
        ({"max_labels": 0}, "expected max_labels >= 1, got 0"),
        ({"max_frames": 0}, "expected max_frames >= 1, got 0"),
        ({"first_epoch": 0}, "expected first_epoch >= 1, got 0"),
        ({"buffer_size": 0}, "expected buffer_size >= 1, got 0"),
    ],
)
def test_what_it_refuses(options, message):
    with pytest.raises(ValueError, match=f"join_utterances: {message}"):
        _join(**options)
