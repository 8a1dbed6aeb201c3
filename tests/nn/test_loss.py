from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from returnn.tensor import Dim, Tensor

from returnn_common import nn


def _tensor(values: list[float]) -> Tensor:
    return Tensor(
        "loss", dims=[Dim(len(values), name="batch")], dtype="float32", raw_tensor=np.array(values, "float32")
    )


def test_defaults_and_frozen():
    loss = nn.Loss(_tensor([1.0, 2.0]))
    assert (loss.scale, loss.inv_norm_factor, loss.as_error) == (1.0, None, False)
    with pytest.raises(dataclasses.FrozenInstanceError):
        loss.scale = 2.0  # pyright: ignore[reportAttributeAccessIssue]


def test_wrong_types():
    with pytest.raises(TypeError, match=r"^Loss: expected value as Tensor, got float 1\.0$"):
        nn.Loss(1.0)  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match=r"^Loss: expected inv_norm_factor as Tensor or None, got int 2$"):
        nn.Loss(_tensor([1.0]), inv_norm_factor=2)  # pyright: ignore[reportArgumentType]
