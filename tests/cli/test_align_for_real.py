"""Tests of the command align with RETURNN itself, and of a training with the alignments as target."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from returnn.datasets import init_dataset

from returnn_common.cli.align import align_run
from returnn_common.cli.align.command import Alignments
from returnn_common.cli.recog.request import Asked
from returnn_common.cli.run.process import run_python
from tests.cli.tiny import make_corpus
from tests.cli.trained import AED, make_trained

pytest.importorskip("torch")

TINY = [*AED, "topology=monotonic"]

# Frame by frame, on the features of the run, in the corpus that it has prepared.
CONFIG = """#!rnn.py
import returnn.frontend as rf
from returnn.tensor import Dim, batch_dim
from returnn_common import nn
from returnn_common.datasets import Librispeech, WordVocab
from returnn_common.models.encoder.lstm import make_lstm_encoder
from returnn_common.models.features import LogMel

backend = "torch"
task = "train"
behavior_version = 38
words = Librispeech(path={corpus!r}, vocab=WordVocab({words!r}), train_splits=["train"], dev_splits=["dev"])
train = {{
    "class": "MetaDataset",
    "datasets": {{
        "audio": words.get_forward_dataset("train"),
        "alignment": {{"class": "HDFDataset", "files": [{hdf!r}], "use_cache_manager": False}},
    }},
    "data_map": {{"data": ("audio", "data"), "alignment": ("alignment", "data")}},
    "seq_order_control_dataset": "alignment",
    "data_dims": {{"data": (1, 1), "alignment": ({num_labels}, 1)}},  # else RETURNN fails where it hands on the dataset
}}
frames_dim, labels_dim = Dim(None, name="frames"), Dim({num_labels}, name="labels-and-blank")
extern_data = {{
    "data": words.get_extern_data()["data"],
    "alignment": {{"dims": [batch_dim, frames_dim], "sparse_dim": labels_dim, "dtype": "int32"}},
}}
batch_size = {{"data": 160_000}}
num_epochs = 1
model = "out/model"
learning_rate_file = "out/learning_rates"
learning_rate = 0.01
optimizer = {{"class": "adam"}}


class Model(rf.Module):
    def __init__(self):
        super().__init__()
        self.features = LogMel(40)
        self.encoder = make_lstm_encoder(self.features.out_dim, num_layers=2, out_dim=8, time_pooling=(3, 2))
        self.output = rf.Linear(self.encoder.out_dim, labels_dim)


def get_model(**_):
    return Model()


def train_step(*, model, extern_data, **_):
    source, targets = extern_data["data"], extern_data["alignment"]
    source, time_dim = model.features(source, in_spatial_dim=nn.get_spatial_dim(source))
    encoded, time_dim = model.encoder(source, in_spatial_dim=time_dim)
    logits, _ = rf.replace_dim(model.output(encoded), in_dim=time_dim, out_dim=frames_dim)  # as long
    loss = rf.cross_entropy(estimated=logits, estimated_type="logits", target=targets, axis=labels_dim)
    loss.mark_as_loss("ce")
"""


# On the other engines, RETURNN builds or compiles for half a minute and more.
@pytest.mark.parametrize(
    "backend",
    ["torch", *(pytest.param(b, marks=pytest.mark.slow) for b in ("tensorflow", "tensorflow-net-dict", "jax"))],
)
def test_transducer(backend: str, tmp_path: Path, capsys):
    corpus = make_corpus(tmp_path / "corpus")
    out = make_trained("digits_transducer", tmp_path / "out", corpus=corpus, settings=TINY)
    frames = {}
    for soft in (False, True) if backend != "torch" else (False,):
        hdf = tmp_path / f"{soft}.hdf"
        asked = Asked(splits=["dev"], backend=backend)
        assert align_run(str(out), asked, Alignments(str(hdf), soft=soft)) == 0
        frames[soft] = _read(hdf)
        assert list(frames[soft]) == ["dev-1-0000", "dev-1-0001"] and "2 of 2 utterances" in capsys.readouterr().out
    words = dict(line.split(maxsplit=1) for line in (corpus / "dev" / "1" / "1" / "1-1.trans.txt").open())
    (ctm,) = out.glob("align/*/dev.ctm")
    lines = [line.split() for line in ctm.read_text().splitlines()]
    for tag, text in words.items():
        assert [line[4] for line in lines if line[0] == tag] == text.split()
        assert (frames[False][tag] != 10).sum() == len(text.split())
        if True in frames:
            assert frames[True][tag].shape == (*frames[False][tag].shape, 11)
            np.testing.assert_allclose(frames[True][tag].sum(axis=1), 1.0, atol=1e-3)
    (report,) = ctm.parent.glob("report.html")
    assert "dev-1-0000: the best alignment" in report.read_text()


def _read(path: Path) -> dict[str, np.ndarray]:
    dataset = init_dataset({"class": "HDFDataset", "files": [str(path)], "use_cache_manager": False})
    dataset.init_seq_order(epoch=1)
    dataset.load_seqs(0, dataset.num_seqs)
    return dict(sorted((dataset.get_tag(i), dataset.get_data(i, "data")) for i in range(dataset.num_seqs)))


@pytest.mark.slow("two processes of RETURNN; tests/recog/test_align_step.py trains in this one")
def test_config_with_alignments_as_target(tmp_path: Path):
    corpus = make_corpus(tmp_path / "corpus")
    out = make_trained("digits_transducer", tmp_path / "out", corpus=corpus, settings=TINY)
    hdf = tmp_path / "train.hdf"
    assert align_run(str(out), Asked(splits=["train"]), Alignments(str(hdf), use_ctc=True)) == 0
    words = "ZERO ONE TWO THREE FOUR FIVE SIX SEVEN EIGHT NINE".split()
    text = CONFIG.format(corpus=str(out / "data"), words=words, hdf=str(hdf), num_labels=len(words) + 1)
    (tmp_path / "train.config").write_text(text)
    log = tmp_path / "log"
    arguments = ["-m", "returnn", str(tmp_path / "train.config")]
    status = run_python(arguments, cwd=tmp_path, log=log, on_line=lambda line: None)
    assert status == 0, log.read_text()[-3000:]
    assert (tmp_path / "out" / "model.001.pt").is_file()
    assert "train_loss_ce" in (tmp_path / "out" / "learning_rates").read_text()
