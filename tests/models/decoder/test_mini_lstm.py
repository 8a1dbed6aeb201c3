"""The mini-LSTM in the place of the encoder: whole = step by step, what it computes, what is trained, search."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from returnn_common import nn
from returnn_common.models.decoder.lstm_attention import make_lstm_attention_decoder
from returnn_common.models.decoder.mini_lstm import InternalLM, make_internal_lm, make_mini_lstm
from returnn_common.models.decoder.transformer import make_transformer_decoder
from returnn_common.models.language_model import LanguageModel
from returnn_common.search import DecoderScorer, beam_search, combine, score_labels
from tests.engines import ENGINES, Input, run_on

FEATURES, VOCAB, END = 4, 3, 0
MAKE: dict[str, Any] = {
    "transformer": lambda feat, vocab: make_transformer_decoder(
        feat, vocab, num_layers=1, model_dim=4, num_heads=2, dropout=0.0
    ),
    "lstm": lambda feat, vocab: make_lstm_attention_decoder(
        feat, vocab, model_dim=4, embed_dim=3, att_dim=3, num_heads=2, dropout=0.0
    ),
}
ENGINE_OF_KIND = [
    pytest.param(
        kind, engine, marks=[] if (kind == "transformer") == (engine == "jax") else pytest.mark.slow("one of many")
    )
    for kind in MAKE
    for engine in ENGINES[1:]
]
LABELS = np.array([[1, 2, 2, 1], [2, 0, 0, 0], [1, 1, 2, 0]], "int32")
LENGTHS = [4, 1, 3]
SMALL = {"model_dim": 5, "embed_dim": 3}


def _run(func, kind, *, engine="torch", labels=LABELS, lengths=LENGTHS, **kwargs):
    def make_model(feat, vocab):
        return LanguageModel(make_internal_lm(MAKE[kind](feat, vocab), feat, **SMALL), bos=END, eos=END)

    inputs = {"labels": Input(labels, "batch time", sparse="vocab")}
    dims = {"time": lengths, "vocab": VOCAB, "feat": FEATURES}
    return run_on(engine, func, inputs, dims, make_model=make_model, **kwargs)


@pytest.mark.parametrize("kind,engine", [*((kind, "torch") for kind in MAKE), *ENGINE_OF_KIND])
def test_training(kind, engine):
    """as the score when it runs label by label; the loss reaches the parameters of the mini-LSTM, and no others"""

    def func(model, labels, time):
        loss = model.losses(labels, in_spatial_dim=time)["ce"]
        outputs = {"nll": loss.value}
        if nn.get_selected_backend() == "torch":
            forced = score_labels(DecoderScorer(model.decoder), labels, spatial_dim=time, bos=END, eos=END)
            outputs["forced"] = -forced
        return outputs

    expected = result = _run(func, kind, train=True, grad_of="nll")
    if engine != "torch":
        result = _run(func, kind, engine=engine, train=True, grad_of="nll", params=expected.params)
    np.testing.assert_allclose(result["nll"], expected["nll"], atol=1e-4)
    np.testing.assert_allclose(result["nll"], expected["forced"], atol=1e-4)
    names = {name for name in result.grads if name in result.params}
    assert names == {name for name in expected.params if name.startswith("decoder.mini_lstm.")} and len(names) == 6
    for name in names:
        assert abs(result.grads[name]).max() > 1e-8
        np.testing.assert_allclose(result.grads[name], expected.grads[name], atol=1e-4)


@pytest.mark.parametrize("kind", list(MAKE))
def test_what_it_is(kind):
    """a step is the decoder with a context that the mini-LSTM gives from the labels so far"""

    def func(model, labels, time, batch):
        ilm = model.decoder
        outputs, state = {}, ilm.default_initial_state(batch_dims=[batch])
        mini_state = ilm.mini_lstm.lstm.default_initial_state(batch_dims=[batch])
        decoder_state = ilm.decoder.default_initial_state(batch_dims=[batch])
        frame_dim = nn.Dim(1, name="frame")
        for i in range(3):
            label = nn.gather(labels, indices=nn.constant(i, dims=(), dtype="int32"), axis=time)
            logits, state = ilm(label, spatial_dim=nn.single_step_dim, state=state)
            found = nn.log_softmax(logits, axis=ilm.vocab_dim)
            embedded = ilm.mini_lstm.embedding(label)
            hidden, mini_state = ilm.mini_lstm.lstm(embedded, state=mini_state, spatial_dim=nn.single_step_dim)
            frame = nn.expand_dim(ilm.mini_lstm.output(hidden), frame_dim)
            scorer = DecoderScorer(ilm.decoder, ilm.decoder.transform_encoder(frame, axis=frame_dim))
            expected, decoder_state = scorer.score(label, decoder_state)
            order = [batch, ilm.vocab_dim]
            outputs |= {f"found{i}": (found, order), f"expected{i}": (expected, order)}
        return outputs

    result = _run(func, kind, lengths=[4, 4, 4])
    for i in range(3):
        np.testing.assert_allclose(result[f"found{i}"], result[f"expected{i}"], atol=1e-5)


@pytest.mark.parametrize("kind", list(MAKE))
def test_batch_is_single_and_padding_does_not_matter(kind):
    def func(model, labels, time):
        return {"nll": model.losses(labels, in_spatial_dim=time)["ce"].value}

    whole = _run(func, kind)["nll"]
    for i, n in enumerate(LENGTHS):
        single = _run(func, kind, labels=LABELS[i : i + 1, :n], lengths=[n])["nll"]
        np.testing.assert_allclose(single, whole[i : i + 1], atol=1e-5)
    padded = LABELS.copy()
    for i, n in enumerate(LENGTHS):
        padded[i, n:] = 1
    np.testing.assert_allclose(_run(func, kind, labels=padded)["nll"], whole, atol=1e-6)


class _Aed(nn.Module):
    def __init__(self, decoder: Any, feat: nn.Dim):
        super().__init__()
        self.decoder = decoder
        self.mini_lstm = make_mini_lstm(decoder.vocab_dim, feat, **SMALL)

    def search(self, x: nn.Tensor, *, time: nn.Dim) -> dict[str, Any]:
        decoder = DecoderScorer(self.decoder, self.decoder.transform_encoder(x, axis=time))
        ilm = DecoderScorer(InternalLM(self.decoder, self.mini_lstm))
        hyps = beam_search(
            combine([(decoder, 1.0), (ilm, -0.3)]), batch_dims=[nn.batch_dim], beam_size=3, max_len=2, bos=END, eos=END
        )
        dims = [nn.batch_dim, hyps.beam_dim]
        return {"labels": (hyps.labels, [*dims, hyps.spatial_dim]), "scores": (hyps.scores, dims)}


@pytest.mark.parametrize("kind,engine", ENGINE_OF_KIND)
def test_search(kind, engine):
    """with its own subtracted, which shares the decoder's parameters"""
    x = np.random.default_rng(3).normal(size=(2, 4, FEATURES)).astype("float32")

    def run(engine):
        return run_on(
            engine,
            lambda model, x, time: model.search(x, time=time),
            {"x": Input(x, "batch time feat")},
            {"time": [4, 2], "feat": FEATURES, "vocab": VOCAB},
            make_model=lambda feat, vocab: _Aed(MAKE[kind](feat, vocab), feat),
        )

    expected, result = run("torch"), run(engine)
    np.testing.assert_array_equal(result["labels"], expected["labels"])
    np.testing.assert_allclose(result["scores"], expected["scores"], atol=1e-4)


def test_it_learns():
    """the transcripts are always 1 2: in a few steps, they are likely"""

    def func(model, labels, time):
        import torch

        parameters = [p.raw_tensor for p in model.parameters() if p.trainable is not False]
        frozen = {name: p.raw_tensor.detach().clone() for name, p in model.decoder.decoder.named_parameters()}
        optimizer, values = torch.optim.Adam(parameters, lr=0.1), []
        with torch.enable_grad():
            for _ in range(40):
                loss = model.losses(labels, in_spatial_dim=time)["ce"].value.raw_tensor.sum()
                values.append(float(loss.detach()))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        assert values[-1] < 0.6 * values[0]
        for name, p in model.decoder.decoder.named_parameters():
            assert (p.raw_tensor == frozen[name]).all()
        return {}

    _run(func, "lstm", labels=np.array([[1, 2]], "int32"), lengths=[2])


def test_encoder_is_refused():
    def func(model, labels, time, batch):
        ilm = model.decoder
        with pytest.raises(ValueError, match="InternalLM: expected no encoder, got 5"):
            ilm(labels, spatial_dim=time, state=ilm.default_initial_state(batch_dims=[batch]), encoder=5)
        return {}

    _run(func, "lstm")


def test_sizes():
    vocab, feat = nn.Dim(3, name="vocab"), nn.Dim(4, name="feat")

    def func(batch, x):
        mini = make_mini_lstm(vocab, feat)
        assert mini.lstm.out_dim.dimension == mini.embedding.out_dim.dimension == 50 and mini.output.out_dim == feat
        mini = make_mini_lstm(vocab, 7, model_dim=5, embed_dim=6)
        assert [d.dimension for d in (mini.lstm.out_dim, mini.embedding.out_dim, mini.output.out_dim)] == [5, 6, 7]
        return {}

    run_on("torch", func, {"x": Input(np.zeros(1, "float32"), "batch")})
