"""Searches with decoders and language models that are modules, on every engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from returnn_common import nn
from returnn_common.models.decoder.lstm_attention import make_lstm_attention_decoder
from returnn_common.models.decoder.transformer import make_transformer_decoder
from returnn_common.models.lm.lstm import make_lstm_lm
from returnn_common.models.lm.transformer import make_transformer_lm
from returnn_common.search import DecoderScorer, beam_search, combine, score_labels
from tests.engines import ENGINES, Input, run_on

FEATURES, VOCAB, END = 4, 4, 0
LENGTHS = [5, 2, 3]
TRANSFORMER = {"num_layers": 1, "model_dim": 4, "num_heads": 2, "dropout": 0.0}
LSTM = {"model_dim": 4, "embed_dim": 3, "dropout": 0.0}
MAKE = {
    "absolute": lambda feat, vocab: make_transformer_decoder(feat, vocab, positions="absolute", **TRANSFORMER),
    "rotary": lambda feat, vocab: make_transformer_decoder(feat, vocab, positions="rotary", **TRANSFORMER),
    "lstm-attention": lambda feat, vocab: make_lstm_attention_decoder(feat, vocab, att_dim=3, **LSTM),
    "lstm-lm": lambda feat, vocab: make_lstm_lm(vocab, num_layers=1, **LSTM),
    "transformer-lm": lambda feat, vocab: make_transformer_lm(vocab, **TRANSFORMER),
}


class _Model(nn.Module):
    """The features take the place of an encoder's output. It searches in a method, as all models do."""

    def __init__(self, decoder: Any, lm: Any):
        super().__init__()
        self.decoder = decoder
        self.lm = lm

    def search(self, x: nn.Tensor, *, time: nn.Dim) -> dict[str, Any]:
        scorer: Any = DecoderScorer(self.decoder, self.decoder.transform_encoder(x, axis=time))
        if self.lm is not None:
            scorer = combine([(scorer, 1.0), (DecoderScorer(self.lm), 0.5)])
        max_len = time.get_size_tensor(device=x.device)
        found = beam_search(
            scorer, batch_dims=[nn.batch_dim], beam_size=3, num_best=2, max_len=max_len, bos=END, eos=END
        )
        dims = [nn.batch_dim, found.beam_dim]
        outputs = {
            "labels": (found.labels, [*dims, found.spatial_dim]),
            "lengths": (found.lengths, dims),
            "scores": (found.scores, dims),
        }
        if self.lm is None:  # else it takes too long for a test on the net dict
            forced = score_labels(scorer, found.labels, spatial_dim=found.spatial_dim, bos=END, eos=END)
            outputs["forced"] = (forced, dims)
        return outputs


def _search(engine: str, *names: str):
    x = np.random.default_rng(3).normal(size=(3, 5, FEATURES)).astype("float32")

    def make_model(feat, vocab):
        decoder, *lm = (MAKE[name](feat, vocab) for name in names)
        return _Model(decoder, *(lm or [None]))

    return run_on(
        engine,
        lambda model, x, time: model.search(x, time=time),
        {"x": Input(x, "batch time feat")},
        {"time": LENGTHS, "feat": FEATURES, "vocab": VOCAB},
        make_model=make_model,
    )


@pytest.mark.parametrize("engine", ENGINES[1:])
@pytest.mark.parametrize(
    "names", [("absolute",), ("rotary", "lstm-lm"), ("lstm-attention", "transformer-lm")], ids="+".join
)
def test_engines_agree(names: tuple[str, ...], engine: str):
    expected, result = _search("torch", *names), _search(engine, *names)
    np.testing.assert_array_equal(result["labels"], expected["labels"])
    np.testing.assert_array_equal(result["lengths"], expected["lengths"])
    assert expected["lengths"].max() > 1
    for name in {"scores", "forced"} & set(result.outputs):
        np.testing.assert_allclose(result[name], expected["scores"], atol=1e-4)
