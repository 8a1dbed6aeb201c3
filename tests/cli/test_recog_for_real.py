"""Tests of the command recog with RETURNN itself: a language model in the search, and the scores of all parts."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from returnn_common import nn
from returnn_common.cli.recog import recognise_run
from returnn_common.cli.recog.request import Asked
from returnn_common.cli.recog.tune import Tuning
from returnn_common.cli.run_model import load_run_model
from returnn_common.recog.components import combine_scores, read_components
from returnn_common.recog.nbest import read_nbest
from tests.cli.tiny import WORDS, make_corpus
from tests.cli.trained import AED, make_trained, make_word_lm

pytest.importorskip("torch")


def _lm_scores(lm: Path, texts: list[str]) -> np.ndarray:
    """by the language model in this process, a whole sentence at a time"""
    loaded = load_run_model(lm)
    with loaded.forward():
        words = [text.split() for text in texts]
        longest = max(map(len, words))
        batch = nn.Dim(len(words), name="batch")
        sizes = nn.convert_to_tensor(np.array([len(w) for w in words], "int32"), dims=[batch])
        time = nn.Dim(sizes, name="time")
        ids = np.array([[*map(WORDS.index, w), *[0] * (longest - len(w))] for w in words], "int32")
        source = nn.convert_to_tensor(ids, dims=[batch, time], sparse_dim=nn.Dim(len(WORDS), name="labels"))
        nll, _, _ = loaded.model.nll(source, in_spatial_dim=time)
        return -nll.raw_tensor.numpy()


# On the other engines, RETURNN builds or compiles the search for a minute and more.
@pytest.mark.parametrize(
    "backend",
    ["torch", *(pytest.param(b, marks=pytest.mark.slow) for b in ("tensorflow", "tensorflow-net-dict", "jax"))],
)
def test_language_model(backend: str, tmp_path: Path):
    corpus = make_corpus(tmp_path / "corpus")
    out = make_trained("digits_aed", tmp_path / "aed", corpus=corpus, settings=AED)
    lm = make_word_lm(tmp_path / "lm")
    options = {"lm_scale": "0.5", "ctc_scale": "0.3", "length_exponent": "0.5", "max_len": "4"}
    asked = Asked(beam=3, lm=str(lm), options=options, backend=backend, name="x")
    assert recognise_run(str(out), asked, tuning=Tuning(["lm_scale=0.5"])) == 0
    folder = out / "recog" / "x"
    read, nbest = read_components(folder / "test.scores.json.gz"), read_nbest(folder / "test.py.gz")
    assert read.names == ("search", "decoder", "ctc", "lm") and len(nbest) == 2
    scales = {"decoder": 0.7, "ctc": 0.3, "lm": 0.5, "length_exponent": 0.5}
    for tag, one in read.lists.items():
        assert one.texts == [text for _, text in nbest[tag]] and len(one.texts) == 3
        scores, ranks = combine_scores(read.names, one.scores, one.lengths, scales)
        np.testing.assert_allclose(scores, [score for score, _ in nbest[tag]], rtol=1e-4)
        assert (np.diff(ranks) < 1e-4).all()  # in this order, the search has found them
        np.testing.assert_allclose(one.scores[:, 3], _lm_scores(lm, one.texts), rtol=1e-4)
    assert read_nbest(folder / "test.tuned.py.gz").keys() == nbest.keys()
    results = json.loads((folder / "results.json").read_text())["splits"]["test"]["wer"]
    assert results["tuned"] == results["search"]
