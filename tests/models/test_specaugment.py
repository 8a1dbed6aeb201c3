"""SpecAugment: where masks lie, how wide they are, when they act; on every engine."""

from __future__ import annotations

import numpy as np
import pytest

from returnn_common import nn
from returnn_common.models.specaugment import POLICIES, SpecAugment, SpecAugmentPolicy
from tests.engines import ENGINES, Input, run_on

FEATURES = 16
LENGTHS = [40, 9, 1, 3]


def _run(engine: str, policy, *, train: bool = True, x=None, lengths=None, step: int = 0, **schedule) -> np.ndarray:
    lengths = lengths or LENGTHS
    if x is None:
        x = np.ones((len(lengths), max(lengths), FEATURES), "float32")

    def func(model, x, time, feat):
        y = model(x, spatial_dim=time, feature_dim=feat)
        return {"y": (y, [nn.batch_dim, time, feat])}

    return run_on(
        engine,
        func,
        {"x": Input(x, "batch time feat")},
        {"time": lengths, "feat": FEATURES},
        make_model=lambda: SpecAugment(policy, **schedule),
        train=train,
        step=step,
    )["y"]


def _time_masked(y: np.ndarray) -> np.ndarray:
    return (y == 0).all(-1)


TIME_ONLY = SpecAugmentPolicy(0, 0, 0, 8, 0.5, 1)
FREQUENCY_ONLY = SpecAugmentPolicy(0, 5, 1, 0, 0.0, 0)


@pytest.mark.parametrize("engine", ENGINES)
def test_training_masks_evaluation_does_not(engine: str):
    policy = SpecAugmentPolicy(0, 5, 3, 20, 0.6, 3)
    lengths = [40] * 8
    evaluated = _run(engine, policy, train=False, lengths=lengths)
    np.testing.assert_array_equal(evaluated, 1.0)
    trained = _run(engine, policy, lengths=lengths)
    assert set(np.unique(trained)) == {0.0, 1.0}
    # a masked entry belongs to a whole masked frame or a whole masked filter of its utterance
    frames, filters = (trained == 0).all(2), (trained == 0).all(1)
    np.testing.assert_array_equal(trained == 0, frames[:, :, None] | filters[:, None, :])
    assert len({y.tobytes() for y in trained}) > 1, "each utterance has masks of its own"


@pytest.mark.parametrize("engine", ENGINES)
def test_warping_keeps_ends_order_and_range(engine: str):
    policy = SpecAugmentPolicy(10, 0, 0, 0, 0.0, 0)
    x = np.tile(np.arange(40, dtype="float32")[None, :, None], (6, 1, FEATURES))
    lengths = [40, 40, 40, 9, 3, 1]
    y = _run(engine, policy, x=x, lengths=lengths)
    for row, n in zip(y, lengths, strict=True):
        times = row[:n, 0]
        assert times[0] == pytest.approx(0.0, abs=1e-4) and times[-1] == pytest.approx(n - 1, abs=1e-3)
        assert (np.diff(times) >= -1e-4).all()
    shifts = np.abs(y[:3, :, 0] - np.arange(40)).max(1)
    assert (shifts > 0).any() and (shifts <= 10.01).all()


def test_starts_and_widths_are_uniform():
    """over many draws: masks are not only at the start, not in the padding, not wider than said"""
    lengths = [40] * 3000
    masked = _time_masked(_run("torch", TIME_ONLY, lengths=lengths))
    widths = masked.sum(1)
    assert widths.min() == 0 and widths.max() == 8
    counts = np.bincount(widths, minlength=9)
    np.testing.assert_allclose(counts / len(lengths), 1 / 9, atol=0.025)
    starts = masked.argmax(1)[widths == 8]  # 0..32, each as likely
    assert set(starts) == set(range(33))
    np.testing.assert_allclose(np.mean(starts), 16.0, atol=2.0)
    np.testing.assert_array_equal(np.abs(np.diff(masked.astype(int), axis=1)).sum(1) <= 2, True)  # one run


def test_frequency_masks():
    y = _run("torch", FREQUENCY_ONLY, lengths=[5] * 2000)
    widths = (y[:, 0] == 0).sum(-1)
    assert widths.max() == 5 and widths.min() == 0
    np.testing.assert_allclose(np.bincount(widths) / 2000, 1 / 6, atol=0.03)
    assert ((y == 0).any(0)[0]).all()  # every filter is hit by some mask


def test_width_follows_the_utterance_not_the_batch():
    y = _run("torch", TIME_ONLY, lengths=[40, 9] * 500)
    short = _time_masked(y[1::2])[:, :9].sum(1)
    assert short.max() == 4  # half of 9
    assert (short == 4).mean() > 0.1


def test_padding_is_not_counted():
    """an utterance's masks lie in its own frames: with a fraction of 1, all frames are masked at times"""
    y = _run("torch", SpecAugmentPolicy(0, 0, 0, 100, 1.0, 1), lengths=[40, 4] * 300)
    short = _time_masked(y[1::2])[:, :4].sum(1)
    np.testing.assert_allclose(np.bincount(short, minlength=5) / 300, 0.2, atol=0.08)


@pytest.mark.parametrize("engine", ENGINES)
def test_schedule(engine: str):
    lengths = [40] * 30

    def share(step: int) -> float:
        y = _run(engine, TIME_ONLY, lengths=lengths, step=step, start_step=10, full_step=20)
        return float(_time_masked(y).sum(1).max())

    assert share(9) == 0
    assert 0 < share(13) <= 3
    assert share(1000) == 8


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_published_policies_on_tiny_inputs(name: str):
    lengths = [1, 2, 3, 4, 5, 40]
    assert np.isfinite(_run("torch", name, lengths=lengths)).all()
    for row, n in zip(_run("torch", name, train=False, lengths=lengths), lengths, strict=True):
        np.testing.assert_array_equal(row[:n], 1.0)


def test_published_numbers():
    """table 1 of the paper: W F m_F T p m_T"""
    table = {"LB": (80, 27, 1, 100, 1.0, 1), "LD": (80, 27, 2, 100, 1.0, 2), "SM": (40, 15, 2, 70, 0.2, 2)}
    for name, numbers in {**table, "SS": (40, 27, 2, 70, 0.2, 2)}.items():
        assert POLICIES[name] == SpecAugmentPolicy(*numbers)


def test_bad_arguments():
    with pytest.raises(ValueError, match="SpecAugment: unknown policy 'XL', expected one of LB, LD, SM, SS, conformer"):
        SpecAugment("XL")
    with pytest.raises(ValueError, match="expected 0 <= start_step <= full_step, got 5 and 2"):
        SpecAugment("LD", start_step=5, full_step=2)
