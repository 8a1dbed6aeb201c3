"""
How the modules of the zoo are fed: for each kind (encoder, decoder, ...) inputs of given lengths, and a call.

The inputs of one sequence depend on its length alone, so that it can be run in any batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from returnn_common import nn
from tests.engines import Input

__all__ = [
    "FEATURES",
    "VOCAB",
    "Kind",
    "AUDIO",
    "SPECTROGRAM",
    "ENCODER",
    "TEXT_ENCODER",
    "TEXT",
    "TEXT_ALONE",
    "DECODER",
    "PREDICTOR",
    "JOINER",
    "LM",
    "SPEECH",
    "SPEECH_FROM_AUDIO",
]

FEATURES = 8
VOCAB = 5

Outputs = dict[str, tuple[nn.Tensor, Sequence[nn.Dim]]]


@dataclass(frozen=True)
class Kind:
    """
    :param name: as a person would say it
    :param make_inputs: ``(lengths, fill)`` -> the inputs and dims of :func:`tests.engines.run_on`; fill: in the padding
    :param call: its ``func``: outputs with the batch dim first, and "loss" ``{batch}``, which gradients are taken of
    :param lengths: of a batch: one that is usual, and the shortest
    :param train_lengths: of a batch to train on, of the same shape: JAX compiles its operations for each shape
    :param long: far beyond any length in training
    """

    name: str
    make_inputs: Callable[[Sequence[int], float], tuple[dict[str, Input], dict[str, Any]]]
    call: Callable[..., Outputs]
    lengths: tuple[int, ...] = (37, 1, 2, 3, 4, 5)
    train_lengths: tuple[int, ...] = (37, 22, 9, 5, 2, 1)
    long: int = 3000


def _padded(rows: list[np.ndarray], fill: float) -> np.ndarray:
    shape = (len(rows), max(len(row) for row in rows), *rows[0].shape[1:])
    padded = np.full(shape, fill, rows[0].dtype)
    for i, row in enumerate(rows):
        padded[i, : len(row)] = row
    return padded


def _features(lengths: Sequence[int], fill: float) -> np.ndarray:
    rows = [np.random.default_rng(n).normal(size=(n, FEATURES)) for n in lengths]
    return _padded([row.astype("float32") for row in rows], fill)


def _audio(lengths: Sequence[int], fill: float) -> np.ndarray:
    rows = [np.random.default_rng(n).normal(size=n) * 0.1 for n in lengths]
    return _padded([row.astype("float32") for row in rows], fill)


def _labels(lengths: Sequence[int], fill: float, *, seed: int = 0) -> np.ndarray:
    rows = [np.random.default_rng([n, seed]).integers(0, VOCAB, n) for n in lengths]
    # A label in the padding is as wrong there as a large number elsewhere.
    return _padded([row.astype("int32") for row in rows], VOCAB - 1 if fill else 0)


def _num_labels(lengths: Sequence[int]) -> list[int]:
    """few enough for any model, one at least"""
    return [1 + n // 12 for n in lengths]


def _wave(x: nn.Tensor) -> nn.Tensor:
    """something of each value that has a gradient where a sum has none (a norm's output)"""
    return x * nn.sin(x)


def _loss(x: nn.Tensor) -> tuple[nn.Tensor, Sequence[nn.Dim]]:
    return nn.reduce_sum(_wave(_float(x)), axis=[d for d in x.dims if d != nn.batch_dim]), [nn.batch_dim]


def _float(x: nn.Tensor) -> nn.Tensor:
    return nn.cast(x, "float32")  # NumPy has no bfloat16


def _audio_inputs(lengths: Sequence[int], fill: float):
    return {"x": Input(_audio(lengths, fill), "batch time")}, {"time": lengths}


def _features_inputs(lengths: Sequence[int], fill: float):
    return {"x": Input(_features(lengths, fill), "batch time features")}, {"time": lengths, "features": FEATURES}


def _labels_inputs(lengths: Sequence[int], fill: float):
    inputs = {"y": Input(_labels(lengths, fill), "batch time", sparse="labels")}
    return inputs, {"time": lengths, "labels": VOCAB}


def _decoder_inputs(lengths: Sequence[int], fill: float):
    encoded_lengths = [n // 2 + 1 for n in lengths]
    inputs, dims = _labels_inputs(lengths, fill)
    inputs["x"] = Input(_features(encoded_lengths, fill), "batch encoded_time features")
    return inputs, {**dims, "encoded_time": encoded_lengths, "features": FEATURES}


def _joiner_inputs(lengths: Sequence[int], fill: float):
    positions = [1 + n // 12 for n in lengths]
    inputs, dims = _features_inputs(lengths, fill)
    inputs["y"] = Input(_features(positions, fill), "batch positions features")
    return inputs, {**dims, "positions": positions, "labels": VOCAB}


def _speech_inputs(lengths: Sequence[int], fill: float):
    inputs, dims = _features_inputs(lengths, fill)
    return _with_targets(inputs, dims, _num_labels(lengths), fill)


def _text_inputs(lengths: Sequence[int], fill: float):
    inputs = {"x": Input(_labels(lengths, fill, seed=1), "batch time", sparse="labels")}
    return _with_targets(inputs, {"time": lengths}, [n // 2 + 1 for n in lengths], fill)


def _speech_from_audio_inputs(lengths: Sequence[int], fill: float):
    inputs, dims = _audio_inputs(lengths, fill)
    return _with_targets(inputs, dims, _num_labels([n // 160 for n in lengths]), fill)


def _with_targets(inputs, dims, lengths: Sequence[int], fill: float):
    inputs["y"] = Input(_labels(lengths, fill), "batch labels_time", sparse="labels")
    return inputs, {**dims, "labels_time": lengths, "labels": VOCAB}


def _call_features(model, x, time) -> Outputs:
    out, out_time = model(x, in_spatial_dim=time)
    return {"out": (_float(out), [nn.batch_dim, out_time, model.out_dim]), "loss": _loss(out)}


def _call_text_encoder(model, y, time) -> Outputs:
    return _call_features(model, y, time)


def _call_spectrogram(model, x, time, features) -> Outputs:
    out = model(x, spatial_dim=time, feature_dim=features)
    return {"out": (_float(out), [nn.batch_dim, time, features]), "loss": _loss(out)}


def _call_decoder(model, y, time, x, encoded_time) -> Outputs:
    encoder = model.transform_encoder(x, axis=encoded_time)
    state = model.default_initial_state(batch_dims=[nn.batch_dim])
    logits, _ = model(y, spatial_dim=time, state=state, encoder=encoder)
    return {"out": (_float(logits), [nn.batch_dim, time, model.vocab_dim]), "loss": _loss(logits)}


def _call_predictor(model, y, time) -> Outputs:
    state = model.default_initial_state(batch_dims=[nn.batch_dim])
    out, _ = model(nn.set_sparse_dim(y, model.in_dim), spatial_dim=time, state=state)
    return {"out": (_float(out), [nn.batch_dim, time, model.out_dim]), "loss": _loss(out)}


def _call_joiner(model, x, time, y, positions) -> Outputs:
    out = model(x, y)
    return {"out": (_float(out), [nn.batch_dim, time, positions, model.labels_dim]), "loss": _loss(out)}


def _call_lm(model, y, time) -> Outputs:
    state = model.default_initial_state(batch_dims=[nn.batch_dim])
    logits, _ = model(y, spatial_dim=time, state=state)
    return {"out": (_float(logits), [nn.batch_dim, time, model.vocab_dim]), "loss": _loss(logits)}


def _call_text_alone(model, y, time) -> Outputs:
    return _outputs_of_losses(model.losses(y, in_spatial_dim=time))


def _call_speech(model, x, time, y, labels_time) -> Outputs:
    return _outputs_of_losses(model.losses(x, in_spatial_dim=time, targets=y, targets_spatial_dim=labels_time))


def _outputs_of_losses(losses: dict[str, nn.Loss]) -> Outputs:
    outputs = {name: (_float(loss.value), [nn.batch_dim]) for name, loss in losses.items()}
    trained = [_float(loss.value) * loss.scale for loss in losses.values() if not loss.as_error]
    outputs["loss"] = (sum(trained[1:], trained[0]), [nn.batch_dim])
    return outputs


_SAMPLES = {"lengths": (5900, 1, 159, 161, 801), "train_lengths": (5900, 2300, 801, 320, 1), "long": 480_000}
_LABELS = {"lengths": (17, 1, 2, 3, 4, 5), "train_lengths": (17, 14, 9, 5, 2, 1), "long": 400}

AUDIO = Kind("raw audio to features", _audio_inputs, _call_features, **_SAMPLES)
SPECTROGRAM = Kind("features to features", _features_inputs, _call_spectrogram)
ENCODER = Kind("encoder", _features_inputs, _call_features)
TEXT_ENCODER = Kind("text encoder", _labels_inputs, _call_text_encoder, **_LABELS)
DECODER = Kind("decoder", _decoder_inputs, _call_decoder, **_LABELS)
PREDICTOR = Kind("predictor", _labels_inputs, _call_predictor, **_LABELS)
JOINER = Kind("joiner", _joiner_inputs, _call_joiner)
LM = Kind("language model", _labels_inputs, _call_lm, **_LABELS)
TEXT_ALONE = Kind("text to losses", _labels_inputs, _call_text_alone, **_LABELS)
TEXT = Kind("text and targets to losses", _text_inputs, _call_speech, **_LABELS)
SPEECH = Kind("features and targets to losses", _speech_inputs, _call_speech)
SPEECH_FROM_AUDIO = Kind("raw audio and targets to losses", _speech_from_audio_inputs, _call_speech, **_SAMPLES)
