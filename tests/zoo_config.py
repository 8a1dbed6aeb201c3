#!rnn.py
"""
The RETURNN config with which ``test_zoo_training.py`` trains each entry of the zoo, and recognises with it:
``python -m returnn tests/zoo_config.py ++zoo_entry NAME ++backend BACKEND``. An encoder gets a CTC head.
"""

import sys

import numpy as np
from returnn.config import get_global_config

from returnn_common import nn
from returnn_common.models.ctc import make_ctc_model
from returnn_common.recog import recog_callback as forward_callback  # noqa: F401
from returnn_common.recog import recog_step as forward_step  # noqa: F401
from returnn_common.training import train_step  # noqa: F401
from tests.zoo_kinds import ENCODER, FEATURES, VOCAB
from tests.zoo_runs import get_entry, make

config = get_global_config()
entry = get_entry(config.value("zoo_entry", None))
backend = config.value("backend", "torch")
is_audio = "audio" in entry.kind.name

# Each label lasts for a while, and is heard as its own tone, or seen in a feature of its own.
labels_dim = nn.FeatureDim("labels", VOCAB)
features_dim = nn.FeatureDim("features", FEATURES)
rng = np.random.default_rng(1)


def _make_sequence(num_labels: int):
    labels = rng.integers(0, VOCAB, num_labels)
    durations = rng.integers(10, 14, num_labels)
    noise = rng.normal(size=(sum(durations) * (160 if is_audio else 1), FEATURES)).astype("float32") * 0.1
    if is_audio:
        tones = np.repeat(labels, durations * 160)
        data = noise[:, 0] * 0.1 + np.sin(np.arange(len(tones)) * (0.1 + 0.3 * tones)).astype("float32")
    else:
        data = noise + np.eye(FEATURES, dtype="float32")[np.repeat(labels, durations)]
    return {"data": data, "classes": labels.astype("int32")}


sequences = [_make_sequence(1 + i % 4) for i in range(12)]
extern_data = {
    "data": {
        "dims": [nn.batch_dim, nn.SpatialDim("time"), *([] if is_audio else [features_dim])],
        "dtype": "float32",
    },
    "classes": {"dims": [nn.batch_dim, nn.SpatialDim("labels-time")], "sparse_dim": labels_dim, "dtype": "int32"},
}
train = {
    "class": "StaticDataset",
    "data": sequences,
    "output_dim": {"data": (1 if is_audio else FEATURES, 1 if is_audio else 2), "classes": (VOCAB, 1)},
}
dev = forward_data = train


def get_model(*, epoch: int, step: int, **_other):
    """called by RETURNN"""
    dims = {"features": features_dim, "labels": labels_dim}
    function = make(entry, dropout=0.1)
    arguments = function.func.__code__.co_varnames if hasattr(function, "func") else function.__code__.co_varnames
    model = function(**{name: dim for name, dim in dims.items() if name in arguments})
    if entry.kind is ENCODER:
        model = make_ctc_model(features_dim, labels_dim, encoder=model, specaugment=None)
    return model


task = "train"
behavior_version = 38
batch_size = 10**6
max_seqs = 4
num_epochs = 4
learning_rate = 0.01
optimizer = {"class": "adam", "epsilon": 1e-8}
gradient_clip_global_norm = 5.0
model = "model"
learning_rate_file = "learning_rates"
tf_log_dir = None
log_verbosity = 4
if backend == "tensorflow-net-dict":
    sys.setrecursionlimit(10_000)
