#!rnn.py
"""
The RETURNN config with which ``test_zoo_training.py`` trains each entry of the zoo, and recognises with it:
``python -m returnn tests/zoo_config.py ++zoo_entry NAME ++backend BACKEND``. What is a part of a model is put into one.
"""

import inspect
import sys

import numpy as np
from returnn.config import get_global_config

from returnn_common import nn
from returnn_common.models.aed import make_aed_model
from returnn_common.models.ctc import make_ctc_model
from returnn_common.models.decoder.transformer import make_transformer_decoder
from returnn_common.models.encoder.conformer import make_conformer_encoder
from returnn_common.models.language_model import LanguageModel
from returnn_common.models.transformer import Transformer
from returnn_common.recog import recog_callback as forward_callback  # noqa: F401
from returnn_common.recog import recog_step as forward_step  # noqa: F401
from returnn_common.training import train_step  # noqa: F401
from tests.zoo_kinds import DECODER, ENCODER, FEATURES, LM, SPEECH_FROM_AUDIO, TEXT, TEXT_ALONE, TEXT_ENCODER, VOCAB
from tests.zoo_runs import get_entry, make

END = 0  # label that is in no sequence: begin and end of sentence
config = get_global_config()
entry = get_entry(config.value("zoo_entry", None))
backend = config.value("backend", "torch")

labels_dim = nn.FeatureDim("labels", VOCAB)
features_dim = nn.FeatureDim("features", FEATURES)
rng = np.random.default_rng(1)


def _make_speech(labels: np.ndarray) -> np.ndarray:
    """Each label lasts for a while, and is heard as a tone of its own, or seen in a feature of its own."""
    durations = np.full(len(labels), 12)  # all batches have the same shape, for which JAX compiles
    is_audio = entry.kind is SPEECH_FROM_AUDIO
    noise = rng.normal(size=(sum(durations) * (160 if is_audio else 1), FEATURES)).astype("float32") * 0.1
    if is_audio:
        tones = np.repeat(labels, durations * 160)
        return noise[:, 0] * 0.1 + np.sin(np.arange(len(tones)) * (0.1 + 0.3 * tones)).astype("float32")
    return noise + np.eye(FEATURES, dtype="float32")[np.repeat(labels, durations)]


# Counting up from any label: what follows can be learnt.
sequences = [{"classes": ((np.arange(1 + i % 4) + i) % (VOCAB - 1) + 1).astype("int32")} for i in range(12)]
labels = {"dims": [nn.batch_dim, nn.SpatialDim("labels-time")], "sparse_dim": labels_dim, "dtype": "int32"}
time_dim = nn.SpatialDim("time")
if entry.kind in (LM, TEXT_ALONE):
    extern_data = {"data": labels}
    sequences = [{"data": seq["classes"]} for seq in sequences]
    target = None
elif entry.kind in (TEXT, TEXT_ENCODER):
    extern_data = {"data": {**labels, "dims": [nn.batch_dim, time_dim]}, "classes": labels}
    sequences = [{"data": seq["classes"][::-1].copy(), **seq} for seq in sequences]
else:
    features = [] if entry.kind is SPEECH_FROM_AUDIO else [features_dim]
    extern_data = {"data": {"dims": [nn.batch_dim, time_dim, *features], "dtype": "float32"}, "classes": labels}
    sequences = [{"data": _make_speech(seq["classes"]), **seq} for seq in sequences]
output_dim = {
    key: (VOCAB, 1) if "sparse_dim" in opts else (FEATURES if len(opts["dims"]) == 3 else 1, len(opts["dims"]) - 1)
    for key, opts in extern_data.items()
}
train = {"class": "StaticDataset", "data": sequences, "output_dim": output_dim}
dev = forward_data = train


def get_model(*, epoch: int, step: int, **_other):
    """called by RETURNN"""
    function = make(entry, dropout=0.1)
    dims = {"features": features_dim, "labels": labels_dim}
    part = function(**{name: dims[name] for name in inspect.signature(function).parameters if name in dims})
    if entry.kind is ENCODER:
        return make_ctc_model(features_dim, labels_dim, encoder=part, specaugment=None)
    if entry.kind is DECODER:
        sizes = {"num_layers": 1, "out_dim": part.encoder_dim, "num_heads": 2, "subsampling_channels": 4}
        encoder = make_conformer_encoder(features_dim, **sizes)
        return make_aed_model(features_dim, labels_dim, encoder=encoder, decoder=part, eos=END, specaugment=None)
    if entry.kind is TEXT_ENCODER:
        sizes = {"num_layers": 1, "model_dim": 8, "num_heads": 2}
        decoder = make_transformer_decoder(part.out_dim, labels_dim, **sizes)
        return Transformer(encoder=part, decoder=decoder, bos=END, eos=END)
    if entry.kind is LM:
        return LanguageModel(part, bos=END, eos=END)
    return part


task = "train"
behavior_version = 38
batch_size = 10**6
max_seqs = 4
num_epochs = 4
learning_rate = 0.01
optimizer = {"class": "adam", "epsilon": 1e-8}
gradient_clip_global_norm = 5.0
model = "./model"
learning_rate_file = "learning_rates"
tf_log_dir = None
log_verbosity = 4
if backend == "torch":
    torch_dataloader_opts = {"num_workers": 0}  # no process of its own, which would import everything
if backend == "tensorflow-net-dict":
    sys.setrecursionlimit(10_000)
