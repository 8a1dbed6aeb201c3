"""
Which modules have a faster form.
"""

from __future__ import annotations

from typing import TypeVar

import returnn.frontend as rf
from returnn.frontend.decoder.transformer import FeedForward
from returnn.frontend.encoder.conformer import (
    ConformerConvBlock,
    ConformerConvSubsample,
    ConformerEncoder,
    ConformerEncoderLayer,
    ConformerPositionwiseFeedForward,
)

from ..batch_norm import BatchNorm
from ..rotary import RotarySelfAttention
from .attention import FusedRelPosSelfAttention
from .batch_norm import FusedBatchNorm
from .conformer import FusedConformerEncoder, FusedConformerLayer
from .convolution import FusedConv1d, FusedConvBlock
from .layers import FusedConformerFeedForward, FusedFeedForward, FusedLayerNorm, FusedLinear
from .rotary import FusedRotarySelfAttention
from .subsampling import FusedConvSubsample

__all__ = ["fuse"]

ModuleT = TypeVar("ModuleT", bound=rf.Module)

_FUSED: dict[type, type] = {
    rf.Linear: FusedLinear,
    rf.LayerNorm: FusedLayerNorm,
    rf.Conv1d: FusedConv1d,
    rf.RelPosSelfAttention: FusedRelPosSelfAttention,
    RotarySelfAttention: FusedRotarySelfAttention,
    BatchNorm: FusedBatchNorm,
    FeedForward: FusedFeedForward,
    ConformerPositionwiseFeedForward: FusedConformerFeedForward,
    ConformerConvBlock: FusedConvBlock,
    ConformerConvSubsample: FusedConvSubsample,
    ConformerEncoderLayer: FusedConformerLayer,
    ConformerEncoder: FusedConformerEncoder,
}


def fuse(module: ModuleT) -> ModuleT:
    """
    Gives a model the faster forms of RETURNN's own modules, wherever it has them. Parameters, their names, and results
    stay as they are. Subclasses are left alone: they may compute something else.

    :param module: any module, changed in place
    :return: the same
    :raises TypeError: if it isn't a module
    """
    if not isinstance(module, rf.Module):
        raise TypeError(f"fuse: expected a module, got {module!r}")
    for part in module.modules():
        fused = _FUSED.get(type(part))
        if fused is not None:
            part.__class__ = fused
    return module
