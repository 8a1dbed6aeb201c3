"""Alignments of transducers and the soft ones of CTC against all alignments, enumerated."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from returnn_common import nn
from returnn_common.search import ctc_align, ctc_soft_align, transducer_align, transducer_soft_align
from tests.engines import ENGINES, Input, Result, run_on
from tests.nn.transducer_reference import log_softmax
from tests.search.alignment_reference import expected_alignment

TOPOLOGIES = ("rnnt", "monotonic", "ctc")
FRAMES, LABELS, VOCAB = [4, 3, 1, 2, 1, 3, 0], [3, 0, 2, 1, 1, 2, 1], 4


def _batch(frames: list[int], labels: list[int], *, blank: int, beam: int = 1, seed: int = 0):
    """:return: encoder {batch, time, vocab}, predictor {batch, beam, positions, vocab}, targets {batch, beam, L}"""
    rng = np.random.default_rng([seed, len(frames)])
    others = [i for i in range(VOCAB) if i != blank]
    encoder = rng.normal(size=(len(frames), max(frames), VOCAB)).astype("float32")
    predictor = rng.normal(size=(len(frames), beam, max(labels) + 1, VOCAB)).astype("float32")
    targets = rng.choice(others[:2], size=(len(frames), beam, max(labels))).astype("int32")
    return encoder, predictor, targets


def _joint(encoder: nn.Tensor, predictor: nn.Tensor) -> nn.Tensor:
    logits = nn.combine_bc(nn.combine_bc(encoder, "*", predictor) * 2.0, "+", predictor)
    logits.feature_dim = encoder.feature_dim
    return logits


def _log_probs(encoder: np.ndarray, predictor: np.ndarray) -> np.ndarray:
    """:return: ``{batch, beam, time, positions, vocab}``"""
    encoder, predictor = encoder.astype("float64")[:, None, :, None], predictor.astype("float64")[:, :, None]
    return log_softmax(encoder * predictor * 2.0 + predictor)


def _outputs(alignment: Any, soft: Any, dims: list[nn.Dim], time: nn.Dim, labels: nn.Dim) -> dict[str, Any]:
    return {
        "path": (alignment.path, [*dims, time]),
        "starts": (alignment.starts, [*dims, labels]),
        "ends": (alignment.ends, [*dims, labels]),
        "frame_scores": (alignment.frame_scores, [*dims, time]),
        "label_scores": (alignment.label_scores, [*dims, labels]),
        "best_score": (alignment.scores, dims),
        "total_score": (soft.scores, dims),
        "soft_labels": (soft.labels, [*dims, time, labels]),
        "soft_blank": (soft.blank, [*dims, time]),
    }


def _align(arrays, frames, labels, *, blank: int, engine: str = "torch", topologies=TOPOLOGIES, **options) -> Result:
    encoder, predictor, targets = arrays

    def func(x, p, y, time, labels, beam, vocab):
        x.feature_dim = p.feature_dim = vocab
        found = {}
        for topology in topologies:
            goal = nn.TransducerTargets(
                targets=y,
                input_spatial_dim=time,
                targets_spatial_dim=labels,
                blank_index=blank,
                topology=topology,
            )
            x_of_each = nn.combine_bc(x, "+", nn.zeros([beam]))
            x_of_each.feature_dim = vocab
            parts: dict[str, Any] = {"encoder": x_of_each, "predictor": p, "targets": goal, **options}
            alignment, soft = transducer_align(_joint, **parts), transducer_soft_align(_joint, **parts)
            outputs = _outputs(alignment, soft, [nn.batch_dim, beam], time, labels)
            found.update({f"{topology}.{name}": output for name, output in outputs.items()})
        return found

    inputs = {
        "x": Input(encoder, "batch time vocab"),
        "p": Input(predictor, "batch beam positions vocab"),
        "y": Input(targets, "batch beam labels", sparse="vocab"),
    }
    dims = {"time": frames, "labels": labels, "positions": [u + 1 for u in labels], "vocab": VOCAB}
    return run_on(engine, func, inputs, {**dims, "beam": targets.shape[1]})


def _check(result: Result, log_probs, targets, frames, labels, *, blank: int, topology: str, prefix: str = "") -> int:
    """:param log_probs: ``{batch, beam, time, positions, vocab}``, :return: number of possible ones"""
    num_possible = 0
    for b, k in np.ndindex(*targets.shape[:2]):
        t, u = frames[b], labels[b]
        expected = expected_alignment(
            log_probs[b, k, :t, : u + 1], targets[b, k, :u].tolist(), blank=blank, topology=topology
        )
        num_possible += expected.best_score > -np.inf
        for name, value in vars(expected).items():
            actual = result[prefix + name][b, k]
            shape = np.shape(value)
            inside = actual[tuple(slice(n) for n in shape)]
            np.testing.assert_allclose(inside, value, rtol=1e-4, atol=1e-5, err_msg=f"{topology} {name} {b} {k}")
    return num_possible


@pytest.mark.parametrize("engine", ENGINES)
def test_all_alignments(engine: str):
    blank, beam = (1, 3) if engine == "torch" else (3, 1)
    topologies = {"torch": TOPOLOGIES, "tensorflow": ("ctc",), "jax": ("rnnt",)}.get(engine, ("rnnt", "ctc"))
    encoder, predictor, targets = _batch(FRAMES, LABELS, blank=blank, beam=beam)
    log_probs = _log_probs(encoder, predictor)
    for b, (t, u) in enumerate(zip(FRAMES, LABELS, strict=True)):
        encoder[b, t:], predictor[b, :, u + 1 :] = np.nan, np.nan
        targets[b, :, u:] = [-1, 99, VOCAB][b % 3]
    result = _align((encoder, predictor, targets), FRAMES, LABELS, blank=blank, engine=engine, topologies=topologies)
    for topology in topologies:
        num = _check(
            *(result, log_probs, targets, FRAMES, LABELS), blank=blank, topology=topology, prefix=f"{topology}."
        )
        assert 0 < num < targets[..., 0].size


def test_every_small_case():
    """all numbers of frames and labels, none of either included; frame by frame"""
    frames, labels = (list(x) for x in zip(*itertools.product(range(5), range(4)), strict=True))
    arrays = _batch(frames, labels, blank=0, beam=2)
    results = [_align(arrays, frames, labels, blank=0, frames_per_block=size) for size in (1, 16)]
    for topology in TOPOLOGIES:
        for result in results:
            args = (result, _log_probs(*arrays[:2]), arrays[2], frames, labels)
            _check(*args, blank=0, topology=topology, prefix=f"{topology}.")


def test_labels_that_cannot_be():
    """log prob -inf: of all that there is in a frame but blank; of blank in the last frame"""
    encoder, predictor, targets = _batch([3, 3], [2, 2], blank=0)
    encoder[0, 1, 1:], encoder[1, 2, 0], predictor = -np.inf, -np.inf, np.abs(predictor)
    with np.errstate(invalid="ignore"):
        log_probs = _log_probs(encoder, predictor)
    result = _align((encoder, predictor, targets), [3, 3], [2, 2], blank=0)
    for topology in TOPOLOGIES:
        num = _check(result, log_probs, targets, [3, 3], [2, 2], blank=0, topology=topology, prefix=f"{topology}.")
        assert num == (1 if topology == "rnnt" else 2)


def test_several_labels_in_a_frame():
    """all in the first one"""
    encoder, predictor, targets = np.zeros((1, 3, 4)), np.zeros((1, 1, 3, 4)), np.array([[[1, 2]]], "int32")
    predictor[0, 0, 0, 1] = predictor[0, 0, 1, 2] = predictor[0, 0, 2, 0] = 50.0
    result = _align([encoder.astype("float32"), predictor.astype("float32"), targets], [3], [2], blank=0)
    assert result["rnnt.starts"].tolist() == [[[0, 0]]] and result["rnnt.ends"].tolist() == [[[1, 1]]]
    assert result["rnnt.path"].tolist() == [[[1, -1, -1]]]
    np.testing.assert_allclose(result["rnnt.soft_labels"][0, 0], [[1, 1], [0, 0], [0, 0]], atol=1e-6)
    assert result["monotonic.path"].tolist() == [[[0, 1, -1]]]


def test_batch_is_single():
    frames, labels = [40, 11, 25], [7, 2, 0]
    encoder, predictor, targets = _batch(frames, labels, blank=0)
    together = _align((encoder, predictor, targets), frames, labels, blank=0)
    for b, (t, u) in enumerate(zip(frames, labels, strict=True)):
        arrays = encoder[b : b + 1, :t], predictor[b : b + 1, :, : u + 1], targets[b : b + 1, :, :u]
        single = _align(arrays, [t], [u], blank=0)
        for name, output in single.outputs.items():
            whole = together[name][b : b + 1]
            whole = whole[tuple(slice(n) for n in output.array.shape)]
            np.testing.assert_allclose(whole, output.array, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize(
    "engine",
    [*ENGINES[:3], pytest.param("jax", marks=pytest.mark.slow("JAX compiles each operation"))],
)
def test_soft_alignment_of_ctc(engine: str):
    blank, beam = (3, 2) if engine != "torch" else (0, 2)
    encoder, _, targets = _batch(FRAMES, LABELS, blank=blank, beam=beam)
    log_probs = log_softmax(encoder.astype("float64"))
    positions = np.zeros((1, beam, 1, max(LABELS) + 1, 1))
    array = log_probs.astype("float32")
    for b, t in enumerate(FRAMES):
        array[b, t:] = [np.nan, np.inf, 1e30][b % 3]

    def func(x, y, time, labels, beam, vocab):
        shape: dict[str, Any] = {"spatial_dim": time, "labels": y, "labels_spatial_dim": labels, "blank": blank}
        x.feature_dim = vocab
        return _outputs(ctc_align(x, **shape), ctc_soft_align(x, **shape), [nn.batch_dim, beam], time, labels)

    inputs = {"x": Input(array, "batch time vocab"), "y": Input(targets, "batch beam labels", sparse="vocab")}
    dims = {"time": FRAMES, "labels": LABELS, "vocab": VOCAB, "beam": beam}
    result = run_on(engine, func, inputs, dims)
    expanded = log_probs[:, None, :, None] + positions
    assert _check(result, expanded, targets, FRAMES, LABELS, blank=blank, topology="ctc") > 5


def test_soft_alignment_is_the_gradient_of_the_loss():
    """on random lengths, of what the loss has for it"""
    frames, labels = [9, 6], [4, 3]
    encoder, predictor, targets = _batch(frames, labels, blank=0)

    def func(x, p, y, time, labels, beam, vocab):
        x.feature_dim = p.feature_dim = vocab
        y, p = (nn.squeeze(z, axis=beam) for z in (y, p))
        goal = nn.TransducerTargets(
            targets=y, input_spatial_dim=time, targets_spatial_dim=labels, blank_index=0, topology="monotonic"
        )
        loss = nn.joint_transducer_loss(_joint, encoder=x, predictor=p, targets=goal)
        soft = transducer_soft_align(_joint, encoder=x, predictor=p, targets=goal)
        return {"loss": loss.value, "scores": soft.scores, "blank": (soft.blank, [nn.batch_dim, time])}

    inputs = {
        "x": Input(encoder, "batch time vocab"),
        "p": Input(predictor, "batch beam positions vocab"),
        "y": Input(targets, "batch beam labels", sparse="vocab"),
    }
    dims = {"time": frames, "labels": labels, "positions": [u + 1 for u in labels], "vocab": VOCAB, "beam": 1}
    result = run_on("torch", func, inputs, dims)
    np.testing.assert_allclose(-result["loss"], result["scores"], rtol=1e-5)
    np.testing.assert_allclose(result["blank"].sum(axis=1), np.subtract(frames, labels), rtol=1e-4)


def test_errors():
    def func(x, p, y, time, labels, vocab):
        x.feature_dim = p.feature_dim = vocab
        goal = nn.TransducerTargets(targets=y, input_spatial_dim=time, targets_spatial_dim=labels, blank_index=0)
        parts: dict[str, Any] = {"encoder": x, "predictor": p, "targets": goal}
        for align in (transducer_align, transducer_soft_align):
            with pytest.raises(ValueError, match="transducer: expected frames_per_block >= 1, got 0"):
                align(_joint, **parts, frames_per_block=0)
            with pytest.raises(ValueError, match="transducer: expected encoder with the dims .*, got Tensor"):
                align(_joint, **{**parts, "encoder": p})
        scores, positions_dim = nn.joint_transducer_scores(_joint, **parts)
        options = {"targets": goal, "positions_dim": positions_dim}
        message = "transducer_occupancies: expected 2 scores with .* for the topology 'rnnt', got "
        with pytest.raises(ValueError, match=message):
            nn.transducer_occupancies(scores[:1], **options)
        with pytest.raises(ValueError, match=message):
            nn.transducer_occupancies(scores, targets=goal, positions_dim=labels)
        with pytest.raises(ValueError, match="ctc_soft_align: blank, expected an index from 0 to 3 of .*, got 4"):
            ctc_soft_align(x, spatial_dim=time, labels=y, labels_spatial_dim=labels, blank=4)
        with pytest.raises(TypeError, match="ctc_soft_align: labels, expected a Tensor, got list"):
            ctc_soft_align(x, spatial_dim=time, labels=[1], labels_spatial_dim=labels, blank=0)
        return {}

    encoder, predictor, targets = _batch([3], [2], blank=0)
    inputs = {
        "x": Input(encoder, "batch time vocab"),
        "p": Input(predictor[:, 0], "batch positions vocab"),
        "y": Input(targets[:, 0], "batch labels", sparse="vocab"),
    }
    run_on("torch", func, inputs, {"time": [3], "labels": [2], "positions": [3], "vocab": VOCAB})
