"""
Begin and end of sentence: around label sequences, alike on every engine, and among the labels that are scored.
"""

from __future__ import annotations

from typing import Any

import returnn.frontend as rf
from returnn.tensor import Dim, Tensor

from .dims import FeatureDim

__all__ = ["scored_labels", "with_bos_eos"]


def with_bos_eos(labels: Tensor, *, spatial_dim: Dim, bos: int, eos: int) -> tuple[Tensor, Tensor, Dim]:
    """
    What a decoder or language model gets, and what it shall predict from that: ``bos a b`` and ``a b eos`` for ``a b``.

    (:func:`returnn.frontend.pad` puts the eos at the end of each sequence on some engines only.)

    :param labels: ``{batch, time}``, sparse
    :param spatial_dim: time
    :param bos: index of the begin of sentence
    :param eos: index of the end of sentence; may equal ``bos``
    :return: previous labels ``{batch, time + 1}``, targets ``{batch, time + 1}``, the dim time + 1
    :raises ValueError: if bos or eos is no index of the labels
    """
    vocab_dim = labels.sparse_dim
    if vocab_dim is None or spatial_dim not in labels.dims:
        raise ValueError(f"with_bos_eos: expected labels (sparse) with the dim {spatial_dim}, got {labels}")
    for name, index in (("bos", bos), ("eos", eos)):
        if not 0 <= index < (vocab_dim.dimension or 0):
            raise ValueError(f"with_bos_eos: expected {name} as an index of {vocab_dim}, got {index!r}")
    out_dim = spatial_dim + 1
    pad = {"axes": [spatial_dim], "out_dims": [out_dim], "handle_dynamic_dims": False}
    previous, _ = rf.pad(labels, padding=[(1, 0)], value=bos, **pad)
    targets, _ = rf.pad(labels, padding=[(0, 1)], value=eos, **pad)
    positions = rf.range_over_dim(out_dim, device=labels.device)
    sizes = spatial_dim.get_size_tensor(device=labels.device)
    is_label = rf.compare(positions, "<", sizes, allow_broadcast_all_sources=True)
    end = rf.constant(eos, dims=(), dtype=labels.dtype, sparse_dim=vocab_dim, device=labels.device)
    return previous, rf.where(is_label, targets, end), out_dim


def scored_labels(model: Any, *, size: int) -> tuple[Dim, int, int]:
    """
    :param model: with a ``decoder``, its labels are scored; else (CTC, transducers) those of ``vocab_dim``, and end of
        sentence behind them
    :param size: labels of the targets
    :return: dim of the labels that a scorer beside the model has, begin and end of sentence
    """
    decoder = getattr(model, "decoder", None)
    if decoder is None:
        return FeatureDim("labels-and-end", size + 1), size, size
    return decoder.vocab_dim, model.bos, model.eos
