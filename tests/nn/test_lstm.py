"""The LSTM against PyTorch's; states at the end of each sequence; whole = step by step, on every engine."""

from __future__ import annotations

import numpy as np
import pytest
import returnn.frontend as rf
import torch

from returnn_common import nn
from returnn_common.nn.fused.lstm import _ends, lstm_by_lengths, reverse_sequence
from returnn_common.nn.lstm import LSTM, LstmState
from tests.engines import ENGINES, Input, run_on

FEATURES, SIZE = 4, 3
LENGTHS = [5, 3, 1]


def _features(lengths: list[int], fill: float = 0.0) -> np.ndarray:
    x = np.full((len(lengths), max(lengths), FEATURES), fill, "float32")
    for i, n in enumerate(lengths):
        x[i, :n] = np.random.default_rng(n).normal(size=(n, FEATURES))
    return x


def _states(batch: int) -> np.ndarray:
    """h and c"""
    return np.random.default_rng(7).normal(size=(2, batch, SIZE)).astype("float32")


def _run(engine: str, x: np.ndarray, lengths: list[int], *, with_bias: bool = True, grads: bool = False):
    """:return: y, h, c from some initial state; and y_step, h_step, c_step of the first two frames, step by step"""
    h, c = _states(len(lengths))

    def func(model, x, h, c, time):
        order = [nn.batch_dim, model.out_dim]
        y, last = model(x, state=LstmState(h=h, c=c), spatial_dim=time)
        loss = nn.reduce_sum(nn.sin(y), axis=[time, model.out_dim]) + nn.reduce_sum(last.c * last.c, axis=model.out_dim)
        outputs = {"y": (y, [nn.batch_dim, time, model.out_dim]), "h": (last.h, order), "c": (last.c, order)}
        state = LstmState(h=h, c=c)
        for i in range(2):
            frame = nn.gather(x, indices=nn.constant(i, dims=(), dtype="int32"), axis=time)
            y_step, state = model(frame, state=state, spatial_dim=nn.single_step_dim)
            outputs[f"step{i}"] = (y_step, order)
        return {**outputs, "c_step": (state.c, order), "loss": loss}

    inputs = {
        "x": Input(x, "batch time feat"),
        "h": Input(h, "batch size"),
        "c": Input(c, "batch size"),
    }
    return run_on(
        engine,
        func,
        inputs,
        {"time": lengths, "feat": FEATURES, "size": SIZE},
        make_model=lambda feat, size: LSTM(feat, size, with_bias=with_bias),
        train=grads,  # a rec layer (net dict) has no gradients otherwise
        grad_of="loss" if grads else None,
    )


def _torch_lstm(params: dict[str, np.ndarray], **options) -> torch.nn.LSTM:
    lstm = torch.nn.LSTM(FEATURES, SIZE, batch_first=True, bias="bias" in params, **options)
    with torch.no_grad():
        lstm.weight_ih_l0.copy_(torch.tensor(params["ff_weight"]))
        lstm.weight_hh_l0.copy_(torch.tensor(params["rec_weight"]))
        if "bias" in params:  # any two that have this sum
            lstm.bias_ih_l0.copy_(torch.tensor(params["bias"] - 0.25))
            lstm.bias_hh_l0.fill_(0.25)
    return lstm


@pytest.mark.parametrize("with_bias", [True, False])
def test_equals_pytorchs(with_bias: bool):
    x = _features(LENGTHS, fill=1e3)
    result = _run("torch", x, LENGTHS, with_bias=with_bias)
    lstm = _torch_lstm(result.params)
    assert lstm.bias == with_bias == ("bias" in result.params)
    packed = torch.nn.utils.rnn.pack_padded_sequence(
        torch.tensor(x), torch.tensor(LENGTHS), batch_first=True, enforce_sorted=False
    )
    h, c = (torch.tensor(s)[None] for s in _states(len(LENGTHS)))
    y, (h, c) = lstm(packed, (h, c))
    y, _ = torch.nn.utils.rnn.pad_packed_sequence(y, batch_first=True)
    np.testing.assert_allclose(result["y"], y.detach().numpy(), atol=1e-6)
    np.testing.assert_allclose(result["h"], h[0].detach().numpy(), atol=1e-6)
    np.testing.assert_allclose(result["c"], c[0].detach().numpy(), atol=1e-6)


@pytest.fixture(scope="module")
def on_torch():
    return _run("torch", _features(LENGTHS, fill=1e3), LENGTHS, grads=True)


@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_whole_and_step_by_step(engine: str, on_torch):
    result = on_torch
    if engine != "torch":
        result = _run(engine, _features(LENGTHS, fill=1e3), LENGTHS, grads=True)
        for name in ("y", "h", "c", "loss"):
            np.testing.assert_allclose(result[name], on_torch[name], atol=1e-5, err_msg=name)
        for name, grad in on_torch.grads.items():
            np.testing.assert_allclose(result.grads[name], grad, atol=1e-5, err_msg=name)
    for i in range(2):
        rows = [n > i for n in LENGTHS]
        np.testing.assert_allclose(result[f"step{i}"][rows], result["y"][rows, i], atol=1e-6)
    two = [n >= 2 for n in LENGTHS]
    single = _run("torch", _features(LENGTHS)[:, :2], [2, 2, 1])
    np.testing.assert_allclose(result["c_step"][two], single["c"][two], atol=1e-6)


def test_last_states_are_those_of_each_sequence():
    """and so they are where PyTorch's own LSTM isn't used, because a sequence has no frames"""
    lengths = [5, 0, 2]
    h, c = _states(3)
    result = _run("torch", _features(lengths, fill=1e3), lengths)
    np.testing.assert_array_equal(result["h"][1], h[1])
    np.testing.assert_array_equal(result["c"][1], c[1])
    fused = _run("torch", _features([5, 1, 2], fill=1e3), [5, 1, 2])
    for name in ("y", "h", "c"):
        np.testing.assert_allclose(result[name][[0, 2]], fused[name][[0, 2]], atol=1e-6, err_msg=name)
    np.testing.assert_allclose(result["h"][2], result["y"][2, 1], atol=1e-6)


def test_starts_with_zeros():
    def func(model, x):
        state = model.default_initial_state(batch_dims=[nn.batch_dim])
        return {"h": state.h, "c": state.c, "x": x}

    result = run_on(
        "torch",
        func,
        {"x": Input(np.ones((2, FEATURES), "float32"), "batch feat")},  # which tells the size of the batch
        {"feat": FEATURES},
        make_model=lambda feat: LSTM(feat, nn.FeatureDim("out", SIZE)),
    )
    np.testing.assert_array_equal(result["h"], np.zeros((2, SIZE)))
    np.testing.assert_array_equal(result["c"], np.zeros((2, SIZE)))


def test_parameters_are_those_of_returnns():
    nn.select_backend_torch()
    feat, size = nn.FeatureDim("feat", FEATURES), nn.FeatureDim("size", SIZE)
    ours, returnns = (dict(cls(feat, size).named_parameters()) for cls in (LSTM, rf.LSTM))
    assert {name: p.dims for name, p in ours.items()} == {name: p.dims for name, p in returnns.items()}


def test_parameters_start_as_returnns():
    """of some size: Glorot's range, and no bias"""
    nn.select_backend_torch()
    lstm = LSTM(nn.FeatureDim("feat", 20), nn.FeatureDim("size", 30))
    for param in (lstm.ff_weight, lstm.rec_weight):
        limit = np.sqrt(6 / sum(d.dimension for d in param.dims))
        largest = param.raw_tensor.abs().max().item()
        assert 0.9 * limit < largest <= limit
    assert lstm.bias is not None and not lstm.bias.raw_tensor.any()


def _call(model_in: int = FEATURES, *, spatial: str = "time", drop: str | None = None):
    def func(model, x, time, other):
        state = model.default_initial_state(batch_dims=[nn.batch_dim])
        if drop:
            state[drop] = None
        y, _ = model(x, state=state, spatial_dim={"time": time, "other": other}[spatial])
        return {"y": y}

    return run_on(
        "torch",
        func,
        {"x": Input(_features([2]), "batch time feat")},
        {"time": [2], "other": [2], "feat": FEATURES},
        make_model=lambda feat: LSTM(
            feat if model_in == FEATURES else nn.FeatureDim("wrong", model_in), nn.FeatureDim("o", SIZE)
        ),
    )


def test_bad_input():
    with pytest.raises(ValueError, match=r"LSTM: expected a source with the dim .*wrong.*, got"):
        _call(7)
    with pytest.raises(ValueError, match=r"LSTM: expected a source with the dim .*other.*, got"):
        _call(spatial="other")
    for name in "hc":
        with pytest.raises(ValueError, match="LSTM: expected a state with h and c, got"):
            _call(drop=name)


@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("lengths", [[5, 3, 3, 1], [0, 2, 5, 0], [0, 0], [4], [2, 2]], ids=str)
def test_by_lengths(lengths, with_bias):
    """PyTorch's LSTM over sequences of different lengths beside the same over each alone: outputs, states, gradients"""
    rnn = torch.nn.LSTM(3, 4, bias=with_bias).double()
    params = [p for _, p in rnn.named_parameters()]
    source = torch.randn(6, len(lengths), 3, dtype=torch.float64, requires_grad=True)
    h, c = (torch.randn(len(lengths), 4, dtype=torch.float64, requires_grad=True) for _ in range(2))
    out, new_h, new_c = lstm_by_lengths(source, lengths, h, c, params)
    assert out.shape == (6, len(lengths), 4)
    expected = [torch.zeros_like(out), h.clone(), c.clone()]
    for i, n in enumerate(lengths):
        if n:
            expected[0][:n, i], (h_i, c_i) = rnn(source[:n, i], (h[None, i], c[None, i]))
            expected[1][i], expected[2][i] = h_i[0], c_i[0]
    for a, b in zip((out, new_h, new_c), expected, strict=True):
        torch.testing.assert_close(a, b)
    weights = [torch.randn_like(x) for x in expected]
    inputs = [source, h, c, *(params if any(lengths) else [])]
    grads = [
        torch.autograd.grad(sum((x * w).sum() for x, w in zip(xs, weights, strict=True)), inputs, allow_unused=True)
        for xs in ((out, new_h, new_c), expected)
    ]
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(torch.zeros(1) if a is None else a, torch.zeros(1) if b is None else b)


@pytest.mark.parametrize(
    "lengths, ends",
    [([], []), ([0, 0], []), ([9], [9]), ([10, 9, 8], [10]), ([10, 2, 1], [1, 2, 10]), ([10, 5, 5, 9, 0], [5, 10])],
)
def test_where_sequences_are_left_out(lengths, ends):
    assert _ends(sorted(lengths, reverse=True)) == ends


def test_outputs_alone():
    """are the same, however much padding there is"""
    rnn = torch.nn.LSTM(3, 4)
    params = [p for _, p in rnn.named_parameters()]
    for lengths in ([10, 9, 8], [2, 10, 1]):
        source, h, c = torch.randn(10, 3, 3), torch.zeros(3, 4), torch.zeros(3, 4)
        found = lstm_by_lengths(source, lengths, h, c, params, with_states=False)[0]
        expected = lstm_by_lengths(source, lengths, h, c, params)[0]
        assert found.shape == expected.shape
        for i, n in enumerate(lengths):
            torch.testing.assert_close(found[:n, i], expected[:n, i])


def test_nothing_on_padding_reaches_gradients():
    """though it is computed as well, where that is faster"""
    rnn = torch.nn.LSTM(3, 4)
    params = [p for _, p in rnn.named_parameters()]
    lengths, grads = [9, 10, 8], []
    for fill in (0.0, float("nan")):
        source = torch.randn(10, 3, 3, generator=torch.Generator().manual_seed(1))
        for i, n in enumerate(lengths):
            source[n:, i] = fill
        source.requires_grad_()
        out = lstm_by_lengths(source, lengths, torch.zeros(3, 4), torch.zeros(3, 4), params, with_states=False)[0]
        valid = torch.arange(10)[:, None] < torch.tensor(lengths)
        grads.append(torch.autograd.grad(out[valid].square().sum(), [source, *params]))
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("shape", [(0, 5), (2, 0)], ids=["no utterance", "no frame"])
def test_empty_batches(shape):
    nn.select_backend_torch()
    in_dim, out_dim, batch_dim, time_dim = (nn.Dim(n, name=s) for n, s in zip((3, 4, *shape), "iobt", strict=True))
    lstm = LSTM(in_dim, out_dim)
    state = lstm.default_initial_state(batch_dims=[batch_dim])
    out, new_state = lstm(nn.zeros([batch_dim, time_dim, in_dim]), state=state, spatial_dim=time_dim)
    assert out.copy_transpose([batch_dim, time_dim, out_dim]).raw_tensor.shape == (*shape, 4)
    assert new_state.h.raw_tensor.shape == new_state.c.raw_tensor.shape == (shape[0], 4)


def test_tracing_keeps_lengths_open():
    nn.select_backend_torch()
    in_dim, out_dim, batch_dim = nn.Dim(3, name="in"), nn.Dim(4, name="out"), nn.Dim(2, name="batch")
    lstm = LSTM(in_dim, out_dim)
    for param in lstm.parameters():
        param.raw_tensor.requires_grad_(False)

    def compute(values, sizes):
        time_dim = nn.Dim(nn.Tensor("sizes", [batch_dim], dtype="int32", raw_tensor=sizes), name="time")
        source = nn.Tensor("source", [batch_dim, time_dim, in_dim], dtype="float32", raw_tensor=values)
        out, _ = lstm(source, state=lstm.default_initial_state(batch_dims=[batch_dim]), spatial_dim=time_dim)
        return out.copy_masked(0.0).copy_transpose([batch_dim, time_dim, out_dim]).raw_tensor

    traced = torch.jit.trace(compute, (torch.randn(2, 5, 3), torch.tensor([5, 3], dtype=torch.int32)))
    args = torch.randn(2, 9, 3), torch.tensor([4, 9], dtype=torch.int32)
    torch.testing.assert_close(traced(*args), compute(*args))


@pytest.mark.parametrize("lengths", [[4, 4], [4, 2], [3], 3], ids=str)
@pytest.mark.parametrize("axis", [0, 1])
def test_reverse_sequence(lengths, axis):
    """as RETURNN's, also where there is no padding"""
    nn.select_backend_torch()
    batch_dim = nn.Dim(2 if isinstance(lengths, int) else len(lengths), name="batch")
    sizes = lengths if isinstance(lengths, int) else nn.convert_to_tensor(np.array(lengths, "int32"), dims=[batch_dim])
    dims = [batch_dim, time_dim := nn.Dim(sizes, name="time")][:: 1 if axis else -1]
    source = nn.random_uniform(dims, minval=0, maxval=100, dtype="int32")
    expected, found = nn.reverse_sequence(source, axis=time_dim), reverse_sequence(source, axis=time_dim)
    assert found.dims == source.dims and found.sparse_dim is None
    np.testing.assert_array_equal(*(x.copy_masked(0).copy_transpose(dims).raw_tensor for x in (found, expected)))
