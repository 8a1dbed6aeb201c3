"""
Text of a waveform while it comes in, for programs that hear somebody speak.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .. import nn
from .transcribe import SAMPLE_RATE, Transcript, to_mono

__all__ = ["LiveTranscriber", "can_stream"]


def can_stream(model: Any) -> bool:
    """:return: whether it recognises raw audio piece by piece"""
    features = getattr(model, "features", None)
    return (
        hasattr(model, "stream")
        and isinstance(getattr(model, "encoder", None), nn.StreamingEncoder)
        and getattr(features, "can_stream", False)
    )


class LiveTranscriber:
    """
    Recognises one waveform in pieces, in an eager engine (PyTorch, JAX)::

        live = LiveTranscriber(model, decode=dataset.vocab.decode)
        for samples in microphone:  # of any length
            print(live.push(samples).text)
        print(live.finish().text)

    The last text is that of :class:`Transcriber` for the whole waveform, if that is not longer than its
    ``max_seconds``. Before, words can still change, but for ``beam_size=1`` without a language model.

    :param model: with ``stream``, see :class:`returnn_common.models.streaming.SpeechStream`
    :param decode: label indices -> text
    :param search: further arguments of ``model.stream``, which are those of ``model.search``
    :param sample_rate: of the waveform, in Hz; another than 16000 is resampled (soxr, its high-quality setting)
    :raises ValueError: for a model that needs the whole waveform, or a sample rate that is not positive
    """

    def __init__(
        self,
        model: Any,
        *,
        decode: Callable[[list[int]], str],
        search: Mapping[str, Any] | None = None,
        sample_rate: int = SAMPLE_RATE,
    ):
        if not can_stream(model):
            raise ValueError(
                f"LiveTranscriber: {type(model).__name__} needs the whole waveform; expected one that takes raw audio,"
                " with a streaming encoder and features that are not normalised over the utterance"
            )
        if not sample_rate > 0:
            raise ValueError(f"LiveTranscriber: sample_rate, expected a positive number, got {sample_rate!r}")
        self.decode = decode
        self.sample_rate = sample_rate
        self._batch_dim = nn.Dim(1, name="batch", kind=nn.Dim.Types.Batch)
        self._resampler = _make_resampler(sample_rate)
        self._num_samples = 0
        self._is_finished = False
        with _inference():
            self._stream = model.stream(batch_dims=[self._batch_dim], **(search or {}))
            self._state = self._stream.initial_state()
        self._device = self._stream.device

    def push(self, samples: np.ndarray) -> Transcript:
        """
        :param samples: the next ones, {time} or {time, channel}, of which the average is taken; float in [-1, 1], or
            int16; also none
        :return: what is known so far, of the chunks that the encoder has given out
        :raises TypeError: for another type
        :raises ValueError: for another shape, samples that are no numbers, or after :meth:`finish`
        """
        return self._go_on(to_mono("LiveTranscriber", samples, may_be_empty=True), last=False)

    def finish(self) -> Transcript:
        """
        :return: of the whole
        :raises ValueError: when called again
        """
        return self._go_on(np.zeros(0, "float64"), last=True)

    def _go_on(self, samples: np.ndarray, *, last: bool) -> Transcript:
        if self._is_finished:
            raise ValueError("LiveTranscriber: the waveform has ended with finish(); make another one")
        self._is_finished = last
        if self._resampler is not None:
            samples = self._resampler.resample_chunk(samples, last=last)
        self._num_samples += len(samples)
        with _inference():
            if len(samples):
                size = nn.convert_to_tensor(np.array([len(samples)], "int32"), dims=[self._batch_dim], device="cpu")
                time = nn.Dim(size, name="time")
                source = nn.convert_to_tensor(
                    samples[None].astype("float32"), dims=[self._batch_dim, time], device=self._device
                )
                self._state = self._stream.step(source, in_spatial_dim=time, state=self._state)
            if last:
                self._state = self._stream.finish(self._state)
            ((score, labels),) = self._stream.hypotheses(self._state).nbest(0)[:1] or [(-math.inf, [])]
        return Transcript(self.decode(labels).strip(), score, 0.0, self._num_samples / SAMPLE_RATE)


@contextlib.contextmanager
def _inference():
    """without gradients and dropout; JAX takes gradients only where it is asked to"""
    is_torch = nn.get_selected_backend() == "torch"
    with (
        nn.stop_gradient_scope() if is_torch else contextlib.nullcontext(),
        nn.get_run_ctx().train_flag_ctx(False),
    ):
        yield


def _make_resampler(sample_rate: int) -> Any:
    if sample_rate == SAMPLE_RATE:
        return None
    import soxr

    return soxr.ResampleStream(sample_rate, SAMPLE_RATE, 1, dtype="float64", quality="HQ")
