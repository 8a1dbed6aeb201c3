"""A tiny CTC model, inputs for it, and a reference for its loss: what the tests of it share."""

from __future__ import annotations

import numpy as np

from returnn_common import nn
from returnn_common.models.ctc import CtcModel, make_ctc_model
from returnn_common.models.encoder.conformer import make_conformer_encoder
from tests.engines import Input, Result, run_on

FEATURES, VOCAB = 8, 4
LENGTHS = [37, 22, 9]
TARGETS = [[0, 1, 1, 3], [2, 2], [1]]
ENCODER = {"num_layers": 2, "out_dim": 8, "num_heads": 2, "conv_kernel_size": 3, "subsampling_channels": 4}


def make_model(in_dim, vocab, *, specaugment=None, aux_layers=(), **encoder) -> CtcModel:
    return make_ctc_model(
        in_dim,
        vocab,
        encoder=make_conformer_encoder(in_dim or 80, **{**ENCODER, "conv_norm": "layer", "dropout": 0.0, **encoder}),
        specaugment=specaugment,
        aux_layers=aux_layers,
    )


def features(lengths: list[int], fill: float = 0.0) -> np.ndarray:
    x = np.full((len(lengths), max(lengths), FEATURES), fill, "float32")
    for i, n in enumerate(lengths):
        x[i, :n] = np.random.default_rng(n).normal(size=(n, FEATURES))
    return x


def raw_audio(lengths: list[int], fill: float = 0.0) -> np.ndarray:
    x = np.full((len(lengths), max(lengths)), fill, "float32")
    for i, n in enumerate(lengths):
        x[i, :n] = np.random.default_rng(n).normal(size=n) * 0.1
    return x


def label_rows(targets: list[list[int]], fill: int = VOCAB - 1) -> np.ndarray:
    """padded with a label, as if it were another one"""
    rows = np.full((len(targets), max(map(len, targets))), fill, "int32")
    for i, row in enumerate(targets):
        rows[i, : len(row)] = row
    return rows


def run_losses(engine: str, x: np.ndarray, lengths, targets, *, train=False, grads=False, **options) -> Result:
    """
    :return: each loss by name, "norm": the norm factor of "ctc", "total": the losses' weighted sum {batch};
        in evaluation also "log_probs" {batch, time, labels}
    """
    is_audio = x.ndim == 2

    def func(model, x, time, y, labels):
        losses = model.losses(x, in_spatial_dim=time, targets=y, targets_spatial_dim=labels)
        outputs = {name: (nn.cast(loss.value, "float32"), [nn.batch_dim]) for name, loss in losses.items()}
        trained = [nn.cast(loss.value, "float32") * loss.scale for loss in losses.values() if not loss.as_error]
        outputs["norm"] = (losses["ctc"].inv_norm_factor, [nn.batch_dim])
        outputs["total"] = (sum(trained[1:], trained[0]), [nn.batch_dim])
        if not train and not grads:
            log_probs, out_time = model.log_probs(x, in_spatial_dim=time)
            outputs["log_probs"] = (nn.cast(log_probs, "float32"), [nn.batch_dim, out_time, model.labels_dim])
        return outputs

    dims = {"time": lengths, "vocab": VOCAB, "labels": [len(row) for row in targets]}
    return run_on(
        engine,
        func,
        {
            "x": Input(x, "batch time" if is_audio else "batch time feat"),
            "y": Input(label_rows(targets), "batch labels", sparse="vocab"),
        },
        dims if is_audio else {**dims, "feat": FEATURES},
        make_model=(lambda vocab: make_model(None, vocab, **options))
        if is_audio
        else (lambda feat, vocab: make_model(feat, vocab, **options)),
        train=train,
        grad_of="total" if grads else None,
    )


def run_search(x: np.ndarray, lengths, *, make_lm=None, train=False, options=None, **search) -> list:
    """
    on torch, with parameters for which the hypotheses have several labels

    :return: n-best list of each batch entry, and the log probs of each
    """
    found, is_audio = [], x.ndim == 2
    nn.select_backend_torch()
    shapes = {k: [d.dimension for d in p.dims] for k, p in make_model(FEATURES, VOCAB).named_parameters()}
    params = {name: np.zeros(shape) for name, shape in shapes.items() if name.endswith(".bias")}
    params["output.weight"] = np.random.default_rng(1).normal(size=shapes["output.weight"]) * 2.0

    def func(model, x, time):
        lm = {"lm": make_lm()} if make_lm else {}
        hypotheses = model.search(x, in_spatial_dim=time, **lm, **search)
        assert hypotheses.labels.sparse_dim == model.vocab_dim
        found.extend(hypotheses.nbest(i) for i in range(len(lengths)))
        log_probs, out_time = model.log_probs(x, in_spatial_dim=time)
        return {"log_probs": (nn.cast(log_probs, "float32"), [nn.batch_dim, out_time, model.labels_dim])}

    in_dim = None if is_audio else FEATURES
    result = run_on(
        "torch",
        func,
        {"x": Input(x, "batch time" if is_audio else "batch time feat")},
        {"time": lengths} if is_audio else {"time": lengths, "feat": FEATURES},
        make_model=(lambda: make_model(None, VOCAB, **(options or {})))
        if in_dim is None
        else (lambda feat: make_model(feat, VOCAB, **(options or {}))),
        params=params,
        train=train,
    )
    return [found, valid_log_probs(result)]


def valid_log_probs(result: Result) -> list[np.ndarray]:
    rows = zip(result["log_probs"], result.outputs["log_probs"].lengths[1], strict=True)
    return [row[:n].astype("float64") for row, n in rows]


def reference_loss(log_probs: np.ndarray, labels: list[int]) -> float:
    """the forward algorithm (Graves et al. 2006, equations 6 and 7) on [time, labels and blank]; blank is the last"""
    blank = log_probs.shape[1] - 1
    states = [blank]
    for label in labels:
        states += [label, blank]
    alpha = np.full(len(states), -np.inf)
    alpha[:2] = log_probs[0, states[:2]]
    for frame in log_probs[1:]:
        new = alpha.copy()
        for s in range(1, len(states)):
            new[s] = np.logaddexp(new[s], alpha[s - 1])
            if s > 1 and states[s] != blank and states[s] != states[s - 2]:
                new[s] = np.logaddexp(new[s], alpha[s - 2])
        alpha = new + frame[states]
    return -np.logaddexp.reduce(alpha[-2:])
