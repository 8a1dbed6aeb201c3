"""Search for transducers against enumerating all alignments, and against a search over dicts."""

from __future__ import annotations

from typing import Any

import numpy
import pytest

from returnn_common import nn
from returnn_common.models.lm.transformer import make_transformer_lm
from returnn_common.search import (
    DecoderScorer,
    combine,
    score_labels,
    transducer_alignment_search,
    transducer_beam_search,
    transducer_greedy_search,
)
from tests.engines import ENGINES, Input, run_on
from tests.search.ctc_reference import Trigram, assert_same
from tests.search.transducer_reference import (
    Table,
    dict_alignment_search,
    dict_search,
    enumerate_all,
    greedy_path,
    random_frames,
    search,
)

topologies = pytest.mark.parametrize("topology,max_labels", [("rnnt", 1), ("rnnt", 2), ("monotonic", 1), ("ctc", 1)])


@pytest.mark.parametrize("recombine", ["sum", "max"])
@pytest.mark.parametrize("size,blank", [(3, 2), (3, 0), (2, 1)])
@topologies
def test_full_beam_is_enumeration(size: int, blank: int, topology: str, max_labels: int, recombine: str):
    rng = numpy.random.default_rng(size)
    transducer = Table(size, blank=blank)
    frames = random_frames(rng, 5, 3, size)
    lengths = [3, 3, 2, 1, 0]
    options: dict[str, Any] = {"topology": topology, "recombine": recombine}
    found = search(transducer, frames, lengths, beam_size=130, max_labels_per_frame=max_labels, **options)
    for i, n in enumerate(lengths):
        assert_same(found[i], enumerate_all(transducer, frames[i, :n], max_labels=max_labels, **options))


def test_full_beam_has_all_probability_that_the_limit_leaves():
    """monotonic: nothing is left out"""
    frames = random_frames(numpy.random.default_rng(0), 1, 4, 3)
    (found,) = search(Table(3, blank=2), frames, [4], beam_size=40, topology="monotonic")
    assert sum(numpy.exp(score) for score, _ in found) == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("with_end", [False, True])
@topologies
def test_full_beam_with_scorer(topology: str, max_labels: int, with_end: bool):
    transducer = Table(3, blank=2)
    frames = random_frames(numpy.random.default_rng(3), 4, 3, 3)
    lengths = [3, 2, 1, 0]
    scorer, eos = (Trigram(3, bos=2), 2) if with_end else (Trigram(2, bos=1), None)
    options: dict[str, Any] = {"scorer": scorer, "scorer_scale": 0.7, "bos": scorer.bos, "eos": eos}
    found = search(
        transducer, frames, lengths, beam_size=130, max_labels_per_frame=max_labels, topology=topology, **options
    )
    for i, n in enumerate(lengths):
        expected = enumerate_all(
            transducer,
            frames[i, :n],
            max_labels=max_labels,
            topology=topology,
            extra=lambda labels: 0.7 * scorer.total(labels, eos),
        )
        assert_same(found[i], expected)


@pytest.mark.parametrize("beam_size", [1, 2, 4])
@pytest.mark.parametrize("topology,max_labels", [("rnnt", 1), ("rnnt", 3), ("monotonic", 1), ("ctc", 1)])
def test_narrow_beam_is_the_search_over_dicts(beam_size: int, topology: str, max_labels: int):
    transducer = Table(4, blank=3, seed=1)
    rng = numpy.random.default_rng(beam_size)
    frames = random_frames(rng, 30, 6, 4)
    lengths = rng.integers(0, 7, 30)
    options: dict[str, Any] = {"beam_size": beam_size, "topology": topology}
    found = search(transducer, frames, lengths, max_labels_per_frame=max_labels, **options)
    for i, n in enumerate(lengths):
        expected = dict_search(transducer, frames[i, :n], max_labels=max_labels, **options)
        assert [labels for _, labels in found[i]] == [list(k) for k, _ in expected]
        numpy.testing.assert_allclose([s for s, _ in found[i]], [s for _, s in expected], atol=1e-4)


@topologies
def test_greedy(topology: str, max_labels: int):
    transducer = Table(4, blank=3, seed=2)
    rng = numpy.random.default_rng(1)
    frames = random_frames(rng, 30, 6, 4)
    lengths = rng.integers(0, 7, 30)
    options: dict[str, Any] = {"max_labels_per_frame": max_labels, "topology": topology}
    found = search(transducer, frames, lengths, kind="greedy", **options)
    for i, n in enumerate(lengths):
        labels, score = greedy_path(transducer, frames[i, :n], max_labels=max_labels, topology=topology)
        assert found[i] == [(pytest.approx(score, abs=1e-4), list(labels))]
    for recombine in ("sum", "max"):
        beam = search(transducer, frames, lengths, beam_size=1, recombine=recombine, **options)
        for x, y in zip(beam, found, strict=True):
            assert x == [(pytest.approx(y[0][0], abs=1e-4), y[0][1])]


def test_alignment_synchronous_beam_of_one_is_greedy():
    transducer = Table(4, blank=3, seed=2)
    frames = random_frames(numpy.random.default_rng(1), 30, 5, 4)
    lengths = numpy.random.default_rng(2).integers(0, 6, 30)
    greedy = search(transducer, frames, lengths, kind="greedy", max_labels_per_frame=12)
    beam = search(transducer, frames, lengths, kind="alignment", beam_size=1, max_len=60)
    ended = [(x, y) for x, y in zip(beam, greedy, strict=True) if len(y[0][1]) < 12]
    assert len(ended) > 7 and max(len(y[0][1]) for _, y in ended) > 4
    for x, y in ended:
        assert x == [(pytest.approx(y[0][0], abs=1e-4), y[0][1])]


def test_greedy_of_a_certain_model_is_beam_one():
    """each choice has a probability near 1: there is nothing that a later decision could make better"""
    transducer = Table(4, blank=3, seed=2)
    frames = random_frames(numpy.random.default_rng(1), 80, 3, 4) * 300
    found, greedy = (search(transducer, frames, [3] * 80, **x) for x in ({"beam_size": 1}, {"kind": "greedy"}))
    certain = [i for i in range(80) if greedy[i][0][0] > -0.1]
    assert len(certain) > 5 and max(len(greedy[i][0][1]) for i in certain) > 1
    assert [found[i][0][1] for i in certain] == [greedy[i][0][1] for i in certain]


@pytest.mark.parametrize(
    "options",
    [
        {"kind": "greedy"},
        {"beam_size": 3},
        {"beam_size": 3, "with_scorer": True},
        {"beam_size": 3, "with_scorer": True, "kind": "alignment"},
    ],
)
def test_batch_is_single_and_padding_does_not_matter(options: dict):
    options = dict(options)
    transducer = Table(5, blank=4)
    lengths = [9, 1, 5, 0, 12]
    frames = random_frames(numpy.random.default_rng(7), 5, 12, 5)
    if options.pop("with_scorer", False):
        options.update(scorer=Trigram(5, bos=4), scorer_scale=0.5, eos=4)
    padded = frames.copy()
    for i, n in enumerate(lengths):
        padded[i, n:] = [numpy.nan, numpy.inf, 1e9, 0.0, -numpy.inf][i]
    found = search(transducer, padded, lengths, **options)
    assert found == search(transducer, frames, lengths, **options)
    for i, n in enumerate(lengths):
        (single,) = search(transducer, frames[i : i + 1, :n], [n], **options)
        assert [labels for _, labels in found[i]] == [labels for _, labels in single]
        numpy.testing.assert_allclose([s for s, _ in found[i]], [s for s, _ in single], rtol=1e-5)


@pytest.mark.parametrize("options", [{"kind": "greedy"}, {"beam_size": 1}, {"beam_size": 2}])
def test_rigged_joiners(options: dict):
    """always the same label; blank never possible; blank always"""
    always = Table(3, blank=2, table=numpy.broadcast_to(numpy.float32([9, 0, 0]), (3, 3, 3)).copy())
    zeros = numpy.zeros((2, 3, 3), "float32")
    for limit, expected in [(1, 1), (4, 4), (None, 5)]:
        found = search(always, zeros, [3, 1], max_labels_per_frame=limit, **options)
        if options.get("beam_size") != 2:  # which sees that ending at once is more probable than after some labels
            assert [x[0][1] for x in found] == [[0] * 3 * expected, [0] * expected]
        else:
            assert all(len(labels) <= expected * n for x, n in zip(found, [3, 1], strict=True) for _, labels in x)
    for topology, labels in [("monotonic", [0] * 3), ("ctc", [0])]:
        found = search(always, zeros, [3, 1], topology=topology, **options)
        assert [x[0][1] for x in found] == [labels, [0]]
    never = Table(3, blank=2, table=numpy.broadcast_to(numpy.float32([0, 0, -numpy.inf]), (3, 3, 3)).copy())
    ones = numpy.ones((2, 3, 3), "float32")
    found = search(never, ones, [0, 2], **options)
    assert found[0][0] == (0.0, [])
    assert all(score < -1e29 for score, _ in found[1])
    blanks = Table(3, blank=2, table=numpy.broadcast_to(numpy.float32([0, 0, 60]), (3, 3, 3)).copy())
    found = search(blanks, zeros, [3, 0], **options)
    assert [x[0] for x in found] == [(0.0, [])] * 2


@pytest.mark.parametrize("options", [{"kind": "greedy"}, {"beam_size": 2}, {"beam_size": 2, "kind": "alignment"}])
def test_no_frames_at_all(options: dict):
    found = search(Table(3, blank=2), numpy.zeros((2, 0, 3), "float32"), [0, 0], **options)
    assert found == [[(0.0, [])]] * 2


def test_beam_larger_than_the_vocabulary():
    frames = random_frames(numpy.random.default_rng(1), 1, 1, 2)
    (found,) = search(Table(2, blank=1), frames, [1], beam_size=9, max_labels_per_frame=2)
    assert sorted(labels for _, labels in found) == [[], [0], [0, 0]]
    (found,) = search(Table(2, blank=1), frames, [1], beam_size=9, kind="alignment", max_len=2)
    assert sorted(labels for _, labels in found) == [[], [0], [0, 0]]


def test_scorer_that_can_exceed_zero_is_searched_in_full():
    """a subtracted language model rewards labels that make the hypotheses longer"""
    transducer = Table(3, blank=2)
    frames = random_frames(numpy.random.default_rng(5), 10, 3, 3)
    scorer = Trigram(3, bos=2)
    for beam_size in (1, 3):
        options: dict[str, Any] = {"beam_size": beam_size, "eos": 2, "max_labels_per_frame": 2}
        found = search(transducer, frames, [3] * 10, scorer=scorer, scorer_scale=-3.0, **options)
        longest = sum(len(x[0][1]) for x in found)
        assert longest > 10 * 4, "it has to go on after hypotheses that only get better later"


def test_combined_scorers():
    """an external language model, and one subtracted"""
    transducer = Table(3, blank=2)
    frames = random_frames(numpy.random.default_rng(5), 2, 3, 3)
    one, two = Trigram(3, bos=2), Trigram(3, bos=2, seed=1)
    both = combine([(one, 0.6), (two, -0.3)])
    nn.select_backend_torch()
    batch, feat = nn.Dim(2, name="batch"), nn.Dim(3, name="feat")
    time = nn.Dim(nn.convert_to_tensor(numpy.array([3, 2], "int32"), dims=[batch]), name="time")
    encoded = nn.convert_to_tensor(frames, dims=[batch, time, feat], feature_dim=feat)
    hyps = transducer_beam_search(
        transducer,
        encoded,
        spatial_dim=time,
        blank=2,
        beam_size=130,
        max_labels_per_frame=2,
        scorer=both,
        scorer_scale=1.0,
        bos=2,
        eos=2,
    )
    for i, n in enumerate([3, 2]):

        def extra(labels):
            return 0.6 * one.total(labels, 2) - 0.3 * two.total(labels, 2)

        assert_same(hyps.nbest(i), enumerate_all(transducer, frames[i, :n], max_labels=2, extra=extra))


@pytest.mark.parametrize("recombine", ["sum", "max"])
@pytest.mark.parametrize("max_len", [None, 0, 4])
@pytest.mark.parametrize("with_scorer", [False, True])
def test_alignment_synchronous_full_beam_is_enumeration(max_len: int | None, with_scorer: bool, recombine: str):
    transducer = Table(3, blank=2)
    frames = random_frames(numpy.random.default_rng(3), 5, 3, 3)
    lengths = [3, 3, 2, 1, 0]
    scorer = Trigram(3, bos=2)
    options: dict[str, Any] = {"scorer": scorer, "scorer_scale": 0.7, "bos": 2, "eos": 2} if with_scorer else {}
    found = search(
        transducer, frames, lengths, kind="alignment", beam_size=60, max_len=max_len, recombine=recombine, **options
    )
    for i, n in enumerate(lengths):
        expected = enumerate_all(
            transducer,
            frames[i, :n],
            max_labels=99,
            max_len=n if max_len is None else max_len,
            recombine=recombine,
            extra=lambda labels: 0.7 * scorer.total(labels, 2) if with_scorer else 0.0,
        )
        if n == 0:
            expected = {k: v for k, v in expected.items() if not k}
        assert_same(found[i], expected)


@pytest.mark.parametrize("beam_size", [1, 2, 4])
def test_alignment_synchronous_narrow_beam_is_the_search_over_dicts(beam_size: int):
    transducer = Table(4, blank=3, seed=1)
    rng = numpy.random.default_rng(beam_size)
    frames = random_frames(rng, 30, 6, 4)
    lengths = rng.integers(0, 7, 30)
    frames[lengths < 6, 5] = numpy.nan
    found = search(transducer, frames, lengths, kind="alignment", beam_size=beam_size)
    for i, n in enumerate(lengths):
        expected = dict_alignment_search(transducer, frames[i, :n], beam_size=beam_size, max_len=n)
        assert [labels for _, labels in found[i]] == [list(k) for k, _ in expected]
        numpy.testing.assert_allclose([s for s, _ in found[i]], [s for _, s in expected], atol=1e-4)


def test_scorer_whose_state_grows():
    """a Transformer: hypotheses on the levels of a frame have states of different lengths"""
    transducer = Table(3, blank=2)
    lengths = [3, 1, 2]
    frames = random_frames(numpy.random.default_rng(3), 3, 3, 3)

    def func(model, x, time, feat):
        x.feature_dim = feat
        lm = DecoderScorer(model)
        options: dict[str, Any] = {"spatial_dim": time, "blank": 2, "beam_size": 60, "max_labels_per_frame": 2}
        alone = transducer_beam_search(transducer, x, **options)
        hyps = transducer_beam_search(transducer, x, **options, scorer=lm, scorer_scale=0.8, bos=2, eos=2)
        labels = nn.set_sparse_dim(hyps.labels, model.vocab_dim)
        scores = score_labels(lm, labels, spatial_dim=hyps.spatial_dim, bos=2, eos=2)
        dims = [nn.batch_dim, hyps.beam_dim]
        total = scores.copy_compatible_to_dims_raw(dims).detach().numpy()
        for i in range(1, 3):
            expected = {tuple(k): score for score, k in alone.nbest(i)}
            assert len(expected) == len(hyps.nbest(i)) > 2
            for k, (score, found) in enumerate(hyps.nbest(i)):
                assert score == pytest.approx(expected[tuple(found)] + 0.8 * total[i, k], abs=1e-4)
        return {}

    run_on(
        "torch",
        func,
        {"x": Input(frames, "batch time feat")},
        {"time": lengths, "feat": 3},
        make_model=lambda: make_transformer_lm(3, num_layers=1, model_dim=8, num_heads=2),
    )


@pytest.mark.parametrize("kind,with_scorer", [("beam", False), ("beam", True), ("alignment", True)])
@pytest.mark.parametrize("engine", [e for e in ENGINES if e != "torch"])
def test_engines_agree(engine: str, kind: str, with_scorer: bool):
    transducer = Table(3, blank=2)
    frames = random_frames(numpy.random.default_rng(11), 3, 3, 3)
    lengths = [3, 1, 2]
    frames[1, 1:] = numpy.nan
    kinds = {"beam": {"max_labels_per_frame": 2}, "alignment": {"max_len": 4}, "ctc": {"topology": "ctc"}}
    options: dict[str, Any] = {"beam_size": 5, "kind": "beam" if kind == "ctc" else kind, **kinds[kind]}
    if with_scorer:
        options.update(scorer=Trigram(3, bos=2), scorer_scale=0.5, eos=2)
    found, expected = (search(transducer, frames, lengths, engine=e, **options) for e in (engine, "torch"))
    for a, b in zip(found, expected, strict=True):
        assert [labels for _, labels in a] == [labels for _, labels in b]
        numpy.testing.assert_allclose([s for s, _ in a], [s for s, _ in b], atol=1e-4)


@pytest.mark.parametrize(
    "engine",
    ["tensorflow", "tensorflow-net-dict", pytest.param("jax", marks=pytest.mark.slow("JAX compiles each operation"))],
)
def test_engines_agree_ctc(engine: str):
    test_engines_agree(engine, "ctc", False)


@pytest.mark.parametrize("engine", [e for e in ENGINES if e != "torch"])
def test_engines_agree_greedy(engine: str):
    transducer = Table(3, blank=2, seed=4)
    frames = random_frames(numpy.random.default_rng(11), 3, 4, 3)
    found, expected = (search(transducer, frames, [4, 1, 2], engine=e, kind="greedy") for e in (engine, "torch"))
    assert [x[0][1] for x in found] == [x[0][1] for x in expected]
    numpy.testing.assert_allclose([x[0][0] for x in found], [x[0][0] for x in expected], atol=1e-4)


@pytest.mark.parametrize(
    "options,message",
    [
        ({"beam_size": 0}, "beam_size, expected an int of at least 1, got 0"),
        ({"blank": 3}, "blank, expected an index from 0 to 2 of .*, got 3"),
        ({"max_labels_per_frame": 0}, "max_labels_per_frame, expected an int of at least 1, got 0"),
        ({"topology": "hmm"}, "topology, expected one of rnnt, monotonic, ctc, got 'hmm'"),
        (
            {"topology": "ctc", "max_labels_per_frame": 2},
            "max_labels_per_frame, expected 1 with the topology 'ctc', got 2",
        ),
        (
            {"topology": "monotonic", "max_labels_per_frame": 2},
            "max_labels_per_frame, expected 1 with the topology 'monotonic', got 2",
        ),
        ({"recombine": "mean"}, "recombine, expected 'sum' or 'max', got 'mean'"),
        ({"spatial_dim": nn.Dim(3, name="other")}, "encoded, expected a tensor with .*other.*, got Tensor"),
        ({"scorer": Trigram(4, bos=0)}, "scorer, expected a vocabulary of 3 labels, or one less"),
        ({"scorer": Trigram(3, bos=0), "eos": 3}, "eos, expected an index of the scorer's .*, got 3"),
        ({"scorer_scale": 0.5}, "scorer_scale, bos and eos expect a scorer, got scorer=None"),
        ({"vocab_dim": nn.Dim(4, name="labels")}, "vocab_dim, expected size 3, or 2 where blank is the last label"),
    ],
)
def test_errors(options: dict, message: str):
    nn.select_backend_torch()
    time, feat = nn.Dim(2, name="time"), nn.Dim(3, name="feat")
    encoded = nn.zeros([nn.Dim(1, name="batch"), time, feat], feature_dim=feat)
    defaults: dict[str, Any] = {"spatial_dim": time, "blank": 2, "beam_size": 2}
    with pytest.raises(ValueError, match="transducer_beam_search: " + message):
        transducer_beam_search(Table(3, blank=2), encoded, **{**defaults, **options})
    if not {"max_labels_per_frame", "topology"} & set(options):
        with pytest.raises(ValueError, match="transducer_alignment_search: " + message):
            transducer_alignment_search(Table(3, blank=2), encoded, **{**defaults, **options})
    with pytest.raises(ValueError, match="transducer_alignment_search: max_len, expected an int of at least 0, got -1"):
        transducer_alignment_search(Table(3, blank=2), encoded, **defaults, max_len=-1)
    defaults.pop("beam_size")
    if not {"beam_size", "recombine", "scorer", "scorer_scale"} & set(options):
        with pytest.raises(ValueError, match="transducer_greedy_search: " + message):
            transducer_greedy_search(Table(3, blank=2), encoded, **{**defaults, **options})


def test_labels_have_the_wanted_dim():
    nn.select_backend_torch()
    time, feat, labels_dim = nn.Dim(2, name="time"), nn.Dim(3, name="feat"), nn.Dim(2, name="labels")
    encoded = nn.zeros([nn.Dim(1, name="batch"), time, feat], feature_dim=feat)
    transducer = Table(3, blank=2)
    for vocab_dim, expected in [(None, transducer.labels_dim), (labels_dim, labels_dim)]:
        options: dict[str, Any] = {"spatial_dim": time, "blank": 2, "vocab_dim": vocab_dim}
        assert transducer_greedy_search(transducer, encoded, **options).labels.sparse_dim == expected
        assert transducer_beam_search(transducer, encoded, **options, beam_size=2).labels.sparse_dim == expected
