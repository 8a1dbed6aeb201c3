"""The LSTM encoder: PyTorch's with its weights, pooling and lengths, what each argument does. (The rest: test_zoo.)"""

from __future__ import annotations

from math import ceil

import numpy as np
import pytest
import torch

from returnn_common import nn
from returnn_common.models.encoder.lstm import make_lstm_encoder
from returnn_common.training.import_torch import import_torch_lstm
from tests.engines import Input, run_on

FEATURES = 5
TINY = {"num_layers": 2, "out_dim": 6, "time_pooling": (), "dropout": 0.0}


def _features(lengths: list[int], fill: float = 0.0) -> np.ndarray:
    x = np.full((len(lengths), max(lengths), FEATURES), fill, "float32")
    for i, n in enumerate(lengths):
        x[i, :n] = np.random.default_rng(n).normal(size=(n, FEATURES))
    return x


def _run(x: np.ndarray, lengths: list[int], *, params=None, train: bool = False, **options):
    """:return: out, and the output of each layer as layer_0, ..."""

    def func(model, x, time):
        layers = {}
        out, out_time = model(x, in_spatial_dim=time, collected_outputs=layers)
        outputs = {"out": (out, [nn.batch_dim, out_time, model.out_dim])}
        for name, layer in layers.items():
            outputs[f"layer_{name}"] = (layer, [nn.batch_dim, nn.get_spatial_dim(layer), model.out_dim])
        return outputs

    return run_on(
        "torch",
        func,
        {"x": Input(x, "batch time feat")},
        {"time": lengths, "feat": FEATURES},
        make_model=lambda feat: make_lstm_encoder(feat, **{**TINY, **options}),
        params=params,
        train=train,
    )


@pytest.mark.parametrize("num_layers", [1, 3])
def test_equals_pytorchs(num_layers: int):
    lengths = [9, 4, 1]
    torch.manual_seed(1)
    lstm = torch.nn.LSTM(FEATURES, 3, num_layers=num_layers, bidirectional=True, batch_first=True)
    x = _features(lengths, fill=1e3)
    result = _run(x, lengths, params=import_torch_lstm(lstm.state_dict()), num_layers=num_layers)
    packed = torch.nn.utils.rnn.pack_padded_sequence(torch.tensor(x), torch.tensor(lengths), batch_first=True)
    expected, _ = torch.nn.utils.rnn.pad_packed_sequence(lstm(packed)[0], batch_first=True)
    np.testing.assert_allclose(result["out"], expected.detach().numpy(), atol=1e-6)
    np.testing.assert_array_equal(result["out"], result[f"layer_{num_layers - 1}"])


@pytest.mark.parametrize("size", [2, 3, 7])
def test_pooling_takes_the_maximum(size: int):
    lengths = [11, 6, 2, 1]
    x = _features(lengths, fill=1e3)
    # Strongly negative outputs: what is added at the end must never be the largest.
    params = _run(x, lengths, num_layers=1).params
    params = {name: p - 4.0 if name.endswith("bias") else p for name, p in params.items()}
    plain = _run(x, lengths, params=params, num_layers=1)["out"]
    pooled = _run(x, lengths, params=params, num_layers=1, time_pooling=(size,))
    assert list(pooled.outputs["out"].lengths[1]) == [ceil(n / size) for n in lengths]
    for i, n in enumerate(lengths):
        for j in range(ceil(n / size)):
            expected = plain[i, j * size : min((j + 1) * size, n)].max(axis=0)
            np.testing.assert_array_equal(pooled["out"][i, j], expected)


@pytest.mark.parametrize("pooling", [(2,), (3, 2), (2, 2, 2), (1, 4)])
def test_lengths(pooling: tuple[int, ...]):
    """each row's length depends on the row alone, and no frame is lost (FAULTS: lengths after subsampling)"""
    lengths = list(range(1, 51))
    result = _run(_features(lengths), lengths, num_layers=3, time_pooling=pooling)
    expected = lengths
    for i, size in enumerate([*pooling, 1, 1][:3]):
        expected = [ceil(n / size) for n in expected]
        assert list(result.outputs[f"layer_{i}"].lengths[1]) == expected
    factor = int(np.prod(pooling))
    assert expected == [ceil(n / factor) for n in lengths]
    assert make_lstm_encoder(8, **{**TINY, "num_layers": 3, "time_pooling": pooling}).downsample_factor == factor


def test_backward_sees_what_follows():
    """features of the forward LSTM first; neither sees the padding"""
    lengths = [8, 5]
    x = _features(lengths)
    changed = x.copy()
    changed[:, 3] += 1.0
    before, after = (_run(a, lengths, num_layers=1)["out"] for a in (x, changed))
    differs = np.abs(before - after).max(axis=0) > 1e-7  # time, features
    assert not differs[:3, :3].any() and differs[3:, :3].all()
    assert differs[:4, 3:].all() and not differs[4:, 3:].any()


def test_dropout_acts_in_training_only_and_not_on_the_input():
    lengths = [12]
    x = _features(lengths)
    plain = _run(x, lengths)["out"]
    np.testing.assert_array_equal(_run(x, lengths, dropout=0.5)["out"], plain)
    np.testing.assert_array_equal(_run(x, lengths, train=True)["out"], plain)
    trained = _run(x, lengths, train=True, dropout=0.5)
    assert np.abs(trained["out"] - plain).max() > 1e-3
    np.testing.assert_array_equal(trained["layer_0"], _run(x, lengths)["layer_0"])


def test_defaults_are_the_papers():
    nn.select_backend_torch()
    with nn.set_default_device_ctx("meta"):
        encoder = make_lstm_encoder(40)
    assert encoder.in_dim.dimension == 40 and encoder.out_dim.dimension == 2048
    assert encoder.downsample_factor == 8 and encoder.time_pooling == (2, 2, 2, 1, 1, 1)
    assert [layer.forward_lstm.out_dim.dimension for layer in encoder.layers] == [1024] * 6
    assert [layer.in_dim.dimension for layer in encoder.layers] == [40] + [2048] * 5
    assert encoder.dropout == 0.3


def test_dims_are_taken():
    nn.select_backend_torch()
    in_dim, out_dim = nn.FeatureDim("in", 4), nn.FeatureDim("mine", 8)
    encoder = make_lstm_encoder(in_dim, **{**TINY, "out_dim": out_dim})
    assert encoder.in_dim is in_dim and encoder.out_dim is out_dim


@pytest.mark.parametrize(
    "options, message",
    [
        ({"num_layers": 0}, "LSTM encoder: expected num_layers >= 1, got 0"),
        ({"out_dim": 5}, "LSTM encoder: expected an even out_dim, got 5"),
        ({"time_pooling": (2, 2, 2)}, r"expected at most 2 pool sizes, each at least 1, got \(2, 2, 2\)"),
        ({"time_pooling": (0,)}, r"expected at most 2 pool sizes, each at least 1, got \(0,\)"),
        ({"dropout": 1.0}, "LSTM encoder: expected 0 <= dropout < 1, got 1.0"),
    ],
)
def test_bad_arguments(options: dict, message: str):
    with pytest.raises(ValueError, match=message):
        make_lstm_encoder(8, **{**TINY, **options})


@pytest.mark.parametrize("size, spatial, missing", [(7, "time", "features"), (FEATURES, "other", "other")])
def test_other_dims_are_refused(size: int, spatial: str, missing: str):
    def func(model, x, time, other):
        out, _ = model(x, in_spatial_dim={"time": time, "other": other}[spatial])
        return {"out": out}

    with pytest.raises(ValueError, match=f"BidirectionalLSTM: expected a source with the dim .*{missing}.*, got"):
        run_on(
            "torch",
            func,
            {"x": Input(_features([2]), "batch time feat")},
            {"time": [2], "other": [2], "feat": FEATURES},
            make_model=lambda feat: make_lstm_encoder(feat if size == FEATURES else size, **TINY),
        )
