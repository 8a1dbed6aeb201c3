#!rnn.py
"""
LibriSpeech with a Conformer transducer, characters or SentencePiece as labels.

The corpus is prepared by ``returnn-common prepare librispeech SRC CORPUS``. With a part of LibriSpeech, name the
splits: ``returnn-common run librispeech_transducer --corpus SRC --out OUT --set train_splits=train-clean-100
--set dev_splits=dev-clean --set test_splits=test-clean``. Runs on each of RETURNN's engines, also as it is:
``python -m returnn librispeech_transducer.py ++corpus CORPUS ++backend torch``.

Model: Conformer (L) with one LSTM of 640 as predictor (Gulati et al. 2020, https://arxiv.org/abs/2005.08100, table 1,
where word pieces are the labels: test-clean 2.1 %, test-other 4.3 % without a language model); for (M), set
num_layers=16, model_dim=256, num_heads=4. CTC beside it (Boyer et al. 2021, https://arxiv.org/abs/2201.05420).
Learning rate as in ``librispeech_ctc``. With ``init_from``, a checkpoint of ``librispeech_ctc`` with the same encoder,
training starts from that encoder.
"""

import sys

from returnn_common.config import Options
from returnn_common.data import get_common_data_path
from returnn_common.datasets import Librispeech, TrainOptions, make_vocab
from returnn_common.datasets.augment import SpeedPerturbation
from returnn_common.models.decoder.transducer import make_joiner, make_lstm_predictor
from returnn_common.models.encoder.conformer import make_conformer_encoder
from returnn_common.models.features import LogMel
from returnn_common.models.specaugment import SpecAugment
from returnn_common.models.transducer import TransducerModel
from returnn_common.recog import recog_callback as forward_callback  # noqa: F401
from returnn_common.recog import recog_step as forward_step  # noqa: F401
from returnn_common.training import train_step, warmup_decay  # noqa: F401
from returnn_common.training.checkpoints import read_checkpoint
from returnn_common.training.distributed import distributed_training
from returnn_common.training.import_weights import load_parameters, part_of
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
    num_layers=17,
    model_dim=512,
    num_heads=8,
    predictor_dim=640,
    separate_blank=False,
    ctc_scale=0.3,  # of the loss; the transducer's has 1
    frames_per_block=32,  # of which the logits are there at once
    conv_norm="layer",  # or "batch", as published
    init_from="",  # a checkpoint; none: from scratch
    dropout=0.1,
    peak_learning_rate=1e-3,
    batch_seconds=150,
    specaugment_start=5_000,  # training steps
    beam_size=8,
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
    features = LogMel(80)
    encoder = make_conformer_encoder(
        features.out_dim,
        num_layers=options.num_layers,
        out_dim=options.model_dim,
        num_heads=options.num_heads,
        conv_kernel_size=31,  # 32 there
        conv_norm=options.conv_norm,
        dropout=options.dropout,
    )
    if options.init_from and epoch == 1 and step == 0:
        load_parameters(encoder, part_of(read_checkpoint(options.init_from).floats, "encoder."))
    vocab_dim = extern_data["classes"]["sparse_dim"]
    predictor_dim = options.predictor_dim
    predictor = make_lstm_predictor(
        vocab_dim, model_dim=predictor_dim, embed_dim=predictor_dim, dropout=options.dropout
    )
    return TransducerModel(
        features=features,
        specaugment=SpecAugment("LD", start_step=options.specaugment_start, full_step=3 * options.specaugment_start),
        encoder=encoder,
        predictor=predictor,
        joiner=make_joiner(encoder.out_dim, predictor.out_dim, vocab_dim, model_dim=predictor_dim),
        vocab_dim=vocab_dim,
        separate_blank=options.separate_blank,
        aux_ctc_layers=[options.num_layers],
        aux_ctc_scale=options.ctc_scale,
        frames_per_block=options.frames_per_block,
    )


# Training
backend = options.backend
task = "train"
behavior_version = 38
model = "output/librispeech_transducer/epoch"
learning_rate_file = "output/librispeech_transducer/learning_rates"
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
