"""Prefix beam search against enumerating all alignments."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
from returnn.frontend.decoder.transformer import TransformerDecoder

from returnn_common import nn
from returnn_common.search import ctc_beam_search
from tests.engines import ENGINES, Input, run_on
from tests.search.ctc_reference import (
    Trigram,
    assert_same,
    dict_search,
    enumerate_all,
    random_log_probs,
    search_on_torch,
)


@pytest.mark.parametrize("recombine", ["sum", "max"])
@pytest.mark.parametrize("size,frames,blank", [(3, 4, 2), (3, 4, 0), (4, 3, 1), (5, 3, 4), (2, 4, 1)])
def test_full_beam_is_enumeration(size, frames, blank, recombine):
    rng = numpy.random.default_rng(size * 10 + blank)
    log_probs = random_log_probs(rng, 40, frames, size)
    lengths = rng.integers(0, frames + 1, 40)
    lengths[:2] = frames
    found = search_on_torch(log_probs, lengths, blank=blank, beam_size=200, recombine=recombine)
    for i, length in enumerate(lengths):
        assert_same(found[i], enumerate_all(log_probs[i, :length], blank=blank, recombine=recombine))


@pytest.mark.parametrize("recombine", ["sum", "max"])
@pytest.mark.parametrize("eos", [None, "blank"])
@pytest.mark.parametrize("size,frames,blank", [(3, 4, 2), (3, 4, 0), (4, 3, 1), (5, 3, 4)])
def test_full_beam_with_scorer(size, frames, blank, eos, recombine):
    rng = numpy.random.default_rng(size)
    log_probs = random_log_probs(rng, 20, frames, size)
    lengths = rng.integers(0, frames + 1, 20)
    if eos:  # the scorer's end of sentence is where CTC has blank
        scorer, eos, to_lm = Trigram(size, bos=blank), blank, lambda c: c
    else:
        scorer, to_lm = Trigram(size - 1, bos=1), lambda c: c - (c > blank)
    kwargs: dict[str, Any] = dict(blank=blank, scorer=scorer, recombine=recombine, eos=eos)
    found = search_on_torch(log_probs, lengths, beam_size=200, scorer_scale=0.7, bos=scorer.bos, **kwargs)
    for i, length in enumerate(lengths):
        assert_same(found[i], enumerate_all(log_probs[i, :length], scale=0.7, to_lm=to_lm, **kwargs))


@pytest.mark.parametrize("beam_size", [1, 2, 3, 5])
@pytest.mark.parametrize("with_scorer", [False, True])
def test_narrow_beam(beam_size, with_scorer):
    rng = numpy.random.default_rng(beam_size)
    log_probs = random_log_probs(rng, 60, 4, 4)
    lengths = rng.integers(0, 5, 60)
    kwargs: dict[str, Any] = dict(blank=3)
    if with_scorer:
        kwargs.update(scorer=Trigram(4, bos=3), eos=3)
    found = search_on_torch(log_probs, lengths, beam_size=beam_size, scorer_scale=1.5 * with_scorer, **kwargs)
    num_exact = 0
    for i, length in enumerate(lengths):
        expected = enumerate_all(log_probs[i, :length], scale=1.5, **kwargs)
        assert_same(found[i], expected, exact=False)
        assert len(found[i]) <= beam_size
        num_exact += tuple(found[i][0][1]) == max(expected, key=lambda k: expected[k])
    assert num_exact > 60 * (0.4 if beam_size == 1 else 0.6)  # it's a search, after all


def test_prefix_comes_back_after_its_extension():
    """
    The beam holds "ab" while "a" has been pruned and comes back: then "a" + "b" must join "ab".

    Random draws with narrow beams have such cases; the reference is a search over dicts, so with exact recombination.
    """
    rng = numpy.random.default_rng(5)
    log_probs = random_log_probs(rng, 200, 9, 3)
    found = search_on_torch(log_probs, [9] * 200, blank=2, beam_size=3)
    for i in range(200):
        expected = dict_search(log_probs[i].astype("float64"), blank=2, beam_size=3)
        assert [labels for _, labels in found[i]] == [list(k) for k, _ in expected]
        numpy.testing.assert_allclose([s for s, _ in found[i]], [s for _, s in expected], atol=1e-4)


@pytest.mark.parametrize("with_scorer", [False, True])
def test_batch_is_single_and_padding_does_not_matter(with_scorer):
    rng = numpy.random.default_rng(7)
    lengths = [12, 1, 7, 0, 30]
    log_probs = random_log_probs(rng, 5, 30, 6)
    kwargs: dict[str, Any] = dict(blank=5, beam_size=4)
    if with_scorer:
        kwargs.update(scorer=Trigram(6, bos=5), scorer_scale=0.5, eos=5)
    padded = log_probs.copy()
    for i, length in enumerate(lengths):
        padded[i, length:] = [numpy.nan, numpy.inf, 1e9, 0.0, -numpy.inf][i]
    found = search_on_torch(padded, lengths, **kwargs)
    assert found == search_on_torch(log_probs, lengths, **kwargs)
    for i, length in enumerate(lengths):
        (single,) = search_on_torch(log_probs[i : i + 1, :length], [length], **kwargs)
        assert [labels for _, labels in found[i]] == [labels for _, labels in single]
        numpy.testing.assert_allclose([s for s, _ in found[i]], [s for s, _ in single], rtol=1e-5)


def test_impossible_labels():
    """log prob -inf, in CTC or in the scorer: not reported, and no NaN"""
    inf = numpy.inf
    probs = numpy.array([[[0.5, 0.0, 0.5], [0.0, 1.0, 0.0]], [[0.0, 0.0, 1.0], [0.0, 0.0, 1.0]]])
    with numpy.errstate(divide="ignore"):
        log_probs = numpy.log(probs).astype("float32")
    found = search_on_torch(log_probs, [2, 2], blank=2, beam_size=8)
    assert_same(found[0], {(0, 1): numpy.log(0.5), (1,): numpy.log(0.5)})
    assert_same(found[1], {(): 0.0})
    for scale in (1.0, 0.01):
        scorer = Trigram(3, bos=2)
        scorer.table[:, 0, 1] = -inf  # 1 never follows 0
        found = search_on_torch(log_probs, [2, 2], blank=2, beam_size=8, scorer=scorer, scorer_scale=scale, eos=2)
        assert_same(found[0], {(1,): numpy.log(0.5) + scale * scorer.total([1], 2)})


def test_scorer_scale_zero_ignores_the_scorer():
    log_probs = random_log_probs(numpy.random.default_rng(1), 2, 5, 4)
    scorer = Trigram(4, bos=3)
    scorer.table[:] = -numpy.inf
    kwargs: dict[str, Any] = dict(blank=3, beam_size=3)
    with_scorer = search_on_torch(log_probs, [5, 4], scorer=scorer, **kwargs)
    assert with_scorer == search_on_torch(log_probs, [5, 4], **kwargs)


def test_default_bos():
    log_probs = random_log_probs(numpy.random.default_rng(2), 1, 4, 4)
    common: dict[str, Any] = dict(blank=3, beam_size=5, scorer_scale=1.0)

    def search(**kwargs):
        return search_on_torch(log_probs, [4], **common, **kwargs)

    assert search(scorer=Trigram(4, bos=2), eos=2) == search(scorer=Trigram(4, bos=2), eos=2, bos=2)
    assert search(scorer=Trigram(4, bos=0)) == search(scorer=Trigram(4, bos=0), bos=0)
    assert search(scorer=Trigram(4, bos=0)) != search(scorer=Trigram(4, bos=0), bos=1)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("with_scorer", [False, True])
def test_engines_agree(engine, with_scorer):
    log_probs = random_log_probs(numpy.random.default_rng(11), 3, 3, 4)
    lengths = [3, 1, 2]
    log_probs[1, 1:] = numpy.nan
    kwargs: dict[str, Any] = dict(blank=3, recombine="sum")
    if with_scorer:
        kwargs.update(scorer=Trigram(4, bos=3), eos=3)

    def func(x, time, vocab):
        labels_dim = nn.Dim(vocab.dimension - 1, name="labels")
        hyps = ctc_beam_search(
            x, spatial_dim=time, beam_size=50, scorer_scale=0.5 * with_scorer, vocab_dim=labels_dim, **kwargs
        )
        assert hyps.labels.sparse_dim == labels_dim
        return {
            "labels": (hyps.labels, [nn.batch_dim, hyps.beam_dim, hyps.spatial_dim]),
            "scores": (hyps.scores, [nn.batch_dim, hyps.beam_dim]),
        }

    scorer = kwargs.get("scorer")
    res = run_on(
        engine,
        func,
        {"x": Input(log_probs, "batch time vocab")},
        {"time": lengths, "vocab": 4},
        make_model=scorer.make_module if scorer else None,
        params={"table": scorer.table.reshape(16, 4)} if scorer else None,
    )
    for i, length in enumerate(lengths):
        expected = enumerate_all(log_probs[i, :length], scale=0.5, **kwargs)
        lens = res.outputs["labels"].lengths[2][i]
        nbest = [
            (float(score), [int(c) for c in labels[:n]])
            for score, labels, n in zip(res["scores"][i], res["labels"][i], lens, strict=True)
        ]
        used = [(score, labels) for score, labels in nbest if score > -numpy.inf]
        assert all(score == -numpy.inf and not labels for score, labels in nbest[len(used) :])
        assert_same(used, expected)


def test_scorer_with_growing_state():
    """
    A Transformer: its state's dims grow, each hypothesis has its own length.

    Only on PyTorch: graph loops have fixed dims, and JAX's cum_concat_step gives zeros for lengths per batch entry.
    """

    class Scorer:
        def __init__(self, model):
            self.model, self.vocab_dim = model, model.vocab_dim

        def initial_state(self, *, batch_dims):
            return self.model.default_initial_state(batch_dims=batch_dims)

        def score(self, prev_labels, state):
            logits, state = self.model(prev_labels, state=state, spatial_dim=nn.single_step_dim)
            return nn.log_softmax(logits, axis=self.vocab_dim), state

        def total(self, labels, eos):
            """reference: the whole sequence at once"""
            spatial_dim = nn.Dim(len(labels) + 1, name="labels")
            seq = numpy.array([3, *labels], dtype="int32")
            seq = nn.convert_to_tensor(seq, dims=[spatial_dim], sparse_dim=self.vocab_dim)
            logits, _ = self.model(seq, state=self.initial_state(batch_dims=()), spatial_dim=spatial_dim)
            log_probs = nn.log_softmax(logits, axis=self.vocab_dim)
            log_probs = log_probs.copy_compatible_to_dims_raw([spatial_dim, self.vocab_dim]).detach().numpy()
            return sum(log_probs[i, c] for i, c in enumerate([*labels, eos]))

    def make_model():
        dims = dict(vocab_dim=nn.Dim(4, name="lm-vocab"), model_dim=nn.Dim(8, name="model"))
        return TransformerDecoder(encoder_dim=None, num_layers=2, num_heads=2, **dims)

    log_probs = random_log_probs(numpy.random.default_rng(0), 4, 3, 4)
    lengths = [3, 1, 2, 0]

    def func(model, x, time):
        kwargs: dict[str, Any] = dict(blank=3, scorer=Scorer(model), eos=3)
        hyps = ctc_beam_search(x, spatial_dim=time, beam_size=60, scorer_scale=0.8, **kwargs)
        for i, length in enumerate(lengths):
            assert_same(hyps.nbest(i), enumerate_all(log_probs[i, :length], scale=0.8, **kwargs))
        return {}

    dims = {"time": lengths, "vocab": 4}
    run_on("torch", func, {"x": Input(log_probs, "batch time vocab")}, dims, make_model=make_model)


@pytest.mark.parametrize(
    "kwargs,message",
    [
        (dict(beam_size=0), "beam_size, expected an int of at least 1, got 0"),
        (dict(beam_size=2.5), "beam_size, expected an int of at least 1, got 2.5"),
        (dict(blank=4), "blank, expected an index from 0 to 3 .*, got 4"),
        (dict(blank=-1), "blank, expected an index from 0 to 3 .*, got -1"),
        (dict(blank=None), "blank, expected an index from 0 to 3 .*, got None"),
        (dict(recombine="mean"), "recombine, expected 'sum' or 'max', got 'mean'"),
        (dict(spatial_dim=nn.Dim(3, name="other")), "log_probs, expected a tensor with .*other.*, got Tensor"),
        (
            dict(scorer=Trigram(2, bos=0)),
            r"scorer, expected a vocabulary of 4 labels, or one less .*, got .*lm-vocab.*2",
        ),
        (dict(scorer=Trigram(3, bos=0), eos=3), "eos, expected an index of the scorer's .*, got 3"),
        (dict(scorer=Trigram(3, bos=0), bos=-1), "bos, expected an index of the scorer's .*, got -1"),
        (dict(scorer=Trigram(3, bos=0), eos=1.5), "eos, expected an index of the scorer's .*, got 1.5"),
        (
            dict(scorer=Trigram(3, bos=0), scorer_scale=float("-inf")),
            "scorer_scale, expected a finite number, got -inf",
        ),
        (dict(scorer_scale=0.5), "scorer_scale, bos and eos expect a scorer, got scorer=None"),
        (dict(vocab_dim=nn.Dim(3, name="labels"), blank=0), "vocab_dim, expected size 4, or 3 where blank is the last"),
    ],
)
def test_errors(kwargs, message):
    def func(x, time):
        args: dict[str, Any] = dict(spatial_dim=time, blank=3, beam_size=2)
        with pytest.raises(ValueError, match="ctc_beam_search: " + message):
            ctc_beam_search(x, **{**args, **kwargs})
        return {}

    run_on(
        "torch", func, {"x": Input(numpy.zeros((1, 2, 4), "float32"), "batch time vocab")}, {"time": [2], "vocab": 4}
    )


def test_wrong_types():
    array: Any = numpy.zeros((1, 2, 4))
    wrong: list[tuple[dict[str, Any], str]] = [
        (dict(scorer="lm"), "scorer, expected a scorer, with a static vocab_dim, initial_state and score, got str"),
        (dict(pruning={"max_labels": 2}), "pruning, expected a CtcPruning, got {'max_labels': 2}"),
        (dict(vocab_dim=4), "vocab_dim, expected a Dim, got 4"),
    ]

    def func(x, y, labels, time):
        for kwargs, message in wrong:
            with pytest.raises(TypeError, match="ctc_beam_search: " + message):
                ctc_beam_search(y, **{"spatial_dim": time, "blank": 3, "beam_size": 1, **kwargs})
        raw: Any = y.raw_tensor
        with pytest.raises(TypeError, match="log_probs, expected a Tensor, got torch.Tensor"):
            ctc_beam_search(raw, spatial_dim=time, blank=3, beam_size=1)
        with pytest.raises(TypeError, match="log_probs, expected a Tensor, got ndarray"):
            ctc_beam_search(array, spatial_dim=time, blank=3, beam_size=1)
        with pytest.raises(TypeError, match="log_probs, expected a float tensor, got int32"):
            ctc_beam_search(labels, spatial_dim=time, blank=3, beam_size=1)
        with pytest.raises(ValueError, match="log_probs, expected a feature dim or one static dim, got Tensor"):
            ctc_beam_search(x, spatial_dim=time, blank=3, beam_size=1)
        return {}

    inputs = {
        "x": Input(numpy.zeros((1, 2), "float32"), "batch time"),
        "y": Input(array.astype("float32"), "batch time vocab"),
        "labels": Input(numpy.zeros((1, 2), "int32"), "batch time"),
    }
    run_on("torch", func, inputs, {"time": [2], "vocab": 4})
