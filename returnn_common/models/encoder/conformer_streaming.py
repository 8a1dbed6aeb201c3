"""
Differs from returnn_common/models/encoder/conformer.py in that nothing depends on a far future: self-attention within
chunks and a bounded left context, with rotary positions (:mod:`returnn_common.nn.chunked_attention`), causal depthwise
convolution, and layer norm in the convolution module. It encodes a whole sequence, with masks (for training), or chunk
after chunk with a cache; both give the same numbers.

Chen et al. 2021, https://arxiv.org/abs/2010.11395 (attention within chunks and to a bounded number before, as a mask);
Zhang et al. 2020, https://arxiv.org/abs/2012.05481 (the same in a Conformer, with causal convolution).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from returnn.frontend.encoder.conformer import ConformerPositionwiseFeedForward

from ... import nn
from ...nn.causal_conv import CausalConvSubsample, prepend_context
from ...nn.checks import check_at_least, check_probability
from ...nn.chunked_attention import ChunkedSelfAttention, ChunkView

__all__ = ["StreamingConformerEncoder", "make_streaming_conformer_encoder"]


def make_streaming_conformer_encoder(
    in_dim: int | nn.Dim,
    *,
    num_layers: int = 12,
    out_dim: int | nn.Dim = 512,
    num_heads: int = 8,
    chunk_size: int = 16,
    left_chunks: int = 4,
    subsampling_channels: int = 64,
    conv_kernel_size: int = 15,
    dropout: float = 0.1,
) -> StreamingConformerEncoder:
    """
    Sizes as in :func:`.conformer.make_conformer_encoder`; chunks of 16 frames as in Zhang et al. 2020. With features
    every 10 ms a chunk lasts 640 ms, which is the latency, and each layer attends to 2.56 s before it. The kernel has
    half the usual width, since it sees one side only.

    :param in_dim: of the features, e.g. 80 log-mels
    :param out_dim: of the model, a multiple of ``2 * num_heads``; the feed-forward dim is 4 times as large
    :param chunk_size: in frames after subsampling, which is 4-fold, by two 3x3 convolutions of stride 2
    :param left_chunks: how many chunks before its own a frame attends to; 0 for none
    :param subsampling_channels: of the second of these convolutions; the first has half as many
    :param conv_kernel_size: of the depthwise convolution: so many frames, the last of which is the current one
    :param dropout: everywhere
    :return: encoder, ``{batch, time, in_dim} -> {batch, ceil(ceil(time / 2) / 2), out_dim}``
    :raises ValueError: for a size that doesn't fit
    """
    in_dim = nn.as_dim(in_dim, name="features")
    out_dim = nn.as_dim(out_dim, name="conformer")
    check_at_least("conformer", 0, left_chunks=left_chunks)
    check_at_least("conformer", 1, num_layers=num_layers, num_heads=num_heads, chunk_size=chunk_size)
    check_at_least("conformer", 2, conv_kernel_size=conv_kernel_size, subsampling_channels=subsampling_channels)
    check_probability("conformer", dropout=dropout)
    if out_dim.dimension % (2 * num_heads):
        raise ValueError(f"conformer: out_dim {out_dim.dimension} is not a multiple of 2 * num_heads {num_heads}")
    left_dim = nn.SpatialDim("left-context", chunk_size * left_chunks) if left_chunks else None
    channels = [nn.FeatureDim("conv-1", subsampling_channels // 2), nn.FeatureDim("conv-2", subsampling_channels)]
    layers = [
        StreamingConformerLayer(
            out_dim,
            self_att=ChunkedSelfAttention(
                out_dim,
                out_dim,
                key_dim_total=out_dim,
                value_dim_total=out_dim,
                num_heads=num_heads,
                left_dim=left_dim,
                att_dropout=dropout,
            ),
            conv_block=CausalConvBlock(out_dim, kernel_size=conv_kernel_size),
            ff_dim=nn.FeatureDim("conformer-ff", 4 * out_dim.dimension),
            dropout=dropout,
        )
        for _ in range(num_layers)
    ]
    return nn.fuse(
        StreamingConformerEncoder(
            in_dim,
            out_dim,
            input_layer=CausalConvSubsample(in_dim, channels=channels),
            layers=layers,
            chunk_size=chunk_size,
            left_dim=left_dim,
            input_dropout=dropout,
        )
    )


class StreamingConformerEncoder(nn.Module):
    """
    Encodes a whole sequence when it is called. :meth:`step` encodes what has come since the last step::

        state = encoder.initial_state(batch_dims=[nn.batch_dim])
        for chunk, time in chunks:  # of encoder.chunk_size * encoder.downsample_factor frames
            out, out_time, state = encoder.step(chunk, in_spatial_dim=time, state=state)

    :param in_dim: of the features
    :param out_dim: of the model
    :param input_layer: subsampling
    :param layers: each with the same ``left_dim``
    :param chunk_size: in frames after subsampling
    :param left_dim: left context: a multiple of ``chunk_size`` frames, or None
    :param input_dropout: after the input layer and a linear projection
    """

    def __init__(
        self,
        in_dim: nn.Dim,
        out_dim: nn.Dim,
        *,
        input_layer: CausalConvSubsample,
        layers: Sequence[StreamingConformerLayer],
        chunk_size: int,
        left_dim: nn.Dim | None,
        input_dropout: float,
    ):
        super().__init__()
        self.in_dim = in_dim
        self.out_dim = out_dim
        self.downsample_factor = input_layer.downsample_factor
        self.input_layer = input_layer
        self.input_projection = nn.Linear(input_layer.out_dim, out_dim, with_bias=False)
        self.input_dropout = input_dropout
        self.layers = nn.ModuleList(layers)
        self.chunk_size = chunk_size
        self.left_dim = left_dim

    def initial_state(self, *, batch_dims: Sequence[nn.Dim]) -> nn.State:
        """:return: before the first frame, nested tensors of fixed sizes"""
        state = nn.State(
            input_layer=self.input_layer.initial_state(batch_dims=batch_dims),
            layers=[layer.initial_state(batch_dims=batch_dims) for layer in self.layers],
        )
        if self.left_dim is not None:
            state.valid = nn.zeros([*batch_dims, self.left_dim], dtype="float32")
        return state

    def __call__(
        self, source: nn.Tensor, *, in_spatial_dim: nn.Dim, collected_outputs: dict[str, nn.Tensor] | None = None
    ) -> tuple[nn.Tensor, nn.Dim]:
        """
        :param source: ``{batch, time, in_dim}``
        :param in_spatial_dim: time
        :param collected_outputs: is filled with the output of each layer, by its number from "0" on
        :return: ``{batch, time', out_dim}``, and the dim time'
        """
        x, time, _ = self.input_layer(source, in_spatial_dim=in_spatial_dim)
        view = ChunkView.of_sequence(time, **self._chunks(), device=x.device)
        x, _ = self._layers(x, view, collected_outputs=collected_outputs)
        return x, time

    def step(self, chunk: nn.Tensor, *, in_spatial_dim: nn.Dim, state: nn.State) -> tuple[nn.Tensor, nn.Dim, nn.State]:
        """
        :param chunk: ``{batch, time, in_dim}``, of each sequence the next ``chunk_size * downsample_factor`` frames, or
            a multiple, or none. Where a sequence ends, any number; none may follow
        :param in_spatial_dim: time
        :param state: of :meth:`initial_state`, or of the step before
        :return: ``{batch, time', out_dim}``, the dim time', and the new state
        """
        new_state = nn.State()
        x, time, new_state.input_layer = self.input_layer(chunk, in_spatial_dim=in_spatial_dim, state=state.input_layer)
        if self.left_dim is None:
            view = ChunkView.of_sequence(time, **self._chunks(), device=x.device)
        else:
            view, new_state.valid = ChunkView.of_next_frames(
                time, state.valid, left=self.left_dim, **self._chunks(), device=x.device
            )
        x, new_state.layers = self._layers(x, view, state=state.layers)
        return x, time, new_state

    def _chunks(self) -> dict[str, int]:
        left = self.left_dim.dimension if self.left_dim is not None else 0
        return {"chunk_size": self.chunk_size, "left_chunks": left // self.chunk_size}

    def _layers(
        self,
        x: nn.Tensor,
        view: ChunkView,
        *,
        state: list[nn.State] | None = None,
        collected_outputs: dict[str, nn.Tensor] | None = None,
    ) -> tuple[nn.Tensor, list[nn.State]]:
        x = self.input_projection(x)
        x = nn.dropout(x, self.input_dropout)
        new_state = []
        for i, layer in enumerate(self.layers):
            x, layer_state = layer(x, view=view, state=state[i] if state else None)
            new_state.append(layer_state)
            if collected_outputs is not None:
                collected_outputs[str(i)] = x
        return x, new_state


class StreamingConformerLayer(nn.Module):
    """
    The Conformer's layer (Gulati et al. 2020, https://arxiv.org/abs/2005.08100, section 2.4), with a state.

    :param out_dim: of source and output
    :param self_att: attention module
    :param conv_block: convolution module
    :param ff_dim: of the two feed-forward modules
    :param dropout: after each module, and within the feed-forward modules
    """

    def __init__(
        self,
        out_dim: nn.Dim,
        *,
        self_att: ChunkedSelfAttention,
        conv_block: CausalConvBlock,
        ff_dim: nn.Dim,
        dropout: float,
    ):
        super().__init__()
        self.ffn1 = ConformerPositionwiseFeedForward(out_dim, ff_dim=ff_dim, dropout=dropout)
        self.ffn1_layer_norm = nn.LayerNorm(out_dim)
        self.ffn2 = ConformerPositionwiseFeedForward(out_dim, ff_dim=ff_dim, dropout=dropout)
        self.ffn2_layer_norm = nn.LayerNorm(out_dim)
        self.conv_block = conv_block
        self.conv_layer_norm = nn.LayerNorm(out_dim)
        self.self_att = self_att
        self.self_att_layer_norm = nn.LayerNorm(out_dim)
        self.final_layer_norm = nn.LayerNorm(out_dim)
        self.dropout = dropout

    def initial_state(self, *, batch_dims: Sequence[nn.Dim]) -> nn.State:
        """:return: before the first frame"""
        return nn.State(
            self_att=self.self_att.initial_state(batch_dims=batch_dims),
            conv_block=self.conv_block.initial_state(batch_dims=batch_dims),
        )

    def __call__(
        self, source: nn.Tensor, *, view: ChunkView, state: nn.State | None = None
    ) -> tuple[nn.Tensor, nn.State]:
        """
        :param source: ``{batch, time, out_dim}``
        :param view: which frames see which
        :param state: None for a whole sequence
        :return: same shape; new state
        """
        new_state = nn.State(self_att=None, conv_block=None)
        x = source + 0.5 * nn.dropout(self.ffn1(self.ffn1_layer_norm(source)), self.dropout)
        attended, new_state.self_att = self.self_att(
            self.self_att_layer_norm(x), view=view, state=state.self_att if state else None
        )
        x = x + nn.dropout(attended, self.dropout)
        convolved, new_state.conv_block = self.conv_block(
            self.conv_layer_norm(x), spatial_dim=view.time, state=state.conv_block if state else None
        )
        x = x + nn.dropout(convolved, self.dropout)
        x = x + 0.5 * nn.dropout(self.ffn2(self.ffn2_layer_norm(x)), self.dropout)
        return self.final_layer_norm(x), new_state


class CausalConvBlock(nn.Module):
    """
    The Conformer's convolution module (section 2.2 of its paper), where each frame sees itself and those before it, and
    with layer norm in place of batch norm, as Zhang et al. have it.

    :param out_dim: of source and output
    :param kernel_size: at least 2
    """

    def __init__(self, out_dim: nn.Dim, *, kernel_size: int):
        super().__init__()
        self.out_dim = out_dim
        self.left_dim = nn.SpatialDim("conv-left", kernel_size - 1)
        self.positionwise_conv1 = nn.Linear(out_dim, 2 * out_dim)
        self.depthwise_conv = nn.Conv1d(out_dim, out_dim, kernel_size, groups=out_dim.dimension, padding="valid")
        self.positionwise_conv2 = nn.Linear(out_dim, out_dim)
        self.norm = nn.LayerNorm(out_dim)

    def initial_state(self, *, batch_dims: Sequence[nn.Dim]) -> nn.State:
        """:return: ``left``: ``{batch, kernel_size - 1, out_dim}``"""
        return nn.State(left=nn.zeros([*batch_dims, self.left_dim, self.out_dim]))

    def __call__(
        self, source: nn.Tensor, *, spatial_dim: nn.Dim, state: nn.State | None = None
    ) -> tuple[nn.Tensor, nn.State | None]:
        """
        :param source: ``{batch, time, out_dim}``
        :param spatial_dim: time
        :param state: None for a whole sequence
        :return: same shape; new state
        """
        x, _ = nn.gating(self.positionwise_conv1(source))
        if state:
            x, time, left = prepend_context(x, state.left, axis=spatial_dim, context_dim=self.left_dim)
            state = nn.State(left=left)
        else:
            x, (time,) = nn.pad(x, axes=[spatial_dim], padding=[(self.left_dim.dimension, 0)], value=0.0)
        conv: Callable[..., tuple[nn.Tensor, nn.Dim]] = self.depthwise_conv  # RETURNN hides the arguments of Conv1d
        x, _ = conv(x, in_spatial_dim=time, out_spatial_dim=spatial_dim)
        return self.positionwise_conv2(nn.swish(self.norm(x))), state
