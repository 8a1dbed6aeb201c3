"""Log-mel against NumPy, on every engine."""

from __future__ import annotations

import inspect
import itertools

import numpy as np
import pytest

from returnn_common import nn
from returnn_common.models.features import LogMel, mel_filters, normalize_features
from tests.engines import ENGINES, Input, run_on

LENGTHS = [2000, 1, 159, 160, 161, 400, 733]


def _audio(fill: float = 0.0) -> np.ndarray:
    rng = np.random.default_rng(3)
    audio = np.full((len(LENGTHS), max(LENGTHS)), fill, "float32")
    for row, length in zip(audio, LENGTHS, strict=True):
        row[:length] = rng.normal(size=length) * 0.1
    return audio


def _reference(samples: np.ndarray, num_filters: int) -> np.ndarray:
    """frame by frame, straight from the definition"""
    samples = samples.astype("float64")
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(400) / 400)
    frames = []
    for start in range(0, len(samples), 160):
        frame = samples[start : start + 400]
        frame = np.pad(frame, (0, 400 - len(frame))) * window
        power = np.abs(np.fft.rfft(frame, 512)) ** 2
        frames.append(np.log(np.maximum(power @ mel_filters(num_filters), 1e-10)))
    return np.array(frames)


def _run(engine: str, audio: np.ndarray, *, lengths=None, normalize: bool):
    def func(model, x, time):
        features, frames = model(x, in_spatial_dim=time)
        return {"features": (features, [nn.batch_dim, frames, model.out_dim])}

    return run_on(
        engine,
        func,
        {"x": Input(audio, "batch time")},
        {"time": lengths or LENGTHS},
        make_model=lambda: LogMel(12, normalize=normalize),
    )


@pytest.mark.parametrize("engine", ENGINES)
def test_equals_numpy(engine: str):
    audio = _audio(fill=1e3)  # what lies in the padding must not matter
    result = _run(engine, audio, normalize=False)
    lengths = result.outputs["features"].lengths[1]
    assert list(lengths) == [-(-n // 160) for n in LENGTHS]
    for i, n in enumerate(LENGTHS):
        expected = _reference(audio[i, :n], 12)
        np.testing.assert_allclose(result["features"][i, : lengths[i]], expected, rtol=1e-3, atol=2e-3)


@pytest.mark.parametrize("engine", ENGINES)
def test_normalization_over_valid_frames_only(engine: str):
    result = _run(engine, _audio(fill=1e3), normalize=True)["features"]
    for i, n in enumerate(LENGTHS):
        frames = -(-n // 160)
        expected = _reference(_audio()[i, :n], 12)
        expected = (expected - expected.mean(0)) / np.sqrt(expected.var(0) + 1e-5)
        np.testing.assert_allclose(result[i, :frames], expected, atol=2e-2 if frames > 1 else 1e-3)


@pytest.mark.parametrize("engine", ENGINES)
def test_prior_frames(engine: str):
    def func(x, time, feat):
        y = normalize_features(x, spatial_dim=time, feature_dim=feat, prior_frames=6)
        return {"y": (y, [nn.batch_dim, time, feat])}

    x = np.random.default_rng(0).normal(size=(2, 9, 3)).astype("float32") * np.array([1, 5, 0.1], "float32")
    x += np.array([1, 2, 3], "float32")
    y = run_on(engine, func, {"x": Input(x, "batch time feat")}, {"time": [9, 4], "feat": 3})["y"]
    for row, source, n in zip(y, x, [9, 4], strict=True):
        overall = np.full((6, 3), source[:n].mean(), "float32")
        centred = source[:n] - np.concatenate([source[:n], overall]).mean(0)
        np.testing.assert_allclose(row[:n], centred / np.sqrt(np.mean(centred**2) + 1e-5), atol=1e-5)


def test_prior_frames_are_handed_on():
    def func(model, x, time):
        features, frames = model(x, in_spatial_dim=time)
        return {"features": (features, [nn.batch_dim, frames, model.out_dim])}

    audio = np.random.default_rng(1).normal(size=(1, 1600)).astype("float32")
    means = []
    for prior_frames in (0, 1, 10, 1000):
        make = lambda: LogMel(20, prior_frames=prior_frames)  # noqa: B023, E731
        features = run_on("torch", func, {"x": Input(audio, "batch time")}, {"time": [1600]}, make_model=make)
        np.testing.assert_allclose((features["features"] ** 2).mean(), 1.0, atol=1e-3)
        means.append(np.abs(features["features"][0].mean(0)).mean())
    assert means[0] < 1e-3 and means == sorted(means) and means[-1] > 0.1
    with pytest.raises(ValueError, match="LogMel: expected prior_frames >= 0, got -1"):
        LogMel(prior_frames=-1)


def test_batch_equals_single():
    audio = _audio(fill=-7.0)
    batched = _run("torch", audio, normalize=True)["features"]
    for i, n in enumerate(LENGTHS):
        single = _run("torch", audio[i : i + 1, :n], lengths=[n], normalize=True)["features"]
        np.testing.assert_allclose(batched[i, : single.shape[1]], single[0], atol=1e-4)


def test_close_to_returnns_own():
    """where both have a frame: the window and the scale are the same, the filters differ a little in their edges"""

    def func(x, time):
        mel = nn.FeatureDim("mel", 80)
        features, frames = nn.audio.log_mel_filterbank_from_raw(x, in_spatial_dim=time, out_dim=mel, log_base=np.e)
        return {"features": (features, [nn.batch_dim, frames, mel])}

    audio = np.random.default_rng(1).normal(size=(1, 16000)).astype("float32") * 0.1
    theirs = run_on("torch", func, {"x": Input(audio, "batch time")}, {"time": [16000]})["features"][0]
    ours = _reference(audio[0], 80)[: len(theirs)]
    # Filters below 300 Hz are narrower than a bin, so that the exact edges decide there.
    assert np.abs(ours - theirs)[:, 20:].mean() < 0.05


def test_silence_is_finite():
    result = _run("torch", np.zeros((1, 3200), "float32"), lengths=[3200], normalize=True)["features"]
    np.testing.assert_array_equal(result, 0.0)


def test_channel_axis_is_squeezed_and_others_refused():
    def func(model, x, time, channel):
        features, frames = model(x, in_spatial_dim=time)
        return {"features": (features, [nn.batch_dim, frames, model.out_dim])}

    audio = _audio()
    expected = _run("torch", audio, normalize=True)["features"]
    result = run_on(
        "torch",
        func,
        {"x": Input(audio[:, :, None], "batch time channel")},
        {"time": LENGTHS, "channel": 1},
        make_model=lambda: LogMel(12),
    )
    np.testing.assert_allclose(result["features"], expected, atol=1e-5)

    def two_channels(model, x, time, channel):
        x.feature_dim = channel
        return func(model, x, time, channel)

    with pytest.raises(ValueError, match="LogMel: expected raw audio with one channel, got .*channel"):
        run_on(
            "torch",
            two_channels,
            {"x": Input(np.repeat(audio[:, :, None], 2, axis=2), "batch time channel")},
            {"time": LENGTHS, "channel": 2},
            make_model=lambda: LogMel(12),
        )


def test_not_audio():
    def func(model, x, time):
        model(x, in_spatial_dim=nn.SpatialDim("other"))

    with pytest.raises(ValueError, match="LogMel: expected raw audio with the dim .*other"):
        run_on("torch", func, {"x": Input(_audio(), "batch time")}, {"time": LENGTHS}, make_model=LogMel)


def test_filters():
    filters = mel_filters(80)
    assert filters.shape == (257, 80)
    assert filters.min() == 0.0 and filters.max() <= 1.0
    peaks = filters.argmax(0)
    assert (np.diff(peaks) >= 0).all() and peaks[-1] < 256
    np.testing.assert_allclose(filters[3:-13].sum(1), 1.0, atol=1e-5)  # neighbours overlap by half


def test_epsilon_changes_the_scale():
    def func(x, time, feat):
        return {
            "y": (normalize_features(x, spatial_dim=time, feature_dim=feat, epsilon=10.0), [nn.batch_dim, time, feat])
        }

    x = np.random.default_rng(0).normal(size=(1, 50, 3)).astype("float32")
    y = run_on("torch", func, {"x": Input(x, "batch time feat")}, {"time": [50], "feat": 3})["y"]
    np.testing.assert_allclose(y, (x - x.mean(1)) / np.sqrt(x.var(1) + 10.0), atol=1e-5)


@pytest.mark.parametrize("engine", ENGINES)
def test_frequency_warp(engine: str):
    """in training, each utterance gets filters of its own, moved within the limit; in evaluation none is moved"""
    lengths = [1600] * 6
    rng = np.random.default_rng(0)
    tone = np.sin(2 * np.pi * 2000 * np.arange(1600) / 16000) + 1e-3 * rng.normal(size=1600)
    audio = np.tile(tone.astype("float32"), (6, 1))

    def func(model, x, time):
        features, frames = model(x, in_spatial_dim=time)
        return {"features": (features, [nn.batch_dim, frames, model.out_dim])}

    def run(train: bool, warp: float) -> np.ndarray:
        return run_on(
            engine,
            func,
            {"x": Input(audio, "batch time")},
            {"time": lengths},
            make_model=lambda: LogMel(40, normalize=False, frequency_warp=warp),
            train=train,
        )["features"]

    unmoved = run(False, 0.2)
    np.testing.assert_allclose(unmoved, run(True, 0.0), atol=1e-4)
    assert len({row.tobytes() for row in unmoved}) == 1
    # The tone's filter goes up when the filters go down. 2000 Hz is mel 1521 of 2840, so filter 21 of 40.
    peaks = run(True, 0.2)[:, 3].argmax(-1)
    assert unmoved[0, 3].argmax() in (20, 21)
    assert len(set(peaks)) > 1 and set(peaks) <= set(range(16, 26))


def test_bad_warp():
    with pytest.raises(ValueError, match="LogMel: expected 0 <= frequency_warp < 0.5, got 0.7"):
        LogMel(frequency_warp=0.7)


def test_batch_of_one_with_a_dim_of_its_own():
    """which is no channel, though of size 1"""
    nn.select_backend_torch()
    batch_dim = nn.Dim(1, name="utterances")
    time_dim = nn.Dim(nn.convert_to_tensor(np.array([500], "int32"), dims=[batch_dim]), name="time")
    source = nn.random_normal([batch_dim, time_dim])
    features, frames_dim = LogMel(12)(source, in_spatial_dim=time_dim)
    assert set(features.dims) >= {batch_dim, frames_dim} and frames_dim.dyn_size.tolist() == [4]


@pytest.mark.parametrize("options", [{"normalize": False}, {"causal": True, "prior_frames": 5}])
def test_piece_by_piece(options: dict):
    """pieces of one sample, less than a window, and longer than everything; what is complete is there at once"""
    audio = np.where(np.isfinite(_audio(fill=np.nan)), _audio(), 7.0).astype("float32")
    cuts = [0, 1, 400, 559, 560, 1999, 5000]
    inputs, dims = {"x": Input(audio, "batch time")}, {"time": LENGTHS}
    for i, (begin, end) in enumerate(itertools.pairwise(cuts)):
        inputs[f"x{i}"] = Input(audio[:, begin:end], f"batch time{i}")
        dims[f"time{i}"] = [min(max(n - begin, 0), audio[:, begin:end].shape[1]) for n in LENGTHS]

    def func(model, x, time, **pieces):
        features, frames = model(x, in_spatial_dim=time)
        outputs = {"whole": (features, [nn.batch_dim, frames, model.out_dim])}
        state = model.initial_state(batch_dims=[nn.batch_dim])
        for i in range(len(cuts) - 1):
            x, time = pieces[f"x{i}"], pieces[f"time{i}"]
            features, frames, state = model.step(x, in_spatial_dim=time, state=state)
            outputs[f"piece{i}"] = (features, [nn.batch_dim, frames, model.out_dim])
        features, frames = model.finish(state)
        outputs["rest"] = (features, [nn.batch_dim, frames, model.out_dim])
        return outputs

    names = ["model", *inputs, *dims]
    func.__signature__ = inspect.Signature([inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY) for n in names])
    result = run_on("torch", func, inputs, dims, make_model=lambda: LogMel(12, **options))
    names = [*(f"piece{i}" for i in range(len(cuts) - 1)), "rest"]
    for row, n in enumerate(LENGTHS):
        counts = [result.outputs[name].lengths[1][row] for name in names]
        assert list(np.cumsum(counts[:-1])) == [max((min(n, cut) - 400) // 160 + 1, 0) for cut in cuts[1:]]
        found = np.concatenate([result[name][row, :count] for name, count in zip(names, counts, strict=True)])
        np.testing.assert_allclose(found, result["whole"][row, : -(-n // 160)], atol=1e-3)


def test_normalization_that_needs_the_whole():
    assert LogMel(12, causal=True).can_stream and LogMel(12, normalize=False).can_stream and not LogMel(12).can_stream
    with pytest.raises(ValueError, match="LogMel: expected normalize=True with causal=True"):
        LogMel(12, causal=True, normalize=False)
    with pytest.raises(ValueError, match="LogMel: piece by piece, expected causal=True or normalize=False"):
        LogMel(12).initial_state(batch_dims=[])


@pytest.mark.parametrize("lengths", [[2000, 0, 161], [160]], ids=str)
@pytest.mark.parametrize("order", ["bt", "tb"])
def test_on_torch_as_composed(lengths, order, monkeypatch):
    """features, their lengths, and the gradients of the samples, which are 0 on padding"""
    import torch

    nn.select_backend_torch()
    nn.init_forward_step_run_ctx(step=0)
    batch_dim, results = nn.Dim(len(lengths), name="batch"), []
    for fits in (True, False):
        if not fits:
            monkeypatch.setattr(LogMel, "_fits_torch", lambda *args: False)
        time_dim = nn.Dim(nn.convert_to_tensor(np.array(lengths, "int32"), dims=[batch_dim]), name="time")
        values = np.random.default_rng(1).standard_normal((len(lengths), max(lengths))).astype("float32")
        samples = torch.tensor(values, requires_grad=True)
        dims = [batch_dim, time_dim] if order == "bt" else [time_dim, batch_dim]
        source = nn.convert_to_tensor(samples if order == "bt" else samples.t(), dims=dims)
        model = LogMel(12, prior_frames=3)
        features, frames_dim = model(source, in_spatial_dim=time_dim)
        assert features.feature_dim == model.out_dim
        features = features.copy_masked(0.0).copy_transpose([batch_dim, frames_dim, model.out_dim]).raw_tensor
        features.square().sum().backward()
        assert samples.grad is not None
        results.append([features.detach(), frames_dim.dyn_size, samples.grad])
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)
    assert all(not grad[length:].any() for grad, length in zip(results[0][2], lengths, strict=True))


def test_on_torch_without_lengths():
    """one utterance, no batch; in double precision"""
    import torch

    nn.select_backend_torch()
    time_dim = nn.Dim(1000, name="time")
    values = np.random.default_rng(1).standard_normal(1000)
    model = LogMel(12, normalize=False)
    features, frames_dim = model(nn.convert_to_tensor(values, dims=[time_dim]), in_spatial_dim=time_dim)
    assert features.dtype == "float64" and frames_dim.dimension == 7
    found = features.copy_transpose([frames_dim, model.out_dim]).raw_tensor
    torch.testing.assert_close(found, torch.tensor(_reference(values, 12)), rtol=1e-5, atol=1e-5)
    time_dim = nn.Dim(0, name="time")
    features, frames_dim = model(nn.zeros([time_dim]), in_spatial_dim=time_dim)
    assert frames_dim.dimension == 0 and features.copy_transpose([frames_dim, model.out_dim]).raw_tensor.shape == (
        0,
        12,
    )
