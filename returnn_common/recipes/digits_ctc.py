#!rnn.py
"""
Connected digits with a small Conformer and CTC, ten words as labels: minutes on two CPU cores.

The corpus has the splits train, dev and test, prepared by ``returnn-common prepare librispeech SRC CORPUS``.
Runs on each of RETURNN's engines: ``python -m returnn digits_ctc.py ++corpus CORPUS ++backend torch``.
"""

import sys

from returnn_common.config import Options
from returnn_common.datasets import Librispeech, WordVocab
from returnn_common.datasets.augment import SpeedPerturbation
from returnn_common.models.ctc import make_ctc_model
from returnn_common.models.encoder.conformer import make_conformer_encoder
from returnn_common.models.specaugment import SpecAugment, SpecAugmentPolicy
from returnn_common.recog import recog_callback as forward_callback  # noqa: F401
from returnn_common.recog import recog_step as forward_step  # noqa: F401
from returnn_common.training import train_step, warmup_decay  # noqa: F401
from returnn_common.training.resume import exact_resume

options = Options(
    corpus="data",
    backend="torch",
    recog_split="dev",
    num_epochs=50,
    num_average=5,
    random_seed=1,
    num_layers=3,
    model_dim=96,
    num_mels=40,
    dropout=0.1,
    peak_learning_rate=3e-3,
)

# Data
dataset = Librispeech(
    path=options.corpus,
    vocab=WordVocab("ZERO ONE TWO THREE FOUR FIVE SIX SEVEN EIGHT NINE".split()),
    train_splits=["train"],
    dev_splits=["dev"],
    test_splits=["test"],
    train_epoch_split=1,
    # Five voices are few: a wide range makes many of them, since it moves pitch, formants and speed together.
    train_augment=SpeedPerturbation(0.7, 1.4),
)
globals().update(dataset.get_config_opts())
forward_data = dataset.get_forward_dataset(options.recog_split)
batch_size = {"data": 60 * 16_000}
max_seqs = 16
if options.backend == "torch":
    torch_dataloader_opts = {"num_workers": 1}


# Model
def get_model(*, epoch: int, step: int, **_other):
    """called by RETURNN"""
    encoder = make_conformer_encoder(
        options.num_mels,
        num_layers=options.num_layers,
        out_dim=options.model_dim,
        num_heads=4,
        subsampling=6,
        conv_kernel_size=9,
        conv_norm="layer",
        dropout=options.dropout,
    )
    policy = SpecAugmentPolicy(
        time_warp=0,
        frequency_width=8,
        num_frequency_masks=2,
        time_width=20,
        time_fraction=0.15,
        num_time_masks=2,
    )
    return make_ctc_model(
        None,
        extern_data["classes"]["sparse_dim"],  # noqa: F821
        encoder=encoder,
        specaugment=SpecAugment(policy, start_step=400, full_step=600),
    )


# Training
backend = options.backend
task = "train"
behavior_version = 38
model = "output/digits_ctc/epoch"
learning_rate_file = "output/digits_ctc/learning_rates"
log_verbosity = 4
random_seed = options.random_seed
num_epochs = options.num_epochs
save_interval = 1
warmup_epochs = min(5, options.num_epochs // 2)
globals().update(warmup_decay(num_epochs=num_epochs, peak=options.peak_learning_rate, warmup_epochs=warmup_epochs))
globals().update(exact_resume())
gradient_clip_global_norm = 5.0
if backend == "tensorflow-net-dict":
    optimizer = {"class": "adam"}  # RETURNN's adamw doesn't run with Keras 3 there
    sys.setrecursionlimit(10_000)  # as deep as the graph
else:
    optimizer = {"class": "adamw", "weight_decay": 0.01}
