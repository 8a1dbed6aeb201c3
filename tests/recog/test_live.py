"""Text while a waveform comes in: at the end, that of the whole; before, what was said so far."""

from __future__ import annotations

import math

import numpy as np
import pytest

from returnn_common import nn
from returnn_common.models.features import LogMel
from returnn_common.recog import LiveTranscriber, Transcriber
from returnn_common.recog.live import can_stream
from tests.recog.tones import NUM_MELS, WORDS, make_tone_model, set_parameters, speak

torch = pytest.importorskip("torch")


def _decode(ids) -> str:
    return " ".join(WORDS[i] for i in ids)


@pytest.fixture
def model():
    nn.select_backend_torch()
    model = make_tone_model(streaming=True)
    set_parameters({name: param.raw_tensor.data for name, param in model.named_parameters()})
    return model


def _hear(live: LiveTranscriber, waveform: np.ndarray, size: int) -> list[str]:
    return [live.push(waveform[i : i + size]).text for i in range(0, len(waveform), size)]


@pytest.mark.parametrize("search", [{}, {"beam_size": 3}])
@pytest.mark.parametrize("rate, size", [(16_000, 1600), (16_000, 777), (8_000, 1600), (44_100, 100_000)])
def test_text(model, rate: int, size: int, search: dict):
    waveform, _ = speak("two four one three".split(), rate=rate)
    live = LiveTranscriber(model, decode=_decode, search=search, sample_rate=rate)
    partial = _hear(live, waveform, size)
    final = live.finish()
    whole = Transcriber(model, decode=_decode, search=search)(waveform, rate)
    assert final.text == whole.text == "two four one three" and final.words is None
    assert final.score == pytest.approx(whole.score, rel=1e-3)
    assert final.end == pytest.approx(whole.end) and final.start == 0.0
    assert all(final.text.startswith(text) for text in partial) and partial == sorted(partial, key=len)
    if size < 10_000:
        assert {"two", "two four"} <= set(partial)


def test_what_is_known_in_time(model):
    """each word at most a chunk of 0.1 s, the window and the pause after its end"""
    waveform, times = speak("two four one three".split())
    live = LiveTranscriber(model, decode=_decode)
    for i in range(0, len(waveform), 160):
        found = live.push(waveform[i : i + 160])
        said = sum(end + 0.13 <= found.end for _, end in times)
        assert len(found.text.split()) >= said
        assert found.end == pytest.approx(min(i + 160, len(waveform)) / 16_000)


def test_forms_of_a_waveform(model):
    waveform, _ = speak(["two", "one"])
    for other in (
        waveform.astype("float32"),
        np.stack([2 * waveform, 0 * waveform], axis=1),
        np.rint(waveform * 2**15).astype("int16"),
    ):
        live = LiveTranscriber(model, decode=_decode)
        _hear(live, other, 3000)
        assert live.finish().text == "two one"


def test_nothing(model):
    live = LiveTranscriber(model, decode=_decode)
    found = live.push(np.zeros(0))
    assert (found.text, found.end) == ("", 0.0)
    assert live.finish().text == ""


def test_nothing_stays_behind(model):
    before = dict(vars(model))
    live = LiveTranscriber(model, decode=_decode)
    live.push(speak(["two"])[0])
    live.finish()
    assert torch.is_grad_enabled() and vars(model) == before


def test_no_hypothesis(model):
    live = LiveTranscriber(model, decode=_decode)
    hypotheses = live._stream.hypotheses

    def nothing(state):
        found = hypotheses(state)
        found.nbest = lambda i: []
        return found

    live._stream.hypotheses = nothing
    assert live.finish().score == -math.inf


def test_models_that_need_the_whole(model):
    assert can_stream(model)
    message = "LiveTranscriber: CtcModel needs the whole waveform; expected one that takes raw audio"
    normalised = make_tone_model(streaming=True)
    normalised.features = LogMel(NUM_MELS)
    of_features = make_tone_model(streaming=True)
    of_features.features = None
    for other in (make_tone_model(), normalised, of_features):
        assert not can_stream(other)
        with pytest.raises(ValueError, match=message):
            LiveTranscriber(other, decode=_decode)


def test_errors(model):
    with pytest.raises(ValueError, match="LiveTranscriber: sample_rate, expected a positive number, got 0"):
        LiveTranscriber(model, decode=_decode, sample_rate=0)
    live = LiveTranscriber(model, decode=_decode)
    with pytest.raises(
        TypeError, match="LiveTranscriber: waveform, expected a NumPy array of float or int16, got list"
    ):
        live.push([0.0])  # type: ignore
    with pytest.raises(ValueError, match=r"expected the shape \[time\] or \[time, channels\], got \[3, 0\]"):
        live.push(np.zeros((3, 0)))
    with pytest.raises(ValueError, match="LiveTranscriber: waveform, expected numbers"):
        live.push(np.array([math.nan]))
    live.finish()
    for call in (live.finish, lambda: live.push(np.zeros(3))):
        with pytest.raises(ValueError, match=r"the waveform has ended with finish\(\)"):
            call()
