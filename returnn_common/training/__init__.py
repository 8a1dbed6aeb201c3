"""
Training any model: the train step, learning-rate schedules, checkpoint averaging.
"""

from __future__ import annotations

from .averaging import average_checkpoints, select_checkpoints
from .batching import bucket_batches
from .convert import convert_checkpoint
from .learning_rates import noam, one_cycle, warmup_decay
from .ngram import train_ngram
from .train_step import train_step

__all__ = [
    "train_step",
    "warmup_decay",
    "one_cycle",
    "noam",
    "average_checkpoints",
    "bucket_batches",
    "convert_checkpoint",
    "select_checkpoints",
    "train_ngram",
]
