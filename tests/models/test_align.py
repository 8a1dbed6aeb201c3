"""Forced alignment by the models: for the labels of the best path, it is that path."""

from __future__ import annotations

from itertools import groupby

import numpy as np
import pytest

from returnn_common import nn
from returnn_common.models.aed import make_aed_model
from returnn_common.models.decoder.transformer import make_transformer_decoder
from returnn_common.models.encoder.conformer import make_conformer_encoder
from returnn_common.search import ctc_greedy_search
from tests.engines import Input, run_on
from tests.models.ctc_tiny import (
    ENCODER,
    FEATURES,
    LENGTHS,
    TARGETS,
    VOCAB,
    features,
    label_rows,
    make_model,
    reference_loss,
)

DECODER = {"num_layers": 1, "model_dim": 8, "num_heads": 2, "dropout": 0.0}


def _make_aed(in_dim, vocab, *, layers=(1, 2)):
    encoder = make_conformer_encoder(in_dim, **ENCODER, conv_norm="layer", dropout=0.0)
    decoder = make_transformer_decoder(encoder.out_dim, VOCAB + 1, **DECODER)
    return make_aed_model(in_dim, vocab, encoder=encoder, decoder=decoder, aux_ctc_layers=layers)


def _params(make, head: str) -> dict[str, np.ndarray]:
    """such that the best path has several labels"""
    nn.select_backend_torch()
    shapes = {k: [d.dimension for d in p.dims] for k, p in make(FEATURES, VOCAB).named_parameters()}
    params = {name: np.zeros(shape) for name, shape in shapes.items() if name.endswith(".bias")}
    return {**params, head: np.random.default_rng(1).normal(size=shapes[head]) * 2.0}


def _check_best_path(make, head: str):
    def func(model, x, time):
        log_probs_of = model.ctc_log_probs if hasattr(model, "ctc_log_probs") else model.log_probs
        log_probs, frames = log_probs_of(x, in_spatial_dim=time)
        best = ctc_greedy_search(log_probs, spatial_dim=frames, blank=model.blank_index, vocab_dim=model.vocab_dim)
        alignment, out_time = model.align(
            x, in_spatial_dim=time, labels=best.labels, labels_spatial_dim=best.spatial_dim
        )
        batch, beam = nn.batch_dim, best.beam_dim
        return {
            "log_probs": (log_probs, [batch, frames, model.labels_dim]),
            "path": (alignment.path, [batch, beam, out_time]),
            "starts": (alignment.starts, [batch, beam, best.spatial_dim]),
            "ends": (alignment.ends, [batch, beam, best.spatial_dim]),
            "lengths": (best.lengths, [batch, beam]),
        }

    inputs, dims = {"x": Input(features(LENGTHS), "batch time feat")}, {"time": LENGTHS, "feat": FEATURES}
    result = run_on("torch", func, inputs, dims, make_model=lambda feat: make(feat, VOCAB), params=_params(make, head))
    for i, num_frames in enumerate(result.outputs["log_probs"].lengths[1]):
        best = result["log_probs"][i, :num_frames].argmax(-1)
        runs, frame = [], 0
        for label, group in groupby(best):
            size = len(list(group))
            if label != VOCAB:
                runs.append((frame, frame + size))
            frame += size
        count = result["lengths"][i, 0]
        spans = zip(result["starts"][i, 0, :count], result["ends"][i, 0, :count], strict=True)
        assert [(int(start), int(end)) for start, end in spans] == runs and (i or len(runs) > 1)
        assert ((result["path"][i, 0, :num_frames] < 0) == (best == VOCAB)).all()


def test_ctc():
    _check_best_path(make_model, "output.weight")


@pytest.mark.parametrize("layers, head", [((1, 2), 1), ((2, 1), 0), ((1,), 0)])
def test_aed_by_the_head_on_the_last_layer(layers, head):
    _check_best_path(lambda *args: _make_aed(*args, layers=layers), f"aux_ctc_outputs.{head}.weight")


@pytest.mark.parametrize("layers", [(2, 1), (1,)])
def test_head_is_that_of_the_losses(layers):
    """its log probs give the loss that is called by its layer"""

    def func(model, x, time, y, labels):
        log_probs, frames = model.ctc_log_probs(x, in_spatial_dim=time)
        losses = model.losses(x, in_spatial_dim=time, targets=y, targets_spatial_dim=labels)
        return {
            "log_probs": (log_probs, [nn.batch_dim, frames, model.labels_dim]),
            "loss": (losses[f"ctc_{max(layers)}"].value, [nn.batch_dim]),
        }

    result = run_on(
        "torch",
        func,
        {
            "x": Input(features(LENGTHS), "batch time feat"),
            "y": Input(label_rows(TARGETS), "batch labels", sparse="vocab"),
        },
        {"time": LENGTHS, "feat": FEATURES, "labels": [len(row) for row in TARGETS], "vocab": VOCAB},
        make_model=lambda feat, vocab: _make_aed(feat, vocab, layers=layers),
    )
    rows = zip(result["log_probs"], result.outputs["log_probs"].lengths[1], TARGETS, strict=True)
    expected = [reference_loss(row[:n].astype("float64"), targets) for row, n, targets in rows]
    possible = result["loss"] > 0
    assert possible.sum() >= 2
    np.testing.assert_allclose(result["loss"][possible], np.array(expected)[possible], rtol=1e-4)


def test_model_without_a_head():
    nn.select_backend_torch()
    model = _make_aed(FEATURES, VOCAB, layers=())
    assert not model.can_align and _make_aed(FEATURES, VOCAB).can_align and make_model(FEATURES, VOCAB).can_align
    with pytest.raises(ValueError, match="AedModel: expected aux_ctc_layers, for there is no CTC head"):
        model.align(None, in_spatial_dim=None, labels=None, labels_spatial_dim=None)
