#!rnn.py
"""
Connected digits with a small Conformer and CTC, ten words as labels: minutes on two CPU cores.

The corpus has the splits train, dev and test, prepared by ``returnn-common prepare librispeech SRC CORPUS``.
Runs on each of RETURNN's engines: ``python -m returnn digits_ctc.py ++corpus CORPUS ++backend torch``.
"""

import sys
from functools import partial

from returnn_common.config import Options
from returnn_common.datasets import Librispeech, TrainOptions, WordVocab
from returnn_common.datasets.augment import Chain, Equalizer, Noise, SpeedPerturbation
from returnn_common.datasets.multi_epoch import multi_epoch
from returnn_common.models.ctc import CtcModel
from returnn_common.models.encoder.conformer import make_conformer_encoder
from returnn_common.models.encoder.conformer_streaming import make_streaming_conformer_encoder
from returnn_common.models.encoder.e_branchformer import make_e_branchformer_encoder
from returnn_common.models.encoder.lstm import make_lstm_encoder
from returnn_common.models.encoder.transformer import make_transformer_encoder
from returnn_common.models.features import LogMel
from returnn_common.recog import recog_callback as forward_callback  # noqa: F401
from returnn_common.recog import recog_step as forward_step  # noqa: F401
from returnn_common.training import train_step, warmup_decay  # noqa: F401
from returnn_common.training.distributed import distributed_training
from returnn_common.training.jax_buckets import jax_buckets
from returnn_common.training.language_model import with_language_models
from returnn_common.training.precision import mixed_precision
from returnn_common.training.resume import exact_resume

options = Options(
    corpus="data",
    backend="torch",
    recog_split="dev",
    num_epochs=18,  # of two passes over the data each
    num_average=6,
    random_seed=1,
    encoder="conformer",  # or e_branchformer, transformer, lstm, streaming
    num_layers=2,
    model_dim=96,
    dropout=0.0,
    beam_size=1,
    search_options="",  # such as "{'lm': 'LM_OUT', 'lm_scale': 0.4}": docs/recognition.md
    peak_learning_rate=3e-3,
    precision="float32",  # or "bfloat16"
    distributed="",  # "grad" or "param": trained in several processes
)

# Data. Few voices are made many: another speed and pitch, noise, another microphone here; other vocal tracts below.
dataset = Librispeech(
    path=options.corpus,
    vocab=WordVocab("ZERO ONE TWO THREE FOUR FIVE SIX SEVEN EIGHT NINE".split()),
    train_splits=["train"],
    dev_splits=["dev"],
    test_splits=["test"],
    train_epoch_split=1,
    training=TrainOptions(
        augment=Chain(SpeedPerturbation(0.8, 1.25), Noise(10, 40), Equalizer(3.0)),
        seq_ordering="laplace:.330" if options.backend == "torch" else "laplace:.110",
        curriculum=((2, 0.6), (4, 1.1)),  # short strings first: CTC finds the words' places sooner
        random_seed=options.random_seed,
    ),
)
globals().update(dataset.get_config_opts())
extern_data = dataset.get_extern_data()
train = multi_epoch(dataset.get_train_dataset(), 2)
forward_data = dataset.get_forward_dataset(options.recog_split)
batch_size = {"data": 32 * 16_000}
max_seqs = 200


# Model
def make_encoder(in_dim):
    """what the options say"""
    sizes = {"num_layers": options.num_layers, "out_dim": options.model_dim, "dropout": options.dropout}
    subsampling = {"num_heads": 4, "subsampling": 6, "subsampling_channels": 32}
    chunks = {"num_heads": 4, "subsampling_channels": 32, "chunk_size": 8, "left_chunks": 4}  # 0.32 s, 1.28 s before
    encoders = {
        "conformer": partial(make_conformer_encoder, **subsampling, conv_kernel_size=9, conv_norm="layer"),
        "e_branchformer": partial(make_e_branchformer_encoder, **subsampling, conv_kernel_size=9, layer_drop=0.0),
        "transformer": partial(make_transformer_encoder, **subsampling),
        "lstm": partial(make_lstm_encoder, time_pooling=(3, 2)),
        "streaming": partial(make_streaming_conformer_encoder, **chunks, conv_kernel_size=9),
    }
    if options.encoder not in encoders:
        raise ValueError(f"expected encoder as one of {', '.join(encoders)}, got {options.encoder!r}")
    return encoders[options.encoder](in_dim, **sizes)


@with_language_models
def get_model(*, epoch: int, step: int, **_other):
    """called by RETURNN"""
    features = LogMel(40, prior_frames=50, causal=options.encoder == "streaming", frequency_warp=0.15)
    encoder = make_encoder(features.out_dim)
    vocab_dim = extern_data["classes"]["sparse_dim"]
    return CtcModel(features=features, encoder=encoder, vocab_dim=vocab_dim)


# Training
backend = options.backend
task = "train"
behavior_version = 38
model = "output/digits_ctc/epoch"
learning_rate_file = "output/digits_ctc/learning_rates"
log_verbosity = 4
random_seed = options.random_seed
beam_size = options.beam_size
search_options = options.search_options
num_epochs = options.num_epochs
save_interval = 1
warmup_epochs = min(3, options.num_epochs // 2)
globals().update(warmup_decay(num_epochs=num_epochs, peak=options.peak_learning_rate, warmup_epochs=warmup_epochs))
globals().update(exact_resume())
globals().update(mixed_precision(options.precision, backend=backend))
globals().update(distributed_training(options.distributed, backend=backend))
gradient_clip_global_norm = 5.0
if backend == "torch":
    online_shuffle_batches = 10
    optimizer = {"class": "adamw", "weight_decay": 0.01, "betas": (0.9, 0.98), "fused": True}
elif backend == "tensorflow-net-dict":
    optimizer = {"class": "adam"}  # RETURNN's adamw doesn't run with Keras 3 there
    sys.setrecursionlimit(10_000)  # as deep as the graph
else:
    optimizer = {"class": "adamw", "weight_decay": 0.01}
if backend == "jax":  # strings of up to 4.4 s, which speed 0.8 makes longer, and six words
    max_seqs = 64
    jax_sizes = {"batch_size": batch_size["data"], "max_length": 6 * 16_000, "max_labels": 8}
    globals().update(jax_buckets(**jax_sizes, max_seqs=max_seqs))
