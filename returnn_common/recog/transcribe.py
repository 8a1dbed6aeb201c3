"""
From waveforms to text, with times of the words: for programs that have a model and no dataset.
"""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import nn
from .mbr import order_by_risk
from .segments import Segment, split_at_silence
from .times import WordTime, frame_shift, word_times

__all__ = ["SAMPLE_RATE", "Transcriber", "Transcript", "join"]

SAMPLE_RATE = 16_000


@dataclass(frozen=True)
class Transcript:
    """
    :param text: what is said
    :param score: of the search, natural log; of several segments, the sum
    :param start: in seconds
    :param end: in seconds
    :param words: None: without times. Where the model cannot say them (the text has more labels than there are frames
        for them), they are spread over the segment, with confidence 0.
    """

    text: str
    score: float
    start: float
    end: float
    words: list[WordTime] | None = None


class Transcriber:
    """
    Recognises waveforms with a trained model, in an eager engine (PyTorch, JAX)::

        transcriber = Transcriber(model, decode=dataset.vocab.decode)
        samples, rate = soundfile.read("recording.wav")
        print(transcriber(samples, rate).text)

    :param model: with ``search``, see DESIGN's model contract; for times with ``align`` as well, as
        :class:`returnn_common.models.ctc.CtcModel` and :class:`returnn_common.models.transducer.TransducerModel` have,
        and :class:`returnn_common.models.aed.AedModel` with CTC heads
    :param decode: label indices -> text
    :param features: waveform {time}, 16 kHz -> features {frames, dim}, for models that take no waveforms
    :param search: further arguments of ``model.search``: ``beam_size``, ``lm``, ``lm_scale``, ...
    :param mbr_scale: of the scores, to choose by minimum Bayes risk among the hypotheses of each segment, see
        :func:`.mbr.mbr_nbest`; None: the one with the best score
    :param with_times: of the words
    :param max_seconds: longer waveforms are split, see :func:`split_at_silence`
    :param batch_seconds: how much is recognised at a time, padding included; one segment at least
    :raises ValueError: for times of a model that has no ``align``, max_seconds below 1, or batch_seconds that is not
        positive
    """

    def __init__(
        self,
        model: Any,
        *,
        decode: Callable[[list[int]], str],
        features: Callable[[np.ndarray], np.ndarray] | None = None,
        search: Mapping[str, Any] | None = None,
        mbr_scale: float | None = None,
        with_times: bool = True,
        max_seconds: float = 30.0,
        batch_seconds: float = 120.0,
    ):
        if with_times and not can_align(model):
            raise ValueError(f"Transcriber: with_times: {type(model).__name__} has no CTC head that could tell them")
        if not max_seconds >= 1.0:
            raise ValueError(f"Transcriber: max_seconds, expected at least 1, got {max_seconds!r}")
        if not batch_seconds > 0:
            raise ValueError(f"Transcriber: batch_seconds, expected a positive number, got {batch_seconds!r}")
        self.model = model
        self.decode = decode
        self.features = features
        self.search = dict(search or {})
        self.mbr_scale = mbr_scale
        self.with_times = with_times
        self.max_seconds = max_seconds
        self.batch_seconds = batch_seconds

    def __call__(self, waveform: np.ndarray, sample_rate: int = SAMPLE_RATE) -> Transcript:
        """
        :param waveform: {time} or {time, channel}, of which the average is taken; float in [-1, 1], or int16
        :param sample_rate: in Hz; another than 16000 is resampled (soxr, its high-quality setting)
        :raises TypeError: for another type
        :raises ValueError: for another shape, no samples, or such that are no numbers
        """
        samples = _to_16khz_mono(waveform, sample_rate)
        return join(self.recognise(list(split_at_silence([samples], max_seconds=self.max_seconds))))

    def recognise(self, segments: Sequence[Segment]) -> list[Transcript]:
        """
        :param segments: none of them empty
        :return: of each, in this order. How they were put in batches makes no difference.
        """
        found: dict[int, Transcript] = {}
        with _no_gradients(), nn.get_run_ctx().train_flag_ctx(False):
            for batch in self._batches(segments):
                found.update(zip(batch, self._recognise_batch([segments[i] for i in batch]), strict=True))
        return [found[i] for i in range(len(segments))]

    def _batches(self, segments: Sequence[Segment]) -> Iterator[list[int]]:
        """:return: segments of similar lengths together, the longest first"""
        batch: list[int] = []
        for i in sorted(range(len(segments)), key=lambda i: -len(segments[i].samples)):
            longest = len(segments[batch[0] if batch else i].samples)
            if batch and (len(batch) + 1) * longest > self.batch_seconds * SAMPLE_RATE:
                yield batch
                batch = []
            batch.append(i)
        if batch:
            yield batch

    def _recognise_batch(self, segments: Sequence[Segment]) -> list[Transcript]:
        source, time = self._make_source([segment.samples for segment in segments])
        model = _with_one_encoding(self.model) if self.with_times else self.model
        hypotheses = model.search(source, in_spatial_dim=time, **self.search)
        best = [self._choose(hypotheses.nbest(i)) for i in range(len(segments))]
        labels = [ids for _, ids in best]
        words = self._find_times(model, source, time, labels, segments) if self.with_times else [None] * len(segments)
        return [
            Transcript(self.decode(ids).strip(), score, segment.offset, _end(segment), words_of_it)
            for (score, ids), segment, words_of_it in zip(best, segments, words, strict=True)
        ]

    def _choose(self, nbest: Sequence[tuple[float, list[int]]]) -> tuple[float, list[int]]:
        """:return: score of the search, labels"""
        if not nbest or self.mbr_scale is None:
            return nbest[0] if nbest else (-math.inf, [])
        (first, *_) = order_by_risk([(score, self.decode(ids)) for score, ids in nbest], scale=self.mbr_scale)
        return nbest[first]

    def _make_source(self, waveforms: Sequence[np.ndarray]) -> tuple[nn.Tensor, nn.Dim]:
        arrays = [np.asarray(x if self.features is None else self.features(x), "float32") for x in waveforms]
        batch_dim = nn.Dim(len(arrays), name="batch", kind=nn.Dim.Types.Batch)  # one of size 1 is no channel
        time_dim = _make_time_dim(list(map(len, arrays)), batch_dim, name="time")
        padded = np.zeros((len(arrays), max(map(len, arrays)), *arrays[0].shape[1:]), "float32")
        for row, array in zip(padded, arrays, strict=True):
            row[: len(array)] = array
        dims = [batch_dim, time_dim, *([] if self.features is None else [self.model.encoder.in_dim])]
        return nn.convert_to_tensor(padded, dims=dims, device=self._device()), time_dim

    def _device(self) -> str | None:
        return next((param.device for param in self.model.parameters()), None)

    def _find_times(
        self, model: Any, source: nn.Tensor, time: nn.Dim, labels: list[list[int]], segments: Sequence[Segment]
    ) -> list[list[WordTime]]:
        if not any(labels):
            return [[] for _ in labels]
        (batch_dim, *_) = source.dims
        labels_dim = _make_time_dim(list(map(len, labels)), batch_dim, name="labels")
        padded = np.zeros((len(labels), max(map(len, labels))), "int32")
        for row, ids in zip(padded, labels, strict=True):
            row[: len(ids)] = ids
        tensor = nn.convert_to_tensor(
            padded, dims=[batch_dim, labels_dim], sparse_dim=self.model.vocab_dim, device=source.device
        )
        alignment, _ = model.align(source, in_spatial_dim=time, labels=tensor, labels_spatial_dim=labels_dim)
        starts, ends, label_scores = (
            _numpy(x, [batch_dim, labels_dim]) for x in (alignment.starts, alignment.ends, alignment.label_scores)
        )
        scores = _numpy(alignment.scores, [batch_dim])
        return [
            self._words_of(labels[i], segments[i], starts[i], ends[i], label_scores[i])
            if scores[i] > -math.inf
            else _spread(self.decode(labels[i]).split(), segments[i])
            for i in range(len(labels))
        ]

    def _words_of(
        self, labels: list[int], segment: Segment, starts: np.ndarray, ends: np.ndarray, label_scores: np.ndarray
    ) -> list[WordTime]:
        words = word_times(
            labels,
            decode=self.decode,
            starts=list(starts[: len(labels)]),
            ends=list(ends[: len(labels)]),
            frame_shift=frame_shift(self.model),
            offset=segment.offset,
            label_scores=list(label_scores[: len(labels)]),
        )
        # The last frame can reach beyond the end.
        end = _end(segment)
        return [WordTime(w.text, min(w.start, end), min(w.end, end), w.confidence) for w in words]


def can_align(model: Any) -> bool:
    """:return: whether it can tell when words are spoken"""
    return hasattr(model, "align") and getattr(model, "can_align", True)


def join(transcripts: Sequence[Transcript]) -> Transcript:
    """
    :param transcripts: of the segments of one recording, in order, at least one
    :return: of the whole
    """
    words = None
    if all(transcript.words is not None for transcript in transcripts):
        words = [word for transcript in transcripts for word in transcript.words or ()]
    return Transcript(
        " ".join(transcript.text for transcript in transcripts if transcript.text),
        sum(transcript.score for transcript in transcripts),
        transcripts[0].start,
        transcripts[-1].end,
        words,
    )


def _no_gradients() -> Any:
    """:return: a context; JAX needs none, for it takes gradients only where it is asked to"""
    return nn.stop_gradient_scope() if nn.get_selected_backend() == "torch" else contextlib.nullcontext()


def to_mono(owner: str, waveform: np.ndarray, *, may_be_empty: bool) -> np.ndarray:
    """
    :param owner: whose argument, for the messages
    :param waveform: {time} or {time, channel}, of which the average is taken; float in [-1, 1], or int16
    :param may_be_empty: whether there may be no samples
    :return: {time}, float64
    :raises TypeError: for another type
    :raises ValueError: for another shape, or samples that are no numbers
    """
    if not isinstance(waveform, np.ndarray) or not (waveform.dtype == np.int16 or waveform.dtype.kind == "f"):
        got = waveform.dtype if isinstance(waveform, np.ndarray) else type(waveform).__name__
        raise TypeError(f"{owner}: waveform, expected a NumPy array of float or int16, got {got}")
    if waveform.ndim not in (1, 2) or 0 in waveform.shape[may_be_empty:]:
        raise ValueError(
            f"{owner}: waveform, expected the shape [time] or [time, channels], got {list(waveform.shape)}"
        )
    samples = waveform.astype("float64") / (2.0**15 if waveform.dtype == np.int16 else 1.0)
    if not np.isfinite(samples).all():
        raise ValueError(f"{owner}: waveform, expected numbers, got samples that are infinite or not a number")
    return samples.mean(axis=1) if samples.ndim == 2 else samples


def _to_16khz_mono(waveform: np.ndarray, sample_rate: int) -> np.ndarray:
    """:return: {time}, float32"""
    samples = to_mono("Transcriber", waveform, may_be_empty=False)
    if not sample_rate > 0:
        raise ValueError(f"Transcriber: sample_rate, expected a positive number, got {sample_rate!r}")
    if sample_rate != SAMPLE_RATE:
        import soxr

        samples = soxr.resample(samples, sample_rate, SAMPLE_RATE, quality="HQ")
        if not len(samples):
            raise ValueError(f"Transcriber: waveform, of {len(waveform)} samples none is left at 16 kHz")
    return samples.astype("float32")


def _with_one_encoding(model: Any) -> Any:
    """:return: the same model, for one batch only: it encodes that once, for search and alignment"""
    if not hasattr(model, "encode"):
        return model
    once = copy.copy(model)
    outputs: dict[str, nn.Tensor] = {}
    encoded: list[tuple[nn.Tensor, nn.Dim]] = []

    def encode(
        source: nn.Tensor, *, in_spatial_dim: nn.Dim, collected_outputs: dict[str, nn.Tensor] | None = None
    ) -> tuple[nn.Tensor, nn.Dim]:
        if not encoded:
            encoded.append(model.encode(source, in_spatial_dim=in_spatial_dim, collected_outputs=outputs))
        if collected_outputs is not None:
            collected_outputs.update(outputs)
        return encoded[0]

    once.encode = encode
    return once


def _make_time_dim(lengths: list[int], batch_dim: nn.Dim, *, name: str) -> nn.Dim:
    sizes = nn.convert_to_tensor(np.array(lengths, "int32"), dims=[batch_dim], device="cpu")
    return nn.Dim(sizes, name=name)


def _numpy(x: nn.Tensor, dims: list[nn.Dim]) -> np.ndarray:
    return x._raw_backend.raw_to_numpy(x.copy_compatible_to_dims_raw(dims))


def _end(segment: Segment) -> float:
    return segment.offset + len(segment.samples) / SAMPLE_RATE


def _spread(words: list[str], segment: Segment) -> list[WordTime]:
    """Each word takes as much of the time as of the characters."""
    times = [segment.offset]
    total = sum(map(len, words))
    for word in words:
        times.append(times[-1] + len(word) / total * (_end(segment) - segment.offset))
    return [WordTime(word, times[i], times[i + 1], 0.0) for i, word in enumerate(words)]
