"""
Weights of PyTorch's LSTM: names, and what is refused. (That outputs are equal: tests of the LSTM encoder and language
model.)
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from returnn_common import nn
from returnn_common.models.encoder.lstm import make_lstm_encoder
from returnn_common.models.lm.lstm import make_lstm_lm
from returnn_common.training.import_torch import import_torch_lstm


def _shapes(module: nn.Module, *, prefix: str) -> dict[str, tuple]:
    return {
        name: tuple(d.dimension for d in param.dims)
        for name, param in module.named_parameters()
        if name.startswith(prefix)
    }


def test_names_and_shapes_are_those_of_our_modules():
    nn.select_backend_torch()
    weights = import_torch_lstm(torch.nn.LSTM(5, 3, num_layers=2, bidirectional=True).state_dict())
    encoder = make_lstm_encoder(5, num_layers=2, out_dim=6, time_pooling=())
    assert {name: w.shape for name, w in weights.items()} == _shapes(encoder, prefix="")
    weights = import_torch_lstm(torch.nn.LSTM(5, 3, num_layers=2).state_dict())
    lm = make_lstm_lm(7, num_layers=2, embed_dim=5, model_dim=3)
    assert {name: w.shape for name, w in weights.items()} == _shapes(lm, prefix="layers.")


def test_prefix():
    weights = import_torch_lstm(torch.nn.LSTM(5, 3).state_dict(), prefix="encoder.layers.")
    assert sorted(weights) == [f"encoder.layers.0.{name}" for name in ("bias", "ff_weight", "rec_weight")]


def test_without_bias_it_is_zeros():
    weights = import_torch_lstm(torch.nn.LSTM(5, 3, bias=False).state_dict())
    np.testing.assert_array_equal(weights["layers.0.bias"], np.zeros(12))


def test_half_precision_and_arrays():
    state = torch.nn.LSTM(5, 3).state_dict()
    expected = import_torch_lstm(state)
    halves = import_torch_lstm({name: value.bfloat16() for name, value in state.items()})
    arrays = import_torch_lstm({name: value.numpy() for name, value in state.items()})
    for name, value in expected.items():
        assert halves[name].dtype == arrays[name].dtype == np.float32
        np.testing.assert_allclose(halves[name], value, atol=0.01)
        np.testing.assert_array_equal(arrays[name], value)


def test_unknown_names_are_refused():
    state = torch.nn.LSTM(5, 3).state_dict()
    with pytest.raises(ValueError, match=r"unknown names \['decoder.weight', 'weight_ih_l0_backward'\]$"):
        import_torch_lstm({**state, "weight_ih_l0_backward": torch.zeros(1), "decoder.weight": torch.zeros(1)})
    with pytest.raises(ValueError, match=r"unknown names \['weight_hr_l0'\] \(projections are not supported\)"):
        import_torch_lstm(torch.nn.LSTM(5, 3, proj_size=2).state_dict())


@pytest.mark.parametrize(
    "lacks, missing",
    [
        ("bias_hh_l1", r"\['bias_hh_l1', 'bias_hh_l1_reverse'\]"),
        ("weight_ih_l0_reverse", r"\['weight_ih_l0_reverse'\]"),
        (
            "_l1_reverse",
            r"\['bias_hh_l1_reverse', 'bias_ih_l1_reverse', 'weight_hh_l1_reverse', 'weight_ih_l1_reverse'\]",
        ),
        ("_l0", r"\['bias_hh_l0', 'bias_ih_l0', 'weight_hh_l0', 'weight_ih_l0', 'bias_hh_l0_reverse', .*\]"),
    ],
)
def test_missing_names_are_refused(lacks: str, missing: str):
    state = torch.nn.LSTM(5, 3, num_layers=2, bidirectional=True).state_dict()
    with pytest.raises(ValueError, match=f"import_torch_lstm: missing names {missing}"):
        import_torch_lstm({name: value for name, value in state.items() if lacks not in name})


def test_nothing_is_refused():
    with pytest.raises(ValueError, match=r"missing names \['weight_hh_l0', 'weight_ih_l0'\]"):
        import_torch_lstm({})
    reverse = {
        name: value for name, value in torch.nn.LSTM(5, 3, bidirectional=True).state_dict().items() if "reverse" in name
    }
    with pytest.raises(
        ValueError, match=r"missing names \['bias_hh_l0', 'bias_ih_l0', 'weight_hh_l0', 'weight_ih_l0'\]"
    ):
        import_torch_lstm(reverse)
