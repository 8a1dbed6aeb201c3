"""
The Conformer's layer, and the encoder.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import returnn.frontend as rf
from returnn.frontend.encoder.conformer import ConformerEncoder, ConformerEncoderLayer
from returnn.tensor import Dim, Tensor

from .attention import FusedRelPosSelfAttention
from .convolution import FusedConvBlock
from .frames import Frames
from .layers import FusedConformerFeedForward, FusedLayerNorm
from .raw import drop, is_exactly, is_on_torch, kept, raw_of, tensor_of
from .rotary import FusedRotarySelfAttention

if TYPE_CHECKING:
    import torch

__all__ = ["FusedConformerEncoder", "FusedConformerLayer"]

_NORMS = ["ffn1_layer_norm", "self_att_layer_norm", "conv_layer_norm", "ffn2_layer_norm", "final_layer_norm"]
_PARTS: list[tuple[list[str], list[type[Any]]]] = [
    (["ffn1", "ffn2"], [FusedConformerFeedForward]),
    (["self_att"], [FusedRelPosSelfAttention, FusedRotarySelfAttention]),
    (["conv_block"], [FusedConvBlock]),
    (_NORMS, [FusedLayerNorm]),
]


class FusedConformerLayer(ConformerEncoderLayer):
    """All on rows where all parts have that form; else part by part. Dropout, scale and residual connection in one."""

    def __call__(self, inp: Tensor, *, spatial_dim: Dim) -> Tensor:
        """see RETURNN's ``ConformerEncoderLayer``"""
        if not is_on_torch(inp) or self.out_dim not in inp.dims:
            return super().__call__(inp, spatial_dim=spatial_dim)
        if spatial_dim in inp.dims:
            rows, frames = Frames.of(inp, spatial_dim, self.out_dim)
            if self.fits(frames):
                return frames.tensor(self.on_rows(rows, frames), self.out_dim)
        x = self._add(inp, self.ffn1(self.ffn1_layer_norm(inp)), scale=0.5)
        x = self._add(x, self.self_att(self.self_att_layer_norm(x), axis=spatial_dim))
        x = self._add(x, self.conv_block(self.conv_layer_norm(x), spatial_dim=spatial_dim))
        x = self._add(x, self.ffn2(self.ffn2_layer_norm(x)), scale=0.5)
        return self.final_layer_norm(x)

    def fits(self, frames: Frames) -> bool:
        """see :mod:`.frames`"""
        for names, kinds in _PARTS:
            for name in names:
                part = getattr(self, name)
                if not any(is_exactly(part, kind) for kind in kinds) or not part.fits(frames):
                    return False
        return not isinstance(self.dropout, Tensor)

    def on_rows(self, rows: torch.Tensor, frames: Frames) -> torch.Tensor:
        """
        :param rows: raw, ``{rows, out_dim}``
        :param frames: whose they are
        :return: like rows
        """
        ffn1: Any = self.ffn1
        ffn2: Any = self.ffn2
        attention: Any = self.self_att
        conv: Any = self.conv_block
        before_ffn1, before_attention, before_conv, before_ffn2, final = (
            getattr(self, name).on_rows for name in _NORMS
        )
        rows = self._add_raw(rows, ffn1.on_rows(before_ffn1(rows)), scale=0.5)
        rows = self._add_raw(rows, attention.on_rows(before_attention(rows), frames))
        rows = self._add_raw(rows, conv.on_rows(before_conv(rows), frames))
        rows = self._add_raw(rows, ffn2.on_rows(before_ffn2(rows)), scale=0.5)
        return final(rows)

    def _add(self, x: Tensor, y: Tensor, *, scale: float = 1.0) -> Tensor:
        """:return: ``x + scale * dropout(y)``"""
        if isinstance(self.dropout, Tensor) or set(x.dims) != set(y.dims):
            return x + scale * rf.dropout(y, self.dropout, axis=self.dropout_broadcast and self.out_dim)
        raw, dims = raw_of(x, self.out_dim)
        dims = *dims, self.out_dim
        other = y.raw_tensor if y.dims == dims else y.copy_compatible_to_dims_raw(dims)
        return tensor_of(self._add_raw(raw, other, scale=scale), *dims)

    def _add_raw(self, x: torch.Tensor, y: torch.Tensor, *, scale: float = 1.0) -> torch.Tensor:
        import torch

        if self.dropout and rf.get_run_ctx().is_train_flag_enabled(func=rf.dropout):
            factor = kept(y, self.dropout, broadcast=self.dropout_broadcast)
            return torch.addcmul(x, y, factor, value=scale / (1.0 - self.dropout))
        return torch.add(x, y, alpha=scale)


class FusedConformerEncoder(ConformerEncoder):
    """Behind the subsampling, rows go from layer to layer."""

    def __call__(
        self, source: Tensor, *, in_spatial_dim: Dim, collected_outputs: dict[str, Tensor] | None = None
    ) -> tuple[Tensor, Dim]:
        """see RETURNN's ``ConformerEncoder``"""
        if (
            not is_exactly(self.layers, rf.Sequential)
            or self.pos_enc is not None
            or isinstance(self.input_dropout, Tensor)
            or not is_on_torch(source)
        ):
            return super().__call__(source, in_spatial_dim=in_spatial_dim, collected_outputs=collected_outputs)
        x, spatial_dim = source, in_spatial_dim
        input_layer: Any = self.input_layer
        if input_layer and input_layer.in_dim in source.dims:
            x, spatial_dim = input_layer(source, in_spatial_dim=in_spatial_dim)
        if self.input_projection and self.input_projection.in_dim in x.dims:
            x = self.input_projection(x)
        if self.input_embedding_scale != 1.0:
            x = x * self.input_embedding_scale
        rows, frames = Frames.of(x, spatial_dim, self.out_dim)
        rows = drop(rows, self.input_dropout, broadcast=self.dropout_broadcast)
        for name, layer in self.layers.items():
            if is_exactly(layer, FusedConformerLayer) and layer.fits(frames):
                rows = layer.on_rows(rows, frames)
            else:
                x = layer(frames.tensor(rows, self.out_dim), spatial_dim=spatial_dim)
                rows, frames = Frames.of(x, spatial_dim, self.out_dim)
            if collected_outputs is not None:
                collected_outputs[name] = frames.tensor(rows, self.out_dim)
        return frames.tensor(rows, self.out_dim), spatial_dim
