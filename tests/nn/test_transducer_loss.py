"""The loss of transducers and its gradient against all alignments, enumerated."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from returnn_common import nn
from returnn_common.nn import _label_scores
from tests.engines import Input, Result, run_on
from tests.nn import torchaudio_transducer
from tests.nn.transducer_reference import alignments, log_softmax, loss_and_gradient

TOPOLOGIES = ["rnnt", "monotonic", "ctc"]
FRAMES, LABELS, VOCAB = [4, 3, 1, 2, 1, 3], [3, 0, 2, 1, 1, 2], 4


def _batch(frames: list[int], labels: list[int], *, blank: int, vocab: int = VOCAB, dtype: str = "float32"):
    """:return: logits and targets, each sequence from its own random numbers; with equal labels beside each other"""
    logits = np.zeros((len(frames), max(frames), max(labels) + 1, vocab), dtype)
    targets = np.zeros((len(frames), max(labels)), "int32")
    others = [i for i in range(vocab) if i != blank]
    for b, (t, u) in enumerate(zip(frames, labels, strict=True)):
        rng = np.random.default_rng([t, u, vocab])
        logits[b, :t, : u + 1] = rng.normal(size=(t, u + 1, vocab)) * 2.0
        targets[b, :u] = rng.choice(others[:2], size=u)
    return logits, targets


def _run(
    logits: np.ndarray,
    targets: np.ndarray,
    frames: list[int],
    labels: list[int],
    *,
    engine: str = "torch",
    topologies: list[str] | None = None,
    logits_dtype: str | None = None,
    **options: Any,
) -> Result:
    """:return: by topology, and the gradient of the sum of all"""
    topologies = topologies or [options.pop("topology", "rnnt")]

    def func(x, y, time, labels, positions, vocab):
        x = nn.cast(x, logits_dtype) if logits_dtype else x
        shape = {"logits": x, "targets": y, "input_spatial_dim": time, "targets_spatial_dim": labels}
        losses = {name: nn.transducer_loss(**shape, topology=name, **options) for name in topologies}
        first, *others = losses.values()
        return {**losses, "sum": sum(others, first)}

    inputs = {"x": Input(logits, "batch time positions vocab"), "y": Input(targets, "batch labels", sparse="vocab")}
    dims = {"time": frames, "labels": labels, "positions": [u + 1 for u in labels], "vocab": logits.shape[-1]}
    return run_on(engine, func, inputs, dims, grad_of="sum")


def _expected(logits, targets, frames, labels, **options) -> tuple[np.ndarray, np.ndarray]:
    """:return: losses, 0 if impossible, and gradients"""
    losses, gradients = np.zeros(len(frames)), np.zeros(logits.shape)
    for b, (t, u) in enumerate(zip(frames, labels, strict=True)):
        loss, gradients[b, :t, : u + 1] = loss_and_gradient(logits[b, :t, : u + 1], targets[b, :u].tolist(), **options)
        losses[b] = loss if np.isfinite(loss) else 0.0
    return losses, gradients


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_all_sizes_against_enumeration(topology: str):
    frames, labels = (list(x) for x in zip(*itertools.product(range(5), range(4)), strict=True))
    logits, targets = _batch(frames, labels, blank=1)
    losses, gradients = _expected(logits, targets, frames, labels, blank=1, topology=topology)
    result = _run(logits, targets, frames, labels, blank_index=1, topology=topology)
    np.testing.assert_allclose(result["sum"], losses, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(result.grads["x"], gradients, atol=1e-5)


@pytest.mark.parametrize(
    "engine, topologies",
    [
        ("tensorflow", ["rnnt", "ctc"]),
        ("tensorflow-net-dict", ["rnnt", "ctc"]),
        ("jax", ["rnnt"]),
        pytest.param("tensorflow", ["monotonic"], marks=pytest.mark.slow("part of the topology ctc")),
        pytest.param("tensorflow-net-dict", ["monotonic"], marks=pytest.mark.slow("part of the topology ctc")),
        pytest.param("jax", ["monotonic", "ctc"], marks=pytest.mark.slow("JAX compiles each operation")),
    ],
)
def test_other_engines(engine: str, topologies: list[str]):
    logits, targets = _batch(FRAMES, LABELS, blank=0)
    logits[0, 3:, 3:] = np.where(np.arange(VOCAB) == 3, -np.inf, logits[0, 3:, 3:])  # no label, so probability 0
    expected = [_expected(logits, targets, FRAMES, LABELS, blank=0, topology=name) for name in topologies]
    logits, targets = _with_garbage(logits, targets, np.nan)
    result = _run(logits, targets, FRAMES, LABELS, engine=engine, topologies=topologies, blank_index=0)
    for name, (losses, _) in zip(topologies, expected, strict=True):
        np.testing.assert_allclose(result[name], losses, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(result.grads["x"], sum(gradients for _, gradients in expected), atol=1e-5)


def _with_garbage(logits: np.ndarray, targets: np.ndarray, garbage: float) -> tuple[np.ndarray, np.ndarray]:
    """:return: with that in the padding, labels that don't exist"""
    logits, targets = logits.copy(), targets.copy()
    for b, (t, u) in enumerate(zip(FRAMES, LABELS, strict=True)):
        logits[b, t:], logits[b, :, u + 1 :] = garbage, garbage
        targets[b, u:] = [-1, 99, VOCAB][b % 3]
    return logits, targets


@pytest.mark.parametrize("garbage", [1e3, np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_padding_does_not_matter(topology: str, garbage: float):
    logits, targets = _batch(FRAMES, LABELS, blank=2)
    clean = _run(logits, targets, FRAMES, LABELS, blank_index=2, topology=topology)
    padded = _run(*_with_garbage(logits, targets, garbage), FRAMES, LABELS, blank_index=2, topology=topology)
    np.testing.assert_array_equal(padded["sum"], clean["sum"])
    np.testing.assert_array_equal(padded.grads["x"], clean.grads["x"])


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_batch_equals_single(topology: str):
    logits, targets = _batch(FRAMES, LABELS, blank=3)
    batch = _run(logits, targets, FRAMES, LABELS, blank_index=3, topology=topology)
    for b, (t, u) in enumerate(zip(FRAMES, LABELS, strict=True)):
        single = _run(
            *(logits[b : b + 1, :t, : u + 1], targets[b : b + 1, :u], [t], [u]), blank_index=3, topology=topology
        )
        np.testing.assert_allclose(single["sum"], batch["sum"][b : b + 1], rtol=1e-6)
        np.testing.assert_allclose(single.grads["x"][0], batch.grads["x"][b, :t, : u + 1], atol=1e-6)


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_finite_differences(topology: str):
    t, u, delta = 3, 2, 1e-5
    logits, targets = _batch([t], [u], blank=0, dtype="float64")
    steps = np.eye(logits.size).reshape(logits.size, *logits.shape[1:]) * delta
    many = np.concatenate([logits, logits + steps, logits - steps])
    targets, n = targets.repeat(len(many), axis=0), len(many)
    result = _run(many, targets, [t] * n, [u] * n, blank_index=0, topology=topology)
    losses = result["sum"]
    assert losses.dtype == "float64"
    differences = (losses[1 : 1 + logits.size] - losses[1 + logits.size :]) / (2 * delta)
    np.testing.assert_allclose(result.grads["x"][0].ravel(), differences, atol=1e-8)


@pytest.mark.parametrize("blank", range(VOCAB))
@pytest.mark.parametrize("fast_emission", [0.0, 0.3])
def test_blank_anywhere_and_fast_emission(blank: int, fast_emission: float):
    logits, targets = _batch(FRAMES, LABELS, blank=blank)
    for name in TOPOLOGIES:
        expected = _expected(logits, targets, FRAMES, LABELS, blank=blank, topology=name, fast_emission=fast_emission)
        result = _run(logits, targets, FRAMES, LABELS, blank_index=blank, topology=name, fast_emission=fast_emission)
        np.testing.assert_allclose(result["sum"], expected[0], rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(result.grads["x"], expected[1], atol=1e-5)


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_fast_emission_by_finite_differences(topology: str):
    """
    The paper's gradient, (1 + lambda) of that with respect to each label's log probability (equations 9 to 14), is that
    of the loss and lambda times the negative log probabilities of the labels, weighted by the occupancies as they are.
    """
    t, u, delta, scale = 4, 2, 1e-5, 0.7
    logits, targets = _batch([t], [u], blank=0, dtype="float64")
    labels, options = targets[0].tolist(), {"blank": 0, "topology": topology}
    arcs = list(alignments(labels, num_frames=t, **options))

    def score(x: np.ndarray) -> np.ndarray:
        return np.array([sum(log_softmax(x)[arc] for arc in path) for path in arcs])

    weights = np.exp(score(logits[0]) - np.logaddexp.reduce(score(logits[0])))

    def surrogate(x: np.ndarray) -> float:
        log_probs = log_softmax(x)
        emitted = [sum(log_probs[arc] for arc in path if arc[2] != 0) for path in arcs]
        return -np.logaddexp.reduce(score(x)) - scale * float(weights @ emitted)

    expected = np.zeros(logits[0].shape)
    for i in np.ndindex(*expected.shape):
        step = np.zeros(expected.shape)
        step[i] = delta
        expected[i] = (surrogate(logits[0] + step) - surrogate(logits[0] - step)) / (2 * delta)
    result = _run(logits, targets, [t], [u], blank_index=0, topology=topology, fast_emission=scale)
    np.testing.assert_allclose(result.grads["x"][0], expected, atol=1e-7)
    assert result["sum"][0] == pytest.approx(-np.logaddexp.reduce(score(logits[0])), rel=1e-6)


def test_block_by_block(monkeypatch: pytest.MonkeyPatch):
    logits, targets = _batch(FRAMES, LABELS, blank=0)
    whole = _run(logits, targets, FRAMES, LABELS, blank_index=0)
    monkeypatch.setitem(_label_scores.BLOCK, "cpu", 5 * VOCAB)
    for x in (logits, _with_garbage(logits, targets, np.nan)[0]):
        blocks = _run(x, targets, FRAMES, LABELS, blank_index=0)
        np.testing.assert_allclose(blocks["sum"], whole["sum"], rtol=1e-6)
        np.testing.assert_allclose(blocks.grads["x"], whole.grads["x"], atol=1e-6)


def test_half_precision():
    logits, targets = _batch(FRAMES, LABELS, blank=0)
    logits = np.round(logits * 8) / 8  # exact in bfloat16
    expected = _run(logits, targets, FRAMES, LABELS, blank_index=0)
    result = _run(logits, targets, FRAMES, LABELS, blank_index=0, logits_dtype="bfloat16")
    assert result["sum"].dtype == "float32"
    np.testing.assert_allclose(result["sum"], expected["sum"], rtol=1e-6)
    np.testing.assert_allclose(result.grads["x"], expected.grads["x"], atol=1e-2)


def test_large_logits():
    logits, targets = _batch([4], [3], blank=0)
    losses, gradients = _expected(logits * 1e3, targets, [4], [3], blank=0)
    result = _run(logits * 1e3, targets, [4], [3], blank_index=0)
    np.testing.assert_allclose(result["sum"], losses, rtol=1e-5)
    np.testing.assert_allclose(result.grads["x"], gradients, atol=1e-3)


def test_impossible_label():
    """an infinitely unlikely label has no alignment; the others of the batch don't notice"""
    logits, targets = _batch(FRAMES, LABELS, blank=0)
    expected = _run(logits, targets, FRAMES, LABELS, blank_index=0)
    logits[0, :, :, targets[0, 1]] = -np.inf
    result = _run(logits, targets, FRAMES, LABELS, blank_index=0)
    assert result["sum"][0] == 0.0 and (result.grads["x"][0] == 0.0).all()
    np.testing.assert_array_equal(result["sum"][1:], expected["sum"][1:])
    np.testing.assert_array_equal(result.grads["x"][1:], expected.grads["x"][1:])


def test_not_a_number_is_seen():
    logits, targets = _batch(FRAMES, LABELS, blank=0)
    logits[1, 0, 0, 0] = np.nan
    losses = _run(logits, targets, FRAMES, LABELS, blank_index=0)["sum"]
    assert np.isnan(losses).tolist() == [b == 1 for b in range(len(FRAMES))]


def test_no_frames_or_labels_at_all():
    logits, targets = np.zeros((2, 0, 3, VOCAB), "float32"), np.ones((2, 2), "int32")
    assert _run(logits, targets, [0, 0], [2, 0], blank_index=0)["sum"].tolist() == [0.0, 0.0]
    logits, targets = np.zeros((2, 3, 1, VOCAB), "float32"), np.ones((2, 0), "int32")
    losses = _run(logits, targets, [3, 2], [0, 0], blank_index=0)["sum"]
    np.testing.assert_allclose(losses, np.log(VOCAB) * np.array([3, 2]), rtol=1e-6)


def test_losses_for_the_train_step():
    logits, targets = _batch(FRAMES, LABELS, blank=0)

    def func(x, y, time, labels, positions, vocab):
        goal = nn.TransducerTargets(
            targets=y, input_spatial_dim=time, targets_spatial_dim=labels, blank_index=0, topology="monotonic"
        )
        losses = nn.transducer_losses(x, goal)
        factor = losses["transducer"].inv_norm_factor
        assert list(losses) == ["transducer", "impossible"] and factor is not None
        assert losses["impossible"].as_error and not losses["transducer"].as_error
        return {**{name: loss.value for name, loss in losses.items()}, "factor": factor}

    inputs = {"x": Input(logits, "batch time positions vocab"), "y": Input(targets, "batch labels", sparse="vocab")}
    dims = {"time": FRAMES, "labels": LABELS, "positions": [u + 1 for u in LABELS], "vocab": VOCAB}
    result = run_on("torch", func, inputs, dims)
    expected = _expected(logits, targets, FRAMES, LABELS, blank=0, topology="monotonic")[0]
    np.testing.assert_allclose(result["transducer"], expected, rtol=1e-5, atol=1e-6)
    assert result["impossible"].tolist() == [u > t for t, u in zip(FRAMES, LABELS, strict=True)]
    assert result["factor"].tolist() == [max(u, 1) for u in LABELS]


def test_equals_torchaudios():
    arrays = np.load(torchaudio_transducer.FILE)
    frames, labels = torchaudio_transducer.FRAMES, torchaudio_transducer.LABELS
    result = _run(arrays["logits"], arrays["targets"], frames, labels, blank_index=torchaudio_transducer.BLANK)
    np.testing.assert_allclose(result["sum"], arrays["losses"], rtol=1e-5)
    np.testing.assert_allclose(result.grads["x"], arrays["gradients"], atol=1e-5)


def test_torchaudio_is_as_it_was():
    pytest.importorskip("torchaudio", exc_type=ImportError)
    arrays = np.load(torchaudio_transducer.FILE)
    for name, array in torchaudio_transducer.make().items():
        np.testing.assert_allclose(array, arrays[name], atol=1e-6, err_msg=name)
