"""An n-gram model beside a recogniser: over which labels it is."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from returnn_common import nn
from returnn_common.models.ngram_lm import NgramLm
from returnn_common.search import read_arpa, score_labels

pytest.importorskip("torch")

ARPA = """\\data\\
ngram 1=4
ngram 2=2

\\1-grams:
-0.5\t</s>
-99\t<s>\t-0.2
-0.6\tA\t-0.1
-0.7\tB

\\2-grams:
-0.1\t<s> B
-0.3\tA </s>

\\end\\
"""


@pytest.mark.parametrize(
    "labels, decoder, eos",
    [
        (["A", "B"], None, None),  # CTC
        (["A", "B"], 3, 2),  # end of sentence behind them
        (["end", "A", "B"], 3, 0),  # among them
        (["A", "B"], 4, 3),  # begin of sentence is another
    ],
)
def test_scores(labels: list[str], decoder: int | None, eos: int | None, tmp_path: Path):
    nn.select_backend_torch()
    (tmp_path / "x.arpa").write_text(ARPA)
    ngram = read_arpa(str(tmp_path / "x.arpa"))
    model = SimpleNamespace()
    if decoder is not None:
        assert eos is not None
        vocab_dim = nn.FeatureDim("labels", decoder)
        model = SimpleNamespace(decoder=SimpleNamespace(vocab_dim=vocab_dim), eos=eos, bos=min(eos, 2))
    lm = NgramLm(ngram, model, labels=labels)
    assert lm.eos == (2 if eos is None else eos) and lm.bos == (2 if eos is None else min(eos, 2))
    scorer = lm.scorer()
    assert scorer.vocab_dim.dimension == (decoder or 3)
    words = [text.split() for text in ["", "B A", "A A B"]]
    batch = nn.Dim(3, name="batch")
    sizes = nn.convert_to_tensor(np.array([len(w) for w in words], "int32"), dims=[batch])
    time = nn.Dim(sizes, name="time")
    ids = np.array([[*map(labels.index, w), 0, 0, 0][:3] for w in words], "int32")
    tensor = nn.convert_to_tensor(ids, dims=[batch, time], sparse_dim=scorer.vocab_dim)
    scores = score_labels(scorer, tensor, spatial_dim=time, bos=lm.bos, eos=lm.eos)
    np.testing.assert_allclose(scores.raw_tensor.numpy(), [ngram.log_prob(w) for w in words], rtol=1e-5)


def test_labels_that_the_model_lacks(tmp_path: Path):
    nn.select_backend_torch()
    (tmp_path / "x.arpa").write_text(ARPA)
    ngram = read_arpa(str(tmp_path / "x.arpa"))
    with pytest.raises(ValueError, match="it lacks 1 of 3: "):
        NgramLm(ngram, SimpleNamespace(), labels=["A", "C"])
    assert NgramLm(ngram, SimpleNamespace(), labels=["A", "C"], missing="impossible").eos == 2
