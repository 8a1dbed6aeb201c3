"""Waveforms to text and times, with a recogniser of tones whose texts and times are known."""

from __future__ import annotations

import dataclasses
import math
from types import SimpleNamespace

import numpy as np
import pytest
from returnn.tensor import Dim

from returnn_common import nn
from returnn_common.models.features import LogMel
from returnn_common.recog.segments import Segment
from returnn_common.recog.times import WordTime
from returnn_common.recog.transcribe import Transcriber, Transcript, join
from tests.recog.tones import NUM_MELS, WORDS, make_tone_model, set_parameters, speak

torch = pytest.importorskip("torch")

RATES = [8_000, 16_000, 44_100]
TEXTS = ["two four one", "three", "", "one one four two three", "four four"]


@pytest.fixture
def model():
    nn.select_backend_torch()
    model = make_tone_model()
    set_parameters({name: param.raw_tensor.data for name, param in model.named_parameters()})
    return model


def _decode(ids) -> str:
    return " ".join(WORDS[i] for i in ids)


def _transcriber(model, **options) -> Transcriber:
    return Transcriber(model, decode=_decode, **options)


def _assert_times(words: list[WordTime], text: str, times: list[tuple[float, float]]):
    assert [word.text for word in words] == text.split()
    found = [(word.start, word.end) for word in words]
    np.testing.assert_allclose(
        np.array(found).reshape(-1, 2), np.array(times).reshape(-1, 2), atol=0.04
    )  # windows are 25 ms


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("text", TEXTS)
def test_text_and_times(model, text, rate):
    waveform, times = speak(text.split(), rate=rate)
    found = _transcriber(model)(waveform, rate)
    assert found.text == text and found.start == 0.0
    assert found.end == pytest.approx(len(waveform) / rate, abs=1e-4)
    assert found.words is not None and -math.inf < found.score <= 0
    _assert_times(found.words, text, times)
    assert all(word.confidence is not None and 0.5 < word.confidence <= 1 for word in found.words)


def test_forms_of_a_waveform(model):
    """types and channels make no difference"""
    waveform, _ = speak(["two", "one"])
    transcriber = _transcriber(model)
    expected = transcriber(waveform)
    others = {
        "float32": waveform.astype("float32"),
        "stereo": np.stack([2 * waveform, 0 * waveform], axis=1),
        "int16": np.rint(waveform * 2**15).astype("int16"),
    }
    for name, other in others.items():
        found = transcriber(other)
        assert found.text == expected.text == "two one", name
        assert found.score == pytest.approx(expected.score, rel=1e-2), name


def test_batches_make_no_difference(model):
    segments = [Segment(speak(text.split())[0].astype("float32"), offset=10.0 * i) for i, text in enumerate(TEXTS)]
    segments.append(Segment(segments[0].samples[:5], offset=3.0))
    transcriber = _transcriber(model, batch_seconds=1e6)
    batched = transcriber.recognise(segments)
    assert [transcript.text for transcript in batched] == [*TEXTS, ""]
    assert model.encoder.num_calls == 1  # for search and times
    singles = [transcriber.recognise([segment])[0] for segment in segments]
    for small in (_transcriber(model, batch_seconds=1e-9), _transcriber(model, batch_seconds=2.0)):
        model.encoder.num_calls = 0
        for a, b, c in zip(small.recognise(segments), batched, singles, strict=True):
            _assert_same(a, b)
            _assert_same(b, c)
        assert model.encoder.num_calls == (len(segments) if small.batch_seconds < 1 else 3)
    for transcript, segment in zip(batched, segments, strict=True):
        assert transcript.start == segment.offset
        assert all(transcript.start <= word.start <= word.end <= transcript.end for word in transcript.words or ())


def _assert_same(a: Transcript, b: Transcript):
    assert (a.text, a.start, a.end) == (b.text, b.start, b.end)
    assert a.score == pytest.approx(b.score, rel=1e-4, abs=1e-5)
    for x, y in zip(a.words or (), b.words or (), strict=True):
        assert (x.text, x.start, x.end) == (y.text, y.start, y.end)
        assert x.confidence == pytest.approx(y.confidence, rel=1e-4)


def test_long_waveforms_are_split_in_their_pauses(model):
    """the text and the times are those of the whole"""
    words = (TEXTS[0] + " " + TEXTS[3]).split() * 2
    waveform, times = speak(words, pauses=[0.4] * (len(words) + 1))
    transcriber = _transcriber(model, max_seconds=3.0)
    lengths = []
    recognise = transcriber.recognise
    transcriber.recognise = lambda segments: lengths.extend(len(s.samples) for s in segments) or recognise(segments)
    found = transcriber(waveform)
    assert len(lengths) > 3 and max(lengths) <= 3.0 * 16_000 and sum(lengths) == len(waveform)
    assert found.text == " ".join(words) and found.words is not None
    _assert_times(found.words, found.text, times)
    whole = _transcriber(model)(waveform)
    assert whole.text == found.text and whole.end == pytest.approx(found.end)


def test_without_times(model):
    waveform, _ = speak(["two"])
    found = _transcriber(model, with_times=False)(waveform)
    assert found.text == "two" and found.words is None
    bare = SimpleNamespace(search=model.search, parameters=model.parameters)
    assert _transcriber(bare, with_times=False)(waveform) == found
    with pytest.raises(ValueError, match="with_times: SimpleNamespace has no CTC head that could tell them"):
        _transcriber(bare)
    model.can_align = False
    with pytest.raises(ValueError, match="with_times: CtcModel has no CTC head"):
        _transcriber(model)


def test_search_options(model):
    asked = {}

    def search(source, **kwargs):
        asked.update(kwargs)
        return model_search(source, **kwargs)

    model_search = type(model).search.__get__(model)
    model.search = search
    waveform, _ = speak(["two"])
    assert _transcriber(model, search={"beam_size": 3}, with_times=False)(waveform).text == "two"
    assert asked.pop("in_spatial_dim").name == "time" and asked == {"beam_size": 3}


def test_features(model):
    """of models that do not compute them"""
    waveform, _ = speak(["two", "one"])
    expected = _transcriber(model)(waveform)

    def features(samples: np.ndarray) -> np.ndarray:
        time = Dim(len(samples), name="time")
        out, frames = log_mel(nn.convert_to_tensor(samples[None], dims=[batch, time]), in_spatial_dim=time)
        return out.copy_compatible_to_dims_raw([batch, frames, log_mel.out_dim])[0].numpy()

    batch, log_mel = Dim(1, name="batch"), LogMel(NUM_MELS, normalize=False)
    model.features = None
    found = _transcriber(model, features=features)(waveform)
    _assert_same(found, expected)


def test_more_labels_than_frames(model):
    """as an attention model can have them: the words share the time"""
    waveform, _ = speak([], pauses=[0.5])
    search = type(model).search.__get__(model)
    labels = [0, 2] * 30

    def too_many(source, **kwargs):
        hypotheses = search(source, **kwargs)
        hypotheses.nbest = lambda i: [(-3.0, labels)]
        return hypotheses

    model.search = too_many
    found = _transcriber(model)(waveform)
    assert found.text == "one three " * 29 + "one three" and found.words is not None
    assert [word.confidence for word in found.words] == [0.0] * 60
    assert found.words[0].start == 0.0 and found.words[-1].end == pytest.approx(0.5)
    assert found.words[1].start == found.words[0].end == pytest.approx(0.5 * 3 / 240)
    assert found.words[1].end == pytest.approx(0.5 * 8 / 240)


def test_no_hypothesis(model):
    waveform, _ = speak(["two"])
    search = type(model).search.__get__(model)

    def nothing(source, **kwargs):
        hypotheses = search(source, **kwargs)
        hypotheses.nbest = lambda i: []
        return hypotheses

    model.search = nothing
    assert _transcriber(model)(waveform) == Transcript("", -math.inf, 0.0, 0.4, [])


def test_nothing_stays_behind(model):
    """a training can go on: gradients and dropout are as before, the model too"""
    before = dict(vars(model))
    _transcriber(model)(speak(["two"])[0])
    assert torch.is_grad_enabled() and vars(model) == before
    seen = []
    search = model.search
    model.search = lambda *args, **kwargs: (
        seen.append((torch.is_grad_enabled(), nn.get_run_ctx().train_flag)) or search(*args, **kwargs)
    )
    nn.init_train_step_run_ctx(train_flag=True)
    try:
        _transcriber(model, with_times=False)(speak(["two"])[0])
        assert seen == [(False, False)] and nn.get_run_ctx().train_flag
    finally:
        from returnn.frontend import run_ctx

        run_ctx.reset_run_ctx()


def test_on_jax(model):
    """the other eager engine"""
    pytest.importorskip("jax")
    waveform, _ = speak(["one"], pauses=[0.02, 0.02])
    expected = _transcriber(model)(waveform)
    params = {name: param.raw_tensor.detach().numpy() for name, param in model.named_parameters()}
    nn.select_backend("jax")
    try:
        other = make_tone_model()
        for name, param in other.named_parameters():
            param.initial = params[name]
        _assert_same(_transcriber(other)(waveform), expected)
    finally:
        nn.select_backend_torch()


def test_join():
    words = [WordTime("a", 0.0, 0.1, 0.5), WordTime("b", 1.0, 1.1, 0.5)]
    parts = [
        Transcript("a", -1.0, 0.0, 1.0, words[:1]),
        Transcript("", -0.5, 1.0, 1.5, []),
        Transcript("b", -2.0, 1.5, 2.0, words[1:]),
    ]
    assert join(parts) == Transcript("a b", -3.5, 0.0, 2.0, words)
    assert join([parts[0], dataclasses.replace(parts[2], words=None)]).words is None


@pytest.mark.parametrize(
    "waveform, rate, kind, message",
    [
        ([0.0], 16_000, TypeError, "waveform, expected a NumPy array of float or int16, got list"),
        (np.zeros(3, "int32"), 16_000, TypeError, "expected a NumPy array of float or int16, got int32"),
        (np.zeros(0), 16_000, ValueError, r"expected the shape \[time\] or \[time, channels\], got \[0\]"),
        (np.zeros((1, 1, 1)), 16_000, ValueError, r"got \[1, 1, 1\]"),
        (np.zeros(3), 0, ValueError, "sample_rate, expected a positive number, got 0"),
        (np.array([0.0, np.nan]), 16_000, ValueError, "got samples that are infinite or not a number"),
        (np.zeros(1), 48_000, ValueError, "of 1 samples none is left at 16 kHz"),
    ],
)
def test_bad_waveforms(model, waveform, rate, kind, message):
    with pytest.raises(kind, match=f"Transcriber: .*{message}"):
        _transcriber(model)(waveform, rate)


def test_bad_options(model):
    with pytest.raises(ValueError, match="Transcriber: max_seconds, expected at least 1, got 0.9"):
        _transcriber(model, max_seconds=0.9)
    with pytest.raises(ValueError, match="Transcriber: batch_seconds, expected a positive number, got 0"):
        _transcriber(model, batch_seconds=0)
