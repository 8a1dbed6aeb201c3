"""Weights into models, on every engine, and into checkpoints; what doesn't fit is named."""

from __future__ import annotations

import numpy as np
import pytest

from returnn_common import nn
from returnn_common.models.decoder.transformer import make_transformer_decoder
from returnn_common.training.checkpoints import read_checkpoint
from returnn_common.training.convert import BACKENDS, read_parameters
from returnn_common.training.import_weights import (
    load_parameters,
    part_of,
    save_parameters,
    set_layer_norm_epsilon,
)
from tests.engines import ENGINES, Input, run_on

X = np.random.default_rng(0).normal(size=(2, 4)).astype("float32")


def _values(model: nn.Module) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    return {
        name: rng.normal(size=[d.dimension for d in p.dims]).astype("float32") for name, p in model.named_parameters()
    }


def _linear() -> nn.Linear:
    nn.select_backend_torch()
    return nn.Linear(nn.FeatureDim("in", 4), nn.FeatureDim("out", 3))


@pytest.mark.parametrize("engine", ENGINES)
def test_load_parameters_on_each_engine(engine: str):
    mean, variance = np.array([1.0, 2.0, 3.0, 4.0]), np.array([4.0, 1.0, 2.0, 0.5])

    def make(features):
        model = nn.BatchNorm(features)
        # The harness of the tests sets trained parameters itself, but leaves these two as they are.
        load_parameters(model, {"running_mean": mean, "running_variance": variance}, keep=["gamma", "bet*"])
        return model

    def func(model, x, features):
        return {"out": (model(x), [nn.batch_dim, features])}

    result = run_on(engine, func, {"x": Input(X, "batch features")}, {"features": 4}, make_model=make)
    np.testing.assert_array_equal(result.params["running_mean"], mean)
    expected = (X - mean) / np.sqrt(variance + 1e-3) * result.params["gamma"] + result.params["beta"]
    np.testing.assert_allclose(result["out"], expected, rtol=1e-5)


def test_load_parameters_of_a_part():
    nn.select_backend_torch()
    dim = nn.FeatureDim("features", 4)
    model = nn.Sequential([nn.Linear(dim, dim), nn.LayerNorm(dim)])
    before = model[1].scale.raw_tensor.detach().clone()
    values = {"weight": np.eye(4), "bias": np.arange(4)}  # other types are converted
    load_parameters(model[0], values)
    np.testing.assert_array_equal(model[0].weight.raw_tensor.detach(), np.eye(4))
    np.testing.assert_array_equal(model[0].bias.raw_tensor.detach(), np.arange(4))
    np.testing.assert_array_equal(model[1].scale.raw_tensor.detach(), before)
    assert model[0].weight.raw_tensor.requires_grad


def test_load_parameters_names_what_differs():
    model = _linear()
    before = model.weight.raw_tensor.detach().clone()
    values = _values(model)
    for change, message in [
        ({"scale": np.ones(3)}, "parameters differ: scale only in the weights$"),
        ({"weight": None}, "parameters differ: weight only in the model$"),
        ({"bias": np.ones(4)}, r"parameters differ: bias is \[4\] in the weights, \[3\] in the model$"),
    ]:
        params = {name: value for name, value in {**values, **change}.items() if value is not None}
        with pytest.raises(ValueError, match=f"^load_parameters: {message}"):
            load_parameters(model, params)
        np.testing.assert_array_equal(model.weight.raw_tensor.detach(), before)
    with pytest.raises(ValueError, match=r"no parameter of the model is left for keep \['bias', 'x\*'\]"):
        load_parameters(model, values, keep=["x*", "bias"])


def test_part_of():
    assert part_of({"a.b.c": 1, "a.d": 2, "ab": 3}, "a.") == {"b.c": 1, "d": 2}
    with pytest.raises(ValueError, match=r"part_of: no name begins with 'c\.', there are \['a\.d', 'ab'\]"):
        part_of({"ab": 3, "a.d": 2}, "c.")


@pytest.mark.parametrize("backend", BACKENDS)
def test_save_parameters(tmp_path, backend: str):
    model = _linear()
    values = _values(model)
    path = save_parameters(values, tmp_path / "imported.pt", backend=backend, model=model)
    assert path == str(tmp_path / "imported")
    found = read_parameters(path)
    assert (found.backend, found.epoch or 0, found.step) == (backend, 0, 0)
    assert found.dtypes == {"weight": "float32", "bias": "float32"}
    for name, value in values.items():
        np.testing.assert_array_equal(found.values[name], value)


def test_saved_parameters_load_into_the_model_of_the_engine(tmp_path):
    """also the embedding, which PyTorch wants under both of its names"""
    nn.select_backend_torch()
    model = make_transformer_decoder(6, 5, num_layers=1, model_dim=8, num_heads=2)
    values = _values(model)
    path = save_parameters(values, tmp_path / "imported", model=model)
    from returnn.torch.frontend.bridge import rf_module_to_pt_module

    module = rf_module_to_pt_module(model)
    content = read_checkpoint(path)
    module.load_state_dict({name: module.state_dict()[name].new_tensor(x) for name, x in content.floats.items()})
    assert content.extra == {"epoch": 0, "step": 0}
    for name, param in model.named_parameters():
        np.testing.assert_array_equal(param.raw_tensor.detach(), values[name])


def test_save_parameters_refuses(tmp_path):
    model = _linear()
    values = _values(model)
    with pytest.raises(ValueError, match="backend must be one of torch, .*, got 'theano'"):
        save_parameters(values, tmp_path / "imported", backend="theano")
    del values["bias"]
    with pytest.raises(ValueError, match="^save_parameters: parameters differ: bias only in the model$"):
        save_parameters(values, tmp_path / "imported", model=model)
    assert not list(tmp_path.iterdir())


def test_set_layer_norm_epsilon():
    nn.select_backend_torch()
    dim = nn.FeatureDim("features", 4)
    model = nn.Sequential([nn.Linear(dim, dim), nn.LayerNorm(dim), nn.Sequential([nn.LayerNorm(dim)])])
    set_layer_norm_epsilon(model, 1e-5)
    assert model[1].eps == model[2][0].eps == 1e-5
    with pytest.raises(ValueError, match="expected epsilon > 0, got 0"):
        set_layer_norm_epsilon(model, 0)
    with pytest.raises(ValueError, match="there is no layer norm in"):
        set_layer_norm_epsilon(model[0], 1e-5)
