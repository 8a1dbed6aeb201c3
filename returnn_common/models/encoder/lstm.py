"""
Bidirectional LSTM encoder with time pooling, as in Zeyer et al. 2018, "Improved training of end-to-end attention
models for speech recognition" (https://arxiv.org/abs/1805.03294).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ... import nn
from ...nn.checks import check_at_least, check_probability
from ...nn.fused.lstm import reverse_sequence
from ...nn.lstm import LSTM

__all__ = ["BidirectionalLSTM", "LSTMEncoder", "make_lstm_encoder"]


def make_lstm_encoder(
    in_dim: int | nn.Dim,
    *,
    num_layers: int = 6,
    out_dim: int | nn.Dim = 2048,
    time_pooling: Sequence[int] = (2, 2, 2),
    dropout: float = 0.3,
) -> LSTMEncoder:
    """
    The defaults are those of the paper's LibriSpeech setup, which has
    1024 per direction (https://github.com/rwth-i6/returnn-experiments, 2018-asr-attention/librispeech).

    :param in_dim: of the features, e.g. 40 or 80 log-mels
    :param num_layers: at least 1
    :param out_dim: of each layer, half of it per direction
    :param time_pooling: pool sizes after the first, second, ... layer, 1 for none; at most one per layer.
        Each rounds up: ``ceil(time / size)`` frames are left, and no frame is lost.
        Their product is the ``downsample_factor``. ``()``: none at all.
    :param dropout: of the input of each layer but the first
    :return: encoder, ``{batch, time, in_dim} -> {batch, time', out_dim}``
    :raises ValueError: for a size that doesn't fit
    """
    in_dim = nn.as_dim(in_dim, name="features")
    out_dim = nn.as_dim(out_dim, name="lstm-encoder")
    check_at_least("LSTM encoder", 1, num_layers=num_layers)
    check_probability("LSTM encoder", dropout=dropout)
    if out_dim.dimension is None or out_dim.dimension % 2:
        raise ValueError(f"LSTM encoder: expected an even out_dim, got {out_dim.dimension}")
    if len(time_pooling) > num_layers or any(not isinstance(size, int) or size < 1 for size in time_pooling):
        raise ValueError(
            f"LSTM encoder: expected at most {num_layers} pool sizes, each at least 1, got {tuple(time_pooling)}"
        )
    layers = [BidirectionalLSTM(in_dim if i == 0 else out_dim, out_dim) for i in range(num_layers)]
    return LSTMEncoder(layers, time_pooling=time_pooling, dropout=dropout)


class LSTMEncoder(nn.Module):
    """
    Layers one after the other, with max pooling over time after some of them.

    :param layers: each ``(source, *, spatial_dim) -> output``, with ``in_dim`` and ``out_dim``;
        outputs are at least -1, the smallest value of an LSTM
    :param time_pooling: pool sizes after the first, second, ... layer
    :param dropout: of the input of each layer but the first
    """

    def __init__(self, layers: Sequence[BidirectionalLSTM], *, time_pooling: Sequence[int], dropout: float):
        super().__init__()
        self.in_dim = layers[0].in_dim
        self.out_dim = layers[-1].out_dim
        self.layers = nn.ModuleList(layers)
        self.time_pooling = (*time_pooling, *([1] * (len(layers) - len(time_pooling))))
        self.downsample_factor = math.prod(self.time_pooling)
        self.dropout = dropout

    def __call__(
        self, source: nn.Tensor, *, in_spatial_dim: nn.Dim, collected_outputs: dict[str, nn.Tensor] | None = None
    ) -> tuple[nn.Tensor, nn.Dim]:
        """
        :param source: ``{batch, time, in_dim}``
        :param in_spatial_dim: time
        :param collected_outputs: is filled with the output of each layer, by its number from "0" on, after its pooling
            (so that their times differ where layers pool)
        :return: ``{batch, time', out_dim}``, and the dim time'
        :raises ValueError: if the source has no in_dim or no in_spatial_dim
        """
        x, spatial_dim = source, in_spatial_dim
        for i, (layer, size) in enumerate(zip(self.layers, self.time_pooling, strict=True)):
            if i > 0:
                x = nn.dropout(x, self.dropout)
            x = layer(x, spatial_dim=spatial_dim)
            x, spatial_dim = _max_pool(x, size, spatial_dim=spatial_dim)
            if collected_outputs is not None:
                collected_outputs[str(i)] = x
        return x, spatial_dim


class BidirectionalLSTM(nn.Module):
    """
    Two LSTMs, one of which runs from each sequence's own end to its start (Graves and Schmidhuber 2005,
    https://doi.org/10.1016/j.neunet.2005.06.042). The features of the forward one come first.

    :param in_dim: of the source
    :param out_dim: of the output, an even number, half of it per direction
    """

    def __init__(self, in_dim: nn.Dim, out_dim: nn.Dim):
        super().__init__()
        assert out_dim.dimension is not None and out_dim.dimension % 2 == 0
        self.in_dim = in_dim
        self.out_dim = out_dim
        self.forward_lstm = LSTM(in_dim, nn.FeatureDim("lstm-forward", out_dim.dimension // 2))
        self.backward_lstm = LSTM(in_dim, nn.FeatureDim("lstm-backward", out_dim.dimension // 2))

    def __call__(self, source: nn.Tensor, *, spatial_dim: nn.Dim) -> nn.Tensor:
        """
        :param source: ``{batch, time, in_dim}``
        :param spatial_dim: time
        :return: ``{batch, time, out_dim}``
        :raises ValueError: if the source has no in_dim or no spatial_dim
        """
        for dim in (self.in_dim, spatial_dim):
            if dim not in source.dims:
                raise ValueError(f"BidirectionalLSTM: expected a source with the dim {dim}, got {source}")
        batch_dims = source.remaining_dims([spatial_dim, self.in_dim])
        state = self.forward_lstm.default_initial_state(batch_dims=batch_dims)
        forward = self.forward_lstm.outputs(source, state=state, spatial_dim=spatial_dim)
        source = reverse_sequence(source, axis=spatial_dim)
        state = self.backward_lstm.default_initial_state(batch_dims=batch_dims)
        backward = self.backward_lstm.outputs(source, state=state, spatial_dim=spatial_dim)
        backward = reverse_sequence(backward, axis=spatial_dim)
        out, _ = nn.concat(
            (forward, self.forward_lstm.out_dim), (backward, self.backward_lstm.out_dim), out_dim=self.out_dim
        )
        out.feature_dim = self.out_dim
        return out


def _max_pool(x: nn.Tensor, size: int, *, spatial_dim: nn.Dim) -> tuple[nn.Tensor, nn.Dim]:
    """
    :param x: at least -1
    :return: maximum of each ``size`` frames, of which the last may be fewer: ``ceil(time / size)`` frames
    """
    if size == 1:
        return x, spatial_dim
    # Padding on both sides ("same") would shift a row's windows by an amount that depends on the longest row.
    padded, [padded_dim] = nn.pad(x, axes=[spatial_dim], padding=[(0, size - 1)], value=-1.0, handle_dynamic_dims=True)
    out, out_spatial_dim = nn.max_pool1d(padded, pool_size=size, padding="valid", in_spatial_dim=padded_dim)
    return out, out_spatial_dim
