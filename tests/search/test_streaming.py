"""Searches piece after piece are those of the whole, and what is known in between is the search of what has come."""

from __future__ import annotations

import inspect
from typing import Any

import numpy
import pytest

from returnn_common import nn
from returnn_common.models.lm.transformer import make_transformer_lm
from returnn_common.search import (
    CtcBeamStream,
    CtcGreedyStream,
    CtcPruning,
    DecoderScorer,
    TransducerBeamStream,
    TransducerGreedyStream,
    ctc_beam_search,
    ctc_greedy_search,
    transducer_beam_search,
    transducer_greedy_search,
)
from tests.engines import ENGINES, Input, run_on
from tests.search.ctc_reference import Trigram, random_log_probs
from tests.search.transducer_reference import Table, random_frames

SIZE = 4
BLANK = 3
CTC = {"ctc_greedy": (CtcGreedyStream, ctc_greedy_search), "ctc_beam": (CtcBeamStream, ctc_beam_search)}
TRANSDUCER = {
    "greedy": (TransducerGreedyStream, transducer_greedy_search),
    "beam": (TransducerBeamStream, transducer_beam_search),
}
NBest = list[list[tuple[float, list[int]]]]


class Lm:
    """:param make_module: -> LM; its state grows in PyTorch"""

    def __init__(self, size: int):
        self.size = size
        self.scorer: Any = None

    def make_module(self):
        sizes: dict[str, Any] = {"num_layers": 1, "model_dim": 8, "num_heads": 2}
        return make_transformer_lm(nn.Dim(self.size, name="words"), **sizes, dropout=0.0)


def _search(
    kind: str, frames: numpy.ndarray, paces: list[list[int]], *, engine: str = "torch", scorer: Any = None, **options
) -> tuple[list[NBest], NBest]:
    """
    :param frames: {batch, time, size}
    :param paces: of each sequence, how many frames of it come in each piece
    :return: n-best lists after each piece, and of the whole
    """
    num, lengths = len(paces[0]), [sum(pace) for pace in paces]
    frames = frames[:, : max(lengths)]
    inputs, dims = {"x": Input(frames, "batch time labels")}, {"time": lengths, "labels": SIZE}
    for i in range(num):
        sizes = [pace[i] for pace in paces]
        piece = numpy.full((len(paces), max(sizes), SIZE), numpy.nan, "float32")
        for row, pace in enumerate(paces):
            piece[row, : pace[i]] = frames[row, sum(pace[:i]) : sum(pace[: i + 1])]
        inputs[f"x{i}"], dims[f"time{i}"] = Input(piece, f"batch time{i} labels"), sizes
    table = Table(SIZE, blank=BLANK, seed=1) if kind in TRANSDUCER else None

    def make_module():
        module = table.make_module() if table else nn.Module()
        if scorer is not None:
            module.scorer = scorer.make_module()
        return module

    def func(model, labels, time, **xs):
        if scorer is not None:
            options["scorer"] = DecoderScorer(model.scorer) if isinstance(scorer, Lm) else scorer
        if table is not None:
            make, whole = TRANSDUCER[kind]
            subject = table
        else:
            make, whole = CTC[kind]
            subject = labels
        for x in [v for v in xs.values() if isinstance(v, nn.Tensor)]:
            x.feature_dim = labels
        stream = make(subject, blank=BLANK, batch_dims=[nn.batch_dim], **options)
        state = stream.initial_state()
        found = []
        for i in range(num):
            state = stream.step(xs[f"x{i}"], spatial_dim=xs[f"time{i}"], state=state)
            if engine == "torch" or i == num - 1:
                found.append(stream.hypotheses(state))
        first = [table] if table is not None else []
        found.append(whole(*first, xs["x"], spatial_dim=time, blank=BLANK, **options))
        outputs = {}
        for i, hyps in enumerate(found):
            outputs[f"labels{i}"] = (hyps.labels, [nn.batch_dim, hyps.beam_dim, hyps.spatial_dim])
            outputs[f"scores{i}"] = (hyps.scores, [nn.batch_dim, hyps.beam_dim])
            outputs[f"lengths{i}"] = (hyps.lengths, [nn.batch_dim, hyps.beam_dim])
        return outputs

    names = ["model", "labels", "time", *inputs, *(f"time{i}" for i in range(num))]
    func.__signature__ = inspect.Signature([inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY) for n in names])
    params = {"table": table.table.reshape(-1, SIZE)} if table is not None else {}
    if isinstance(scorer, Trigram):
        params["scorer.table"] = scorer.table.reshape(-1, len(scorer.table))
    result = run_on(engine, func, inputs, dims, make_model=make_module, params=params)
    *pieces, whole = (_nbest(result, i) for i in range(len(result.outputs) // 3))
    return pieces, whole


def _nbest(result, i: int) -> NBest:
    scores, labels, lengths = (result[f"{name}{i}"] for name in ("scores", "labels", "lengths"))
    return [
        [(float(s), [int(y) for y in row[:n]]) for s, row, n in zip(*entry, strict=True) if s > -numpy.inf]
        for entry in zip(scores, labels, lengths, strict=True)
    ]


def _assert_same(found: NBest, expected: NBest):
    assert [[labels for _, labels in entry] for entry in found] == [[y for _, y in entry] for entry in expected]
    for a, b in zip(found, expected, strict=True):
        numpy.testing.assert_allclose([s for s, _ in a], [s for s, _ in b], atol=1e-4, rtol=1e-5)


def _make(kind: str, paces: list[list[int]], seed: int = 0) -> numpy.ndarray:
    rng, most = numpy.random.default_rng(seed), max(sum(pace) for pace in paces)
    if kind in CTC:
        return random_log_probs(rng, len(paces), most, SIZE)
    return random_frames(rng, len(paces), most, SIZE)


SAME_PACE = [[1] * 5, [1] * 3 + [0] * 2, [0] * 5]
ONE_PIECE = [[7], [4], [0]]
OWN_PACES = [[3, 0, 4, 2], [0, 1, 5, 0], [2, 3, 0, 3], [0] * 4, [9, 0, 0, 0], [0, 0, 0, 1]]
WITH_LM: dict[str, Any] = {"scorer": Trigram(SIZE, bos=BLANK), "scorer_scale": 0.6, "bos": BLANK, "eos": BLANK}
CASES: list[tuple[str, dict[str, Any]]] = [
    ("ctc_greedy", {}),
    ("ctc_beam", {"beam_size": 3}),
    ("ctc_beam", {"beam_size": 1}),
    ("ctc_beam", {"beam_size": 100, "recombine": "max"}),
    ("ctc_beam", {"beam_size": 4, **WITH_LM}),
    ("ctc_beam", {"beam_size": 4, "pruning": CtcPruning(blank_threshold=0.3)}),
    ("ctc_beam", {"beam_size": 4, **WITH_LM, "pruning": CtcPruning(blank_threshold=0.5, max_labels=2)}),
    ("ctc_beam", {"beam_size": 4, "pruning": CtcPruning(score_margin=1.0)}),
    ("greedy", {}),
    ("greedy", {"topology": "monotonic"}),
    ("greedy", {"max_labels_per_frame": 1}),
    ("beam", {"beam_size": 3}),
    ("greedy", {"topology": "ctc"}),
    ("beam", {"beam_size": 1, "topology": "monotonic"}),
    ("beam", {"beam_size": 4, "topology": "ctc"}),
    ("beam", {"beam_size": 4, "topology": "ctc", "recombine": "max", **WITH_LM}),
    ("beam", {"beam_size": 1, "topology": "ctc"}),
    ("beam", {"beam_size": 4, "max_labels_per_frame": 2, "recombine": "max"}),
    ("beam", {"beam_size": 4, "max_labels_per_frame": 2, **WITH_LM}),
]


@pytest.mark.parametrize("paces", [SAME_PACE, ONE_PIECE, OWN_PACES], ids=["frame by frame", "whole", "own paces"])
@pytest.mark.parametrize("kind, options", CASES)
def test_pieces_are_the_whole(kind: str, options: dict[str, Any], paces: list[list[int]]):
    """what comes out in between is the search of what has come"""
    frames = _make(kind, paces)
    pieces, whole = _search(kind, frames, paces, **options)
    _assert_same(pieces[-1], whole)
    for i in range(len(paces[0]) - 1) if paces is OWN_PACES else []:
        _, expected = _search(kind, frames, [[sum(pace[: i + 1])] for pace in paces], **options)
        _assert_same(pieces[i], expected)
    assert any(labels for _, labels in whole[0])


@pytest.mark.parametrize("kind", ["ctc_beam", "beam"])
def test_scorer_whose_state_grows(kind: str):
    """a Transformer language model"""
    options = {"beam_size": 3, "scorer": Lm(SIZE), "scorer_scale": 0.5, "bos": BLANK, "eos": BLANK}
    pieces, whole = _search(kind, _make(kind, OWN_PACES), OWN_PACES, **options)
    _assert_same(pieces[-1], whole)
    without, _ = _search(kind, _make(kind, OWN_PACES), OWN_PACES, beam_size=3)
    assert without[-1] != whole


@pytest.mark.parametrize("kind", [*CTC, *TRANSDUCER])
@pytest.mark.parametrize("engine", [engine for engine in ENGINES if engine != "torch"])
def test_engines(engine: str, kind: str):
    paces = [[2, 2], [1, 2], [2, 0]]
    options: dict[str, Any] = {} if "greedy" in kind else {"beam_size": 3}
    options.update({} if kind in CTC else {"max_labels_per_frame": 1})
    frames = _make(kind, paces)
    (found,), whole = _search(kind, frames, paces, engine=engine, **options)
    _assert_same(found, whole)
    expected, _ = _search(kind, frames, paces, **options)
    _assert_same(found, expected[-1])


@pytest.mark.parametrize(
    "kind, options, message",
    [
        ("ctc_greedy", {"blank": 4}, "CtcGreedyStream: blank, expected an index from 0 to 3"),
        ("ctc_greedy", {"vocab_dim": nn.Dim(2, name="words")}, "CtcGreedyStream: vocab_dim, expected size 4, or 3"),
        ("ctc_beam", {"beam_size": 2, "blank": -1}, "CtcBeamStream: blank, expected an index from 0 to 3"),
        ("ctc_beam", {"beam_size": 0}, "CtcBeamStream: beam_size, expected an int of at least 1, got 0"),
        ("ctc_beam", {"beam_size": 1, "eos": 1}, "CtcBeamStream: scorer_scale, bos and eos expect a scorer"),
        ("ctc_beam", {"beam_size": 1, "vocab_dim": nn.Dim(9, name="words")}, "CtcBeamStream: vocab_dim, expected size"),
        ("greedy", {"blank": 4}, "TransducerGreedyStream: blank, expected an index"),
        ("greedy", {"topology": "hmm"}, "TransducerGreedyStream: topology, expected one of"),
        ("greedy", {"vocab_dim": nn.Dim(9, name="words")}, "TransducerGreedyStream: vocab_dim, expected size"),
        ("beam", {"beam_size": 2, "blank": 4}, "TransducerBeamStream: blank, expected an index"),
        ("beam", {"beam_size": 2, "max_labels_per_frame": 0}, "TransducerBeamStream: max_labels_per_frame, expected"),
        ("beam", {"beam_size": 2, "recombine": "mean"}, "TransducerBeamStream: recombine, expected 'sum' or 'max'"),
        ("beam", {"beam_size": 2, "vocab_dim": nn.Dim(9, name="words")}, "TransducerBeamStream: vocab_dim, expected"),
    ],
)
def test_bad_options(kind: str, options: dict[str, Any], message: str):
    subject = nn.Dim(SIZE, name="labels") if kind in CTC else Table(SIZE, blank=BLANK)
    nn.select_backend_torch()
    with pytest.raises(ValueError, match=message):
        {**CTC, **TRANSDUCER}[kind][0](subject, batch_dims=[], **{"blank": BLANK, **options})


@pytest.mark.parametrize("kind", [*CTC, *TRANSDUCER])
def test_bad_frames(kind: str):
    nn.select_backend_torch()
    labels, time, other = nn.Dim(SIZE, name="labels"), nn.Dim(2, name="time"), nn.Dim(2, name="other")
    make, _ = {**CTC, **TRANSDUCER}[kind]
    options = {} if "greedy" in kind else {"beam_size": 2}
    stream = make(labels if kind in CTC else Table(SIZE, blank=BLANK), blank=BLANK, batch_dims=[], **options)
    with pytest.raises(ValueError, match=f"{make.__name__}: .*, expected a tensor with Dim{{'other'"):
        stream.step(nn.zeros([time, labels]), spatial_dim=other, state=stream.initial_state())
    if kind in CTC:
        wrong = nn.zeros([time, nn.Dim(SIZE, name="others")])
        with pytest.raises(ValueError, match=f"{make.__name__}: log_probs, expected a tensor with Dim{{'labels'"):
            stream.step(wrong, spatial_dim=time, state=stream.initial_state())
