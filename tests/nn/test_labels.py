"""Begin and end of sentence around labels, on every engine."""

from __future__ import annotations

import numpy as np
import pytest

from returnn_common import nn
from returnn_common.nn.labels import with_bos_eos
from tests.engines import ENGINES, Input, Result, run_on

LABELS = np.array([[4, 3, 4], [3, 4, 4], [4, 4, 4]], dtype="int32")


def _run(engine: str, bos: int = 1, eos: int = 2, sparse: str | None = "vocab") -> Result:
    def _func(labels, time, vocab):
        previous, targets, out_dim = with_bos_eos(labels, spatial_dim=time, bos=bos, eos=eos)
        assert previous.sparse_dim == targets.sparse_dim == vocab
        return {"previous": (previous, [nn.batch_dim, out_dim]), "targets": (targets, [nn.batch_dim, out_dim])}

    inputs = {"labels": Input(LABELS, "batch time", sparse=sparse)}
    return run_on(engine, _func, inputs, {"time": [3, 1, 0], "vocab": 5})


@pytest.mark.parametrize("engine", ENGINES)
def test_each_sequence_ends_where_it_ends(engine: str):
    result = _run(engine)
    assert result["previous"].tolist() == [[1, 4, 3, 4], [1, 3, 0, 0], [1, 0, 0, 0]]
    assert result["targets"].tolist() == [[4, 3, 4, 2], [3, 2, 0, 0], [2, 0, 0, 0]]
    assert result.outputs["targets"].lengths[1].tolist() == [4, 2, 1]


@pytest.mark.parametrize(
    "options, message",
    [
        ({"bos": 5}, "with_bos_eos: expected bos as an index of Dim{'vocab'.5.}, got 5"),
        ({"eos": -1}, "with_bos_eos: expected eos as an index of Dim{'vocab'.5.}, got -1"),
        (
            {"sparse": None},
            r"with_bos_eos: expected labels \(sparse\) with the dim Dim{.*}, got Tensor{'labels'",
        ),
    ],
)
def test_what_does_not_fit(options: dict, message: str):
    with pytest.raises(ValueError, match=message):
        _run("torch", **options)
