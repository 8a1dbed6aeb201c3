"""The forward step and its callback: what is marked, and what is written from it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from returnn.config import Config, global_config_ctx
from returnn.datasets.util.vocabulary import BytePairEncoding, Vocabulary
from returnn.frontend import run_ctx
from returnn.tensor import Dim, Tensor, TensorDict

from returnn_common import nn
from returnn_common.models.ctc import make_ctc_model
from returnn_common.models.encoder.conformer import make_conformer_encoder
from returnn_common.recog import RecogCallback, read_nbest, recog_callback, recog_step

torch = pytest.importorskip("torch")

WORDS = ["ZERO", "ONE", "TWO", "THREE"]
OPTIONS = {"class": "Vocabulary", "vocab_file": None, "labels": WORDS, "unknown_label": None}
LENGTHS = [40, 21, 4]
TAGS = ["c/1", "a/2", "b'\"/3"]


@pytest.fixture(autouse=True)
def _torch_backend():
    nn.select_backend_torch()
    yield
    run_ctx.reset_run_ctx()


def _model(vocab_dim: Dim):
    encoder = make_conformer_encoder(
        8, num_layers=1, out_dim=8, num_heads=2, conv_kernel_size=3, subsampling_channels=4, dropout=0.0
    )
    model = make_ctc_model(encoder.in_dim, vocab_dim, encoder=encoder)
    # So that the hypotheses have several labels
    generator = torch.Generator().manual_seed(3)
    for name, param in model.named_parameters():
        raw = param.raw_tensor.data
        if raw.ndim > 1:
            scale = 2.0 if name == "output.weight" else (raw.shape[-1] / raw.numel()) ** 0.5
            raw[...] = torch.randn(raw.shape, generator=generator) * scale
        elif name.endswith(".bias"):
            raw[...] = 0.0
    return model


def _batch(in_dim: Dim, name: str = "data") -> TensorDict:
    batch = Dim(len(LENGTHS), name="batch")
    sizes = torch.tensor(LENGTHS, dtype=torch.int32)
    time = nn.SpatialDim("time", Tensor("time", dims=[batch], dtype="int32", raw_tensor=sizes))
    values = torch.randn(len(LENGTHS), max(LENGTHS), 8, generator=torch.Generator().manual_seed(1))
    data = TensorDict()
    data.data[name] = Tensor(name, dims=[batch, time, in_dim], dtype="float32", raw_tensor=values)
    return data


def _forward(model, data: TensorDict, callback: RecogCallback | None = None, **config):
    """as RETURNN's engine does it. :return: the marked outputs"""
    nn.init_forward_step_run_ctx(step=0)
    with global_config_ctx(Config(config)), torch.no_grad():
        recog_step(model=model, extern_data=data, an_argument_of_later_versions=None)
    outputs = nn.get_run_ctx().outputs
    for row, tag in enumerate(TAGS if callback else []):
        callback.process_seq(seq_tag=tag, outputs=_row(outputs, row))
    return outputs


def _row(outputs: TensorDict, row: int) -> TensorDict:
    """NumPy, without batch dim and padding"""
    result = TensorDict()
    for name, x in outputs.data.items():
        (batch,) = [dim for dim in x.dims if dim.dimension == len(LENGTHS) and dim.name == "batch"]
        assert x.dims[0] == batch
        value = x.raw_tensor[row].numpy()
        dims = list(x.dims[1:])
        for axis, dim in enumerate(dims):
            if dim.dyn_size_ext is not None and dim.dyn_size_ext.dims:
                size = dim.dyn_size_ext.raw_tensor[row].numpy().max()
                value = value.take(range(size), axis=axis)
                dims[axis] = Dim(int(size), name=dim.name)
        result.data[name] = Tensor(name, dims=dims, dtype=x.dtype, sparse_dim=x.sparse_dim, raw_tensor=value)
    return result


def _vocab_dim(vocab: Vocabulary | None = None, size: int = 4) -> Dim:
    dim = Dim(vocab.num_labels if vocab else size, name="labels")
    dim.vocab = vocab
    return dim


@pytest.mark.parametrize("beam_size", [1, 3])
def test_hypotheses_are_written(beam_size: int, tmp_path: Path):
    """through the step and the callback: each hypothesis of the search, as text"""
    model = _model(_vocab_dim())
    data = _batch(model.encoder.in_dim)
    path = tmp_path / "sub" / "nbest.py.gz"
    config = {
        "extern_data": {"classes": {"vocab": OPTIONS}},
        "recog_output_file": str(path),
    }
    with global_config_ctx(Config(config)):
        callback = recog_callback()
    outputs = _forward(model, data, callback, **config, **({"beam_size": beam_size} if beam_size > 1 else {}))
    assert list(outputs.data) == ["labels", "lengths", "scores"]
    assert not path.exists()
    callback.finish()
    nbest = read_nbest(path)
    assert list(nbest) == TAGS
    with torch.no_grad():
        source = data["data"]
        hypotheses = model.search(source, in_spatial_dim=source.dims[1], beam_size=beam_size)
    for i, tag in enumerate(TAGS):
        expected = [(score, " ".join(WORDS[label] for label in labels)) for score, labels in hypotheses.nbest(i)]
        assert [text for _, text in nbest[tag]] == [text for _, text in expected]
        np.testing.assert_allclose([s for s, _ in nbest[tag]], [s for s, _ in expected], rtol=1e-6)
    assert any(len(entries[0][1].split()) > 1 for entries in nbest.values())


def test_unused_entries_of_the_beam_are_dropped(tmp_path: Path):
    """one frame and 4 labels have 5 hypotheses, whatever the beam"""
    model = _model(_vocab_dim())
    callback = RecogCallback(str(tmp_path / "nbest.py"))
    _forward(model, _batch(model.encoder.in_dim), callback, beam_size=9)
    assert [len(callback.entries[tag]) for tag in TAGS] == [9, 9, 5]
    assert sorted(text for _, text in callback.entries[TAGS[2]]) == ["", "0", "1", "2", "3"]


def test_default_input():
    model = _model(_vocab_dim())
    outputs = _forward(model, _batch(model.encoder.in_dim, "audio"), default_input="audio")
    assert outputs["labels"].dims[0] == outputs["scores"].dims[0]
    with pytest.raises(ValueError, match=r"recog_step: default_input is 'data', but extern_data has only \['audio'\]"):
        _forward(model, _batch(model.encoder.in_dim, "audio"))


def _outputs(labels: list[list[int]], scores: list[float], vocab: Vocabulary | None = None) -> TensorDict:
    """of one utterance, padded with 0"""
    beam, spatial = Dim(len(labels), name="beam"), Dim(max(map(len, labels)), name="labels")
    rows = np.zeros((len(labels), spatial.dimension), "int32")
    for row, ids in zip(rows, labels, strict=True):
        row[: len(ids)] = ids
    outputs = TensorDict()
    sparse_dim = _vocab_dim(vocab, size=100)
    outputs.data["labels"] = Tensor("l", dims=[beam, spatial], dtype="int32", sparse_dim=sparse_dim, raw_tensor=rows)
    lengths = np.array(list(map(len, labels)), "int32")
    outputs.data["lengths"] = Tensor("n", dims=[beam], dtype="int32", raw_tensor=lengths)
    outputs.data["scores"] = Tensor("s", dims=[beam], dtype="float32", raw_tensor=np.array(scores, "float32"))
    return outputs


def _bpe(folder: Path) -> BytePairEncoding:
    (folder / "codes").write_text("#version: 0.2\na b\n")
    (folder / "vocab").write_text("{'a@@': 0, 'b@@': 1, 'a': 2, 'ab': 3, 'c': 4}")
    return BytePairEncoding(vocab_file=str(folder / "vocab"), bpe_file=str(folder / "codes"), unknown_label=None)


def test_texts(tmp_path: Path):
    """words, BPE, characters, and indices where there is no vocabulary"""
    words = Vocabulary.create_vocab(**OPTIONS)
    characters = Vocabulary.create_vocab(**{**OPTIONS, "class": "CharacterTargets", "labels": list("ab ")})
    for vocab, labels, text in [
        (words, [1, 1, 3], "ONE ONE THREE"),
        (words, [], ""),
        (characters, [0, 2, 1, 1, 0], "a bba"),
        (_bpe(tmp_path), [0, 1, 4, 3, 2, 0, 4], "abc ab a ac"),
        (_bpe(tmp_path), [4, 0], "c a"),  # a word that is not finished
        (None, [12, 0, 3], "12 0 3"),
    ]:
        for given, of_dim in [(vocab, None), (None, vocab)]:
            callback = RecogCallback("never-written.py", vocab=given)
            callback.process_seq(seq_tag="x", outputs=_outputs([labels, [*labels, 0]], [-1.5, -2.0], of_dim))
            assert callback.entries["x"][0] == (-1.5, text)
            assert len(callback.entries["x"]) == 2


def test_vocabulary_of_the_config():
    """of the target; as options, as an object, or none"""
    for config, expected in [
        ({"extern_data": {"classes": {"vocab": OPTIONS}}}, WORDS),
        ({"extern_data": {"text": {"vocab": OPTIONS}}, "target": "text"}, WORDS),
        ({"extern_data": {"classes": {"vocab": Vocabulary.create_vocab(**OPTIONS)}}}, WORDS),
        ({"extern_data": {"data": {"dim": 1}}}, None),
        ({}, None),
    ]:
        with global_config_ctx(Config(config)):
            callback = recog_callback()
        assert (callback.vocab and callback.vocab.labels) == expected
        assert (callback.path, callback.posteriors_path) == ("nbest.py.gz", None)


def test_a_tag_that_comes_twice():
    callback = RecogCallback("never-written.py")
    callback.process_seq(seq_tag="x", outputs=_outputs([[1]], [-1.0]))
    with pytest.raises(ValueError, match="recog_callback: 'x' comes twice in the dataset"):
        callback.process_seq(seq_tag="x", outputs=_outputs([[1]], [-1.0]))


def test_nothing_recognised(tmp_path: Path):
    """no utterance, or one without a hypothesis"""
    callback = RecogCallback(str(tmp_path / "nbest.py"))
    callback.finish()
    assert read_nbest(tmp_path / "nbest.py") == {}
    callback.process_seq(seq_tag="x", outputs=_outputs([[1]], [float("-inf")]))
    callback.finish()
    assert read_nbest(tmp_path / "nbest.py") == {"x": []}


@pytest.mark.parametrize("with_vocab", [False, True])
def test_posteriors(with_vocab: bool, tmp_path: Path):
    """of the first utterance, with the name of each label"""
    words = Vocabulary.create_vocab(**OPTIONS)
    model = _model(_vocab_dim())
    data = _batch(model.encoder.in_dim)
    path = str(tmp_path / "sub" / "posteriors")
    callback = RecogCallback(str(tmp_path / "n.py"), vocab=words if with_vocab else None, posteriors_path=path)
    outputs = _forward(model, data, callback, recog_posteriors_file=path)
    assert list(outputs.data) == ["labels", "lengths", "scores", "log_probs"]
    assert list(tmp_path.iterdir()) == []
    callback.finish()
    with np.load(path) as file:
        content = dict(file)
    assert sorted(content) == ["labels", "log_probs", "tag"]
    assert content["tag"] == TAGS[0]
    assert content["labels"].tolist() == [*(WORDS if with_vocab else "0123"), "blank"]
    with torch.no_grad():
        log_probs, _ = model.log_probs(data["data"], in_spatial_dim=data["data"].dims[1])
    assert content["log_probs"].shape == (10, 5)
    np.testing.assert_allclose(content["log_probs"], log_probs.raw_tensor[0].numpy(), atol=1e-5)
    np.testing.assert_allclose(np.exp(content["log_probs"]).sum(-1), 1.0, rtol=1e-5)


def test_model_without_posteriors(tmp_path: Path):
    """such as one with a decoder: there is nothing to write"""
    model = _model(_vocab_dim())
    path = tmp_path / "posteriors.npz"
    callback = RecogCallback(str(tmp_path / "n.py"), posteriors_path=str(path))
    data = _batch(model.encoder.in_dim)
    outputs = _forward(SimpleNamespace(search=model.search), data, callback, recog_posteriors_file=str(path))
    assert list(outputs.data) == ["labels", "lengths", "scores"]
    callback.finish()
    assert len(read_nbest(tmp_path / "n.py")) == len(TAGS) and not path.exists()


def test_model_is_anything_with_search():
    """the step passes on what the config says, and marks what it gets"""
    asked = {}

    def search(source, **kwargs):
        asked.update(kwargs, source=source)
        return model.search(source, **kwargs)

    model = _model(_vocab_dim())
    data = _batch(model.encoder.in_dim)
    outputs = _forward(SimpleNamespace(search=search), data, beam_size=2)
    time = data["data"].dims[1]
    assert asked == {"source": data["data"], "in_spatial_dim": time, "beam_size": 2}
    assert outputs["scores"].dims[1].dimension == 2


def test_example_is_the_longest_that_can_be_seen_whole(tmp_path: Path):
    path = tmp_path / "posteriors.npz"
    callback = RecogCallback(str(tmp_path / "n.py"), posteriors_path=str(path))
    labels_dim = Dim(3, name="labels")
    for tag, num_frames in [("first", 400), ("short", 2), ("best", 300), ("too long", 301), ("shorter", 299)]:
        beam, spatial = Dim(1, name="beam"), Dim(1, name="spatial")
        time, with_blank = Dim(num_frames, name="time"), Dim(4, name="labels-and-blank")
        arrays = {
            "labels": ([beam, spatial], np.zeros((1, 1), "int32")),
            "lengths": ([beam], np.ones(1, "int32")),
            "scores": ([beam], np.zeros(1, "float32")),
            "log_probs": ([time, with_blank], np.zeros((num_frames, 4), "float32")),
        }
        outputs = TensorDict()
        for name, (dims, raw) in arrays.items():
            sparse = {"sparse_dim": labels_dim} if name == "labels" else {}
            outputs.data[name] = Tensor(name, dims=dims, dtype=str(raw.dtype), raw_tensor=raw, **sparse)
        callback.process_seq(seq_tag=tag, outputs=outputs)
    callback.finish()
    with np.load(path) as arrays:
        assert str(arrays["tag"]) == "best" and arrays["log_probs"].shape == (300, 4)
