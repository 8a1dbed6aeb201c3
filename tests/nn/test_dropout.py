from __future__ import annotations

import numpy as np
import pytest
import torch
from returnn.tensor import Dim, Tensor

from returnn_common import nn

BATCH, TIME, FEATURE = Dim(3, name="batch"), Dim(11, name="time"), nn.FeatureDim("feature", 50)


@pytest.fixture(autouse=True)
def _torch_backend():
    nn.select_backend_torch()
    nn.set_random_seed(42)


def _ones() -> Tensor:
    return Tensor("x", dims=[BATCH, TIME, FEATURE], dtype="float32", raw_tensor=torch.ones(3, 11, 50))


def _in_training(**kwargs) -> np.ndarray:
    nn.init_train_step_run_ctx(train_flag=True)
    return nn.dropout(_ones(), **kwargs).copy_transpose([BATCH, TIME, FEATURE]).raw_tensor.numpy()


@pytest.mark.parametrize("axis", [nn.any_feature_dim, [nn.any_feature_dim], FEATURE])
@pytest.mark.parametrize("prob_name", ["dropout", "drop_prob"])
def test_feature_axis(axis, prob_name):
    out = _in_training(**{prob_name: 0.2}, axis=axis)
    assert (out == out[:1, :1]).all(), "one mask for all frames"
    np.testing.assert_allclose(np.unique(out), [0.0, 1.25])
    assert 0 < (out[0, 0] == 0).sum() < 25


@pytest.mark.parametrize("axis", [None, False, [BATCH, TIME, nn.any_feature_dim]])
def test_all_axes(axis):
    out = _in_training(dropout=0.2, axis=axis)
    np.testing.assert_allclose(np.unique(out), [0.0, 1.25])
    assert 0.15 < (out == 0).mean() < 0.25
    assert not (out == out[:1]).all() and not (out == out[:, :1]).all()


def test_only_in_training():
    nn.init_forward_step_run_ctx()
    x = _ones()
    assert (nn.dropout(x, dropout=0.5).raw_tensor == 1).all()
    assert (nn.dropout(x, dropout=0.5, on_forward=True).raw_tensor == 0).any()
    nn.init_train_step_run_ctx(train_flag=False)
    assert (nn.dropout(x, dropout=0.5).raw_tensor == 1).all()
    nn.init_train_step_run_ctx(train_flag=True)
    assert (nn.dropout(x, dropout=0.0).raw_tensor == 1).all()


def test_bad_arguments():
    nn.init_train_step_run_ctx(train_flag=True)
    with pytest.raises(TypeError, match=r"either drop_prob or dropout, got drop_prob=None, dropout=None"):
        nn.dropout(_ones())
    with pytest.raises(TypeError, match=r"either drop_prob or dropout, got drop_prob=0\.1, dropout=0\.2"):
        nn.dropout(_ones(), 0.1, dropout=0.2)
    with pytest.raises(ValueError, match="not in source"):
        nn.dropout(_ones(), 0.1, axis=Dim(50, name="other"))
    with pytest.raises(ValueError, match="one feature dim, got 0"):
        x = Tensor("x", dims=[BATCH, TIME], dtype="float32", raw_tensor=torch.ones(3, 11))
        nn.dropout(x, 0.1, axis=nn.any_feature_dim)
    with pytest.raises(ValueError, match="range"):
        nn.dropout(_ones(), 1.5)
