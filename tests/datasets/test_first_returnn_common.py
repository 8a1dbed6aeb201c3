"""
A config as it was written for the first returnn_common: its protocol of datasets and vocabularies, ``dim_tags``, and a
dataset of RETURNN's own. Only the model is written for today's RETURNN.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from returnn.config import Config, global_config_ctx
from returnn.datasets.basic import init_dataset
from returnn.tensor import Dim, Tensor, batch_dim

from returnn_common.datasets.interface import DatasetConfig, VocabConfig, VocabConfigStatic

CONFIG = """#!rnn.py
from typing import Any, Dict
from returnn_common import nn
from returnn_common.datasets.interface import DatasetConfig, VocabConfig

data_dir = "DATA_DIR"


class Words(VocabConfig):
    def get_num_classes(self) -> int:
        return 2

    def get_opts(self) -> Dict[str, Any]:
        return {"class": "Vocabulary", "vocab_file": None, "labels": ["OTHER", "WORD"], "unknown_label": None}

    def get_eos_idx(self):
        return 0


class Tiny(DatasetConfig):
    def __init__(self, *, audio_dim=1, vocab: VocabConfig = Words(), train_epoch_split=1):
        super(Tiny, self).__init__()
        self.audio_dim = audio_dim
        self.vocab = vocab
        self.train_epoch_split = train_epoch_split

    def get_extern_data(self) -> Dict[str, Dict[str, Any]]:
        time_dim, feature_dim = nn.SpatialDim("time"), nn.FeatureDim("audio", self.audio_dim)
        classes_dim = nn.FeatureDim("vocab", self.vocab.get_num_classes())
        return {
            "data": {"dim_tags": [nn.batch_dim, time_dim, feature_dim]},
            "classes": {
                "dim_tags": [nn.batch_dim, nn.SpatialDim("out-spatial")],
                "sparse_dim": classes_dim,
                "vocab": self.vocab.get_opts(),
            },
        }

    def get_train_dataset(self) -> Dict[str, Any]:
        return self.get_dataset("train", train=True)

    def get_eval_datasets(self) -> Dict[str, Dict[str, Any]]:
        return {
            "dev": self.get_dataset("dev", train=False),
            "devtrain": self.get_dataset("train", train=False, subset=3),
        }

    def get_dataset(self, key: str, *, train: bool, subset=None):
        d = {
            "class": "OggZipDataset",
            "path": ["%s/%s.zip" % (data_dir, key)],
            "targets": self.vocab.get_opts(),
            "audio": {"features": "raw", "sample_rate": 16_000},
            "seq_ordering": "laplace:.1000" if train else "sorted_reverse",
        }
        if train:
            d["partition_epoch"] = self.train_epoch_split
        else:
            d["fixed_random_seed"] = 1
        if subset:
            d["fixed_random_subset"] = subset
        return d


dataset = Tiny()
globals().update(dataset.get_config_opts())


def get_model(*, epoch, step, **_):
    import returnn.frontend as rf

    return rf.Linear(extern_data["data"]["dim_tags"][2], nn.FeatureDim("labels", 3))


def train_step(*, model, extern_data, **_):
    import returnn.frontend as rf

    data, classes = extern_data["data"], extern_data["classes"]
    time, labels_time = data.get_time_dim_tag(), classes.get_time_dim_tag()
    loss = rf.ctc_loss(
        logits=model(data), targets=classes, input_spatial_dim=time, targets_spatial_dim=labels_time, blank_index=2
    )
    loss.mark_as_loss("ctc")


backend = "torch"
task = "train"
device = "cpu"
behavior_version = 38
model = "MODEL_DIR/epoch"
learning_rate_file = "MODEL_DIR/learning_rates"
num_epochs = 2
batch_size = 20_000
optimizer = {"class": "adam"}
learning_rate = 0.001
log_verbosity = 3
torch_dataloader_opts = {"num_workers": 0}  # RETURNN cannot pickle classes of the config itself
"""


@pytest.fixture
def config(tiny: Path, tmp_path: Path) -> Path:
    path = tmp_path / "old.config"
    path.write_text(CONFIG.replace("DATA_DIR", str(tiny)).replace("MODEL_DIR", str(tmp_path)))
    return path


def test_trains(config: Path, tmp_path: Path):
    pytest.importorskip("torch")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
    process = subprocess.run(
        [sys.executable, "-m", "returnn", str(config)], env=environment, capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stdout[-2000:] + process.stderr[-2000:]
    scores = (tmp_path / "learning_rates").read_text()
    for name in ("train_loss_ctc", "dev_loss_ctc", "devtrain_loss_ctc"):
        assert name in scores


def test_what_it_says_to_returnn(config: Path):
    names: dict = {}
    exec(config.read_text(), names)
    dataset, opts = names["dataset"], names["dataset"].get_config_opts()
    assert set(opts) == {"extern_data", "default_input", "target", "train", "eval_datasets"}
    assert opts["target"] == "classes" and list(opts["eval_datasets"]) == ["dev", "devtrain"]
    for name, num in [("dev", 4), ("devtrain", 3)]:
        data = init_dataset(opts["eval_datasets"][name])
        data.init_seq_order(epoch=1)
        assert data.num_seqs == num
    assert Tensor("data", **opts["extern_data"]["data"]).feature_dim.dimension == 1
    copy = dataset.copy_eval_as_static("devtrain")
    assert copy.get_main_name() == "devtrain" and copy.get_main_dataset() == opts["eval_datasets"]["devtrain"]
    assert dataset.vocab.get_bos_idx() == 0 and dataset.vocab.encode("WORD OTHER") == [1, 0]


def test_methods_that_are_missing():
    class Nothing(DatasetConfig):
        pass

    nothing = Nothing()
    for method in ("get_extern_data", "get_train_dataset", "get_eval_datasets", "get_main_name"):
        with pytest.raises(NotImplementedError, match=rf"Nothing: has no {method}\(\)"):
            getattr(nothing, method)()


def test_static_vocabulary():
    opts = {"class": "Vocabulary", "vocab_file": None, "labels": ["a", "b"], "unknown_label": None}
    dims = [batch_dim, Dim(None, name="time")]
    labels = {"sparse_dim": Dim(2, name="labels"), "dtype": "int32"}
    extern_data: dict = {"classes": {"dims": dims, **labels, "vocab": opts}}
    extern_data["old"] = {"dim": 2, "sparse": True, "shape": (None,)}
    extern_data["data"] = {"dims": [*dims, Dim(3, name="feature")], "dtype": "float32"}
    with global_config_ctx(Config({"extern_data": extern_data})):
        vocab = VocabConfigStatic.from_global_config("classes")
        assert isinstance(vocab, VocabConfig) and vocab.get_num_classes() == 2 and vocab.get_opts() is opts
        assert vocab.encode("b a") == [1, 0] and vocab.get_eos_idx() is vocab.get_bos_idx() is None
        old = VocabConfigStatic.from_global_config("old")
        assert old.get_num_classes() == 2 and old.get_opts() == {}
        with pytest.raises(ValueError, match="expected labels in 'data', got {'dims'"):
            VocabConfigStatic.from_global_config("data")
