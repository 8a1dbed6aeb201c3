"""Combinations of scorers, and decoders as scorers."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
from returnn.datasets.util.vocabulary import Vocabulary
from returnn.frontend.decoder.transformer import TransformerDecoder

from returnn_common import nn
from returnn_common.search import DecoderScorer, beam_search, combine, sample, score_labels
from tests.engines import Input, run_on
from tests.search.beam_reference import TableScorer, assert_same, enumerate_all, search_on_torch

INF = float("inf")


class Sum:
    """reference: what a combination gives"""

    def __init__(self, *parts):
        self.parts = parts
        self.vocab_dim = parts[0][0].vocab_dim

    def total(self, labels, **kwargs):
        totals = [scale * scorer.total(labels, **kwargs) for scorer, scale in self.parts]
        return -INF if any(numpy.isinf(totals)) else sum(totals)


@pytest.mark.parametrize("scales", [(1.0, 0.3, 2.0), (1.0, -0.4, 0.0), (0.0, 1.0, -0.2)])
@pytest.mark.parametrize("bos,eos", [(3, 3), (0, 2)])
def test_combine_is_enumeration(scales, bos, eos):
    rng = numpy.random.default_rng(1)
    scorers = [TableScorer(4, seed=i, name=f"table{i}") for i in range(3)]
    for scorer in scorers:
        scorer.table[rng.random(scorer.table.shape) < 0.1] = -INF
    starts = rng.integers(0, 200, 30)
    parts = list(zip(scorers, scales, strict=True))
    expected = Sum(*[(scorer, scale) for scorer, scale in parts if scale])
    scorer = combine(parts)
    assert scorer.vocab_dim == scorers[0].vocab_dim
    found = search_on_torch(scorer, starts, max_len=3, beam_size=100, bos=bos, eos=eos, scorers=scorers)
    for nbest, start in zip(found, starts, strict=True):
        assert_same(nbest, enumerate_all(expected, max_len=3, bos=bos, eos=eos, start=start))


def test_combinations_in_a_combination():
    a, b, c = (TableScorer(3, seed=i) for i in range(3))
    nested = combine([(combine([(a, 1.0), (b, 0.5)]), 0.8), (c, -0.1)])
    flat = combine([(a, 0.8), (b, 0.4), (c, -0.1)])
    kwargs: dict[str, Any] = dict(max_len=3, beam_size=20, bos=0, eos=0)
    (found,), (expected,) = search_on_torch(nested, [0], **kwargs), search_on_torch(flat, [0], **kwargs)
    assert_same(found, expected)
    assert nested.can_exceed_zero and combine([(nested, 1.0)]).can_exceed_zero  # pyright: ignore
    assert not combine([(a, 1.0), (c, 0.1)]).can_exceed_zero  # pyright: ignore


def test_scale_zero_is_not_called():
    scorer, other = TableScorer(3, seed=1), TableScorer(3)
    other.table[:] = -INF
    kwargs: dict[str, Any] = dict(max_len=3, beam_size=4, bos=0, eos=0)
    found = search_on_torch(combine([(other, 0.0), (scorer, 1.0)]), [0], **kwargs)
    assert found == search_on_torch(scorer, [0], **kwargs)
    assert other.num_steps == 0 and other.initial_states == 0


def test_combine_errors():
    def vocab(labels):
        scorer = TableScorer(3, name="other")
        scorer.vocab_dim.vocab = Vocabulary.create_vocab_from_labels(labels)
        return scorer

    for pairs in ([], [(TableScorer(3), 0.0)]):
        with pytest.raises(ValueError, match="combine: expected at least one scorer with a scale other than 0, got"):
            combine(pairs)
    with pytest.raises(
        ValueError,
        match=r"combine: scorer 1 \(TableScorer\): expected a vocabulary of 3 labels like .*table-vocab.*, got .*other",
    ):
        combine([(TableScorer(3), 1.0), (TableScorer(4, name="other"), 0.0)])
    for wrong, message in [
        (TableScorer(3), "combine: scorer 0, expected a pair of scorer and scale, got TableScorer"),
        ((0.3, TableScorer(3)), "combine: scorer 0, expected a scorer, with a static vocab_dim, .*, got float"),
    ]:
        with pytest.raises(TypeError, match=message):
            combine([wrong])  # pyright: ignore
    for scale in (float("nan"), float("inf"), "0.3"):
        with pytest.raises(ValueError, match=f"combine: scale 1, expected a finite number, got {scale!r}"):
            combine([(TableScorer(3), 1.0), (TableScorer(3), scale)])  # pyright: ignore
    with pytest.raises(ValueError, match=r"scorer 1 .*: expected the same labels, but label 2 .* 'd', not 'c'"):
        combine([(vocab(["a", "b", "c"]), 1.0), (vocab(["a", "b", "d"]), 1.0)])
    combine([(vocab(["a", "b", "c"]), 1.0), (vocab(["a", "b", "c"]), 1.0), (TableScorer(3), 1.0)])


def make_decoder(feat):
    return TransformerDecoder(feat, nn.Dim(3, name="vocab"), nn.Dim(8, name="model"), num_layers=1, num_heads=2)


@pytest.mark.parametrize("engine", ["torch", "tensorflow", "jax"])
@pytest.mark.parametrize("with_encoder", [True, False])
def test_decoder(engine, with_encoder):
    """
    The state of RETURNN's Transformer grows with each step. Against the decoder on whole sequences.

    Not on the net dict, where RETURNN's decoder doesn't run.
    """
    beam_size, lengths = 8, [5, 2]
    rng = numpy.random.default_rng(3)

    def func(model, x, time, batch):
        encoder = model.transform_encoder(x, axis=time) if with_encoder else None
        hyps = beam_search(
            DecoderScorer(model, encoder), batch_dims=[batch], beam_size=beam_size, max_len=2, bos=0, eos=0
        )
        # All at once: end of sentence before, as begin, and after
        spatial_dim = hyps.spatial_dim
        labels = nn.where(spatial_dim.get_mask(), nn.cast(hyps.labels, "int32"), 0)
        previous, (longer,) = nn.pad(labels, axes=[spatial_dim], padding=[(1, 0)], value=0)
        following, _ = nn.pad(labels, axes=[spatial_dim], padding=[(0, 1)], value=0, out_dims=[longer])
        state = model.default_initial_state(batch_dims=[batch, hyps.beam_dim])
        previous = nn.set_sparse_dim(previous, model.vocab_dim)
        kwargs = {"encoder": encoder} if with_encoder else {}
        logits, _ = model(previous, spatial_dim=longer, state=state, **kwargs)
        log_probs = nn.gather(nn.log_softmax(logits, axis=model.vocab_dim), indices=following, axis=model.vocab_dim)
        return {
            "labels": (hyps.labels, [batch, hyps.beam_dim, spatial_dim]),
            "scores": (hyps.scores, [batch, hyps.beam_dim]),
            "expected": (nn.reduce_sum(log_probs, axis=longer), [batch, hyps.beam_dim]),
        }

    inputs = {"x": Input(rng.standard_normal((2, 5, 6)).astype("float32"), "batch time feat")}
    res = run_on(
        engine,
        func,
        inputs,
        {"time": lengths, "feat": 6},
        make_model=lambda feat: make_decoder(feat if with_encoder else None),
    )
    used = res["scores"] > -INF
    numpy.testing.assert_allclose(res["scores"][used], res["expected"][used], atol=1e-4)
    assert (used.sum(1) == 1 + 2 + 4).all()
    ranks = numpy.where(used, res["scores"] / (res.outputs["labels"].lengths[2] + 1), -INF)
    assert (numpy.diff(ranks[:, : used[0].sum()]) <= 1e-6).all()
    if with_encoder:
        assert abs(res["scores"][0, :7] - res["scores"][1, :7]).max() > 1e-3


def test_decoder_of_low_precision():
    """softmax in float32"""

    class Half:
        vocab_dim = nn.Dim(3, name="vocab")

        def default_initial_state(self, *, batch_dims):
            return nn.State()

        def __call__(self, labels, *, spatial_dim, state):
            assert spatial_dim == nn.single_step_dim
            logits = nn.convert_to_tensor(numpy.array([8.0, 1.0, 2.0], "float32"), dims=[self.vocab_dim])
            return nn.cast(logits, "bfloat16"), state

    def func(batch, x):
        scorer = DecoderScorer(Half())
        log_probs, _ = scorer.score(nn.set_sparse_dim(x, scorer.vocab_dim), scorer.initial_state(batch_dims=[batch]))
        assert log_probs.dtype == "float32"
        expected = numpy.array([8.0, 1.0, 2.0]) - numpy.log(numpy.exp([8.0, 1.0, 2.0]).sum())
        numpy.testing.assert_allclose(log_probs.raw_tensor.numpy(), expected, atol=1e-6)
        return {}

    run_on("torch", func, {"x": Input(numpy.zeros(2, "int32"), "batch")})


def test_forced_on_combination():
    """each score of a search = the sum of what its parts give, forced"""
    a, b = TableScorer(4, seed=1), TableScorer(4, seed=2, name="other")

    def func(start, batch):
        a.start = b.start = start
        hyps = beam_search(combine([(a, 1.0), (b, 0.3)]), batch_dims=[batch], beam_size=6, max_len=5, bos=0, eos=0)
        forced = [score_labels(s, hyps.labels, spatial_dim=hyps.spatial_dim, bos=0, eos=0) for s in (a, b)]
        assert forced[0].dims_set == hyps.scores.dims_set
        total = forced[0] + 0.3 * forced[1]
        difference = nn.reduce_max(nn.abs(total - hyps.scores), axis=hyps.scores.dims)
        assert float(difference.raw_tensor) < 1e-4
        return {}

    run_on("torch", func, {"start": Input(numpy.arange(50, dtype="int32"), "batch")})


class Recorder:
    """a decoder that notes which capacity it got"""

    def __init__(self):
        self.vocab_dim, self.capacities, self.beams = nn.Dim(3, name="vocab"), [], []

    def default_initial_state(self, *, batch_dims, capacity=None, beam_dim=None):
        assert beam_dim is None or beam_dim in batch_dims
        self.beams.append(beam_dim and beam_dim.dimension)
        self.capacities.append(capacity if capacity is None or isinstance(capacity, int) else int(capacity.raw_tensor))
        return nn.State(count=nn.zeros(batch_dims))

    def __call__(self, labels, *, spatial_dim, state):
        return nn.zeros([*labels.dims, self.vocab_dim]), nn.State(count=state.count + 1.0)


@pytest.mark.parametrize("engine,expected", [("torch", [None, None, None, 9, None]), ("jax", [5, 6, 5, 9, 5])])
def test_capacity(engine, expected):
    """as many steps as the search can take at most, where the engine gains from it; or as stated"""
    decoder = Recorder()

    def func(lens, batch):
        kwargs: dict[str, Any] = dict(batch_dims=[batch], beam_size=2, bos=0, eos=0)
        scorer = DecoderScorer(decoder)
        beam_search(scorer, max_len=4, **kwargs)
        beam_search(scorer, max_len=lens, **kwargs)
        beam_search(combine([(scorer, 0.5)]), max_len=4, **kwargs)
        beam_search(DecoderScorer(decoder, capacity=9), max_len=4, **kwargs)
        sample(scorer, batch_dims=[batch], num_samples=2, max_len=4, bos=0, eos=0)
        return {}

    run_on(engine, func, {"lens": Input(numpy.array([2, 5], "int32"), "batch")})
    assert decoder.capacities == expected
    # Where shapes may change as they like, and hypotheses are selected
    assert decoder.beams == [*([2] * 4 if engine == "torch" else [None] * 4), None]
