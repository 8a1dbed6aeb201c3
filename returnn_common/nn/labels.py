"""
Begin and end of sentence around label sequences, alike on every engine.
"""

from __future__ import annotations

import returnn.frontend as rf
from returnn.tensor import Dim, Tensor

__all__ = ["with_bos_eos"]


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
