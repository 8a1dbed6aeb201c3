"""
The Conformer's layer.
"""

from __future__ import annotations

import returnn.frontend as rf
from returnn.frontend.encoder.conformer import ConformerEncoderLayer
from returnn.tensor import Dim, Tensor

from .raw import is_on_torch, kept, raw_of, tensor_of

__all__ = ["FusedConformerLayer"]


class FusedConformerLayer(ConformerEncoderLayer):
    """Dropout, scale and residual connection in one."""

    def __call__(self, inp: Tensor, *, spatial_dim: Dim) -> Tensor:
        """see RETURNN's ``ConformerEncoderLayer``"""
        if not is_on_torch(inp) or self.out_dim not in inp.dims:
            return super().__call__(inp, spatial_dim=spatial_dim)
        x = self._add(inp, self.ffn1(self.ffn1_layer_norm(inp)), scale=0.5)
        x = self._add(x, self.self_att(self.self_att_layer_norm(x), axis=spatial_dim))
        x = self._add(x, self.conv_block(self.conv_layer_norm(x), spatial_dim=spatial_dim))
        x = self._add(x, self.ffn2(self.ffn2_layer_norm(x)), scale=0.5)
        return self.final_layer_norm(x)

    def _add(self, x: Tensor, y: Tensor, *, scale: float = 1.0) -> Tensor:
        """:return: ``x + scale * dropout(y)``"""
        if isinstance(self.dropout, Tensor) or set(x.dims) != set(y.dims):
            return x + scale * rf.dropout(y, self.dropout, axis=self.dropout_broadcast and self.out_dim)
        import torch

        raw, dims = raw_of(x, self.out_dim)
        other = (
            y.raw_tensor if y.dims == (*dims, self.out_dim) else y.copy_compatible_to_dims_raw((*dims, self.out_dim))
        )
        if self.dropout and rf.get_run_ctx().is_train_flag_enabled(func=rf.dropout):
            factor = kept(other, self.dropout, broadcast=self.dropout_broadcast)
            out = torch.addcmul(raw, other, factor, value=scale)
        else:
            out = torch.add(raw, other, alpha=scale)
        return tensor_of(out, *dims, self.out_dim)
