"""The forward step for alignments and its callback: what is marked, and what RETURNN reads in the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from returnn.config import Config, global_config_ctx
from returnn.datasets import init_dataset
from returnn.frontend import run_ctx
from returnn.tensor import Dim, Tensor, TensorDict

from returnn_common import nn
from returnn_common.models.aed import make_aed_model
from returnn_common.models.ctc import make_ctc_model
from returnn_common.models.decoder.lstm_attention import make_lstm_attention_decoder
from returnn_common.models.encoder.lstm import make_lstm_encoder
from returnn_common.recog import AlignCallback, align_callback, align_step
from returnn_common.recog.alignment_files import AlignmentNotes, frame_labels, soft_frames
from tests.models.transducer_tiny import make as make_transducer

torch = pytest.importorskip("torch")

WORDS = ["ZERO", "ONE"]
OPTIONS = {"class": "Vocabulary", "vocab_file": None, "labels": WORDS, "unknown_label": None}
EXTERN_DATA = {"classes": {"vocab": OPTIONS}}
LENGTHS, TARGETS = [14, 9, 2], [[0, 1, 1], [1], [0, 0]]  # the last one has 1 frame in the encoder
TAGS = ["c/1", "a/2", "b 3"]
TOPOLOGIES = ["rnnt", "monotonic", "ctc"]


@pytest.fixture(autouse=True)
def _torch_backend():
    nn.select_backend_torch()
    yield
    run_ctx.reset_run_ctx()


def _model(kind: str):
    torch.manual_seed(1)
    vocab_dim, in_dim = Dim(len(WORDS), name="labels"), nn.FeatureDim("mel", 4)
    if kind == "ctc":
        encoder = make_lstm_encoder(in_dim, num_layers=1, out_dim=6, time_pooling=(2,), dropout=0.0)
        return make_ctc_model(in_dim, vocab_dim, encoder=encoder, specaugment=None)
    return make_transducer(in_dim, vocab_dim, topology=kind, aux_ctc_layers=[1])


def _batch(in_dim: Dim) -> TensorDict:
    batch = Dim(len(LENGTHS), name="batch")

    def dim(name: str, lengths: list[int]) -> Dim:
        sizes = torch.tensor(lengths, dtype=torch.int32)
        return nn.SpatialDim(name, Tensor(name, dims=[batch], dtype="int32", raw_tensor=sizes))

    values = torch.randn(len(LENGTHS), max(LENGTHS), 4, generator=torch.Generator().manual_seed(1))
    rows = torch.zeros(len(TARGETS), 3, dtype=torch.int32)
    for row, targets in zip(rows, TARGETS, strict=True):
        row[: len(targets)] = torch.tensor(targets)
    data = TensorDict()
    data.data["data"] = Tensor("data", dims=[batch, dim("time", LENGTHS), in_dim], dtype="float32", raw_tensor=values)
    labels_dim, sparse = dim("classes", list(map(len, TARGETS))), Dim(len(WORDS), name="words")
    data.data["classes"] = Tensor(
        "classes", dims=[batch, labels_dim], sparse_dim=sparse, dtype="int32", raw_tensor=rows
    )
    return data


def _forward(model: Any, callback: AlignCallback | None = None, **config) -> TensorDict:
    """as RETURNN's engine does it. :return: the marked outputs"""
    nn.init_forward_step_run_ctx(step=0)
    with global_config_ctx(Config(config)), torch.no_grad():
        align_step(model=model, extern_data=_batch(model.encoder.in_dim), an_argument_of_later_versions=None)
    outputs = nn.get_run_ctx().outputs
    if callback is not None:
        callback.init(model=model)
        for row, tag in enumerate(TAGS):
            callback.process_seq(seq_tag=tag, outputs=_row(outputs, row))
    return outputs


def _row(outputs: TensorDict, row: int) -> TensorDict:
    """NumPy, without batch dim and padding"""
    result = TensorDict()
    for name, x in outputs.data.items():
        value, dims = x.raw_tensor[row].numpy(), list(x.dims[1:])
        for axis, dim in enumerate(dims):
            if dim.dyn_size_ext is not None and dim.dyn_size_ext.dims:
                dims[axis] = Dim(int(dim.dyn_size_ext.raw_tensor[row]), name=dim.name)
                value = value.take(range(dims[axis].dimension), axis=axis)
        result.data[name] = Tensor(name, dims=dims, dtype=x.dtype, sparse_dim=x.sparse_dim, raw_tensor=value)
    return result


def _callback(**config) -> AlignCallback:
    with global_config_ctx(Config({"extern_data": EXTERN_DATA, **config})):
        return align_callback()


def _read(path: Path, **options) -> tuple[Any, dict[str, np.ndarray]]:
    """:return: HDFDataset, and its sequences by tag"""
    dataset = init_dataset({"class": "HDFDataset", "files": [str(path)], "use_cache_manager": False, **options})
    dataset.init_seq_order(epoch=1)
    dataset.load_seqs(0, dataset.num_seqs)
    return dataset, {dataset.get_tag(i): dataset.get_data(i, "data") for i in range(dataset.num_seqs)}


def _direct(model: Any, method: str, **options) -> dict[str, np.ndarray]:
    """:return: what the model's method gives, the batch first, labels last"""
    data = _batch(model.encoder.in_dim)
    source, labels = data["data"], data["classes"]
    dims = {"in_spatial_dim": source.dims[1], "labels_spatial_dim": labels.dims[1]}
    with torch.no_grad():
        found, frames_dim = getattr(model, method)(source, labels=labels, **dims, **options)
    order = [source.dims[0], frames_dim, labels.dims[1]]
    return {k: x.copy_compatible_to_dims_raw([d for d in order if d in x.dims]).numpy() for k, x in vars(found).items()}


@pytest.mark.parametrize("kind", TOPOLOGIES)
def test_best_alignments_are_written(kind: str, tmp_path: Path):
    model = _model(kind)
    path = tmp_path / "sub" / "a.hdf"
    names = {"align_output_file": path, "align_ctm_file": tmp_path / "a.ctm", "align_notes_file": tmp_path / "a.json"}
    callback = _callback(**{name: str(value) for name, value in names.items()})
    _forward(model, callback)
    assert not path.exists()
    callback.finish()
    dataset, found = _read(path)
    assert dataset.get_data_dim("data") == 3 and dataset.is_data_sparse("data")
    assert dataset.labels["data"] == [*WORDS, "<blank>"]
    expected = _direct(model, "align")
    possible = (expected["scores"] > -np.inf).tolist()
    assert possible == [True, True, kind == "rnnt"]
    assert list(found) == [tag for tag, ok in zip(TAGS, possible, strict=True) if ok]
    for i, tag in enumerate(TAGS[: len(found)]):
        symbols, num_frames = found[tag].tolist(), LENGTHS[i] // 2 + LENGTHS[i] % 2
        spoken = [label for label in symbols if label != 2]
        if kind == "ctc":
            spoken = [c for k, c in enumerate(symbols) if c != 2 and (k == 0 or symbols[k - 1] != c)]
        assert spoken == TARGETS[i]
        assert len(symbols) == num_frames + (len(TARGETS[i]) if kind == "rnnt" else 0)
        if kind == "rnnt":
            frames = np.cumsum(np.array(symbols) == 2)[np.array(symbols) != 2]
            np.testing.assert_array_equal(frames, expected["starts"][i, : len(TARGETS[i])])
        else:
            heard = [TARGETS[i][k] if k >= 0 else 2 for k in expected["path"][i, :num_frames].tolist()]
            assert symbols == heard
    notes = AlignmentNotes.read(tmp_path / "a.json")
    assert (notes.topology, notes.blank, notes.frame_shift) == (kind, 2, pytest.approx(0.02))
    assert notes.without_alignment == [tag for tag, ok in zip(TAGS, possible, strict=True) if not ok]
    assert [x["tag"] for x in notes.examples][0] == "c/1" and notes.examples[0]["labels"] == ["ZERO", "ONE", "ONE"]
    lines = [line.split() for line in (tmp_path / "a.ctm").read_text().splitlines()]
    assert [line[0] for line in lines] == ["a/2", *(["b_3"] * 2 if kind == "rnnt" else []), *["c/1"] * 3]
    assert [line[4] for line in lines[-3:]] == ["ZERO", "ONE", "ONE"]
    start = float(expected["starts"][0, 0]) * 0.02
    assert float(lines[-3][2]) == pytest.approx(start, abs=0.006)
    confidence = float(np.exp(expected["label_scores"][0, 0]))
    assert float(lines[-3][5]) == pytest.approx(confidence, abs=1e-4)


@pytest.mark.parametrize("kind", TOPOLOGIES)
def test_soft_alignments_are_written(kind: str, tmp_path: Path):
    model = _model(kind)
    config = {"align_soft": True, "align_output_file": str(tmp_path / "a.hdf")}
    callback = _callback(**config)
    _forward(model, callback, **config)
    callback.finish()
    dataset, found = _read(tmp_path / "a.hdf")
    assert dataset.get_data_dim("data") == 3 and not dataset.is_data_sparse("data")
    expected = _direct(model, "soft_align")
    for i, tag in enumerate(TAGS[: len(found)]):
        soft, labels = expected["labels"][i], TARGETS[i]
        assert found[tag].shape == (LENGTHS[i] // 2 + LENGTHS[i] % 2, 3)
        for word in range(2):
            total = sum(soft[: len(found[tag]), k] for k, label in enumerate(labels) if label == word)
            np.testing.assert_allclose(found[tag][:, word], total, atol=1e-6)
        if kind != "rnnt":
            np.testing.assert_allclose(found[tag].sum(axis=1), 1.0, atol=1e-4)
        else:
            assert (found[tag][:, 2] == pytest.approx(1.0, abs=1e-4)) and found[tag].sum() > len(labels)


def test_by_the_ctc_head_of_a_transducer(tmp_path: Path):
    model = _model("rnnt")
    config = {"align_options": {"use_ctc": True}, "align_output_file": str(tmp_path / "a.hdf")}
    callback = _callback(**config)
    outputs = _forward(model, callback, **config)
    callback.finish()
    expected = _direct(model, "align", use_ctc=True)
    np.testing.assert_array_equal(outputs["path"].raw_tensor, expected["path"])
    assert [len(x) for x in _read(tmp_path / "a.hdf")[1].values()] == [7, 5]
    soft = _forward(model, align_soft=True, align_options="{'use_ctc': True}")
    np.testing.assert_allclose(
        soft["soft_labels"].raw_tensor, _direct(model, "soft_align", use_ctc=True)["labels"], atol=1e-6
    )


def test_of_what_is_recognised():
    """the best hypothesis of the search, with its options"""
    model = _model("monotonic")
    data = _batch(model.encoder.in_dim)["data"]
    outputs = _forward(model, align_labels="search", beam_size=3)
    with torch.no_grad():
        found = model.search(data, in_spatial_dim=data.dims[1], beam_size=3)
    for i in range(3):
        row = _row(outputs, i)
        assert row["labels"].raw_tensor.tolist() == found.nbest(i)[0][1]
        assert row["starts"].raw_tensor.shape == row["labels"].raw_tensor.shape
    with pytest.raises(ValueError, match="search option 'nothing': TransducerModel.search has no such option"):
        _forward(model, align_labels="search", search_options={"nothing": 1})


def test_as_a_target(tmp_path: Path):
    """of a training frame by frame, beside the features: MetaDataset, and the sequences that have an alignment"""
    from returnn.datasets.hdf import SimpleHDFWriter

    model = _model("monotonic")
    callback = _callback(align_output_file=str(tmp_path / "a.hdf"))
    _forward(model, callback)
    callback.finish()
    writer = SimpleHDFWriter(str(tmp_path / "x.hdf"), dim=4, ndim=2)
    values = _batch(model.encoder.in_dim)["data"].raw_tensor.numpy()
    for tag, row, length in zip(TAGS, values, LENGTHS, strict=True):
        writer.insert_batch(row[None, :length], seq_len=[length], seq_tag=[tag])
    writer.close()
    dataset = init_dataset(
        {
            "class": "MetaDataset",
            "datasets": {
                name: {"class": "HDFDataset", "files": [str(tmp_path / f"{name}.hdf")], "use_cache_manager": False}
                for name in ("x", "a")
            },
            "data_map": {"data": ("x", "data"), "alignment": ("a", "data")},
            "seq_order_control_dataset": "a",
        }
    )
    dataset.init_seq_order(epoch=1)
    assert dataset.num_seqs == 2
    dataset.load_seqs(0, 2)
    frames = [dataset.get_data(i, "alignment") for i in range(2)]
    assert [len(x) for x in frames] == [7, 5] and [len(dataset.get_data(i, "data")) for i in range(2)] == LENGTHS[:2]

    optimizer = torch.optim.Adam([p.raw_tensor for p in model.parameters()], lr=0.02)
    losses = []
    for _ in range(60):
        data = _batch(model.encoder.in_dim)["data"]
        encoded, frames_dim = model.encode(data, in_spatial_dim=data.dims[1])
        logits = model.aux_ctc_outputs[0](encoded).copy_compatible_to_dims_raw(
            [data.dims[0], frames_dim, model.labels_dim]
        )
        losses.append(
            sum(
                torch.nn.functional.cross_entropy(logits[i, : len(x)], torch.tensor(x, dtype=torch.long))
                for i, x in enumerate(frames)
            )
        )
        optimizer.zero_grad()
        losses[-1].backward()
        optimizer.step()
    assert float(losses[-1]) < 0.5 * float(losses[0])


def test_frame_labels():
    spans = {"starts": [0, 0, 2], "ends": [1, 1, 3], "num_frames": 4, "blank": 9}
    assert frame_labels([5, 6, 7], **spans, topology="rnnt").tolist() == [5, 6, 9, 9, 7, 9, 9]
    spans = {"starts": [0, 2], "ends": [2, 3], "num_frames": 4, "blank": 9}
    for topology in ("ctc", "monotonic"):
        assert frame_labels([5, 6], **spans, topology=topology).tolist() == [5, 5, 6, 9]
    assert frame_labels([], starts=[], ends=[], num_frames=2, blank=0, topology="rnnt").tolist() == [0, 0]


def test_soft_frames():
    """the same label twice: both count"""
    soft = np.array([[0.5, 0.25], [0.0, 1.0]])
    found = soft_frames(soft, np.array([0.25, 0.0]), [1, 1], blank=2, num_labels=3)
    np.testing.assert_allclose(found, [[0, 0.75, 0.25], [0, 1, 0]])
    assert soft_frames(np.zeros([2, 0]), np.ones(2), [], blank=0, num_labels=2).tolist() == [[1, 0], [1, 0]]


def test_examples_are_those_with_the_most_labels():
    notes = AlignmentNotes()
    for i in range(1, 10):
        notes.add_example(f"tag{i}", ["x"] * i, num_frames=20, starts=[0] * i, ends=[1] * i)
    notes.add_example("long", ["x"] * 50, num_frames=401, starts=[0] * 50, ends=[1] * 50)
    notes.add_example("empty", [], num_frames=3, starts=[], ends=[])
    assert [x["tag"] for x in notes.examples] == [f"tag{i}" for i in (9, 8, 7, 6, 5, 4)]


def test_notes_that_are_something_else(tmp_path: Path):
    for text in ("", "[]", "{}", json.dumps({"scores": {}, "other": 1})):
        (tmp_path / "x.json").write_text(text)
        with pytest.raises(ValueError, match="x.json: expected notes about alignments: "):
            AlignmentNotes.read(tmp_path / "x.json")


def test_errors(tmp_path: Path):
    model = _model("ctc")
    with pytest.raises(
        ValueError, match=r"align_step: target is 'text', but extern_data has only \['classes', 'data'\]"
    ):
        _forward(model, target="text")
    with pytest.raises(ValueError, match="align_step: default_input is 'audio', but extern_data has only"):
        _forward(model, default_input="audio")
    with pytest.raises(ValueError, match="align_step: align_labels, expected targets or search, got 'words'"):
        _forward(model, align_labels="words")
    with pytest.raises(ValueError, match="align_options: expected a dict .*, got 'x y'"):
        _forward(model, align_options="x y")
    message = "align_callback: align_ctm_file, expected none with align_soft: it is made of the best path"
    with pytest.raises(ValueError, match=message):
        _callback(align_soft=True, align_ctm_file="x.ctm")
    encoder = model.encoder
    decoder = make_lstm_attention_decoder(encoder.out_dim, len(WORDS) + 1, model_dim=4, embed_dim=4)
    attention = make_aed_model(encoder.in_dim, model.vocab_dim, encoder=encoder, decoder=decoder, specaugment=None)
    with pytest.raises(ValueError, match="align_step: AedModel cannot align: it is no transducer and has no CTC head"):
        _forward(attention)
    callback = AlignCallback(str(tmp_path / "a.hdf"))
    outputs = _forward(model)
    callback.init(model=model)
    callback.process_seq(seq_tag="x", outputs=_row(outputs, 2))
    with pytest.raises(ValueError, match="align_callback: 'x' comes twice in the dataset"):
        callback.process_seq(seq_tag="x", outputs=_row(outputs, 2))
    with pytest.raises(ValueError, match="expected an utterance that can be aligned, got 1, none of which"):
        callback.finish()
    assert list(tmp_path.iterdir()) == []
