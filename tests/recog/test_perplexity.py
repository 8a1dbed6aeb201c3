"""Perplexity of a whole dataset: what the forward step marks, and what the callback makes of it."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from returnn.config import Config, global_config_ctx
from returnn.frontend import run_ctx
from returnn.tensor import Dim, Tensor, TensorDict

from returnn_common import nn
from returnn_common.models.language_model import LanguageModel, perplexity
from returnn_common.models.lm.lstm import make_lstm_lm
from returnn_common.recog.perplexity import PerplexityCallback, ppl_callback, ppl_step, read_perplexity

torch = pytest.importorskip("torch")

LENGTHS = [4, 0, 2]
LABELS = np.array([[0, 1, 2, 3], [9, 9, 9, 9], [3, 3, 9, 9]], "int32") % 4  # with padding
STARTS = [True, False, False, True, False]  # of the labels, and of the end of sentence behind them


@pytest.fixture(autouse=True)
def _torch_backend():
    nn.select_backend_torch()
    yield
    run_ctx.reset_run_ctx()


@pytest.fixture
def model() -> LanguageModel:
    lm = make_lstm_lm(5, num_layers=1, model_dim=6, embed_dim=3, dropout=0.5)
    for i, (_, param) in enumerate(lm.named_parameters()):
        torch.nn.init.normal_(param.raw_tensor, generator=torch.Generator().manual_seed(i))
    return LanguageModel(lm, bos=4, eos=4, word_starts=STARTS)


def _data(name: str = "data", labels: np.ndarray = LABELS, lengths: list[int] = LENGTHS) -> TensorDict:
    batch = Dim(len(lengths), name="batch")
    sizes = Tensor("time", dims=[batch], dtype="int32", raw_tensor=torch.tensor(lengths, dtype=torch.int32))
    data = TensorDict()
    data.data[name] = Tensor(
        name,
        dims=[batch, nn.SpatialDim("time", sizes)],
        dtype="int32",
        sparse_dim=Dim(4, name="labels"),
        raw_tensor=torch.tensor(labels),
    )
    return data


def _forward(model: LanguageModel, data: TensorDict, **config) -> dict[str, list[float]]:
    """as RETURNN's engine does it"""
    nn.init_forward_step_run_ctx(step=0)
    with global_config_ctx(Config(config)), torch.no_grad():
        ppl_step(model=model, extern_data=data, an_argument_of_later_versions=None)
    return {name: output.raw_tensor[:, 0].tolist() for name, output in nn.get_run_ctx().outputs.data.items()}


def _process(callback: PerplexityCallback, tag: str, **values: float):
    one, outputs = Dim(1, name="one"), TensorDict()
    for name, value in values.items():
        outputs.data[name] = Tensor(name, dims=[one], dtype="float32", raw_tensor=np.array([value], "float32"))
    callback.process_seq(seq_tag=tag, outputs=outputs)


def test_outputs_of_the_step(model: LanguageModel):
    """each sentence's, by what the decoder gives its labels one by one"""
    outputs = _forward(model, _data())
    assert list(outputs) == ["nll", "num_labels", "num_words"]
    assert outputs["num_labels"] == [5.0, 1.0, 3.0] and outputs["num_words"] == [3.0, 1.0, 3.0]
    decoder = model.decoder
    for labels, length, nll in zip(LABELS, LENGTHS, outputs["nll"], strict=True):
        state, previous, expected = decoder.default_initial_state(batch_dims=[]), 4, 0.0
        for label in [*labels[:length].tolist(), 4]:
            raw = torch.tensor(previous, dtype=torch.int32)
            source = Tensor("previous", dims=[], dtype="int32", sparse_dim=model.vocab_dim, raw_tensor=raw)
            with torch.no_grad():
                logits, state = decoder(source, spatial_dim=nn.single_step_dim, state=state)
            expected -= torch.log_softmax(logits.raw_tensor, -1)[label].item()
            previous = label
        assert nll == pytest.approx(expected, rel=1e-5)


def test_default_input(model: LanguageModel):
    assert _forward(model, _data("text"), default_input="text") == _forward(model, _data())
    with pytest.raises(ValueError, match=r"ppl_step: default_input is 'data', but extern_data has only \['text'\]"):
        _forward(model, _data("text"))


def test_perplexity_of_a_dataset(tmp_path: Path):
    path = tmp_path / "sub" / "dev.json"
    with global_config_ctx(Config({"recog_output_file": str(path)})):
        callback = ppl_callback()
    _process(callback, "a", nll=6.0, num_labels=3.0, num_words=1.0)
    _process(callback, "b", nll=2.0, num_labels=1.0, num_words=1.0)
    assert not path.exists()
    callback.finish()
    assert [file.name for file in path.parent.iterdir()] == ["dev.json"]
    expected = {
        "per_label": math.exp(8 / 4),
        "per_word": math.exp(8 / 2),
        "nll": 8.0,
        "num_labels": 4,
        "num_words": 2,
        "num_sentences": 2,
    }
    assert read_perplexity(path) == expected == json.loads(path.read_text())


def test_same_as_of_the_models_room(tmp_path: Path):
    rng = np.random.default_rng(1)
    nll, labels, words = rng.uniform(1, 50, 100).astype("float32"), rng.integers(5, 30, 100), rng.integers(1, 5, 100)
    callback = PerplexityCallback(str(tmp_path / "x.json"))
    for i in range(100):
        _process(callback, str(i), nll=nll[i], num_labels=labels[i], num_words=words[i])
    callback.finish()
    expected = perplexity(nll, num_labels=labels, num_words=words)
    result = read_perplexity(tmp_path / "x.json")
    for name in ("per_label", "per_word", "num_labels", "num_words"):
        assert result[name] == pytest.approx(getattr(expected, name), rel=1e-9), name


def test_default_file():
    with global_config_ctx(Config({})):
        assert ppl_callback().path == "perplexity.json"


def test_what_the_callback_refuses(tmp_path: Path):
    callback = PerplexityCallback(str(tmp_path / "x.json"))
    with pytest.raises(ValueError, match="ppl_callback: expected at least one sentence, got none"):
        callback.finish()
    with pytest.raises(ValueError, match="ppl_callback: expected a finite nll of 'a', got nan"):
        _process(callback, "a", nll=math.nan, num_labels=1.0, num_words=1.0)
    _process(callback, "a", nll=1.0, num_labels=1.0, num_words=1.0)
    with pytest.raises(ValueError, match="ppl_callback: 'a' comes twice in the dataset"):
        _process(callback, "a", nll=1.0, num_labels=1.0, num_words=1.0)


@pytest.mark.parametrize(
    "text, message", [("{", "x.json is damaged: "), ("[1]", r"x.json: expected perplexities, got \[1\]")]
)
def test_damaged_file(text: str, message: str, tmp_path: Path):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(ValueError, match=message):
        read_perplexity(tmp_path / "x.json")
