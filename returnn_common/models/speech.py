"""
What the models of speech share: from raw audio or features through the encoder.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .. import nn
from .encoder.conformer import make_conformer_encoder
from .features import LogMel
from .fusion import FusionParts
from .specaugment import SpecAugment

# Without SpeechModel, which is what the models here have in common, and no model by itself.
__all__ = ["check_layers", "choose_front_end", "device_of", "last_ctc_log_probs"]


def choose_front_end(
    owner: str, in_dim: int | nn.Dim | None, *, encoder: nn.Encoder | None, specaugment: str | SpecAugment | None
) -> tuple[LogMel | None, SpecAugment | None, nn.Encoder]:
    """
    :param owner: whose arguments, for the message
    :param in_dim: of the log-mels in the source; None: the source is raw audio, and the model computes 80 log-mels
        (or as many as the encoder takes; where that streams, normalised causally)
    :param encoder: default: :func:`make_conformer_encoder`
    :param specaugment: policy by name, or a module; None: none
    :return: features, None if they are the source; SpecAugment, None for none; encoder
    :raises ValueError: if the encoder takes another ``in_dim``, or for an unknown policy
    """
    features = None
    if in_dim is None:
        causal = {"causal": True, "prior_frames": 50} if isinstance(encoder, nn.StreamingEncoder) else {}
        features = LogMel(encoder.in_dim if encoder is not None else 80, **causal)
        in_dim = features.out_dim
    if encoder is None:
        encoder = make_conformer_encoder(in_dim)
    elif in_dim not in (encoder.in_dim, encoder.in_dim.dimension):
        raise ValueError(f"{owner}: encoder takes {encoder.in_dim}, but in_dim is {in_dim}")
    return features, SpecAugment(specaugment) if isinstance(specaugment, str) else specaugment, encoder


def check_layers(owner: str, encoder: nn.Encoder, layers: Sequence[int], *, last: bool) -> None:
    """
    :param owner: whose arguments, for the message
    :param layers: 1 is the first
    :param last: whether the last layer is one of those which can be chosen
    :raises ValueError: if the encoder has no such layer
    """
    num_layers = len(getattr(encoder, "layers", ())) - (0 if last else 1)
    for layer in layers:
        if not 1 <= layer <= num_layers:
            raise ValueError(f"{owner}: aux layer {layer!r} is not one of 1..{num_layers}")


def device_of(model: nn.Module) -> str | None:
    """:return: where its parameters are; None where the engine has no devices"""
    return next((param.device for param in model.parameters()), None)


class SpeechModel(nn.Module):
    """
    A model that encodes speech.

    :param features: from raw audio; None: they are the source
    :param specaugment: of the features; None: none
    :param encoder: see :class:`returnn_common.nn.Encoder`
    """

    fusion_parts = FusionParts

    def __init__(self, *, features: LogMel | None, specaugment: SpecAugment | None, encoder: nn.Encoder):
        super().__init__()
        self.features = features
        self.specaugment = specaugment
        self.encoder = encoder

    def encode(
        self, source: nn.Tensor, *, in_spatial_dim: nn.Dim, collected_outputs: dict[str, nn.Tensor] | None = None
    ) -> tuple[nn.Tensor, nn.Dim]:
        """
        :param source: raw audio ``{batch, time}`` if the model computes its features, else ``{batch, time, in_dim}``
        :param collected_outputs: is filled with the output of each layer of the encoder, by its number from "0" on
        :return: ``{batch, time', out_dim}``, and the dim time'
        :raises ValueError: if the source has no ``in_dim``
        """
        if self.features is not None:
            source, in_spatial_dim = self.features(source, in_spatial_dim=in_spatial_dim)
        elif self.encoder.in_dim not in source.dims:
            raise ValueError(f"speech model: expected features with {self.encoder.in_dim}, got {source}")
        if self.specaugment is not None:
            source = self.specaugment(source, spatial_dim=in_spatial_dim, feature_dim=self.encoder.in_dim)
        return self.encoder(source, in_spatial_dim=in_spatial_dim, collected_outputs=collected_outputs)


def last_ctc_log_probs(
    collected_outputs: dict[str, nn.Tensor], *, layers: Sequence[int], outputs: Iterable[nn.Linear]
) -> nn.Tensor:
    """
    :param collected_outputs: of the encoder, see :meth:`SpeechModel.encode`
    :param layers: with a CTC head (1 is the first)
    :param outputs: of these heads
    :return: log probabilities of the head on the last of these layers, ``{batch, time', labels + blank}``
    """
    layer, linear = max(zip(layers, outputs, strict=True), key=lambda head: head[0])
    logits = nn.cast(linear(collected_outputs[str(layer - 1)]), "float32")
    return nn.log_softmax(logits, axis=linear.out_dim)
