#!rnn.py
"""
LibriSpeech with a Conformer and CTC, characters or SentencePiece as labels.

The corpus is prepared by ``returnn-common prepare librispeech SRC CORPUS``. With a part of LibriSpeech, name the
splits: ``returnn-common run librispeech_ctc --corpus SRC --out OUT --set train_splits=train-clean-100
--set dev_splits=dev-clean --set test_splits=test-clean``. Runs on each of RETURNN's engines, also as it is:
``python -m returnn librispeech_ctc.py ++corpus CORPUS ++backend torch``.

Model and SpecAugment: ESPnet's Conformer (Guo et al. 2021, https://arxiv.org/abs/2010.13956, tables 1 and 2), with CTC
in the middle of the encoder (Lee and Watanabe 2021, https://arxiv.org/abs/2102.03216, section 3). Learning rate: up for
45 %, down for 45 %, then lower still, as in RETURNN's published Conformer setups (Zeineldeen et al. 2022,
https://arxiv.org/abs/2111.03442, section 3.2).
"""

import sys

from returnn_common.config import Options
from returnn_common.data import get_common_data_path
from returnn_common.datasets import Librispeech, TrainOptions, make_vocab
from returnn_common.datasets.augment import SpeedPerturbation
from returnn_common.models.ctc import make_ctc_model
from returnn_common.models.encoder.conformer import make_conformer_encoder
from returnn_common.models.specaugment import SpecAugment
from returnn_common.recog import recog_callback as forward_callback  # noqa: F401
from returnn_common.recog import recog_step as forward_step  # noqa: F401
from returnn_common.training import train_step, warmup_decay  # noqa: F401
from returnn_common.training.distributed import distributed_training
from returnn_common.training.jax_buckets import jax_buckets
from returnn_common.training.language_model import with_language_models
from returnn_common.training.precision import mixed_precision
from returnn_common.training.resume import exact_resume

options = Options(
    corpus=get_common_data_path("librispeech"),
    backend="torch",
    train_splits="train-clean-100,train-clean-360,train-other-500",
    dev_splits="dev-clean,dev-other",
    test_splits="test-clean,test-other",
    recog_split="",  # "": the first of dev_splits
    vocab="chars",  # or spm1k, spm5k, bpe1k, phonemes, ...; or a file .model, .codes, ...: see make_vocab
    vocab_sampling=0.0,  # of subwords, in training
    epoch_split=20,
    num_epochs=500,  # of which epoch_split are one pass over the data
    num_average=5,
    random_seed=1,
    num_layers=12,
    model_dim=512,
    conv_norm="layer",  # or "batch", as published
    dropout=0.1,
    peak_learning_rate=1e-3,
    batch_seconds=150,
    specaugment_start=5_000,  # training steps
    beam_size=1,
    search_options="",  # such as "{'lm': 'LM_OUT', 'lm_scale': 0.4}": docs/recognition.md
    precision="float32",  # or "bfloat16"
    distributed="",  # "grad" or "param": trained in several processes
)

# Data
dataset = Librispeech(
    path=options.corpus,
    vocab=make_vocab(options.vocab, sampling=options.vocab_sampling or None),
    train_splits=options.train_splits.split(","),
    dev_splits=options.dev_splits.split(","),
    test_splits=options.test_splits.split(","),
    train_epoch_split=options.epoch_split,
    training=TrainOptions(augment=SpeedPerturbation(0.9, 1.1), random_seed=options.random_seed),
)
globals().update(dataset.get_config_opts())
extern_data = dataset.get_extern_data()
forward_data = dataset.get_forward_dataset(options.recog_split or dataset.dev_splits[0])
batch_size = {"data": options.batch_seconds * 16_000}
max_seqs = 200


# Model
@with_language_models
def get_model(*, epoch: int, step: int, **_other):
    """called by RETURNN"""
    encoder = make_conformer_encoder(
        80,
        num_layers=options.num_layers,
        out_dim=options.model_dim,
        num_heads=8,
        conv_norm=options.conv_norm,
        dropout=options.dropout,
    )
    return make_ctc_model(
        None,
        extern_data["classes"]["sparse_dim"],
        encoder=encoder,
        specaugment=SpecAugment("LD", start_step=options.specaugment_start, full_step=3 * options.specaugment_start),
        aux_layers=[options.num_layers // 2] if options.num_layers > 1 else [],
    )


# Training
backend = options.backend
task = "train"
behavior_version = 38
model = "output/librispeech_ctc/epoch"
learning_rate_file = "output/librispeech_ctc/learning_rates"
log_verbosity = 4
random_seed = options.random_seed
beam_size = options.beam_size
search_options = options.search_options
num_epochs = options.num_epochs
save_interval = 1
warmup_epochs = int(0.45 * num_epochs)
globals().update(warmup_decay(num_epochs=num_epochs, peak=options.peak_learning_rate, warmup_epochs=warmup_epochs))
globals().update(exact_resume())
globals().update(mixed_precision(options.precision, backend=backend))
globals().update(distributed_training(options.distributed, backend=backend))
gradient_clip_global_norm = 5.0
if backend == "tensorflow-net-dict":
    optimizer = {"class": "adam"}  # RETURNN's adamw doesn't run with Keras 3 there
    sys.setrecursionlimit(10_000)  # as deep as the graph
else:
    optimizer = {"class": "adamw", "weight_decay": 0.01}
if backend == "jax":  # utterances of up to 35.2 s, which speed 0.9 makes longer, with up to 600 characters
    jax_sizes = {"batch_size": batch_size["data"], "max_length": 40 * 16_000, "max_labels": 700}
    globals().update(jax_buckets(**jax_sizes, max_seqs=max_seqs, num_buckets=6))
