"""Search with the CTC model: against NumPy, batch = single, with a language model."""

from __future__ import annotations

import numpy as np
import pytest

from returnn_common import nn
from tests.models.ctc_tiny import LENGTHS, VOCAB, features, reference_loss, run_search


@pytest.mark.parametrize("beam_size", [1, 4])
@pytest.mark.parametrize("train", [False, True])
def test_batched_search_equals_single(train: bool, beam_size: int):
    options = {"train": train, "beam_size": beam_size}
    batched, _ = run_search(features(LENGTHS), LENGTHS, **options)
    garbage, _ = run_search(features(LENGTHS, 1e3), LENGTHS, **options)
    for i, n in enumerate(LENGTHS):
        (single,), _ = run_search(features([n]), [n], **options)
        assert len(single) == beam_size
        for nbest in (batched[i], garbage[i]):
            assert [labels for _, labels in nbest] == [labels for _, labels in single]
            np.testing.assert_allclose([s for s, _ in nbest], [s for s, _ in single], rtol=1e-4)


def test_greedy_search_is_the_best_path():
    found, log_probs = run_search(features(LENGTHS), LENGTHS)
    for nbest, frames in zip(found, log_probs, strict=True):
        best = frames.argmax(-1)
        merged = best[np.concatenate([[True], best[1:] != best[:-1]])]
        ((score, labels),) = nbest
        assert labels == merged[merged != VOCAB].tolist()
        assert score == pytest.approx(frames.max(-1).sum(), rel=1e-5)


def test_beam_search():
    """the best of the beam is at least as good as the best path; each score is that of all its alignments"""
    greedy, _ = run_search(features(LENGTHS), LENGTHS)
    found, log_probs = run_search(features(LENGTHS), LENGTHS, beam_size=16)
    for nbest, ((best_path, _),), frames in zip(found, greedy, log_probs, strict=True):
        assert len(nbest) == 16
        assert len({tuple(labels) for _, labels in nbest}) == 16
        scores = [score for score, _ in nbest]
        assert scores == sorted(scores, reverse=True) and scores[0] >= best_path
        exact = [-reference_loss(frames, labels) for _, labels in nbest]
        assert scores[0] == pytest.approx(exact[0], abs=0.05)
        assert all(score <= total + 1e-4 for score, total in zip(scores, exact, strict=True))


class Bigram:
    """after label i comes i + 1, else it costs 50; begins with BOS, which is the first label"""

    def __init__(self):
        self.vocab_dim = nn.Dim(VOCAB, name="labels")
        self.previous_dim = nn.Dim(VOCAB, name="previous")
        self.table = np.where(np.eye(VOCAB, k=1) + np.eye(VOCAB, k=1 - VOCAB), 0.0, -50.0).astype("float32")

    def initial_state(self, *, batch_dims):
        return {}

    def score(self, prev_labels, state):
        table = nn.convert_to_tensor(self.table, dims=[self.previous_dim, self.vocab_dim])
        previous = nn.set_sparse_dim(nn.cast(prev_labels, "int32"), self.previous_dim)
        return nn.gather(table, indices=previous, axis=self.previous_dim), state


def _breaks(labels: list[int], *, bos: int) -> int:
    return sum(b != (a + 1) % VOCAB for a, b in zip([bos, *labels], labels, strict=False))


@pytest.mark.parametrize("beam_size", [1, 6])
def test_language_model(beam_size: int):
    plain, log_probs = run_search(features(LENGTHS), LENGTHS, beam_size=beam_size)
    assert any(_breaks(nbest[0][1], bos=0) for nbest in plain)
    options = {"beam_size": beam_size, "lm_scale": 2.0, "make_lm": Bigram}
    found, _ = run_search(features(LENGTHS), LENGTHS, **options)
    assert [nbest[0][1] for nbest in found] != [nbest[0][1] for nbest in plain]
    for nbest, frames in zip(found, log_probs, strict=True):
        score, labels = nbest[0]
        assert _breaks(labels, bos=0) == 0
        assert score <= -reference_loss(frames, labels) + 1e-4
    others, _ = run_search(features(LENGTHS), LENGTHS, **options, bos=2)
    assert all(_breaks(nbest[0][1], bos=2) == 0 for nbest in others)
    assert [nbest[0][1] for nbest in others] != [nbest[0][1] for nbest in found]
    # At the end of sentence, 3, the last label has to be 2, or it costs 100.
    ended, _ = run_search(features(LENGTHS), LENGTHS, **options, bos=0, eos=3)
    for nbest, before in zip(ended, found, strict=True):
        assert nbest[0][0] <= before[0][0] + 1e-4
    assert [nbest[0][0] for nbest in ended] != [nbest[0][0] for nbest in found]


def test_language_model_with_scale_0_is_ignored():
    plain, _ = run_search(features(LENGTHS), LENGTHS, beam_size=3)
    assert run_search(features(LENGTHS), LENGTHS, beam_size=3, make_lm=Bigram, lm_scale=0.0)[0] == plain


@pytest.mark.parametrize("beam_size", [1, 4])
@pytest.mark.parametrize("option", [{"lm_scale": 0.5}, {"bos": 0}, {"eos": 0}])
def test_options_of_a_language_model_without_one(option: dict, beam_size: int):
    with pytest.raises(ValueError, match="scorer_scale, bos and eos expect a scorer, got scorer=None"):
        run_search(features(LENGTHS), LENGTHS, beam_size=beam_size, **option)


def test_no_beam():
    with pytest.raises(ValueError, match="beam_size, expected an int of at least 1, got 0"):
        run_search(features(LENGTHS), LENGTHS, beam_size=0)


def _best_alignment(log_probs: np.ndarray, labels: list[int]) -> float:
    """Viterbi over blanks and labels"""
    states = [VOCAB, *(c for label in labels for c in (label, VOCAB))]
    best = np.array([0.0, 0.0, *[-np.inf] * (len(states) - 2)][: len(states)])
    best = best + log_probs[0, states]
    for frame in log_probs[1:]:
        new = best.copy()
        for i, state in enumerate(states):
            before = [best[i], *best[max(i - 1, 0) : i]]
            if i > 1 and state not in (VOCAB, states[i - 2]):
                before.append(best[i - 2])
            new[i] = max(before)
        best = new + frame[states]
    return float(best[-2:].max())


def test_recombination():
    """with a beam so large that hardly anything is lost"""
    for recombine, total in (("max", _best_alignment), ("sum", lambda x, labels: -reference_loss(x, labels))):
        found, log_probs = run_search(features(LENGTHS), LENGTHS, beam_size=150, recombine=recombine)
        for nbest, frames in zip(found, log_probs, strict=True):
            scores = [score for score, _ in nbest[:5]]
            np.testing.assert_allclose(scores, [total(frames, labels) for _, labels in nbest[:5]], atol=0.02)


@pytest.mark.parametrize("beam_size", [1, 4])
def test_other_recombination(beam_size: int):
    with pytest.raises(ValueError, match="recombine, expected 'sum' or 'max', got 'mean'"):
        run_search(features(LENGTHS), LENGTHS, beam_size=beam_size, recombine="mean")


def test_pruning():
    """as of the search itself; also with a beam of 1, which then is no greedy search"""
    whole, log_probs = run_search(features(LENGTHS), LENGTHS, beam_size=4)
    for beam_size in (1, 4):
        pruned, _ = run_search(features(LENGTHS), LENGTHS, beam_size=beam_size, pruning={"max_labels": 1})
        for nbest, frames in zip(pruned, log_probs, strict=True):
            best = set(np.argmax(frames[:, :-1], axis=-1).tolist())
            assert nbest and all(set(labels) <= best for _, labels in nbest)
    assert pruned != whole
    with pytest.raises(ValueError, match="CtcModel: pruning, expected some of max_labels, .*, got 'beam'"):
        run_search(features(LENGTHS), LENGTHS, beam_size=4, pruning={"beam": 1})
