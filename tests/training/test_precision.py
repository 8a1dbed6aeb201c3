"""Mixed precision: what it sets, and a small training in bfloat16."""

from __future__ import annotations

import numpy as np
import pytest
from returnn.config import Config, global_config_ctx
from returnn.frontend import run_ctx
from returnn.tensor import Dim, batch_dim

from returnn_common import nn
from returnn_common.models.ctc import make_ctc_model
from returnn_common.models.encoder.transformer import make_transformer_encoder
from returnn_common.training import train_step
from returnn_common.training.precision import mixed_precision
from tests.engines import forget_globals

NUM_EPOCHS = 6


def test_options():
    assert mixed_precision("bfloat16", backend="torch") == {"torch_amp": {"dtype": "bfloat16", "grad_scaler": None}}
    assert mixed_precision("bfloat16", backend="tensorflow") == {"tf_amp": "bfloat16"}
    assert mixed_precision("bfloat16", backend="jax") == {"jax_amp": "bfloat16"}
    for backend in ("torch", "tensorflow", "tensorflow-net-dict", "jax"):
        assert mixed_precision("float32", backend=backend) == {}


def test_what_it_refuses():
    with pytest.raises(ValueError, match="mixed_precision: expected one of float32, bfloat16, got 'float16'"):
        mixed_precision("float16", backend="torch")
    message = "mixed_precision: expected a backend of torch, tensorflow, jax, got 'tensorflow-net-dict'"
    with pytest.raises(ValueError, match=message):
        mixed_precision("bfloat16", backend="tensorflow-net-dict")


def _data() -> list[dict[str, np.ndarray]]:
    """The label is the loudest of the features."""
    rng = np.random.default_rng(1)
    data = []
    for i in range(16):
        labels = rng.integers(0, 3, 1 + i % 2).astype("int32")
        frames = 3.0 * np.eye(4, dtype="float32")[np.repeat(labels, 3)]
        data.append({"data": frames + 0.1 * rng.normal(size=frames.shape).astype("float32"), "classes": labels})
    return data


def _train(precision: str, monkeypatch) -> tuple[list[float], dict[str, np.ndarray], set[str], set[str]]:
    """:return: loss of each epoch, parameters, types of the matrix products' results, types of what CTC normalises"""
    torch = pytest.importorskip("torch")
    from returnn.datasets import init_dataset
    from returnn.torch.engine import Engine

    forget_globals()
    products, normalised = set(), set()
    log_softmax = torch.nn.functional.log_softmax

    def _log_softmax(x, **kwargs):
        normalised.add(str(x.dtype))
        return log_softmax(x, **kwargs)

    def _train_step(**kwargs):
        products.add(str((torch.ones(2, 2) @ torch.ones(2, 2)).dtype))
        train_step(**kwargs)

    monkeypatch.setattr(torch.nn.functional, "log_softmax", _log_softmax)
    nn.select_backend_torch()

    in_dim, vocab_dim = nn.FeatureDim("in", 4), nn.FeatureDim("labels", 3)

    def _get_model(**_kwargs):
        encoder = make_transformer_encoder(in_dim, num_layers=1, out_dim=16, num_heads=2, dropout=0.0, subsampling=1)
        return make_ctc_model(in_dim, vocab_dim, encoder=encoder, specaugment=None)

    dataset = {"class": "StaticDataset", "data": _data(), "output_dim": {"data": (4, 2), "classes": (3, 1)}}
    config = Config(
        {
            "backend": "torch",
            "device": "cpu",
            "task": "train",
            "behavior_version": 38,
            "extern_data": {
                "data": {"dims": [batch_dim, Dim(None, name="time"), in_dim], "dtype": "float32"},
                "classes": {
                    "dims": [batch_dim, Dim(None, name="labels-time")],
                    "sparse_dim": vocab_dim,
                    "dtype": "int32",
                },
            },
            "get_model": _get_model,
            "train_step": _train_step,
            "batch_size": 30,
            "num_epochs": NUM_EPOCHS,
            "optimizer": {"class": "adam"},
            "learning_rate": 0.01,
            "model": None,
            "torch_dataloader_opts": {"num_workers": 0},
            **mixed_precision(precision, backend="torch"),
        }
    )
    with global_config_ctx(config):
        engine = Engine(config)
        engine.init_train_from_config(train_data=init_dataset(dataset))
        engine.train()
        epochs = engine.learning_rate_control.epoch_data
        losses = [epochs[epoch].error["train_loss_ctc"] for epoch in range(1, NUM_EPOCHS + 1)]
    params = {name: param.detach().numpy() for name, param in engine._pt_model.named_parameters()}
    run_ctx.reset_run_ctx()
    return losses, params, products, normalised


def test_training_in_bfloat16(monkeypatch):
    """its matrix products are in bfloat16, its losses and parameters in float32, and it learns as in float32"""
    losses, params, products, normalised = _train("bfloat16", monkeypatch)
    assert products == {"torch.bfloat16"}
    assert normalised == {"torch.float32"}
    assert {str(value.dtype) for value in params.values()} == {"float32"}
    assert losses[-1] < 0.5 * losses[0]
    expected, others, products, _ = _train("float32", monkeypatch)
    assert products == {"torch.float32"}
    assert losses[-1] == pytest.approx(expected[-1], abs=0.3 * expected[0])
    assert any((value != others[name]).any() for name, value in params.items())
