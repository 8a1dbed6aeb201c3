"""The code in docs/search.md runs: on scorers, n-gram models, internal language models and phrases."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from returnn_common import nn
from returnn_common.models.aed import make_aed_model
from returnn_common.models.decoder.lstm_attention import make_lstm_attention_decoder
from returnn_common.models.encoder.lstm import make_lstm_encoder
from returnn_common.models.lm.lstm import make_lstm_lm
from returnn_common.search import DecoderScorer
from returnn_common.training import train_ngram
from tests.engines import Input, run_on

PAGE = Path(__file__).resolve().parents[2] / "docs" / "search.md"
LABELS = ["one", "two", "three", "</s>"]


def code_below(heading: str) -> str:
    section = PAGE.read_text("utf8").split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    blocks = re.findall(r"^```python\n(.*?)^```", section, flags=re.MULTILINE | re.DOTALL)
    assert blocks
    return "".join(blocks)


def test_code(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    train_ngram([["one", "two"], ["three"]], "4gram.arpa.gz", order=4)
    headings = ["Shallow fusion", "Density ratio, internal language models", "Phrases that are expected"]
    code = {heading: code_below(heading) for heading in headings}

    def func(model, x, time, batch):
        encoded, spatial_dim = model.encode(x, in_spatial_dim=time)
        other_lm = make_lstm_lm(model.decoder.vocab_dim, num_layers=1, model_dim=4, embed_dim=4)
        names = {
            "nn": nn,
            "model": model,
            "encoded": encoded,
            "spatial_dim": spatial_dim,
            "labels": LABELS,
            "transcripts_lm": DecoderScorer(other_lm),
            "contacts": ["one three", "two"],
            "encode": lambda text: [LABELS.index(word) for word in text.split()],
        }
        for heading in headings:
            exec(compile(code[heading], f"{PAGE}: {heading}", "exec"), names)
            again = names["beam_search"](
                names.get("scorer", names["lm"]), batch_dims=[batch], beam_size=2, max_len=3, bos=3, eos=3
            )
            assert again.nbest(0) and again.nbest(1)
        assert len(names["hypotheses"].nbest(0)) > 1
        return {}

    def make_model(feat):
        encoder = make_lstm_encoder(feat, num_layers=1, out_dim=4, time_pooling=())
        decoder = make_lstm_attention_decoder(encoder.out_dim, 4, model_dim=4, embed_dim=4, att_dim=4)
        return make_aed_model(feat, 4, encoder=encoder, decoder=decoder, eos=3, specaugment=None)

    x = np.random.default_rng(0).standard_normal((2, 12, 5)).astype("float32")
    run_on("torch", func, {"x": Input(x, "batch time feat")}, {"time": [12, 9], "feat": 5}, make_model=make_model)


def test_heading_that_is_not_there():
    with pytest.raises(IndexError):
        code_below("no such heading")
