"""A recogniser of tones with weights set by hand, so that texts and times are known: each word is a tone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from returnn_common import nn
from returnn_common.models.ctc import CtcModel
from returnn_common.models.features import LogMel, mel_filters

WORDS = ["one", "two", "three", "four"]
FREQUENCIES = [400.0, 900.0, 1700.0, 3000.0]
NUM_MELS = 40
_WORD_SECONDS, _PAUSE_SECONDS = 0.2, 0.1


class Subsampling(nn.Module):
    """every second frame, the larger one of two"""

    downsample_factor = 2

    def __init__(self, in_dim: nn.Dim):
        super().__init__()
        self.in_dim = self.out_dim = in_dim
        self.num_calls = 0

    def __call__(self, source: nn.Tensor, *, in_spatial_dim: nn.Dim, collected_outputs: Any = None):
        """see :class:`nn.Encoder`"""
        self.num_calls += 1
        out, spatial_dim = nn.pool1d(
            source, mode="max", pool_size=2, strides=2, padding="same", in_spatial_dim=in_spatial_dim
        )
        if collected_outputs is not None:
            collected_outputs["0"] = out
        return out, spatial_dim


class StreamingSubsampling(Subsampling):
    """see :class:`nn.StreamingEncoder`; nothing depends on the frames before"""

    chunk_size = 5

    def initial_state(self, *, batch_dims: Sequence[nn.Dim]) -> nn.State:
        """of nothing"""
        return nn.State()

    def step(self, chunk: nn.Tensor, *, in_spatial_dim: nn.Dim, state: nn.State) -> Any:
        """of whole chunks"""
        return *self(chunk, in_spatial_dim=in_spatial_dim), state


def make_tone_model(vocab_dim: nn.Dim | None = None, *, streaming: bool = False) -> CtcModel:
    """:return: with parameters of any value, see :func:`set_parameters`"""
    features = LogMel(NUM_MELS, normalize=False)
    return CtcModel(
        encoder=(StreamingSubsampling if streaming else Subsampling)(features.out_dim),
        vocab_dim=nn.Dim(len(WORDS), name="words") if vocab_dim is None else vocab_dim,
        features=features,
    )


def set_parameters(params: dict[str, Any]) -> None:
    """
    A label where its mel filter has energy, blank where there is little.

    :param params: raw tensors by name
    """
    filters = mel_filters(NUM_MELS)
    weight, bias = params["output.weight"], params["output.bias"]
    weight[...] = 0.0
    bias[...] = 0.0
    for label, frequency in enumerate(FREQUENCIES):
        bins = np.argsort(filters[round(frequency / 8000 * (len(filters) - 1))])
        weight[int(bins[-1]), label] = 2.0
    bias[len(WORDS)] = 2.0


def speak(
    words: Sequence[str], *, rate: int = 16_000, pauses: Sequence[float] | None = None, amplitude: float = 0.5
) -> tuple[np.ndarray, list[tuple[float, float]]]:
    """
    :param words: of WORDS
    :param rate: sample rate
    :param pauses: seconds before each word and at the end
    :return: waveform {time}, float64, and begin and end of each word in seconds
    """
    pauses = [_PAUSE_SECONDS] * (len(words) + 1) if pauses is None else pauses
    parts, times, now = [], [], 0.0
    for word, pause in zip([*words, None], pauses, strict=True):
        parts.append(np.zeros(round(pause * rate)))
        now += pause
        if word is not None:
            time = np.arange(round(_WORD_SECONDS * rate)) / rate
            parts.append(amplitude * np.sin(2 * np.pi * FREQUENCIES[WORDS.index(word)] * time))
            times.append((now, now + _WORD_SECONDS))
            now += _WORD_SECONDS
    return np.concatenate(parts), times
