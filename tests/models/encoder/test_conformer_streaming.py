"""The streaming Conformer: chunk after chunk = the whole sequence; what each frame depends on; arguments."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import tree

from returnn_common import nn
from returnn_common.models.encoder.conformer_streaming import make_streaming_conformer_encoder
from tests.engines import ENGINES, Input, Result, run_on

FEATURES = 8
TINY = {
    "num_layers": 2,
    "out_dim": 8,
    "num_heads": 2,
    "chunk_size": 2,
    "left_chunks": 1,
    "subsampling_channels": 4,
    "conv_kernel_size": 4,
    "dropout": 0.0,
}


def _features(lengths: list[int], seed: int = 0) -> np.ndarray:
    """the padding is not zero"""
    return np.random.default_rng(seed).normal(size=(len(lengths), max(lengths), FEATURES)).astype("float32")


def _run(x: np.ndarray, lengths: list[int], **options) -> Result:
    def func(model, x, time):
        collected = {}
        out, out_time = model(x, in_spatial_dim=time, collected_outputs=collected)
        outputs = {"out": out, **collected}
        return {name: (y, [nn.batch_dim, out_time, model.out_dim]) for name, y in outputs.items()}

    return run_on(
        "torch",
        func,
        {"x": Input(x, "batch time feat")},
        {"time": lengths, "feat": FEATURES},
        make_model=lambda feat: make_streaming_conformer_encoder(feat, **{**TINY, **options}),
    )


def _encode(x: np.ndarray, **options) -> np.ndarray:
    """{time, FEATURES} -> {time', out_dim}"""
    return _run(x[None], [len(x)], **options)["out"][0]


def _run_steps(engine: str, x: np.ndarray, lengths: list[int], *, piece: int, **options) -> Result:
    """output "out" of the whole, and of each piece of so many frames: "out0", "out1", ..."""
    num = -(-max(lengths) // piece)
    inputs = {"x": Input(x, "batch time feat")}
    dims = {"time": lengths, "feat": FEATURES}
    for i in range(num):
        inputs[f"x{i}"] = Input(x[:, i * piece : (i + 1) * piece], f"batch time{i} feat")
        dims[f"time{i}"] = [min(max(n - i * piece, 0), piece) for n in lengths]
    return _step_through(engine, inputs, dims, num=num, **options)


def _step_through(engine: str, inputs: dict[str, Input], dims: dict, *, num: int, **options) -> Result:
    """:param inputs: "x", the whole, and "x0", "x1", ..., its pieces"""

    def func(model, x, time, **pieces):
        out, out_time = model(x, in_spatial_dim=time)
        outputs = {"out": (out, [nn.batch_dim, out_time, model.out_dim])}
        state = model.initial_state(batch_dims=[nn.batch_dim])
        for i in range(num):
            out, out_time, state = model.step(pieces[f"x{i}"], in_spatial_dim=pieces[f"time{i}"], state=state)
            outputs[f"out{i}"] = (out, [nn.batch_dim, out_time, model.out_dim])
        return outputs

    # run_on hands over what the signature names.
    names = ["model", "time", *inputs, *(f"time{i}" for i in range(num))]
    func.__signature__ = inspect.Signature([inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY) for n in names])
    make = lambda feat: make_streaming_conformer_encoder(feat, **{**TINY, **options})  # noqa: E731
    return run_on(engine, func, inputs, dims, make_model=make)


def _assert_steps_equal_whole(result: Result, num_sequences: int):
    pieces = [result.outputs[f"out{i}"] for i in range(len(result.outputs) - 1)]
    for row in range(num_sequences):
        whole = result["out"][row, : result.outputs["out"].lengths[1][row]]
        steps = np.concatenate([piece.array[row, : piece.lengths[1][row]] for piece in pieces])
        assert steps.shape == whole.shape
        np.testing.assert_allclose(steps, whole, atol=1e-5)


@pytest.mark.parametrize("left_chunks", [0, 1, 3])
@pytest.mark.parametrize("chunk_size, lengths", [(1, [23, 9, 4, 1]), (4, [90, 33, 50, 2]), (16, [203, 64, 130, 1])])
def test_steps_equal_whole(chunk_size: int, lengths: list[int], left_chunks: int):
    """also for lengths that are no multiple, and sequences that end before others"""
    options = {"chunk_size": chunk_size, "left_chunks": left_chunks}
    result = _run_steps("torch", _features(lengths), lengths, piece=4 * chunk_size, **options)
    _assert_steps_equal_whole(result, len(lengths))


@pytest.mark.parametrize("left_chunks", [0, 2])
def test_each_sequence_at_its_own_pace(left_chunks: int):
    """in a step, some have several chunks, others none; later on they are encoded as if they had been alone"""
    lengths, paces = [52, 29, 0, 24], [[16, 0, 8, 24, 4], [0, 16, 0, 8, 5], [0] * 5, [8, 8, 0, 8, 0]]
    x = _features(lengths)
    inputs, dims = {"x": Input(x, "batch time feat")}, {"time": lengths, "feat": FEATURES}
    for i, pace in enumerate(zip(*paces, strict=True)):
        piece = np.full((4, max(pace), FEATURES), 7.0, "float32")
        for row, n in enumerate(pace):
            begin = sum(paces[row][:i])
            piece[row, :n] = x[row, begin : begin + n]
        inputs[f"x{i}"], dims[f"time{i}"] = Input(piece, f"batch time{i} feat"), list(pace)
    result = _step_through("torch", inputs, dims, num=5, left_chunks=left_chunks)
    _assert_steps_equal_whole(result, len(lengths))


def test_steps_of_several_chunks():
    lengths = [61, 24, 40]
    _assert_steps_equal_whole(_run_steps("torch", _features(lengths), lengths, piece=24), len(lengths))


def test_long_sequence():
    """positions far from the beginning are as exact as those near it"""
    _assert_steps_equal_whole(_run_steps("torch", _features([4001]), [4001], piece=400, chunk_size=20), 1)


@pytest.mark.parametrize("engine", [engine for engine in ENGINES if engine != "torch"])
def test_steps_on_every_engine(engine: str):
    """small steps of one shape, since JAX compiles each operation anew for each shape"""
    lengths = [8, 3]
    options = {"num_layers": 1, "chunk_size": 1, "conv_kernel_size": 3}
    _assert_steps_equal_whole(_run_steps(engine, _features(lengths), lengths, piece=4, **options), len(lengths))


def test_steps_of_a_static_size():
    """one shape for all steps, and a state that can be taken apart and put together, as whoever exports it needs"""
    x = _features([24])

    def func(model, x, time, **pieces):
        out, out_time = model(x, in_spatial_dim=time)
        state = model.initial_state(batch_dims=[nn.batch_dim])
        shapes = [t.dims for t in tree.flatten(state)]
        outputs = {"out": (out, [nn.batch_dim, out_time, model.out_dim])}
        for i in range(3):
            state = tree.map_structure(lambda t: t, state)
            out, out_time, state = model.step(pieces[f"x{i}"], in_spatial_dim=pieces["piece"], state=state)
            assert [set(t.dims) for t in tree.flatten(state)] == [set(dims) for dims in shapes]
            outputs[f"out{i}"] = (out, [nn.batch_dim, out_time, model.out_dim])
        return outputs

    names = ["model", "x", "time", "x0", "x1", "x2", "piece"]
    func.__signature__ = inspect.Signature([inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY) for n in names])
    inputs = {"x": Input(x, "batch time feat")}
    inputs.update({f"x{i}": Input(x[:, 8 * i : 8 * i + 8], "batch piece feat") for i in range(3)})
    dims = {"time": [24], "piece": 8, "feat": FEATURES}
    make = lambda feat: make_streaming_conformer_encoder(feat, **TINY)  # noqa: E731
    result = run_on("torch", func, inputs, dims, make_model=make)
    steps = np.concatenate([result[f"out{i}"][0] for i in range(3)])
    np.testing.assert_allclose(steps, result["out"][0], atol=1e-5)


def _depends(frames: int, **options) -> np.ndarray:
    """{time', time}: whether a frame of the output changes when a frame of the input does"""
    x = _features([frames])[0]
    changed = np.repeat(x[None], frames + 1, axis=0)
    for i in range(frames):
        changed[i + 1, i] += 5.0 * np.random.default_rng(i).normal(size=FEATURES)
    out = _run(changed, [frames] * (frames + 1), subsampling_channels=32, **options)["out"]
    return (np.abs(out[1:] - out[0]).max(-1) > 1e-5).T


@pytest.mark.parametrize("chunk_size, left_chunks, kernel", [(1, 2, 2), (4, 1, 3), (3, 0, 5), (2, 2, 2)])
def test_what_frames_depend_on(chunk_size: int, left_chunks: int, kernel: int):
    """nothing beyond the chunk; nothing before the left context; everything in between"""
    frames = 75
    depends = _depends(frames, num_layers=1, chunk_size=chunk_size, left_chunks=left_chunks, conv_kernel_size=kernel)
    assert len(depends) == 19
    for t, seen in enumerate(depends):
        # The convolution sees frames from `first` on, attention those of left_chunks before the chunk of that one;
        # subsampling sees one frame before 4 t, and that again two.
        first = max(t - kernel + 1, 0)
        begin = 4 * chunk_size * (first // chunk_size - left_chunks) - 3
        end = 4 * chunk_size * (t // chunk_size + 1)
        expected = [begin <= frame < end for frame in range(frames)]
        assert list(seen) == expected, t


def test_layers_add_up_their_left_context():
    one, two = (_depends(75, num_layers=n, conv_kernel_size=2)[-1].argmax() for n in (1, 2))
    assert 0 < two < one


def test_lengths():
    lengths = list(range(1, 51))
    result = _run(_features(lengths), lengths, num_layers=1)
    assert list(result.outputs["out"].lengths[1]) == [-(-n // 4) for n in lengths]


def test_subsampling_is_that_of_torch():
    import torch

    x = _features([21])

    def func(model, x, time):
        out, out_time, _ = model.input_layer(x, in_spatial_dim=time)
        return {"out": (out, [nn.batch_dim, out_time, model.input_layer.out_dim])}

    make = lambda feat: make_streaming_conformer_encoder(feat, **TINY)  # noqa: E731
    inputs, dims = {"x": Input(x, "batch time feat")}, {"time": [21], "feat": FEATURES}
    result = run_on("torch", func, inputs, dims, make_model=make)
    y = torch.tensor(x)[:, None]
    for i in range(2):
        weight, bias = (torch.tensor(result.params[f"input_layer.conv_layers.{i}.{n}"]) for n in ("filter", "bias"))
        y = torch.relu(torch.nn.functional.conv2d(y, weight, bias, stride=2, padding=1))
    expected = y.permute(0, 2, 3, 1).flatten(2).numpy()
    np.testing.assert_allclose(result["out"], expected, atol=1e-5)


def test_chunks_matter():
    x = _features([60])[0]
    standard = _encode(x)
    assert np.abs(_encode(x, left_chunks=2) - standard).max() > 1e-2
    assert np.abs(_encode(x, chunk_size=4) - standard).max() > 1e-2
    # A chunk as long as the sequence has no left context.
    np.testing.assert_allclose(_encode(x, chunk_size=15), _encode(x, chunk_size=16, left_chunks=0), atol=1e-6)


def test_collected_outputs():
    result = _run(_features([20]), [20])
    assert list(result.outputs) == ["out", "0", "1"]
    np.testing.assert_array_equal(result["1"], result["out"])
    assert np.abs(result["0"] - result["1"]).max() > 0.1


def test_dims_and_sizes():
    nn.select_backend_torch()
    out_dim = nn.FeatureDim("mine", 12)
    encoder = make_streaming_conformer_encoder(
        nn.FeatureDim("in", 10), num_layers=3, out_dim=out_dim, num_heads=3, subsampling_channels=6, conv_kernel_size=7
    )
    assert encoder.out_dim is out_dim and encoder.downsample_factor == 4 and encoder.chunk_size == 16
    shapes = {name: tuple(d.dimension for d in p.dims) for name, p in encoder.named_parameters()}
    assert {name.split(".")[1] for name in shapes if name.startswith("layers.")} == {"0", "1", "2"}
    assert shapes["layers.0.conv_block.depthwise_conv.filter"] == (12, 1, 7)
    assert shapes["layers.0.ffn1.linear_ff.weight"] == (12, 48)
    assert shapes["input_layer.conv_layers.1.filter"] == (6, 3, 3, 3)
    assert shapes["input_projection.weight"] == (18, 12)
    assert encoder.layers[0].self_att.num_heads.dimension == 3
    state = encoder.initial_state(batch_dims=[])
    assert state.layers[0].self_att.key.dims[0].dimension == 64


@pytest.mark.parametrize(
    "options, message",
    [
        ({"num_heads": 3}, r"out_dim 8 is not a multiple of 2 \* num_heads 3"),
        ({"num_heads": 8}, r"out_dim 8 is not a multiple of 2 \* num_heads 8"),
        ({"num_heads": 0}, "expected num_heads >= 1, got 0"),
        ({"num_layers": 0}, "expected num_layers >= 1, got 0"),
        ({"chunk_size": 0}, "expected chunk_size >= 1, got 0"),
        ({"left_chunks": -1}, "expected left_chunks >= 0, got -1"),
        ({"conv_kernel_size": 1}, "expected conv_kernel_size >= 2, got 1"),
        ({"subsampling_channels": 1}, "expected subsampling_channels >= 2, got 1"),
        ({"dropout": 1.0}, "expected 0 <= dropout < 1, got 1.0"),
    ],
)
def test_bad_arguments(options: dict, message: str):
    nn.select_backend_torch()
    with pytest.raises(ValueError, match=f"conformer: {message}"):
        make_streaming_conformer_encoder(8, **{**TINY, **options})
