"""
Utterances joined to longer ones, others in each epoch: new label sequences from few transcripts.

A decoder that is trained on few transcripts learns them by heart, and which words a recording holds only late.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
from returnn.tensor import Dim, TensorDict

__all__ = ["JoinUtterances", "join_utterances"]


def join_utterances(
    dataset: dict[str, Any],
    *,
    probability: float,
    max_labels: int,
    max_frames: int,
    first_epoch: int = 1,
    buffer_size: int = 50,
) -> dict[str, Any]:
    """
    Each utterance comes once, alone or as a part of a pair; the pair's sequence tag is ``FIRST;SECOND``. Which ones
    make a pair depends on the dataset's seed, the epoch, and the order in which they come, and so on how many
    processes share the data.

    :param dataset: as in a config, with ``data`` {time, ...} and ``classes`` {labels}
    :param probability: that an utterance is joined, if there is one for it
    :param max_labels: of a pair
    :param max_frames: of a pair, in the unit of ``data``
    :param first_epoch: before it, utterances stay as they are
    :param buffer_size: utterances among which a partner is looked for
    :return: dataset for the config
    :raises ValueError: for a value out of range
    """
    limits = {"max_labels": max_labels, "max_frames": max_frames}
    join = JoinUtterances(probability, **limits, first_epoch=first_epoch, buffer_size=buffer_size)
    return {
        "class": "PostprocessingDataset",
        "dataset": dataset,
        "seq_ordering": "default",
        "map_seq_stream": join,
    }


@dataclasses.dataclass
class JoinUtterances:
    """
    For ``map_seq_stream`` of RETURNN's ``PostprocessingDataset``; the arguments are those of :func:`join_utterances`.
    """

    probability: float
    _: dataclasses.KW_ONLY
    max_labels: int
    max_frames: int
    first_epoch: int = 1
    buffer_size: int = 50

    def __post_init__(self):
        if not 0 <= self.probability <= 1:
            raise ValueError(f"join_utterances: expected a probability from 0 to 1, got {self.probability!r}")
        for name in ("max_labels", "max_frames", "first_epoch", "buffer_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"join_utterances: expected {name} >= 1, got {getattr(self, name)!r}")

    def __call__(
        self, seqs: Iterator[TensorDict], *, epoch: int, rng: np.random.RandomState, **_kwargs
    ) -> Iterator[TensorDict]:
        """
        :param seqs: utterances
        :param epoch: of the dataset
        :param rng: of the epoch
        :return: utterances and pairs
        """
        if epoch < self.first_epoch:
            yield from seqs
            return
        waiting: list[TensorDict] = []
        seq = None
        for seq in seqs:
            waiting.append(seq)
            if len(waiting) > self.buffer_size:
                yield self._next(waiting, rng, read=seq)
        while seq is not None and waiting:
            yield self._next(waiting, rng, read=seq)

    def _next(self, waiting: list[TensorDict], rng: np.random.RandomState, *, read: TensorDict) -> TensorDict:
        """
        Takes the first one, and perhaps a partner, out of those that wait.

        :param read: the last one
        """
        result = first = waiting.pop(0)
        partners = []
        if rng.uniform() < self.probability:
            partners = [i for i, other in enumerate(waiting) if self._fit(first, other)]
        if partners:
            second = waiting.pop(partners[rng.randint(len(partners))])
            result = _joined(*([first, second] if rng.uniform() < 0.5 else [second, first]))
        if "complete_frac" in read.data:  # RETURNN wants it to rise
            result.data["complete_frac"] = read.data["complete_frac"]
        return result

    def _fit(self, a: TensorDict, b: TensorDict) -> bool:
        limits = {"classes": self.max_labels, "data": self.max_frames}
        return all(len(a[key].raw_tensor) + len(b[key].raw_tensor) <= limit for key, limit in limits.items())


def _joined(first: TensorDict, second: TensorDict) -> TensorDict:
    result = TensorDict(dict(first.data))
    for key in ("data", "classes"):
        x, y = first.data[key], second.data[key]
        # Its own dim: the length is another one.
        joined = x.copy_template_replace_dim_tag(axis=0, new_dim_tag=Dim(None, name=x.dims[0].name))
        joined.raw_tensor = np.concatenate([np.asarray(x.raw_tensor), np.asarray(y.raw_tensor)])
        result.data[key] = joined
    if "seq_tag" in first.data:
        tag = first.data["seq_tag"].copy_template()
        tag.raw_tensor = np.array(f"{first.data['seq_tag'].raw_tensor};{second.data['seq_tag'].raw_tensor}")
        result.data["seq_tag"] = tag
    return result
