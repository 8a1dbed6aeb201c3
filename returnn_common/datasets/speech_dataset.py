"""
The dataset that RETURNN loads speech with.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
from returnn.datasets.basic import DatasetSeq
from returnn.datasets.cached2 import CachedDataset2
from returnn.datasets.meta import EpochWiseFilter

from . import _returnn_vocab
from ._paths import resolve_paths
from ._sources import Source, open_source
from .augment import Augment, utterance_rng
from .features import NUM_MELS, log_mel, normalize
from .vocab import open_vocab

__all__ = ["SpeechDataset"]

_READ_AHEAD = 4  # utterances, so that the next one is decoded while the last one is put into its batch


class SpeechDataset(CachedDataset2):
    """
    Recordings as ``data`` and label indices as ``classes``.

    Differs from RETURNN's ``OggZipDataset`` in that it reads recordings from the zip, or from files, without detours,
    and, in the process that trains, the next ones in a thread; the augmentation is of the whole waveform and depends on
    seed, epoch and utterance alone, so neither on the order nor on the number of processes; features are those of our
    models.

    :param sources: options for :func:`._sources.open_source`
    :param vocab: what :meth:`.interface.VocabConfig.get_dataset_opts` gives, or options for RETURNN's
        ``Vocabulary.create_vocab``
    :param audio: "raw": {time}; "log-mel": {frames, 80}, see :mod:`.features`
    :param is_training: whether vocabularies may draw one of several ways to write a text
    :param augment: see :mod:`.augment`
    :param seed: for both of these
    :param curriculum: pairs of an epoch and seconds, see :class:`.corpus_options.TrainOptions`
    :param subset: only so many utterances, always the same ones
    """

    def __init__(
        self,
        *,
        sources: Sequence[dict[str, Any]],
        vocab: dict[str, Any],
        audio: str = "raw",
        is_training: bool = False,
        augment: Augment | None = None,
        seed: int = 0,
        curriculum: Sequence[tuple[int, float]] = (),
        subset: int | None = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.sources, self.vocab, self.audio, self.is_training = sources, vocab, audio, is_training
        self.augment, self.seed, self.curriculum, self.subset = augment, seed, curriculum, subset
        self._vocab = open_vocab(resolve_paths(vocab))
        self.labels = {"classes": _returnn_vocab.open_vocab(self._vocab.get_opts()).labels}
        self.num_inputs = NUM_MELS if audio == "log-mel" else 1
        self.num_outputs = {
            "data": (self.num_inputs, 1 + (audio == "log-mel")),
            "classes": (self._vocab.get_num_classes(), 1),
        }
        self._corpus: _Corpus | None = None
        self._order: Sequence[int] | None = None
        self._reader: _Reader | None = None
        self._lock = threading.Lock()

    # RETURNN pickles a dataset as its arguments, and would take the attribute ``_vocab`` for one of them.
    _getnewargs_remap = {"vocab": "vocab"}

    def init_seq_order(
        self, epoch: int | None = None, seq_list: list[str] | None = None, seq_order: Sequence[int] | None = None
    ) -> bool:
        """see RETURNN's ``Dataset``"""
        super().init_seq_order(epoch=epoch, seq_list=seq_list, seq_order=seq_order)
        self._stop_reading()
        self._order, self._num_seqs = None, 0
        if epoch is None and seq_list is None and seq_order is None:
            return True
        corpus = self._get_corpus()
        if seq_order is not None:
            self._order = seq_order
        elif seq_list is not None:
            self._order = [corpus.index_of(name) for name in seq_list]
        else:
            self._order = self._make_order(epoch, corpus)
        self._num_seqs = len(self._order)
        return True

    def _make_order(self, epoch: int | None, corpus: _Corpus) -> Sequence[int]:
        def _length(index: int) -> int:  # as in RETURNN's OggZipDataset
            return int(corpus.seconds[index] * 100)

        # No part of the data may be empty; RETURNN would fail where it comes to be trained on.
        self.partition_epoch = max(min(self.partition_epoch, len(corpus.names) // self._num_shards), 1)
        order = self.get_seq_order_for_epoch(epoch=epoch, num_seqs=len(corpus.names), get_seq_len=_length)
        limit = next((seconds for last, seconds in self.curriculum if (epoch or 1) <= last), None)
        if limit is None or not len(order):
            return order
        opts = {"max_mean_len": limit * 100}
        return EpochWiseFilter.filter_epoch(opts, order, get_seq_len=_length, debug_msg_prefix=f"{self}: ")

    def _get_corpus(self) -> _Corpus:
        if self._corpus is None:
            self._corpus = _Corpus([open_source(options) for options in self.sources], subset=self.subset)
        return self._corpus

    def finish_epoch(self, *, free_resources: bool = False):
        """see RETURNN's ``Dataset``"""
        super().finish_epoch(free_resources=free_resources)
        self._stop_reading()
        self._order, self._num_seqs = None, 0
        if free_resources and self._corpus is not None:
            self._corpus.close()
            self._corpus = None

    def _stop_reading(self):
        if self._reader is not None:
            self._reader.stop()
            self._reader = None

    def __del__(self):
        if getattr(self, "_reader", None) is not None:
            self._stop_reading()

    def supports_sharding(self) -> bool:
        """yes"""
        return True

    def supports_seq_order_sorting(self) -> bool:
        """yes, by duration"""
        return True

    def get_current_seq_order(self) -> Sequence[int]:
        """see RETURNN's ``Dataset``"""
        assert self._order is not None
        return self._order

    def have_corpus_seq_idx(self) -> bool:
        """yes"""
        return True

    def get_corpus_seq_idx(self, seq_idx: int) -> int:
        """see RETURNN's ``Dataset``"""
        return int(self.get_current_seq_order()[seq_idx])

    def have_get_corpus_seq(self) -> bool:
        """yes"""
        return True

    def get_corpus_seq(self, corpus_seq_idx: int) -> DatasetSeq:
        """see RETURNN's ``Dataset``"""
        return self._load(corpus_seq_idx, corpus_seq_idx)

    def get_tag(self, sorted_seq_idx: int) -> str:
        """:return: name of the utterance"""
        return self._get_corpus().names[self.get_corpus_seq_idx(sorted_seq_idx)]

    def get_all_tags(self) -> list[str]:
        """see RETURNN's ``Dataset``"""
        return self._get_corpus().names

    def get_total_num_seqs(self, *, fast: bool = False) -> int:
        """see RETURNN's ``Dataset``"""
        return len(self._get_corpus().names)

    def get_data_keys(self) -> list[str]:
        """those of the class"""
        return ["data", "classes"]

    def get_target_list(self) -> list[str]:
        """see RETURNN's ``Dataset``"""
        return ["classes"]

    def get_data_dtype(self, key: str) -> str:
        """see RETURNN's ``Dataset``"""
        return {"data": "float32", "classes": "int32"}[key]

    def get_data_shape(self, key: str) -> list[int]:
        """:return: without time"""
        return [NUM_MELS] if key == "data" and self.audio == "log-mel" else []

    def is_data_sparse(self, key: str) -> bool:
        """see RETURNN's ``Dataset``"""
        return key == "classes"

    def get_data_dim(self, key: str) -> int:
        """see RETURNN's ``Dataset``"""
        assert self.num_outputs is not None
        return self.num_outputs[key][0]

    def _collect_single_seq(self, seq_idx: int) -> DatasetSeq | None:
        order = self.get_current_seq_order()
        if seq_idx >= len(order):
            return None
        if multiprocessing.parent_process() is not None:  # a process that only loads has nothing to do meanwhile
            return self._load(int(order[seq_idx]), seq_idx)
        if self._reader is None:
            self._reader = _Reader(self._load, order)
        return self._reader.get(seq_idx)

    def _load(self, index: int, seq_idx: int) -> DatasetSeq:
        corpus = self._get_corpus()
        name = corpus.names[index]
        audio = corpus.read(index)
        if self.augment is not None:
            audio = self._change(audio, name)
        data = normalize(log_mel(audio)) if self.audio == "log-mel" else audio
        features = {"data": data, "classes": self._encode(corpus.texts[index], name)}
        return DatasetSeq(seq_idx=seq_idx, seq_tag=name, features=features)

    def _encode(self, text: str, name: str) -> np.ndarray:
        with self._lock:  # others than the reader's thread may ask for single utterances
            try:
                if self.is_training:
                    rng = utterance_rng(seed=self.seed, epoch=self.epoch or 1, seq_tag=name)
                    return np.array(self._vocab.encode_for_training(text, rng=rng), "int32")
                return np.array(self._vocab.encode(text), "int32")
            except (ValueError, KeyError) as error:
                raise ValueError(f"utterance {name}: {error}") from error

    def _change(self, audio: np.ndarray, name: str) -> np.ndarray:
        assert self.augment is not None
        changed = self.augment(audio, rng=utterance_rng(seed=self.seed, epoch=self.epoch or 1, seq_tag=name))
        if not isinstance(changed, np.ndarray) or changed.ndim != 1 or not len(changed):
            found = f"an array of shape {changed.shape}" if isinstance(changed, np.ndarray) else repr(changed)
            raise ValueError(f"augmentation {self.augment!r}: expected audio with the shape [time], got {found}")
        return changed.astype("float32", copy=False)


class _Corpus:
    """Several sources as one, or a part of it."""

    def __init__(self, sources: Sequence[Source], *, subset: int | None):
        self._sources = sources
        self._places = [(source, i) for source in sources for i in range(len(source.names))]
        if subset is not None and subset < len(self._places):
            chosen = np.random.default_rng(0).permutation(len(self._places))[:subset]
            self._places = [self._places[i] for i in sorted(chosen.tolist())]
        self.names = [source.names[i] for source, i in self._places]
        self.texts = [source.texts[i] for source, i in self._places]
        self.seconds = np.array([source.seconds[i] for source, i in self._places], "float64")
        self._index: dict[str, int] | None = None

    def index_of(self, name: str) -> int:
        """:raises ValueError: if there is none"""
        if self._index is None:
            self._index = {name: i for i, name in enumerate(self.names)}
        if name not in self._index:
            raise ValueError(f"no utterance {name!r} among {len(self.names)}, such as {self.names[0]!r}")
        return self._index[name]

    def read(self, index: int) -> np.ndarray:
        source, i = self._places[index]
        return source.read(i)

    def close(self):
        for source in self._sources:
            source.close()


class _Reader:
    """Loads utterances in their order, the next few in a thread of its own."""

    def __init__(self, load: Any, order: Sequence[int]):
        self._load, self._order = load, order
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="speech data")
        self._pending: deque[tuple[int, Future[DatasetSeq]]] = deque()
        self._next = 0
        self._process = os.getpid()

    def get(self, seq_idx: int) -> DatasetSeq:
        if self._process != os.getpid():  # its thread stayed behind when the process was forked
            self.__init__(self._load, self._order)
        if seq_idx < self._next and not any(i == seq_idx for i, _ in self._pending):
            return self._load(self._order[seq_idx], seq_idx)
        self._next = max(self._next, seq_idx)
        while self._pending and self._pending[0][0] < seq_idx:
            self._pending.popleft()[1].cancel()
        for i in itertools.count(self._next):
            if i >= len(self._order) or i > seq_idx + _READ_AHEAD:
                break
            self._pending.append((i, self._pool.submit(self._load, int(self._order[i]), i)))
            self._next = i + 1
        return self._pending.popleft()[1].result()

    def stop(self):
        self._pool.shutdown(wait=self._process == os.getpid(), cancel_futures=True)
        self._pending.clear()
