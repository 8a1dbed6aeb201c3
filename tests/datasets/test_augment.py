"""Tests for the waveform augmentation."""

from __future__ import annotations

import pickle
import time

import numpy as np
import pytest

from returnn_common.datasets.augment import Chain, Equalizer, Gain, Noise, SpeedPerturbation, utterance_rng


def _sine(frequency: float, *, seconds: float = 2.0) -> np.ndarray:
    return np.sin(2 * np.pi * frequency * np.arange(round(16_000 * seconds)) / 16_000).astype("float32")


def _rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.mark.parametrize("factor", [0.8, 0.9371, 1.25, 2.0])
def test_speed_changes_length_and_pitch(factor):
    changed = SpeedPerturbation(factor, factor)(_sine(440), rng=_rng())
    assert len(changed) == pytest.approx(32_000 / factor, abs=1) and changed.dtype == np.float32
    spectrum = np.abs(np.fft.rfft(changed * np.hanning(len(changed))))
    assert spectrum.argmax() * 16_000 / len(changed) == pytest.approx(440 * factor, abs=1)
    expected = _sine(440 * factor, seconds=2 / factor)[500:-500]
    np.testing.assert_allclose(changed[500 : 500 + len(expected)], expected, atol=0.01)


def test_speed_draws_from_its_range():
    augment = SpeedPerturbation(0.8, 1.25)
    lengths = [len(augment(_sine(100, seconds=0.1), rng=_rng(seed))) for seed in range(300)]
    factors = 1600 / np.array(lengths)
    assert factors.min() >= 0.799 and factors.max() <= 1.251
    counts, _ = np.histogram(factors, bins=5, range=(0.8, 1.25))
    assert counts.min() > 35  # 60 expected in each


def test_speed_of_one_leaves_the_audio_alone():
    audio = _sine(440)
    assert SpeedPerturbation(1.0, 1.0)(audio, rng=_rng()) is audio


@pytest.mark.parametrize("num_samples", [1, 2, 3, 10])
def test_speed_of_tiny_audio(num_samples):
    changed = SpeedPerturbation(3.0, 3.0)(np.ones(num_samples, "float32"), rng=_rng())
    assert len(changed) >= 1 and np.isfinite(changed).all()


def test_speed_is_cheap():
    audio, augment = _sine(440), SpeedPerturbation(0.8, 1.25)
    times = []
    for seed in range(20):
        start = time.perf_counter()
        augment(audio, rng=_rng(seed))
        times.append(time.perf_counter() - start)
    assert min(times) < 0.005  # about 2 ms for 2 s of audio; the least, since other programs run as well


def test_gain():
    audio = _sine(440)
    np.testing.assert_allclose(Gain(-20, -20)(audio, rng=_rng()), 0.1 * audio, rtol=1e-5)
    np.testing.assert_allclose(Gain(6, 6)(audio, rng=_rng()), 10**0.3 * audio, rtol=1e-5)
    gains = [20 * np.log10(Gain(-6, 6)(np.ones(1, "float32"), rng=_rng(seed))[0]) for seed in range(300)]
    assert -6.01 < min(gains) < -5 and 5 < max(gains) < 6.01
    assert Gain(-6, 6)(audio, rng=_rng()).dtype == np.float32


def test_chain_is_one_after_the_other():
    audio, rng = _sine(440), _rng(3)
    expected = Gain(-6, 6)(SpeedPerturbation(0.8, 1.25)(audio, rng=rng), rng=rng)
    changed = Chain(SpeedPerturbation(0.8, 1.25), Gain(-6, 6))(audio, rng=_rng(3))
    np.testing.assert_array_equal(changed, expected)


@pytest.mark.parametrize(
    "augment", [SpeedPerturbation(0.8, 1.25), Gain(-6, 6), Noise(0, 9), Equalizer(3), Chain(Gain(-1, 1), Gain(0, 2))]
)
def test_repr_pickle_and_input_untouched(augment):
    audio = _sine(440)
    before = audio.copy()
    changed = augment(audio, rng=_rng(1))
    np.testing.assert_array_equal(audio, before)
    assert repr(eval(repr(augment))) == repr(augment)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(augment))(audio, rng=_rng(1)), changed)


@pytest.mark.parametrize("bounds", [(0, 1), (-1, 1), (1.1, 0.9), (1, float("inf")), (float("nan"), 1)])
def test_bad_speeds(bounds):
    with pytest.raises(ValueError, match="SpeedPerturbation: expected 0 < low <= high, got"):
        SpeedPerturbation(*bounds)


@pytest.mark.parametrize("bounds", [(1, 0), (-float("inf"), 0), (0, float("nan"))])
def test_bad_gains(bounds):
    with pytest.raises(ValueError, match="Gain: expected low_db <= high_db, got"):
        Gain(*bounds)


@pytest.mark.parametrize("augments", [(), (Gain(0, 1), 3)])
def test_bad_chains(augments):
    with pytest.raises(ValueError, match="Chain: expected functions, got"):
        Chain(*augments)


def test_utterance_rng():
    def _draw(seed: int, epoch: int, seq_tag: str) -> float:
        return utterance_rng(seed=seed, epoch=epoch, seq_tag=seq_tag).random()

    assert _draw(1, 2, "a") == _draw(1, 2, "a")
    assert len({_draw(1, 2, "a"), _draw(2, 2, "a"), _draw(1, 3, "a"), _draw(1, 2, "b"), _draw(12, 2, "a")}) == 5
    assert _draw(0, 1, "1-1-0000") == pytest.approx(0.3266598414734495)  # the same in every process


def test_noise_has_the_level():
    audio = 0.3 * np.sin(np.arange(20_000, dtype="float32"))
    for ratio in (0, 20):
        noise = Noise(ratio, ratio)(audio, rng=_rng()) - audio
        measured = 10 * np.log10(np.mean(audio**2) / np.mean(noise**2))
        np.testing.assert_allclose(measured, ratio, atol=0.2)
    assert Noise(10, 30)(audio, rng=_rng()).dtype == np.float32
    np.testing.assert_array_equal(Noise(10, 30)(np.zeros(9, "float32"), rng=_rng()), 0)


@pytest.mark.parametrize("bounds", [(3, 2), (float("nan"), 3), (0, float("inf"))])
def test_noise_bounds(bounds):
    with pytest.raises(ValueError, match="Noise: expected low_db <= high_db, got"):
        Noise(*bounds)


def test_equalizer_is_smooth_and_as_strong_as_asked():
    impulse = np.zeros(16_000, "float32")
    impulse[8000] = 1.0
    gains = [20 * np.log10(np.abs(np.fft.rfft(Equalizer(3)(impulse, rng=_rng(seed))))) for seed in range(300)]
    tilt = [gain[0] - gain[-1] for gain in gains]  # the cosines of odd number count twice, those of even number not
    assert 5 < np.std(tilt) < 8.5
    assert np.abs(np.diff(gains, axis=1)).max() < 0.2  # decibels from a hertz to the next
    np.testing.assert_allclose(Equalizer(0)(impulse, rng=_rng()), impulse, atol=1e-6)
    for n in (1, 2, 3):
        changed = Equalizer(3)(np.ones(n, "float32"), rng=_rng())
        assert changed.shape == (n,) and changed.dtype == np.float32 and np.isfinite(changed).all()


def test_equalizer_bounds():
    with pytest.raises(ValueError, match="Equalizer: expected strength_db >= 0, got -1"):
        Equalizer(-1)
