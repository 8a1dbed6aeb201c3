"""``Librispeech()`` as it is, and with subwords and features from the data pipeline, in a config that trains."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from returnn_common.datasets.prepare import prepare_librispeech

ROOT = Path(__file__).resolve().parents[2]
CONFIG = """#!rnn.py
import sys
from returnn_common.datasets import Librispeech
from returnn_common.models.ctc import make_ctc_model
from returnn_common.models.encoder.conformer import make_conformer_encoder
from returnn_common.training import train_step

dataset = DATASET
globals().update(dataset.get_config_opts())
extern_data = dataset.get_extern_data()
is_raw = dataset.audio == "raw"


def get_model(*, epoch, step, **_):
    in_dim = 80 if is_raw else extern_data["data"]["dims"][-1]
    encoder = make_conformer_encoder(in_dim, num_layers=1, out_dim=32, num_heads=2, conv_norm="layer")
    vocab_dim = extern_data["classes"]["sparse_dim"]
    return make_ctc_model(None if is_raw else in_dim, vocab_dim, encoder=encoder, specaugment=None, aux_layers=[])


backend = "BACKEND"
task = "train"
behavior_version = 38
model = "model/epoch"
learning_rate_file = "learning_rates"
num_epochs = 2
batch_size = {"data": 60 * (16_000 if is_raw else 100)}
max_seqs = 2
optimizer = {"class": "adam"}
learning_rate = 1e-3
sys.setrecursionlimit(10_000)
"""
DATASETS = {"default": "Librispeech()", "subwords": 'Librispeech(vocab="bpe1k", audio="log-mel")'}


@pytest.mark.slow  # up to minutes each, for most of which RETURNN starts, compiles or builds its graph
@pytest.mark.parametrize("backend", ["torch", "tensorflow", "tensorflow-net-dict", "jax"])
@pytest.mark.parametrize("kind", DATASETS)
def test_trains(shared_data: Path, tmp_path: Path, kind: str, backend: str):
    pytest.importorskip({"torch": "torch", "jax": "jax"}.get(backend, "tensorflow"))
    prepare_librispeech(shared_data / "LibriSpeech", tmp_path / "data-common" / "librispeech")
    config = CONFIG.replace("DATASET", DATASETS[kind]).replace("BACKEND", backend)
    (tmp_path / "some.config").write_text(config)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
        "OMP_NUM_THREADS": "1",
        "DISABLE_CUDA": "1",
    }
    environment.pop("RETURNN_COMMON_DATA_PATH", None)
    process = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "returnn", "some.config"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stdout[-2000:] + process.stderr[-2000:]
    scores = (tmp_path / "learning_rates").read_text()
    assert scores.count("EpochData(") == 2 and ("dev_loss" in scores or "dev_score" in scores)
