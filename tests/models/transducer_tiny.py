"""A tiny transducer, and utterances for it."""

from __future__ import annotations

import numpy as np

from returnn_common.models.decoder.transducer import make_joiner, make_lstm_predictor, make_stateless_predictor
from returnn_common.models.encoder.lstm import make_lstm_encoder
from returnn_common.models.transducer import TransducerModel, make_transducer_model
from tests.engines import Input, run_on
from tests.models.ctc_tiny import label_rows

__all__ = ["FEATURES", "LENGTHS", "TARGETS", "VOCAB", "make", "run"]

FEATURES, VOCAB = 4, 2
LENGTHS = [6, 4, 2]  # 3, 2 and 1 frames of the encoder
TARGETS = [[0, 1], [1, 1], [0]]


def make(in_dim, vocab, *, stateless=False, kind="additive", **options) -> TransducerModel:
    pooling = options.pop("encoder_pooling", (2,))
    encoder = make_lstm_encoder(in_dim or 80, num_layers=2, out_dim=6, time_pooling=pooling, dropout=0.0)
    predictor = make_stateless_predictor if stateless else make_lstm_predictor
    predictor = predictor(vocab, model_dim=5, dropout=0.0)
    joiner = make_joiner(encoder.out_dim, predictor.out_dim, vocab, kind=kind, model_dim=7)
    parts = {"encoder": encoder, "predictor": predictor, "joiner": joiner}
    if {"topology", "fast_emission", "frames_per_block"} & set(options):
        return TransducerModel(**parts, vocab_dim=vocab, **options)
    return make_transducer_model(in_dim, vocab, **{**parts, "specaugment": None, **options})


def run(func, *, grad_of=None, train=False, **options):
    rng = np.random.default_rng(1)
    inputs = {
        "x": Input(rng.normal(size=(3, max(LENGTHS), FEATURES)).astype("float32"), "batch time feat"),
        "y": Input(label_rows(TARGETS, fill=1), "batch labels", sparse="vocab"),
    }
    dims = {"time": LENGTHS, "feat": FEATURES, "labels": [len(row) for row in TARGETS], "vocab": VOCAB}
    return run_on(
        "torch",
        func,
        inputs,
        dims,
        make_model=lambda feat, vocab: make(feat, vocab, **options),
        grad_of=grad_of,
        train=train,
    )
