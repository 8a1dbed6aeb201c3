"""The text-to-text Transformer: losses against NumPy, search against its own probabilities, its arguments."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.special import log_softmax

from returnn_common import nn
from returnn_common.models.transformer import make_transformer
from tests.engines import ENGINES, Input, Result, run_on

IN_VOCAB, OUT_VOCAB, BOS, EOS = 6, 4, 0, 1
LENGTHS, TARGET_LENGTHS = [5, 1, 3], [2, 3, 0]
RNG = np.random.default_rng(5)
SOURCE = RNG.integers(0, IN_VOCAB, (3, 5)).astype("int32")
TARGETS = RNG.integers(2, OUT_VOCAB, (3, 3)).astype("int32")
SIZES = {"num_layers": 1, "model_dim": 8, "num_heads": 2, "dropout": 0.0, "bos": BOS, "eos": EOS}


def _run(func, engine: str = "torch", *, train: bool = False, **options) -> Result:
    inputs = {
        "source": Input(SOURCE, "batch time", sparse="in_vocab"),
        "targets": Input(TARGETS, "batch labels_time", sparse="out_vocab"),
    }
    dims = {"time": LENGTHS, "labels_time": TARGET_LENGTHS, "in_vocab": IN_VOCAB, "out_vocab": OUT_VOCAB}

    def _make(in_vocab, out_vocab):
        return make_transformer(in_vocab, out_vocab, **{**SIZES, **options})

    return run_on(engine, func, inputs, dims, make_model=_make, train=train)


def _losses(model, source, time, targets, labels_time):
    losses = model.losses(source, in_spatial_dim=time, targets=targets, targets_spatial_dim=labels_time)
    assert not losses["ce"].as_error and losses["fer"].as_error
    outputs = {name: (loss.value, [nn.batch_dim]) for name, loss in losses.items()}
    outputs["norm"] = (losses["ce"].inv_norm_factor, [nn.batch_dim])
    return outputs


def _log_probs(model, source, time, targets, labels_time):
    """for the previous labels bos, targets"""
    encoder = model.encode(source, in_spatial_dim=time)
    one = nn.Dim(1, name="one")
    bos = nn.constant(BOS, dims=[nn.batch_dim, one], sparse_dim=model.vocab_dim)
    previous, out_time = nn.concat((bos, one), (targets, labels_time))
    state = model.decoder.default_initial_state(batch_dims=[nn.batch_dim])
    logits, _ = model.decoder(previous, spatial_dim=out_time, state=state, encoder=encoder)
    return {"logits": (logits, [nn.batch_dim, out_time, model.vocab_dim])}


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_losses(smoothing: float):
    log_probs = log_softmax(_run(_log_probs)["logits"].astype("float64"), axis=-1)
    result = _run(_losses, train=True, label_smoothing=smoothing)
    assert result["norm"].tolist() == [n + 1 for n in TARGET_LENGTHS]
    for i, n in enumerate(TARGET_LENGTHS):
        row = [*TARGETS[i, :n].tolist(), EOS]
        smoothed = np.full((n + 1, OUT_VOCAB), smoothing / (OUT_VOCAB - 1))
        smoothed[np.arange(n + 1), row] = 1.0 - smoothing
        np.testing.assert_allclose(result["ce"][i], -(smoothed * log_probs[i, : n + 1]).sum(), rtol=1e-5)
        assert result["fer"][i] == sum(log_probs[i, : n + 1].argmax(-1) != row)


def test_no_smoothing_in_evaluation():
    plain, smoothed = (_run(_losses, label_smoothing=smoothing) for smoothing in (0.0, 0.1))
    np.testing.assert_array_equal(plain["ce"], smoothed["ce"])
    assert np.abs(_run(_losses, train=True, label_smoothing=0.1)["ce"] - plain["ce"]).min() > 1e-3


@pytest.mark.parametrize("engine", ENGINES[1:])
def test_search_on_other_engines(engine: str):
    expected, result = (_run(_search, e, positions="rotary") for e in ("torch", engine))
    np.testing.assert_allclose(result["scores"], expected["scores"], atol=1e-4)
    np.testing.assert_array_equal(result["labels"], expected["labels"])


def _search(model, source, time):
    hypotheses = model.search(source, in_spatial_dim=time, beam_size=3, max_len=3)
    order = [nn.batch_dim, hypotheses.beam_dim]
    return {"labels": (hypotheses.labels, [*order, hypotheses.spatial_dim]), "scores": (hypotheses.scores, order)}


def test_search_is_enumeration():
    """all sequences of at most two labels, each scored by the model at once"""

    def _all(model, source, time):
        hypotheses = model.search(source, in_spatial_dim=time, beam_size=20, max_len=2, length_exponent=0.0)
        return {
            "labels": (hypotheses.labels, [nn.batch_dim, hypotheses.beam_dim, hypotheses.spatial_dim]),
            "lengths": (hypotheses.lengths, [nn.batch_dim, hypotheses.beam_dim]),
            "scores": (hypotheses.scores, [nn.batch_dim, hypotheses.beam_dim]),
        }

    result = _run(_all)
    candidates = [seq for n in range(3) for seq in itertools.product(range(2, OUT_VOCAB), repeat=n)]
    scores: dict = {}
    for seq in candidates:

        def _score(model, source, time, seq=seq):
            labels_dim = nn.Dim(len(seq) + 1, name="labels")
            raw = nn.convert_to_tensor(np.array([BOS, *seq], "int32"), dims=[labels_dim], sparse_dim=model.vocab_dim)
            previous = nn.expand_dim(raw, dim=nn.batch_dim)
            encoder = model.encode(source, in_spatial_dim=time)
            state = model.decoder.default_initial_state(batch_dims=[nn.batch_dim])
            logits, _ = model.decoder(previous, spatial_dim=labels_dim, state=state, encoder=encoder)
            return {"logits": (logits, [nn.batch_dim, labels_dim, model.vocab_dim])}

        log_probs = log_softmax(_run(_score)["logits"].astype("float64"), axis=-1)
        scores[seq] = log_probs[:, np.arange(len(seq) + 1), [*seq, EOS]].sum(-1)
    for i in range(3):
        ranked = sorted(candidates, key=lambda seq: -scores[seq][i])
        lengths = result["lengths"][i][: len(ranked)]
        found = [tuple(row[:n].tolist()) for row, n in zip(result["labels"][i], lengths, strict=False)]
        assert found == ranked
        np.testing.assert_allclose(result["scores"][i][: len(ranked)], [scores[s][i] for s in ranked], atol=1e-4)


def test_longest_hypothesis():
    """by default, 50 more labels than the source has: here no end is ever likely"""

    def _func(model, source, time):
        bias = nn.constant(-100.0, dims=[]) * nn.one_hot(nn.constant(EOS, dims=[], sparse_dim=model.vocab_dim))
        decoder = model.decoder
        logits = decoder.logits
        decoder.logits = lambda x: logits(x) + bias
        hypotheses = model.search(source, in_spatial_dim=time, beam_size=1)
        return {"lengths": (hypotheses.lengths, [nn.batch_dim, hypotheses.beam_dim])}

    assert _run(_func)["lengths"][:, 0].tolist() == [n + 50 for n in LENGTHS]


def test_language_model_counts():
    class _Forbids:
        """label 2"""

        def __init__(self, vocab_dim):
            self.vocab_dim = vocab_dim

        def initial_state(self, *, batch_dims):
            return {}

        def score(self, prev_labels, state):
            label = nn.constant(2, dims=[], sparse_dim=self.vocab_dim)
            return nn.expand_dims(nn.one_hot(label) * -100.0, prev_labels.dims), state

    def _func(model, source, time):
        options = {"in_spatial_dim": time, "beam_size": 2, "max_len": 4}
        outputs = {}
        for name, extra in [
            ("none", {}),
            ("zero", {"lm": _Forbids(model.vocab_dim), "lm_scale": 0.0}),
            ("lm", {"lm": _Forbids(model.vocab_dim), "lm_scale": 1.0}),
        ]:
            hypotheses = model.search(source, **options, **extra)
            outputs[name] = (hypotheses.labels, [nn.batch_dim, hypotheses.beam_dim, hypotheses.spatial_dim])
        return outputs

    result = _run(_func)
    np.testing.assert_array_equal(result["none"], result["zero"])
    assert (result["none"] == 2).any() and not (result["lm"] == 2).any()


def test_number_of_labels_and_of_hypotheses():
    def _func(model, source, time):
        options = {"in_spatial_dim": time, "beam_size": 9, "max_len": 3, "length_exponent": 0.0}
        outputs = {}
        for name, extra in [("all", {}), ("long", {"min_len": 2}), ("one", {"num_best": 1})]:
            hypotheses = model.search(source, **options, **extra)
            order = [nn.batch_dim, hypotheses.beam_dim]
            outputs |= {f"{name}-lengths": (hypotheses.lengths, order), f"{name}-scores": (hypotheses.scores, order)}
        return outputs

    result = _run(_func)
    assert result["all-lengths"].min() == 0 and result["long-lengths"].min() == 2
    assert result["one-scores"].shape[1] == 1
    np.testing.assert_allclose(result["one-scores"][:, 0], result["all-scores"][:, 0], rtol=1e-5)


def test_scale_without_language_model():
    def _func(model, source, time):
        return {"x": model.search(source, in_spatial_dim=time, lm_scale=0.3).scores}

    with pytest.raises(ValueError, match="Transformer: expected an lm for lm_scale 0.3"):
        _run(_func)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"bos": 4}, "transformer: expected bos as an index of Dim{'out-labels'.4.}, got 4"),
        ({"eos": -1}, "transformer: expected eos as an index of Dim{'out-labels'.4.}, got -1"),
        ({"label_smoothing": 1.0}, "transformer: expected 0 <= label_smoothing < 1, got 1.0"),
        ({"num_layers": 0}, "expected num_layers >= 1, got 0"),
        ({"positions": "none"}, "expected positions"),
    ],
)
def test_what_does_not_fit(options: dict, message: str):
    with pytest.raises(ValueError, match=message):
        make_transformer(IN_VOCAB, OUT_VOCAB, **{**SIZES, **options})


def test_defaults_are_the_base_model():
    """65 M parameters in the paper, which has one embedding of 37 000 labels for both; here 2 * 37 000 * 512"""
    model = make_transformer(37_000, 37_000)
    num = sum(parameter.num_elements() for parameter in model.parameters())
    assert num - 37_000 * 512 == pytest.approx(65e6, rel=0.04)
