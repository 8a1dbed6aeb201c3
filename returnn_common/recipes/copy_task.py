#!rnn.py
"""
Sequences sorted, reversed or copied by a small text-to-text Transformer: does a sequence-to-sequence setup work at all?

It makes its data itself, and takes a minute on two CPU cores. The test's sequences are longer than any in training.
Runs on each of RETURNN's engines: ``python -m returnn copy_task.py ++backend torch``.
"""

import sys

from returnn_common.config import Options
from returnn_common.datasets import SequenceTask
from returnn_common.models.transformer import make_transformer
from returnn_common.recog import recog_callback as forward_callback  # noqa: F401
from returnn_common.recog import recog_step as forward_step  # noqa: F401
from returnn_common.training import train_step, warmup_decay  # noqa: F401
from returnn_common.training.language_model import with_language_models
from returnn_common.training.resume import exact_resume

options = Options(
    order="sort",  # or reverse, copy: these tell positions in longer sequences less well
    backend="torch",
    recog_split="dev",
    num_epochs=5,
    num_average=2,
    random_seed=1,
    num_layers=2,
    model_dim=64,
    beam_size=1,
    search_options="",  # such as "{'length_exponent': 0.5, 'mbr': 1.0}": docs/recognition.md
    peak_learning_rate=3e-3,
)

# Data: other sequences in each epoch
dataset = SequenceTask(
    options.order,
    num_symbols=50,
    train_lengths=(1, 16),
    test_lengths=(17, 18),
    num_train=8_000,
    num_test=500,
    random_seed=options.random_seed,
)
globals().update(dataset.get_config_opts())
extern_data = dataset.get_extern_data()
forward_data = dataset.get_forward_dataset(options.recog_split)
batch_size = {"data": 64 * 18}
max_seqs = 64


# Model: it only knows distances, which longer sequences share with shorter ones.
@with_language_models
def get_model(*, epoch: int, step: int, **_other):
    """called by RETURNN"""
    vocab_dim = extern_data["classes"]["sparse_dim"]
    return make_transformer(
        vocab_dim,
        vocab_dim,
        num_layers=options.num_layers,
        model_dim=options.model_dim,
        num_heads=4,
        positions="rotary",
        dropout=0.0,
        label_smoothing=0.0,
        bos=dataset.vocab.encode("<s>")[0],
        eos=dataset.vocab.encode("<s>")[0],
    )


# Training
backend = options.backend
task = "train"
behavior_version = 38
model = "output/copy_task/epoch"
learning_rate_file = "output/copy_task/learning_rates"
log_verbosity = 4
random_seed = options.random_seed
beam_size = options.beam_size
search_options = options.search_options
num_epochs = options.num_epochs
save_interval = 1
warmup_epochs = min(1, options.num_epochs // 2)
globals().update(warmup_decay(num_epochs=num_epochs, peak=options.peak_learning_rate, warmup_epochs=warmup_epochs))
globals().update(exact_resume())
gradient_clip_global_norm = 1.0
if backend == "torch":
    optimizer = {"class": "adamw", "weight_decay": 0.01, "betas": (0.9, 0.98), "fused": True}
elif backend == "tensorflow-net-dict":
    optimizer = {"class": "adam"}  # RETURNN's adamw doesn't run with Keras 3 there
    sys.setrecursionlimit(10_000)  # as deep as the graph
else:
    optimizer = {"class": "adamw", "weight_decay": 0.01}
