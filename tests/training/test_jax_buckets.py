"""The shapes for JAX: every batch fits into one, and the padding changes nothing."""

from __future__ import annotations

import numpy as np
import pytest

from returnn_common import nn
from returnn_common.models.ctc import CtcModel
from returnn_common.models.encoder.conformer import make_conformer_encoder
from returnn_common.models.features import LogMel
from returnn_common.training.jax_buckets import jax_buckets

SIZES = {"batch_size": 10_000, "max_seqs": 20, "max_length": 6_000, "max_labels": 9}


def _fits(bucket: dict[str, int], num_seqs: int, longest: int) -> bool:
    return num_seqs <= bucket["batch_dim"] and longest <= bucket["data"]


@pytest.mark.parametrize("num_buckets", [1, 2, 5])
def test_every_batch_fits(num_buckets: int):
    """and into the first whose length holds it, with a bounded amount of padding"""
    buckets = jax_buckets(**SIZES, num_buckets=num_buckets)["jax_jit"]["buckets"]
    assert len(buckets) == num_buckets and buckets[-1]["data"] == 6_000
    factor = (6_000 / 500) ** (1 / num_buckets)
    for longest in range(1, 6_001):
        num_seqs = min(20, 10_000 // longest)  # the most that a batch can have
        bucket = next(bucket for bucket in buckets if longest <= bucket["data"])
        assert _fits(bucket, num_seqs, longest)
        assert bucket["batch_dim"] * bucket["data"] <= 1.001 * factor * 10_000 + bucket["batch_dim"]
        assert bucket["classes"] == 9


def test_sequences_longer_than_a_batch_are_alone():
    buckets = jax_buckets(**{**SIZES, "max_length": 30_000}, num_buckets=4)["jax_jit"]["buckets"]
    for longest in range(500, 30_001, 100):
        bucket = next(bucket for bucket in buckets if longest <= bucket["data"])
        assert _fits(bucket, max(1, 10_000 // longest), longest)
    assert buckets[-1] == {"batch_dim": 1, "data": 30_000, "classes": 9}


@pytest.mark.parametrize("max_length", [300, 500])
def test_one_bucket_is_enough_for_short_sequences(max_length: int):
    buckets = jax_buckets(**{**SIZES, "max_length": max_length}, num_buckets=3)["jax_jit"]["buckets"]
    assert buckets == [{"batch_dim": 20, "data": max_length, "classes": 9}]


def test_keys():
    (bucket,) = jax_buckets(**SIZES, num_buckets=1, data_key="audio", labels_key="text")["jax_jit"]["buckets"]
    assert bucket == {"batch_dim": 20, "audio": 6_000, "text": 9}


def test_without_labels():
    (bucket,) = jax_buckets(**{**SIZES, "max_labels": None}, num_buckets=1)["jax_jit"]["buckets"]
    assert bucket == {"batch_dim": 20, "data": 6_000}


@pytest.mark.parametrize(
    "options, message",
    [
        ({"batch_size": 0}, "expected batch_size >= 1, got 0"),
        ({"num_buckets": 0}, "expected num_buckets >= 1, got 0"),
        ({"max_seqs": -1}, "expected max_seqs >= 1, got -1"),
    ],
)
def test_bad_sizes(options: dict[str, int], message: str):
    with pytest.raises(ValueError, match=message):
        jax_buckets(**{**SIZES, **options})


def _losses_and_gradients(bucket: dict[str, int] | None) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    """of one training step, as RETURNN's engine does it, compiled"""
    import jax
    from returnn.config import Config, global_config_ctx
    from returnn.jax.data import fill_extern_data, pad_raws_to_bucket
    from returnn.tensor import Dim, TensorDict, batch_dim

    nn.select_backend("jax")
    nn.set_random_seed(1)
    labels = nn.FeatureDim("labels", 4)
    time, labels_time = Dim(None, name="time"), Dim(None, name="labels-time")
    extern_data = TensorDict()
    extern_data.update(
        {
            "data": {"dims": [batch_dim, time], "dtype": "float32"},
            "classes": {"dims": [batch_dim, labels_time], "dtype": "int32", "sparse_dim": labels},
        },
        auto_convert=True,
    )
    features = LogMel(8, prior_frames=10)
    encoder = make_conformer_encoder(
        features.out_dim, num_layers=1, out_dim=8, num_heads=2, conv_kernel_size=3, conv_norm="batch", dropout=0.0
    )
    model = CtcModel(features=features, encoder=encoder, vocab_dim=labels)
    params = dict(model.named_parameters())
    rng = np.random.default_rng(3)
    raws = {
        "data": rng.normal(size=(2, 4000)).astype("float32"),
        "data_seq_lens": np.array([4000, 2500], "int32"),
        "classes": np.array([[1, 2], [3, 0]], "int32"),
        "classes_seq_lens": np.array([2, 1], "int32"),
        "batch_dim": np.array(2, "int32"),
    }
    raws = {name: jax.numpy.asarray(value) for name, value in raws.items()}
    if bucket:
        raws = pad_raws_to_bucket(raws, extern_data=extern_data, bucket=bucket)

    def step(values, raws):
        for name, value in values.items():
            params[name].raw_tensor = value
        data = fill_extern_data(extern_data, raws)
        nn.init_train_step_run_ctx(train_flag=True, step=0)
        with nn.set_static_traceable_ctx(True), global_config_ctx(Config({})):
            from returnn_common.training import train_step

            train_step(model=model, extern_data=data)
            context = nn.get_run_ctx()
            losses = {name: loss.get_mean_loss().raw_tensor for name, loss in context.losses.items()}
            statistics = {name: params[name].raw_tensor for name in params if "running" in name}
            return context.total_loss().raw_tensor, {**losses, **statistics}

    values = {name: param.raw_tensor for name, param in params.items()}
    try:
        (_, losses), grads = jax.jit(jax.value_and_grad(step, has_aux=True))(values, raws)
    finally:
        nn.init_forward_step_run_ctx()
        for name, value in values.items():
            params[name].raw_tensor = value
    return {name: np.asarray(x) for name, x in losses.items()}, {name: np.asarray(g) for name, g in grads.items()}


def test_padding_by_a_bucket_changes_nothing():
    """frames, labels and whole sequences are added: same losses, gradients and statistics of batch norm"""
    pytest.importorskip("jax")
    losses, grads = _losses_and_gradients(None)
    padded_losses, padded_grads = _losses_and_gradients({"batch_dim": 4, "data": 7000, "classes": 5})
    assert {"ctc", "impossible"} < set(losses) and losses["ctc"] > 0.1
    for name, value in losses.items():
        np.testing.assert_allclose(padded_losses[name], value, rtol=1e-4, atol=1e-6, err_msg=name)
    assert any(np.abs(grad).max() > 1e-3 for grad in grads.values())
    for name, grad in grads.items():
        np.testing.assert_allclose(padded_grads[name], grad, rtol=1e-3, atol=1e-4, err_msg=name)
