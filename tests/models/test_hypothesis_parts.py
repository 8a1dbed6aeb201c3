"""The parts of the models' scores: weighted as the models say, they are the scores of the search, in its order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from returnn_common import nn
from returnn_common.models.aed import make_aed_model
from returnn_common.models.decoder.transformer import make_transformer_decoder
from returnn_common.models.encoder.conformer import make_conformer_encoder
from returnn_common.models.hypothesis_parts import score_parts
from returnn_common.models.lm.lstm import make_lstm_lm
from returnn_common.models.transformer import make_transformer
from returnn_common.recog.components import combine_scores
from returnn_common.search import DecoderScorer
from tests.engines import ENGINES, Input, run_on
from tests.models.ctc_tiny import ENCODER, FEATURES, features, make_model

LENGTHS, VOCAB = [13, 9], 3
SMALL = {"num_layers": 1, "model_dim": 8, "num_heads": 2, "dropout": 0.0}


class _WithLm(nn.Module):
    def __init__(self, model: Any, lm_dim: nn.Dim):
        super().__init__()
        self.model = model
        self.lm = make_lstm_lm(lm_dim, num_layers=1, model_dim=4, embed_dim=3)


def _make_aed(feat, vocab, *, heads):
    encoder = make_conformer_encoder(feat, **{**ENCODER, "num_layers": 1}, conv_norm="layer", dropout=0.0)
    decoder = make_transformer_decoder(encoder.out_dim, VOCAB + 1, **SMALL)
    model = make_aed_model(feat, vocab, encoder=encoder, decoder=decoder, aux_ctc_layers=heads, specaugment=None)
    return _WithLm(model, decoder.vocab_dim)


def _make_ctc(feat, vocab):
    return _WithLm(make_model(feat, vocab, num_layers=1), nn.FeatureDim("labels-and-end", VOCAB + 1))


def _run(
    make: Callable[..., Any], options: dict[str, float], *, engine: str = "torch", bos_eos: dict[str, int], **search
):
    """:return: scores of the search, and of each part, {batch, beam}; and what the model says about their scales"""
    scales: dict[str, float] = {}

    def func(model, x, time):
        lm = DecoderScorer(model.lm) if options.get("lm_scale") else None
        lm_options = bos_eos if lm is not None else {}
        found = model.model.search(x, in_spatial_dim=time, lm=lm, **options, **search, **lm_options)
        if "internal_lm" in search:
            lm_options = {**lm_options, "internal_lm": search["internal_lm"]}
        parts = model.model.score_hypotheses(found, x, in_spatial_dim=time, lm=lm, **lm_options)
        scales.update(model.model.part_scales(**options))
        dims = [nn.batch_dim, found.beam_dim]
        outputs = {"scores": (found.scores, dims), "lengths": (found.lengths, dims)}
        return {**outputs, **{f"part {name}": (part, dims) for name, part in parts.items()}}

    dims = {"time": LENGTHS, "feat": FEATURES, "vocab": VOCAB}
    result = run_on(engine, func, {"x": Input(features(LENGTHS), "batch time feat")}, dims, make_model=make)
    return result, scales


def _check(result, scales: dict[str, float]):
    names = [name.removeprefix("part ") for name in result.outputs if name.startswith("part ")]
    parts = np.stack([result[f"part {name}"] for name in names], axis=-1).astype("float64")
    used = np.isfinite(result["scores"])
    assert used.sum() >= 4
    given = {name: scale for name, scale in scales.items() if scale}
    total, ranks = combine_scores(names, parts, result["lengths"] + 1.0, given)
    np.testing.assert_allclose(total[used], result["scores"][used], rtol=1e-4, atol=1e-4)
    for row, row_used in zip(ranks, used, strict=True):
        assert (np.diff(row[row_used]) < 1e-4).all(), row  # in the order of the search
    return names


AED_OPTIONS = [
    {},
    {"length_exponent": 0.0},
    {"lm_scale": 0.5},
    {"ctc_scale": 0.3},
    {"ctc_scale": 0.3, "lm_scale": 0.5, "length_exponent": 0.7},
]


@pytest.mark.parametrize("options", AED_OPTIONS)
def test_attention(options: dict[str, float]):
    heads = [1] if "ctc_scale" in options else []
    result, scales = _run(
        lambda feat, vocab: _make_aed(feat, vocab, heads=heads), options, bos_eos={}, beam_size=4, max_len=3
    )
    names = _check(result, scales)
    assert names == ["decoder", *["ctc"] * bool(heads), *["lm"] * ("lm_scale" in options)]


INTERNAL = [
    ({"internal_lm_scale": 0.3}, {"max_len": 3, "beam_size": 4}),
    ({"internal_lm_scale": 0.3, "ctc_scale": 0.3, "lm_scale": 0.5}, {"max_len": 3, "beam_size": 4}),
    ({"internal_lm_scale": 0.3, "ctc_scale": 0.3, "lm_scale": 0.5}, {"time_sync": True, "beam_size": 40}),
]


@pytest.mark.parametrize("options, search", INTERNAL)
def test_internal_lm(options: dict[str, float], search: dict[str, Any]):
    """is subtracted"""
    first = {}
    for context in ("zero", "average"):
        result, scales = _run(
            lambda feat, vocab: _make_aed(feat, vocab, heads=[1]), options, bos_eos={}, **search, internal_lm=context
        )
        names = _check(result, scales)
        assert names == ["decoder", "ctc", "internal_lm", *["lm"] * ("lm_scale" in options)]
        assert scales["internal_lm"] == -0.3
        first[context] = result["scores"][:, 0]
    assert not np.allclose(first["zero"], first["average"])


@pytest.mark.parametrize(
    "options, message",
    [
        ({"internal_lm_scale": -0.1}, "AedModel: internal_lm_scale, expected a number of at least 0, got -0.1"),
        ({"internal_lm": "none"}, "AedModel: internal_lm, expected 'zero' or 'average', got 'none'"),
    ],
)
def test_internal_lm_that_there_is_not(options: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        _run(lambda feat, vocab: _make_aed(feat, vocab, heads=[]), options, bos_eos={}, beam_size=2)


@pytest.mark.parametrize("lm_scale", [0.0, 0.5])
def test_ctc(lm_scale: float):
    """a beam that holds all prefixes, so that no alignment was pruned"""
    bos_eos = {"bos": VOCAB, "eos": VOCAB}
    result, scales = _run(_make_ctc, {"lm_scale": lm_scale}, bos_eos=bos_eos, beam_size=40)
    assert _check(result, scales) == ["ctc", *["lm"] * bool(lm_scale)]


def test_begin_and_end_of_the_language_model():
    """are not those of the model, if they are given"""
    results = [
        _run(_make_ctc, {"lm_scale": 0.5}, bos_eos=bos_eos, beam_size=40)
        for bos_eos in ({"bos": VOCAB, "eos": VOCAB}, {"bos": 0, "eos": VOCAB}, {"bos": VOCAB, "eos": 0})
    ]
    for result, scales in results:
        _check(result, scales)
    sums = [np.ma.masked_invalid(result["part lm"]).sum() for result, _ in results]
    assert len({round(float(value), 3) for value in sums}) == 3


@pytest.mark.parametrize("options", [{}, {"lm_scale": 0.5, "length_exponent": 0.5}])
def test_text_to_text(options: dict[str, float]):
    def func(model, source, time):
        lm = DecoderScorer(model.lm) if options else None
        found = model.model.search(source, in_spatial_dim=time, beam_size=3, max_len=3, lm=lm, **options)
        parts = model.model.score_hypotheses(found, source, in_spatial_dim=time, lm=lm)
        scales.update(model.model.part_scales(**options))
        dims = [nn.batch_dim, found.beam_dim]
        outputs = {"scores": (found.scores, dims), "lengths": (found.lengths, dims)}
        return {**outputs, **{f"part {name}": (part, dims) for name, part in parts.items()}}

    def make(vocab):
        return _WithLm(make_transformer(vocab, vocab, **SMALL, bos=0, eos=0), vocab)

    scales: dict[str, float] = {}
    source = Input(np.array([[1, 2, 3], [2, 1, 0]], "int32"), "batch time", sparse="vocab")
    result = run_on("torch", func, {"source": source}, {"time": [3, 2], "vocab": 4}, make_model=make)
    assert _check(result, scales) == ["decoder", *["lm"] * bool(options)]


# Each of the other engines builds or compiles three loops: a minute.
@pytest.mark.slow
@pytest.mark.parametrize("engine", [engine for engine in ENGINES if engine != "torch"])
def test_engines(engine: str):
    options = {"ctc_scale": 0.3, "lm_scale": 0.5}
    result, scales = _run(
        lambda feat, vocab: _make_aed(feat, vocab, heads=[1]),
        options,
        engine=engine,
        bos_eos={},
        beam_size=2,
        max_len=2,
    )
    assert _check(result, scales) == ["decoder", "ctc", "lm"]


def test_fewer_labels():
    def func(model, x, time):
        found = model.model.search(x, in_spatial_dim=time, beam_size=2)
        small = DecoderScorer(make_lstm_lm(2, num_layers=1, model_dim=4, embed_dim=3))
        with pytest.raises(
            ValueError, match="score_parts: lm: expected a vocabulary of at least 3 labels like .*, got "
        ):
            score_parts(found, {"ctc": (None, 0, 0), "lm": (small, 0, 0)})
        return {"scores": (found.scores, [nn.batch_dim, found.beam_dim])}

    dims = {"time": LENGTHS, "feat": FEATURES, "vocab": VOCAB}
    run_on("torch", func, {"x": Input(features(LENGTHS), "batch time feat")}, dims, make_model=_make_ctc)
