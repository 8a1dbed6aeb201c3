"""The dims of a transducer's loss: which are found, and what is refused. (test_transducer_loss: its values.)"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from returnn_common import nn
from tests.engines import Input, run_on

TOPOLOGIES = ["rnnt", "monotonic", "ctc"]


def _call(
    *,
    dims: str = "batch time positions vocab",
    sizes: dict[str, Any] | None = None,
    sparse: str = "vocab",
    engine: str = "torch",
    change: Any = None,
    **options: Any,
) -> np.ndarray:
    """two sequences of three frames, and of one or two labels"""
    sizes = {"time": [3, 3], "labels": [2, 1], "positions": [3, 2], "vocab": 4, "vocab2": 5, **(sizes or {})}

    def func(x, y, time, labels, positions, vocab):
        shape = {"input_spatial_dim": time, "targets_spatial_dim": labels, "blank_index": 0, **options}
        x, y = (change or (lambda x, y, *_: (x, y)))(x, y, labels)
        return {"loss": nn.transducer_loss(logits=x, targets=y, **shape)}

    shape = [2 if name == "batch" else int(np.max(sizes[name])) for name in dims.split()]
    logits = np.random.default_rng(0).normal(size=shape).astype("float32")
    inputs = {"x": Input(logits, dims), "y": Input(np.array([[1, 2], [3, 0]], "int32"), "batch labels", sparse=sparse)}
    return run_on(engine, func, inputs, sizes)["loss"]


def _with_position_dim(x: nn.Tensor, y: nn.Tensor, labels: nn.Dim) -> tuple[nn.Tensor, nn.Tensor]:
    (positions,) = (dim for dim in x.dims if dim.name == "positions")
    return nn.replace_dim(x, in_dim=positions, out_dim=labels + 1)[0], y


def test_the_position_dim_is_found():
    expected = _call()
    np.testing.assert_array_equal(_call(change=_with_position_dim), expected)
    np.testing.assert_array_equal(_call(sizes={"positions": np.array(3)}), expected)  # one length for all
    np.testing.assert_array_equal(_call(sizes={"positions": 3}), expected)  # static

    def _mark_feature_dim(x, y, _labels):
        x, y.sparse_dim = x.copy(), None
        x.feature_dim = x.dims[-1]
        return x, y

    np.testing.assert_array_equal(_call(sizes={"positions": 3}, change=_mark_feature_dim), expected)
    np.testing.assert_array_equal(_call(sizes={"time": 3}), expected)

    def _unmark(x, y, labels):
        x, y = _with_position_dim(x, y, labels)
        y.sparse_dim = None
        return x, y

    np.testing.assert_array_equal(_call(change=_unmark), expected)


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_one_length_for_all(topology: str):
    expected = _call(sizes={"labels": [2, 2], "positions": [3, 3]}, topology=topology)
    for labels, positions in [(2, 3), (np.array(2), np.array(3))]:
        sizes = {"time": 3, "labels": labels, "positions": positions}
        np.testing.assert_array_equal(_call(sizes=sizes, topology=topology), expected)


@pytest.mark.parametrize(
    "message, options",
    [
        ("expected topology as one of rnnt, monotonic, ctc, got 'hmm'", {"topology": "hmm"}),
        ("expected fast_emission >= 0, got -0.5", {"fast_emission": -0.5}),
        ("expected fast_emission >= 0, got nan", {"fast_emission": float("nan")}),
        ("expected blank_index in 0 to 3 of .*vocab.*, got 4", {"blank_index": 4}),
        ("expected blank_index in 0 to 3 of .*vocab.*, got -1", {"blank_index": -1}),
        ("expected blank_index in 0 to 3 of .*vocab.*, got True", {"blank_index": True}),
        ("expected logits with the dims .*time.*, 'positions .*got Tensor", {"dims": "batch positions vocab"}),
        ("expected logits with the dims .*'positions .*got Tensor", {"dims": "batch time vocab"}),
        ("expected targets over .*other.*, got Tensor", {"targets_spatial_dim": nn.SpatialDim("other", 2)}),
        ("one position more than there are labels, .3, 2., got .*positions.* .2, 1.", {"sizes": {"positions": [2, 1]}}),
        ("one position more than there are labels, .3, 2., got .*positions.* 4", {"sizes": {"positions": 4}}),
        ("at least the labels of .*vocab2.*, got .*vocab", {"sparse": "vocab2"}),
    ],
)
def test_refused(message: str, options: dict[str, Any]):
    with pytest.raises(ValueError, match=message):
        _call(**options)


def test_unmarked_feature_dim_is_refused():
    def _unmark(x, y, _labels):
        y.sparse_dim = None
        return x, y

    with pytest.raises(ValueError, match="expected logits with feature_dim set to one of .*positions.*vocab"):
        _call(sizes={"positions": 3}, change=_unmark)
