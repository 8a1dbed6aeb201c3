"""The loss from the two halves of a transducer: by blocks of frames, and pruned."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

from returnn_common import nn
from returnn_common.nn._transducer_bands import find_bands
from returnn_common.nn._transducer_topologies import Sizes
from tests.engines import Input, Result, run_on
from tests.nn.transducer_reference import alignments, log_softmax

FRAMES, LABELS, VOCAB, SIZE = [5, 3, 1, 4], [3, 0, 2, 2], 4, 3
TOPOLOGIES = ["rnnt", "monotonic", "ctc"]


class _Joint(nn.Module):
    """a nonlinear function of the sum"""

    def __init__(self, in_dim: nn.Dim, vocab_dim: nn.Dim, *, dropout: float = 0.0):
        super().__init__()
        self.in_dim, self.dropout = in_dim, dropout
        self.out = nn.Linear(in_dim, vocab_dim)

    def __call__(self, encoder: nn.Tensor, predictor: nn.Tensor) -> nn.Tensor:
        x = nn.tanh(nn.combine_bc(encoder, "+", predictor))
        return self.out(nn.dropout(x, self.dropout, axis=self.in_dim))


def _inputs(garbage: float = 0.0) -> dict[str, Input]:
    rng = np.random.default_rng(5)
    batch, time, positions = len(FRAMES), max(FRAMES), max(LABELS) + 1
    arrays = {
        "enc": rng.normal(size=(batch, time, SIZE)) * 2.0,
        "pred": rng.normal(size=(batch, positions, SIZE)) * 2.0,
        "enc_logits": rng.normal(size=(batch, time, VOCAB)) * 2.0,
        "pred_logits": rng.normal(size=(batch, positions, VOCAB)) * 2.0,
    }
    targets = rng.integers(1, VOCAB, size=(batch, max(LABELS))).astype("int32")
    for b, (t, u) in enumerate(zip(FRAMES, LABELS, strict=True)):
        for name, x in arrays.items():
            x[b, t if name.startswith("enc") else u + 1 :] = garbage
        targets[b, u:] = -1 if garbage else 1
    dims = {"enc": "time size", "pred": "positions size", "enc_logits": "time vocab", "pred_logits": "positions vocab"}
    inputs = {name: Input(x.astype("float32"), f"batch {dims[name]}") for name, x in arrays.items()}
    return {**inputs, "y": Input(targets, "batch labels", sparse="vocab")}


DIMS = {"time": FRAMES, "labels": LABELS, "positions": [u + 1 for u in LABELS], "vocab": VOCAB, "size": SIZE}


def _run(
    kind: str,
    *,
    engine: str = "torch",
    topology: str = "rnnt",
    dropout: float = 0.0,
    garbage: float = 0.0,
    sizes: dict[str, Any] | None = None,
    **options: Any,
) -> Result:
    """:param kind: "whole", "joint", "pruned" or "simple" """

    def func(model, enc, pred, enc_logits, pred_logits, y, time, labels, positions, vocab):
        shape = {"targets": y, "input_spatial_dim": time, "targets_spatial_dim": labels}
        targets = nn.TransducerTargets(**shape, blank_index=0, topology=topology)
        logits = {}
        if kind == "whole":
            logits["logits"] = (model(enc, pred), [nn.batch_dim, time, positions, vocab])
            losses = nn.transducer_losses(logits["logits"][0], targets)
        elif kind == "sum":
            losses = nn.transducer_losses(nn.combine_bc(enc_logits, "+", pred_logits), targets)
        elif kind == "joint":
            loss = nn.joint_transducer_loss(model, encoder=enc, predictor=pred, targets=targets, **options)
            losses = loss.as_losses()
        else:
            halves = {"encoder": enc, "predictor": pred, "encoder_logits": enc_logits, "predictor_logits": pred_logits}
            both = nn.pruned_transducer_loss(model, **halves, targets=targets, **options)
            losses = both.as_losses()
        values = {name: loss.value for name, loss in losses.items()}
        total = values["transducer"] + values["transducer_simple"] if kind == "pruned" else values["transducer"]
        bands = {"bands": (both.first_positions, [nn.batch_dim, time])} if kind == "pruned" else {}
        return {**values, **bands, **logits, "sum": total}

    return run_on(
        *(engine, func, _inputs(garbage), {**DIMS, **(sizes or {})}),
        make_model=lambda size, vocab: _Joint(size, vocab, dropout=dropout),
        train=True,
        grad_of="sum",
    )


def _assert_same(actual: Result, expected: Result, *, atol: float = 1e-5):
    np.testing.assert_allclose(actual["transducer"], expected["transducer"], atol=atol)
    np.testing.assert_array_equal(actual["impossible"], expected["impossible"])
    for name, gradient in expected.grads.items():
        np.testing.assert_allclose(actual.grads[name], gradient, atol=atol, err_msg=name)


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("frames_per_block", [1, 2, 16])
def test_by_blocks_as_whole(topology: str, frames_per_block: int):
    expected = _run("whole", topology=topology)
    _assert_same(_run("joint", topology=topology, frames_per_block=frames_per_block), expected)
    padded = _run("joint", topology=topology, frames_per_block=frames_per_block, garbage=1e3)
    _assert_same(padded, expected)


def test_blocks_draw_the_same_dropout_again():
    """else the gradient is not that of the loss: with one block, it is the same as without recomputation"""
    _assert_same(_run("joint", dropout=0.5), _run("whole", dropout=0.5))


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_band_of_all_positions_is_the_whole(topology: str):
    expected, simple = _run("whole", topology=topology), _run("sum", topology=topology)
    result = _run("pruned", topology=topology, band=max(LABELS) + 1, garbage=1e3)
    np.testing.assert_allclose(result["transducer"], expected["transducer"], atol=1e-5)
    np.testing.assert_allclose(result["transducer_simple"], simple["transducer"], atol=1e-5)
    np.testing.assert_array_equal(result["impossible"], expected["impossible"])
    for name, gradient in expected.grads.items():
        other = simple.grads.get(name, 0.0) if name.endswith("logits") else 0.0
        np.testing.assert_allclose(result.grads[name], gradient + other, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_pruned_is_the_sum_within_the_bands(topology: str):
    band, logits = 2, _run("whole", topology=topology)["logits"]
    result, targets = _run("pruned", topology=topology, band=band), _inputs()["y"].array
    for b, (num_frames, num_labels) in enumerate(zip(FRAMES, LABELS, strict=True)):
        first, log_probs = result["bands"][b], log_softmax(logits[b].astype("float64"))
        labels = targets[b, :num_labels].tolist()
        paths = alignments(labels, num_frames=num_frames, blank=0, topology=topology)
        paths = [path for path in paths if all(first[t] <= u < first[t] + band for t, u, _ in path)]
        assert result["impossible"][b] == (not paths)
        expected = -np.logaddexp.reduce([sum(log_probs[arc] for arc in path) for path in paths]) if paths else 0.0
        np.testing.assert_allclose(result["transducer"][b], expected, rtol=1e-5)
    assert 0 < result["impossible"].sum() < len(FRAMES)


def _kept(occupancies: np.ndarray, first: tuple[int, ...], band: int) -> float:
    """:param occupancies: blank and label ``{2, time, positions}``"""
    parts = [(occupancies[0, t, p : p + band], occupancies[1, t, p : p + band - 1]) for t, p in enumerate(first)]
    return sum(x.sum() + y.sum() for x, y in parts)


@pytest.mark.parametrize("band", [2, 3, 7])
def test_bands_keep_the_most(band: int):
    frames, labels = [5, 4, 1, 3, 2], [4, 2, 1, 0, 4]
    occupancies = np.random.default_rng(3).uniform(size=(2, len(frames), max(frames), max(labels) + 1)) ** 3
    for b, (t, u) in enumerate(zip(frames, labels, strict=True)):
        occupancies[:, b, t:] = occupancies[:, b, :, u + 1 :] = 0.0
        occupancies[1, b, :, u] = 0.0

    def func(blank, label, time, labels, positions):
        num_frames, num_labels = (dim.get_size_tensor() for dim in (time, labels))
        sizes = Sizes(num_frames=num_frames, num_labels=num_labels, time_dim=time, positions_dim=positions)
        return {"first": (find_bands([blank, label], sizes, band), [nn.batch_dim, time])}

    blank, label = (Input(x.astype("float32"), "batch time positions") for x in occupancies)
    dims = {"time": frames, "labels": labels, "positions": [u + 1 for u in labels]}
    result = run_on("torch", func, {"blank": blank, "label": label}, dims)["first"]
    for b, (t, u) in enumerate(zip(frames, labels, strict=True)):
        last = max(u + 1 - band, 0)
        bands = itertools.product(range(last + 1), repeat=t)
        fitting = [x for x in bands if x[0] == 0 and x[-1] == last and _moves_well(x, band)]
        if not fitting:  # too few frames for so short bands
            assert (t - 1) * (band - 1) < last
            continue
        first = tuple(result[b, :t].tolist())
        assert first in fitting
        best = max(_kept(occupancies[:, b], x, band) for x in fitting)
        np.testing.assert_allclose(_kept(occupancies[:, b], first, band), best, rtol=1e-6)


def _moves_well(first: tuple[int, ...], band: int) -> bool:
    return all(0 <= after - before < band for before, after in itertools.pairwise(first))


def test_one_length_for_all():
    sizes: list[dict[str, Any]] = [
        {"time": [5] * 4, "labels": [3] * 4, "positions": [4] * 4},
        {"time": 5, "labels": 3, "positions": np.array(4)},
    ]
    for kind in ("joint", "pruned"):
        expected, result = (_run(kind, sizes=x) for x in sizes)
        _assert_same(result, expected)


@pytest.mark.parametrize(
    "engine",
    ["tensorflow", "tensorflow-net-dict", pytest.param("jax", marks=pytest.mark.slow("JAX compiles each operation"))],
)
def test_other_engines(engine: str):
    expected, result = (_run("pruned", engine=x, band=3, garbage=1e3) for x in ("torch", engine))
    _assert_same(result, expected, atol=1e-4)
    np.testing.assert_array_equal(result["bands"], expected["bands"])
    np.testing.assert_allclose(result["transducer_simple"], expected["transducer_simple"], atol=1e-4)
    if engine == "tensorflow":
        _assert_same(_run("joint", engine=engine), _run("joint"), atol=1e-4)


def test_first_pass_in_full_precision():
    """mixed precision would round the matrix product of the normaliser"""
    expected = _run("pruned", band=4)["transducer_simple"]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = _run("pruned", band=4)
    np.testing.assert_allclose(result["transducer_simple"], expected, rtol=1e-6)
    assert np.abs(result["transducer"] - _run("pruned", band=4)["transducer"]).max() > 1e-4  # it was on


def test_scales_and_names():
    def func(x):
        loss = nn.TransducerLoss(value=x, possible=x > 0.0, num_labels=nn.cast(x, "int32"))
        both = nn.PrunedTransducerLoss(simple=loss, pruned=loss, first_positions=x)
        losses = both.as_losses(simple_scale=0.25, pruned_scale=0.1)
        assert {name: loss.scale for name, loss in losses.items() if not loss.as_error} == {
            "transducer": 0.1,
            "transducer_simple": 0.25,
        }
        assert list(loss.as_losses("rnnt", scale=0.5)) == ["rnnt", "impossible"]
        assert loss.as_losses("rnnt", scale=0.5)["rnnt"].scale == 0.5
        return {}

    run_on("torch", func, {"x": Input(np.ones(2, "float32"), "batch")})


@pytest.mark.parametrize(
    "kind, message, options",
    [
        ("joint", "transducer: expected frames_per_block >= 1, got 0", {"frames_per_block": 0}),
        ("pruned", "transducer: expected band >= 2, got 1", {"band": 1}),
    ],
)
def test_refused_sizes(kind: str, message: str, options: dict[str, int]):
    with pytest.raises(ValueError, match=message):
        _run(kind, **options)


@pytest.mark.parametrize(
    "message, change",
    [
        ("expected encoder with the dims .*time.*, got Tensor.*pred", {"encoder": "pred"}),
        ("expected predictor with the dims .*positions.*, got Tensor.*wide", {"predictor": "wide"}),
        ("expected predictor with one position more than there are labels, .*, got .*time", {"predictor": "enc"}),
        ("expected the joint network's output with the dims .*vocab.*, got Tensor", {"joint": lambda x, _: x}),
        ("expected encoder_logits with the dims .*time.*, got Tensor.*pred", {"encoder_logits": "pred_logits"}),
        ("expected predictor_logits with one position more .* got .*time", {"predictor_logits": "enc_logits"}),
        ("expected encoder_logits and predictor_logits over the same vocab and .*positions", {"encoder_logits": "enc"}),
    ],
)
def test_refused(message: str, change: dict[str, Any]):
    def func(enc, pred, enc_logits, pred_logits, wide, y, time, labels, positions, vocab):
        arguments: dict[str, Any] = {
            **{"joint": lambda x, y: nn.combine_bc(x, "+", y), "encoder": enc, "predictor": pred},
            **{"encoder_logits": enc_logits, "predictor_logits": pred_logits},
        }
        tensors = {"enc": enc, "pred": pred, "enc_logits": enc_logits, "pred_logits": pred_logits, "wide": wide}
        arguments.update({name: tensors[x] if isinstance(x, str) else x for name, x in change.items()})
        shape = {"targets": y, "input_spatial_dim": time, "targets_spatial_dim": labels, "blank_index": 0}
        nn.pruned_transducer_loss(arguments.pop("joint"), **arguments, targets=nn.TransducerTargets(**shape))

    wide = Input(np.zeros((len(FRAMES), max(FRAMES), max(LABELS) + 1, SIZE), "float32"), "batch time positions size")
    with pytest.raises(ValueError, match=message):
        run_on("torch", func, {**_inputs(), "wide": wide}, DIMS)


def test_joint_of_other_shape_is_refused():
    def func(enc, pred, y, time, labels):
        shape = {"targets": y, "input_spatial_dim": time, "targets_spatial_dim": labels, "blank_index": 0}
        targets = nn.TransducerTargets(**shape)
        nn.joint_transducer_loss(lambda x, _: x, encoder=enc, predictor=pred, targets=targets)

    inputs = {name: x for name, x in _inputs().items() if name in ("enc", "pred", "y")}
    with pytest.raises(ValueError, match="expected the joint network's output with the dims .*frames.*, got Tensor"):
        run_on("torch", func, inputs, DIMS)


def test_after_weight_dropout():
    """RETURNN's, in a graph that is gone: its hooks are, too"""
    expected = _run("joint", frames_per_block=2)
    nn.select_backend_torch()
    nn.init_train_step_run_ctx(train_flag=True, step=0)
    dims = nn.FeatureDim("in", 3), nn.FeatureDim("out", 2)
    linear = nn.Linear(*dims)
    nn.weight_dropout(linear, "weight", drop_prob=0.5)
    linear(nn.ones([nn.Dim(2, name="batch"), dims[0]], feature_dim=dims[0]))
    del linear
    found = _run("joint", frames_per_block=2)
    for name, gradient in expected.grads.items():
        np.testing.assert_array_equal(found.grads[name], gradient)
