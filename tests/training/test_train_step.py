"""The train step: what it marks, against computation by hand; accumulated gradients."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from returnn.config import Config, global_config_ctx
from returnn.frontend import run_ctx
from returnn.tensor import Dim, Tensor, TensorDict

from returnn_common import nn
from returnn_common.training import train_step
from tests.engines import forget_globals

torch = pytest.importorskip("torch")

LENGTHS, NUM_LABELS = [5, 3, 4, 2], [3, 1, 2, 2]


@pytest.fixture(autouse=True)
def _torch_backend():
    nn.select_backend_torch()
    yield
    run_ctx.reset_run_ctx()


class Model(nn.Module):
    """weight * sum of the frames for each row"""

    def __init__(self, **loss_options):
        super().__init__()
        self.weight = nn.Parameter([], dtype="float32")
        self.weight.raw_tensor.data[...] = 2.0
        self.loss_options = loss_options
        self.called = {}

    def losses(self, source, *, in_spatial_dim, targets=None, targets_spatial_dim=None):
        self.called = {"source": source, "targets": targets, "dims": (in_spatial_dim, targets_spatial_dim)}
        value = self.weight * nn.reduce_sum(source, axis=in_spatial_dim)
        num_labels = (targets_spatial_dim or in_spatial_dim).get_size_tensor()
        return {
            "main": nn.Loss(value, inv_norm_factor=num_labels, **self.loss_options),
            "side": nn.Loss(value * value, scale=0.25),
            "count": nn.Loss(value * 100.0, as_error=True),
        }


def _batch(rows: list[int], **names: str) -> TensorDict:
    """of those rows of the data"""
    batch = Dim(len(rows), name="batch")
    lengths, num_labels = [LENGTHS[i] for i in rows], [NUM_LABELS[i] for i in rows]
    time = nn.SpatialDim("time", Tensor("time", dims=[batch], dtype="int32", raw_tensor=torch.tensor(lengths).int()))
    labels = nn.SpatialDim("l", Tensor("l", dims=[batch], dtype="int32", raw_tensor=torch.tensor(num_labels).int()))
    values = np.full((len(rows), max(lengths)), 1e3, "float32")  # padding, which doesn't count
    for row, i in zip(values, rows, strict=True):
        row[: LENGTHS[i]] = np.random.default_rng(i).normal(size=LENGTHS[i])
    targets = torch.zeros(len(rows), max(num_labels), dtype=torch.int32)
    data = TensorDict()
    for name, dims, raw in [("data", [batch, time], torch.tensor(values)), ("classes", [batch, labels], targets)]:
        data.data[names.get(name, name)] = Tensor(name, dims=dims, dtype=str(raw.dtype)[6:], raw_tensor=raw)
    return data


def _sums(rows: list[int]) -> np.ndarray:
    return np.array([np.random.default_rng(i).normal(size=LENGTHS[i]).astype("float32").sum() for i in rows])


def _run(model, data: TensorDict, **config):
    """:return: RETURNN's run context after the step"""
    nn.init_train_step_run_ctx(train_flag=True, step=0)
    with global_config_ctx(Config(config)):
        train_step(model=model, extern_data=data, epoch=1, an_argument_of_later_versions=None)
    return nn.get_run_ctx()


def test_losses_are_marked():
    model = Model(scale=3.0)
    data = _batch([0, 1, 2, 3])
    ctx = _run(model, data)
    sums, weight = _sums([0, 1, 2, 3]), 2.0
    main, side, count = (ctx.losses[name] for name in ("main", "side", "count"))
    assert list(ctx.losses) == ["main", "side", "count"]
    assert (main.scale, side.scale, count.scale) == (3.0, 0.25, 1.0)
    assert (main.as_error, side.as_error, count.as_error) == (False, False, True)
    # reported: without scale, as sum and norm factor
    reported = {
        k: (loss.get_summed_loss().raw_tensor.item(), loss.get_inv_norm_factor()) for k, loss in ctx.losses.items()
    }
    assert reported["main"][0] == pytest.approx(weight * sums.sum(), rel=1e-5)
    assert reported["main"][1].raw_tensor.item() == sum(NUM_LABELS)
    assert reported["side"][0] == pytest.approx((weight * sums**2 * weight).sum(), rel=1e-5)
    assert int(reported["side"][1]) == int(reported["count"][1]) == 4
    # for the optimizer
    total = ctx.total_loss().raw_tensor
    expected = 3.0 * weight * sums.sum() / sum(NUM_LABELS) + 0.25 * (weight * sums) ** 2 @ np.ones(4) / 4
    assert total.item() == pytest.approx(expected, rel=1e-5)
    total.backward()
    gradient = 3.0 * sums.sum() / sum(NUM_LABELS) + 0.25 * 2 * weight * (sums**2).mean()
    assert model.weight.raw_tensor.grad.item() == pytest.approx(gradient, rel=1e-5)
    # what the model gets
    assert model.called["source"] is data["data"] and model.called["targets"] is data["classes"]
    assert model.called["dims"] == (data["data"].dims[1], data["classes"].dims[1])


def test_names_of_the_entries():
    data = _batch([0, 1], data="audio", classes="text")
    model = Model()
    _run(model, data, default_input="audio", target="text")
    assert model.called["source"] is data["audio"] and model.called["targets"] is data["text"]


def test_no_targets():
    """a language model, whose data is all there is"""
    data = _batch([0, 1])
    del data.data["classes"]
    model = Model()
    ctx = _run(model, data, target=None)
    assert model.called["source"] is data["data"] and model.called["targets"] is None
    assert model.called["dims"] == (data["data"].dims[1], None)
    assert ctx.losses["main"].get_inv_norm_factor().raw_tensor.item() == LENGTHS[0] + LENGTHS[1]
    with pytest.raises(ValueError, match="train_step: target is 'classes', but extern_data has only .'data'.$"):
        _run(model, data)


@pytest.mark.parametrize(
    "config, message",
    [
        (
            {"default_input": "audio"},
            r"train_step: default_input is 'audio', but extern_data has only \['classes', 'data'",
        ),
        ({"target": "text"}, r"train_step: target is 'text', but extern_data has only \['classes', 'data'"),
    ],
)
def test_missing_entry(config: dict, message: str):
    with pytest.raises(ValueError, match=message):
        _run(Model(), _batch([0, 1]), **config)


def test_entry_without_lengths():
    data = _batch([0, 1])
    data.data["data"] = Tensor("data", dims=data["data"].dims[:1], dtype="float32", raw_tensor=torch.zeros(2))
    with pytest.raises(ValueError, match="get_spatial_dim: expected one dim with lengths, got 0 in Tensor{'data'"):
        _run(Model(), data)


def _gradient(model, batches: list[TensorDict]) -> float:
    """summed over the batches"""
    model.weight.raw_tensor.grad = None
    for data in batches:
        _run(model, data).total_loss().raw_tensor.backward()
    return model.weight.raw_tensor.grad.item()


def _trained_weight(**options) -> float:
    """after an epoch of RETURNN's PyTorch engine, with plain gradient descent; it begins at 2"""
    from returnn.datasets import init_dataset
    from returnn.torch.engine import Engine

    forget_globals()
    rows = [np.random.default_rng(i).normal(size=n).astype("float32") for i, n in enumerate(LENGTHS)]
    targets = [np.zeros(n, "int32") for n in NUM_LABELS]
    model = Model()
    dataset = {
        "class": "StaticDataset",
        "data": [{"data": x, "classes": y} for x, y in zip(rows, targets, strict=True)],
        "output_dim": {"data": (1, 1), "classes": (1, 1)},
    }
    values = {
        "backend": "torch",
        "device": "cpu",
        "task": "train",
        "behavior_version": 29,
        "extern_data": {"data": {"shape": (None,), "dtype": "float32"}, "classes": {"shape": (None,), "sparse_dim": 1}},
        "get_model": lambda **_: model,
        "train_step": train_step,
        "batch_size": 100,
        "num_epochs": 1,
        "optimizer": {"class": "sgd"},
        "learning_rate": 0.01,
        "model": None,
        "torch_dataloader_opts": {"num_workers": 0},
        **options,
    }
    config = Config(values)
    with global_config_ctx(config):
        engine = Engine(config)
        engine.init_train_from_config(train_data=init_dataset(dataset))
        engine.train()
    return model.weight.raw_tensor.item()


def test_accumulated_gradients():
    """two batches of 2 with equal numbers of labels train like one batch of 4, though RETURNN only adds gradients up"""
    assert NUM_LABELS[0] + NUM_LABELS[1] == NUM_LABELS[2] + NUM_LABELS[3]
    model = Model()
    whole = _gradient(model, [_batch([0, 1, 2, 3])])
    assert whole != 0.0
    assert _gradient(model, [_batch([0, 1]), _batch([2, 3])]) == pytest.approx(2 * whole, rel=1e-5)
    assert _trained_weight() == pytest.approx(2.0 - 0.01 * whole, rel=1e-5)
    accumulated = _trained_weight(max_seqs=2, accum_grad_multiple_step=2)
    assert accumulated == pytest.approx(2.0 - 0.01 * whole, rel=1e-5)


def test_number_of_labels_makes_no_difference_to_the_scale():
    """the same rows twice: the same gradient"""
    model = Model()
    assert _gradient(model, [_batch([0, 1, 0, 1])]) == pytest.approx(_gradient(model, [_batch([0, 1])]), rel=1e-5)


def test_model_is_anything_with_losses():
    value = Tensor("loss", dims=[], dtype="float32", raw_tensor=torch.tensor(1.5))
    model = SimpleNamespace(losses=lambda *args, **kwargs: {"x": nn.Loss(value)})
    assert _run(model, _batch([0])).total_loss().raw_tensor.item() == 1.5
