from __future__ import annotations

import numpy as np
import pytest
from returnn.tensor import Dim, Tensor

from returnn_common import nn
from returnn_common.nn.dims import resolve_feature_dim


def test_feature_dim():
    dim = nn.FeatureDim("hidden", 7)
    assert isinstance(dim, nn.Dim)
    assert (dim.name, dim.size, dim.kind) == ("hidden", 7, Dim.Types.Feature)
    assert nn.FeatureDim("hidden", 7) != dim, "two dims of one name are still two dims"


def test_spatial_dim():
    dynamic = nn.SpatialDim("time")
    assert (dynamic.name, dynamic.size, dynamic.kind) == ("time", None, Dim.Types.Spatial)
    assert nn.SpatialDim("time", 5).size == 5
    batch = Dim(2, name="batch")
    lengths = Tensor("lengths", dims=[batch], dtype="int32", raw_tensor=np.array([3, 1], "int32"))
    by_lengths = nn.SpatialDim("time", lengths)
    assert by_lengths.size is None and by_lengths.kind == Dim.Types.Spatial
    assert by_lengths.dyn_size_ext.raw_tensor.tolist() == [3, 1]


def test_as_dim():
    dim = nn.FeatureDim("hidden", 7)
    assert nn.as_dim(dim, name="other") is dim
    new = nn.as_dim(7, name="other")
    assert (new.name, new.size) == ("other", 7)


@pytest.mark.parametrize("size", [True, "7", 7.0, None])
def test_bad_size_type(size):
    with pytest.raises(TypeError, match=f"^out: expected a size as int or Dim, got {type(size).__name__} {size!r}$"):
        nn.as_dim(size, name="out")
    with pytest.raises(TypeError, match="^FeatureDim 'out': expected a size as int"):
        nn.FeatureDim("out", size)
    if size is not None:
        with pytest.raises(TypeError, match="^SpatialDim 'out': expected a size as int"):
            nn.SpatialDim("out", size)


@pytest.mark.parametrize("size", [0, -1])
def test_bad_size_value(size):
    with pytest.raises(ValueError, match=f"^out: expected a size of at least 1, got {size}$"):
        nn.as_dim(size, name="out")
    with pytest.raises(ValueError, match="^FeatureDim 'out': expected a size of at least 1"):
        nn.FeatureDim("out", size)
    with pytest.raises(ValueError, match="^SpatialDim 'out': expected a size of at least 1"):
        nn.SpatialDim("out", size)


def test_resolve_feature_dim():
    time, feature, plain = Dim(3, name="time"), nn.FeatureDim("feature", 4), Dim(5, name="plain")
    assert resolve_feature_dim(Tensor("x", dims=[time, feature], dtype="float32")) is feature
    marked = Tensor("x", dims=[feature, plain], dtype="float32", feature_dim=plain)
    assert resolve_feature_dim(marked) is plain
    with pytest.raises(ValueError, match=r"one feature dim, got 0 of them in Tensor\{'x'"):
        resolve_feature_dim(Tensor("x", dims=[time, plain], dtype="float32"))
    two = Tensor("x", dims=[feature, nn.FeatureDim("other", 4)], dtype="float32", feature_dim_axis=None)
    with pytest.raises(ValueError, match=r"one feature dim, got 2 of them in Tensor\{'x'"):
        resolve_feature_dim(two)


def test_get_spatial_dim():
    batch, feature, static = Dim(2, name="batch"), nn.FeatureDim("feature", 4), nn.SpatialDim("static", 3)

    def dynamic(name: str) -> Dim:
        lengths = np.array([3, 1], "int32")
        return nn.SpatialDim(name, Tensor("lengths", dims=[batch], dtype="int32", raw_tensor=lengths))

    time, labels = dynamic("time"), dynamic("labels")
    for dims in ([batch, time], [time, batch], [batch, time, feature], [feature, batch, static, time]):
        assert nn.get_spatial_dim(Tensor("x", dims=dims, dtype="float32")) is time
    with pytest.raises(ValueError, match=r"^get_spatial_dim: expected one dim with lengths, got 0 in Tensor\{'x'"):
        nn.get_spatial_dim(Tensor("x", dims=[batch, static, feature], dtype="float32"))
    with pytest.raises(ValueError, match=r"^get_spatial_dim: expected one dim with lengths, got 2 in Tensor\{'x'"):
        nn.get_spatial_dim(Tensor("x", dims=[batch, time, labels], dtype="float32"))


def test_get_spatial_dim_of_extern_data():
    """as RETURNN's config describes it, where the dims have no lengths yet"""
    time = nn.SpatialDim("time")
    assert nn.get_spatial_dim(Tensor("data", dims=[nn.batch_dim, time], dtype="float32")) is time
    channel = nn.FeatureDim("channel", 1)
    assert nn.get_spatial_dim(Tensor("data", dims=[nn.batch_dim, time, channel], dtype="float32")) is time
    (dim,) = Tensor("data", shape=(None,), dtype="float32").dims[1:]
    assert nn.get_spatial_dim(Tensor("x", dims=[nn.batch_dim, dim], dtype="float32")) is dim
