#!rnn.py
"""
Language model on text such as LibriSpeech's: a Transformer or LSTMs, characters or SentencePiece as labels.

The corpus is a text file (UTF-8, .txt or .txt.gz), one sentence a line, of which some lines are held out; or a folder
with ``dev.txt``, ``test.txt``, and all others to train on. Perplexities instead of word error rates come out:
``returnn-common run librispeech_lm --corpus TEXT --out OUT``. Runs on each of RETURNN's engines, also as it is:
``python -m returnn librispeech_lm.py ++corpus CORPUS ++backend torch``.

Models: those of Irie et al. 2019 (https://arxiv.org/abs/1905.04226) over 10k subwords, without dropout. Transformer: 24
layers of 1024 (feed-forward blocks of 4096, 8 heads) without encoding of positions; LSTM: 4 layers of 2048; embeddings
of 128. Trained for two passes over the data, as there (2019-lm-transformers/librispeech/bpe_10k in
https://github.com/rwth-i6/returnn-experiments), but with AdamW, in larger batches. In minutes on one CPU core, on ten
thousand lines, less will do: ``--set lm=lstm --set num_layers=1 --set model_dim=256 --set dropout=0.1
--set peak_learning_rate=4e-3 --set batch_labels=1500 --set epoch_split=1 --set num_epochs=5 --set num_average=1``.
"""

import sys

from returnn_common import nn
from returnn_common.config import Options
from returnn_common.data import get_common_data_path
from returnn_common.datasets import TextCorpus, make_vocab
from returnn_common.models.language_model import LanguageModel
from returnn_common.models.lm.lstm import make_lstm_lm
from returnn_common.models.lm.transformer import make_transformer_lm
from returnn_common.recog.perplexity import ppl_callback as forward_callback  # noqa: F401
from returnn_common.recog.perplexity import ppl_step as forward_step  # noqa: F401
from returnn_common.training import train_step, warmup_decay  # noqa: F401
from returnn_common.training.distributed import distributed_training
from returnn_common.training.jax_buckets import jax_buckets
from returnn_common.training.precision import mixed_precision
from returnn_common.training.resume import exact_resume

options = Options(
    corpus=get_common_data_path("librispeech-lm-norm.txt.gz"),
    backend="torch",
    recog_split="dev",
    vocab="chars",  # or spm1k, spm5k, bpe1k, phonemes, ...; or a file .model, .codes, ...: see make_vocab
    vocab_sampling=0.0,  # of subwords, in training
    hold_out_every=200,  # lines, where dev and test have no files
    max_chars=600,  # of a sentence; longer lines are split
    epoch_split=10,
    num_epochs=20,  # of which epoch_split are one pass over the data
    num_average=2,
    random_seed=1,
    lm="transformer",  # or "lstm"
    num_layers=0,  # 0: 24, or 4 LSTMs
    model_dim=0,  # 0: 1024, or 2048 of LSTMs
    embed_dim=128,
    positions="none",  # of the Transformer; or "absolute", "rotary"
    dropout=0.0,
    peak_learning_rate=5e-4,
    batch_labels=8_000,
    precision="float32",  # or "bfloat16"
    distributed="",  # "grad" or "param": trained in several processes
)

# Data
dataset = TextCorpus(
    options.corpus,
    vocab=make_vocab(options.vocab, sampling=options.vocab_sampling or None),
    hold_out_every=options.hold_out_every,
    max_chars=options.max_chars,
    train_epoch_split=options.epoch_split,
    random_seed=options.random_seed,
)
globals().update(dataset.get_config_opts())
extern_data = dataset.get_extern_data()
forward_data = dataset.get_forward_dataset(options.recog_split)
batch_size = {"data": options.batch_labels}
max_seqs = 200


# Model
def get_model(*, epoch: int, step: int, **_other):
    """called by RETURNN"""
    num_labels = extern_data["data"]["sparse_dim"].dimension
    vocab_dim = nn.FeatureDim("labels-and-end", num_labels + 1)
    sizes = {"embed_dim": options.embed_dim, "dropout": options.dropout}
    if options.lm == "transformer":
        sizes.update(num_layers=options.num_layers or 24, model_dim=options.model_dim or 1024)
        decoder = make_transformer_lm(vocab_dim, **sizes, num_heads=8, positions=options.positions)
    elif options.lm == "lstm":
        sizes.update(num_layers=options.num_layers or 4, model_dim=options.model_dim or 2048)
        decoder = make_lstm_lm(vocab_dim, **sizes)
    else:
        raise ValueError(f"expected lm as transformer or lstm, got {options.lm!r}")
    return LanguageModel(decoder, bos=num_labels, eos=num_labels, word_starts=dataset.get_word_starts())


# Training
backend = options.backend
task = "train"
behavior_version = 38
model = "output/librispeech_lm/epoch"
learning_rate_file = "output/librispeech_lm/learning_rates"
log_verbosity = 4
random_seed = options.random_seed
num_epochs = options.num_epochs
save_interval = 1
warmup_epochs = num_epochs // 10
globals().update(warmup_decay(num_epochs=num_epochs, peak=options.peak_learning_rate, warmup_epochs=warmup_epochs))
globals().update(exact_resume())
globals().update(mixed_precision(options.precision, backend=backend))
globals().update(distributed_training(options.distributed, backend=backend))
gradient_clip_global_norm = 1.0
if backend == "torch":
    optimizer = {"class": "adamw", "weight_decay": 0.01, "fused": True}
elif backend == "tensorflow-net-dict":
    optimizer = {"class": "adam"}  # RETURNN's adamw doesn't run with Keras 3 there
    sys.setrecursionlimit(10_000)  # as deep as the graph
else:
    optimizer = {"class": "adamw", "weight_decay": 0.01}
if backend == "jax":
    jax_sizes = {"batch_size": options.batch_labels, "max_length": options.max_chars + 1, "max_labels": None}
    globals().update(jax_buckets(**jax_sizes, max_seqs=max_seqs))
