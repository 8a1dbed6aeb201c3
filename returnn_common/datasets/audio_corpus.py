"""
What all corpora of recordings with transcripts have in common.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from returnn.tensor import Dim, batch_dim

from ._sources import Source, open_source
from .corpus_options import EvalOptions, TrainOptions, check_int, check_splits
from .features import NUM_MELS
from .interface import DatasetConfig, VocabConfig
from .speech_dataset import SpeechDataset
from .vocab import check_transcripts

__all__ = ["AudioCorpus"]

DEVTRAIN = "devtrain"


class AudioCorpus(DatasetConfig):
    """
    Recordings with transcripts, in splits. To add a corpus, derive from it and define :meth:`get_source`.

    The data are ``data``, raw audio {batch, time} (16 kHz, float32, in [-1, 1]) or log-mel features {batch, time, 80}
    (as our models compute them, see :mod:`.features`), and ``classes``, label indices {batch, targets-time}. They are
    the same on all of RETURNN's engines, and no dim is marked as the feature dim.

    :param vocab: of the targets
    :param audio: ``"raw"``, or ``"log-mel"`` for engines on which the model cannot compute features
    :param train_splits: trained on altogether
    :param dev_splits: evaluated while training; the first one decides
    :param test_splits: may be none
    :param train_epoch_split: how many of RETURNN's epochs one pass over the training data takes
    :param training: further options of the training data
    :param evaluation: options of the data that are evaluated while training
    :raises ValueError: for options that make no sense
    """

    def __init__(
        self,
        *,
        vocab: VocabConfig,
        audio: str,
        train_splits: Sequence[str],
        dev_splits: Sequence[str],
        test_splits: Sequence[str],
        train_epoch_split: int,
        training: TrainOptions | None,
        evaluation: EvalOptions | None,
    ):
        name = type(self).__name__
        training = TrainOptions() if training is None else training
        evaluation = EvalOptions() if evaluation is None else evaluation
        if audio not in ("raw", "log-mel"):
            raise ValueError(f"{name}: audio: expected 'raw' or 'log-mel', got {audio!r}")
        if not isinstance(vocab, VocabConfig):
            raise TypeError(f"{name}: vocab: expected a VocabConfig or a name, got {type(vocab).__name__} {vocab!r}")
        for option, value, kind in (("training", training, TrainOptions), ("evaluation", evaluation, EvalOptions)):
            if not isinstance(value, kind):
                raise TypeError(f"{name}: {option}: expected {kind.__name__}, got {value!r}")
        self.vocab = vocab
        self.audio = audio
        self._splits = {
            "train": check_splits(f"{name}: train_splits", train_splits),
            "dev": check_splits(f"{name}: dev_splits", dev_splits),
            "test": check_splits(f"{name}: test_splits", test_splits, may_be_empty=True),
        }
        self.train_epoch_split = check_int(f"{name}: train_epoch_split", train_epoch_split, at_least=1)
        self.training = training
        self.eval_options = evaluation
        self._extern_data: dict[str, dict[str, Any]] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_extern_data": None}

    def get_splits(self, purpose: str) -> tuple[str, ...]:
        """:return: names of the splits for "train", "dev" or "test\""""
        return self._splits[purpose]

    @property
    def train_splits(self) -> tuple[str, ...]:
        """trained on altogether"""
        return self.get_splits("train")

    @property
    def dev_splits(self) -> tuple[str, ...]:
        """evaluated while training; the first one decides"""
        return self.get_splits("dev")

    @property
    def test_splits(self) -> tuple[str, ...]:
        """may be none"""
        return self.get_splits("test")

    @abstractmethod
    def get_source(self, split: str) -> dict[str, Any]:
        """
        Where the utterances of a split come from, plain data for the datasets' options; nothing is read.

        :param split: one of this corpus
        :return: see :func:`._sources.open_source`
        """

    def get_extern_data(self) -> dict[str, dict[str, Any]]:
        """see :class:`DatasetConfig`"""
        if self._extern_data is None:
            feature_dims = [Dim(NUM_MELS, name="log-mel")] if self.audio == "log-mel" else []
            self._extern_data = {
                "data": {"dims": [batch_dim, Dim(None, name="time"), *feature_dims], "dtype": "float32"},
                "classes": {
                    "dims": [batch_dim, Dim(None, name="targets-time")],
                    "sparse_dim": Dim(self.vocab.get_num_classes(), name="labels"),
                    "dtype": "int32",
                    "vocab": self.vocab.get_opts(),
                },
            }
        return self._extern_data

    def get_train_dataset(self) -> dict[str, Any]:
        """see :class:`DatasetConfig`"""
        training = self.training
        dataset = {
            **self._get_dataset(self.train_splits, seq_ordering=training.seq_ordering),
            "partition_epoch": self.train_epoch_split,
            "is_training": True,
            "augment": training.augment,
            "seed": training.random_seed,
            "curriculum": training.curriculum,
        }
        if training.num_workers:
            return {
                "class": "MultiProcDataset",
                "dataset": dataset,
                "num_workers": training.num_workers,
                "buffer_size": 10,
            }
        return dataset

    def get_eval_datasets(self) -> dict[str, dict[str, Any]]:
        """
        The datasets of ``dev_splits`` and ``test_splits`` by the split's name, and "devtrain" if there is one.
        """
        datasets = {split: self._get_dev_dataset(split) for split in self.dev_splits}
        datasets.update({split: self.get_forward_dataset(split) for split in self.test_splits if split not in datasets})
        if self.eval_options.devtrain_subset:
            datasets[DEVTRAIN] = self._get_dataset(self.train_splits, subset=self.eval_options.devtrain_subset)
        return datasets

    def get_forward_dataset(self, split: str) -> dict[str, Any]:
        """
        Any one split, also one of ``train_splits``, whole, sorted by length and without augmentation.

        :raises ValueError: if it is none of the splits of this corpus
        """
        return self._get_dataset([self._check_split(split)])

    def get_main_name(self) -> str:
        """see :class:`DatasetConfig`; the first of ``dev_splits``"""
        return self.dev_splits[0]

    def get_config_opts(self) -> dict[str, Any]:
        """see :class:`DatasetConfig`; RETURNN evaluates on all ``dev_splits`` and "devtrain" after each epoch"""
        datasets = self.get_eval_datasets()
        opts = {
            **self.get_config_opts_with_dev(),
            "dev": datasets[self.get_main_name()],
            "eval_datasets": {name: datasets[name] for name in (*self.dev_splits[1:], DEVTRAIN) if name in datasets},
            "forward_data": self.get_forward_dataset(self.get_main_name()),
            "dataset_random_seed_offset": self.training.random_seed,
        }
        if not opts["eval_datasets"]:
            del opts["eval_datasets"]
        return opts

    def get_references(self, split: str) -> dict[str, str]:
        """
        :return: utterance -> transcript
        :raises FileNotFoundError: if the split is not there
        """
        source = self.open(split)
        return dict(zip(source.names, source.texts, strict=True))

    def get_durations(self, split: str) -> dict[str, float]:
        """
        :return: utterance -> seconds
        :raises FileNotFoundError: if the split is not there
        """
        source = self.open(split)
        return dict(zip(source.names, source.seconds.tolist(), strict=True))

    def open(self, split: str) -> Source:
        """
        :return: the split's utterances
        :raises FileNotFoundError: if the split is not there
        :raises ValueError: if it is none of the splits of this corpus, or something else
        """
        return open_source(self.get_source(self._check_split(split)))

    def check(self):
        """
        Looks whether all splits are there, large enough, and can be written with the vocabulary.

        :raises FileNotFoundError: naming what is not there
        :raises ValueError: if there are fewer training utterances than ``train_epoch_split``, or transcripts have what
            the vocabulary lacks: naming what, how often, and in which utterances
        """
        texts = {
            split: self.get_references(split)
            for split in dict.fromkeys((*self.train_splits, *self.dev_splits, *self.test_splits))
        }
        total = sum(len(texts[split]) for split in self.train_splits)
        if total < self.train_epoch_split:
            raise ValueError(
                f"{type(self).__name__}: train_epoch_split: expected at most the number of training utterances, "
                f"{total}, got {self.train_epoch_split}"
            )
        for split, references in texts.items():
            check_transcripts(self.vocab, references, what=f"transcripts of {split}")

    def _get_dev_dataset(self, split: str) -> dict[str, Any]:
        return self._get_dataset([split], subset=self.eval_options.dev_subset)

    def _get_dataset(
        self, splits: Sequence[str], *, seq_ordering: str = "sorted", subset: int | None = None
    ) -> dict[str, Any]:
        return {
            "class": SpeechDataset,
            "sources": [self.get_source(split) for split in splits],
            "vocab": self.vocab.get_dataset_opts(),
            "audio": self.audio,
            "subset": subset,
            "seq_ordering": seq_ordering,
        }

    def _check_split(self, split: str) -> str:
        splits = tuple(dict.fromkeys(self.train_splits + self.dev_splits + self.test_splits))
        if split not in splits:
            raise ValueError(f"{type(self).__name__}: split: expected one of {', '.join(splits)}, got {split!r}")
        return split
