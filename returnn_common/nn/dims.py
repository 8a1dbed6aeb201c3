"""
Ways to write dims: feature and spatial dims by name and size, sizes given as int or Dim, "the feature dim, whichever".
"""

from __future__ import annotations

from returnn.tensor import Dim, Tensor

__all__ = ["FeatureDim", "SpatialDim", "any_feature_dim", "as_dim", "get_spatial_dim", "resolve_feature_dim"]


any_feature_dim = Dim(None, name="any-feature-dim", kind=Dim.Types.Feature, special=True)
"""Stands for the feature dim of whatever tensor it is used on: the ``axis`` of :func:`returnn_common.nn.dropout`."""


def FeatureDim(name: str, size: int) -> Dim:
    """
    :param name: for debugging, and for the names in a net dict
    :param size: number of features, at least 1
    :return: static dim of kind "feature"
    :raises TypeError, ValueError: if the size is not an int, or below 1
    """
    return Dim(_checked_size(size, what=f"FeatureDim {name!r}"), name=name, kind=Dim.Types.Feature)


def SpatialDim(name: str, size: int | Tensor | None = None) -> Dim:
    """
    :param name: for debugging, and for the names in a net dict
    :param size: int (static), lengths ``{batch}``, or None (dynamic, defined later)
    :return: dim of kind "spatial"
    :raises TypeError, ValueError: if the size is neither, or an int below 1
    """
    if size is not None and not isinstance(size, Tensor):
        size = _checked_size(size, what=f"SpatialDim {name!r}")
    return Dim(size, name=name, kind=Dim.Types.Spatial)


def as_dim(size: int | Dim, *, name: str) -> Dim:
    """
    Sizes of models can be given as int or as Dim. This makes a Dim of either.

    >>> as_dim(512, name="model")
    Dim{'model'(512)}
    >>> as_dim(FeatureDim("encoder", 512), name="model")
    Dim{F'encoder'(512)}

    :param size: Dim, returned as it is; or a positive int
    :param name: of the new dim, if size is an int
    :raises TypeError, ValueError: if the size is neither, or an int below 1
    """
    if isinstance(size, Dim):
        return size
    return Dim(_checked_size(size, what=name), name=name)


def get_spatial_dim(source: Tensor) -> Dim:
    """
    :param source: batch of sequences, such as an entry of RETURNN's extern_data
    :return: its only dim with lengths
    :raises ValueError: if there is none, or more than one
    """
    candidates = [dim for dim in source.dims if dim.is_dynamic_seq_length()]
    if len(candidates) != 1:
        raise ValueError(f"get_spatial_dim: expected one dim with lengths, got {len(candidates)} in {source}")
    return candidates[0]


def resolve_feature_dim(source: Tensor) -> Dim:
    """
    :param source: any tensor with a feature dim
    :return: what :data:`any_feature_dim` stands for here: the dim marked as the feature dim,
        else the only dim of kind "feature"
    :raises ValueError: if there is none, or if there are several and none is marked
    """
    if source.feature_dim is not None:
        return source.feature_dim
    candidates = [dim for dim in source.dims if dim.is_feature_dim()]
    if len(candidates) != 1:
        raise ValueError(
            f"any_feature_dim: expected a tensor with one feature dim, got {len(candidates)} of them in {source};"
            " pass the dim itself, or set source.feature_dim"
        )
    return candidates[0]


def _checked_size(size: int, *, what: str) -> int:
    if isinstance(size, bool) or not isinstance(size, int):
        raise TypeError(f"{what}: expected a size as int or Dim, got {type(size).__name__} {size!r}")
    if size < 1:
        raise ValueError(f"{what}: expected a size of at least 1, got {size}")
    return size
