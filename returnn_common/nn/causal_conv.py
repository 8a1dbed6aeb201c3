"""
Convolution that sees nothing of the future, over a whole sequence or piece after piece with a cache of the last frames.
"""

from __future__ import annotations

from collections.abc import Sequence

import returnn.frontend as rf
from returnn.tensor import Dim, Tensor

from .dims import FeatureDim, SpatialDim

__all__ = ["CausalConvSubsample", "prepend_context"]


def prepend_context(
    source: Tensor, context: Tensor, *, axis: Dim, context_dim: Dim, out_dim: Dim | None = None
) -> tuple[Tensor, Dim, Tensor]:
    """
    :param source: ``{batch, time, ...}``, the next frames
    :param context: ``{batch, left, ...}``, the last frames before them
    :param axis: time
    :param context_dim: left, static
    :param out_dim: of the size left + time, instead of a new one
    :return: both, ``{batch, left + time, ...}``; the dim left + time; and the new context, from where each source
        ends
    """
    joined, joined_dim = rf.concat((context, context_dim), (source, axis), allow_broadcast=True)
    # Not a slice, which the net dict can't make from where another layer says.
    sizes = axis.get_size_tensor(device=source.device)
    last = rf.combine_bc(rf.range_over_dim(context_dim, dtype=sizes.dtype, device=source.device), "+", sizes)
    new_context = rf.gather(joined, indices=last, axis=joined_dim, clip_to_valid=False)
    if out_dim is not None:
        joined, joined_dim = rf.replace_dim(joined, in_dim=joined_dim, out_dim=out_dim)
    return joined, joined_dim, new_context


class CausalConvSubsample(rf.Module):
    """
    3x3 convolutions of stride 2 over time and features, each followed by a ReLU, padded by one on each side. Of two
    frames that become one, it sees both, and the one before them: nothing of the next chunk, if chunks have a multiple
    of ``downsample_factor`` frames.

    :param in_dim: features
    :param channels: of each convolution
    """

    def __init__(self, in_dim: Dim, *, channels: Sequence[Dim]):
        super().__init__()
        self.in_dim = in_dim
        self.channels = [FeatureDim("image", 1), *channels]
        self.heights = [in_dim]
        for i in range(len(channels)):
            self.heights.append(FeatureDim(f"height-{i + 1}", -(-self.heights[-1].dimension // 2)))
        self.left_dim = SpatialDim("conv-left", 1)
        self.conv_layers = rf.ModuleList(
            rf.Conv2d(a, b, 3, strides=2, padding="valid")
            for a, b in zip(self.channels[:-1], self.channels[1:], strict=True)
        )
        self.out_dim = self.heights[-1] * self.channels[-1]
        self.downsample_factor = 2 ** len(channels)

    def initial_state(self, *, batch_dims: Sequence[Dim]) -> rf.State:
        """:return: ``left``: for each convolution ``{batch, 1, height, channels}``"""
        dims = zip(self.heights[:-1], self.channels[:-1], strict=True)
        return rf.State(left=[rf.zeros([*batch_dims, self.left_dim, *height_channels]) for height_channels in dims])

    def __call__(
        self, source: Tensor, *, in_spatial_dim: Dim, state: rf.State | None = None
    ) -> tuple[Tensor, Dim, rf.State | None]:
        """
        :param source: ``{batch, time, in_dim}``
        :param in_spatial_dim: time
        :param state: None for a whole sequence
        :return: ``{batch, time', out_dim}``, the dim time', new state
        """
        x, time = rf.expand_dim(source, dim=self.channels[0]), in_spatial_dim
        new_left = []
        for i, conv in enumerate(self.conv_layers):
            x = x.copy_masked(0.0, dims=[time])  # a convolution sees one frame of the padding
            if state:
                x, time, left = prepend_context(x, state.left[i], axis=time, context_dim=self.left_dim)
                new_left.append(left)
            x, dims = rf.pad(x, axes=[time, self.heights[i]], padding=[(0 if state else 1, 1), (1, 1)], value=0.0)
            x, (time, height) = conv(x, in_spatial_dims=dims)
            x, _ = rf.replace_dim(x, in_dim=height, out_dim=self.heights[i + 1])
            x = rf.relu(x)
        x, _ = rf.merge_dims(x, dims=[self.heights[-1], self.channels[-1]], out_dim=self.out_dim)
        return x, time, rf.State(left=new_left) if state else None
