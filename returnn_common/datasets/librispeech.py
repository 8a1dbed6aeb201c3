"""
LibriSpeech, and every other corpus that ``returnn-common prepare librispeech`` has prepared.
"""

from __future__ import annotations

import ast
import os
import zipfile
from collections.abc import Sequence
from typing import Any

from returnn.tensor import Dim, batch_dim

from ..data import get_common_data_path
from ._map_seq import MapSeq
from .augment import Augment
from .features import NUM_MELS
from .interface import DatasetConfig, VocabConfig
from .vocab import CharacterVocab

__all__ = ["Librispeech"]


class Librispeech(DatasetConfig):
    """
    LibriSpeech (Panayotov et al., 2015, https://www.openslr.org/12), or another corpus with splits of other names, as
    ``returnn-common prepare librispeech`` writes it: a file ``SPLIT.zip`` for each split.

    The data are ``data``, raw audio {batch, time} (16 kHz, float32, in [-1, 1]) or log-mel features {batch, time, 80}
    (see :mod:`.features`), and ``classes``, label indices {batch, targets-time}. They are the same on all of RETURNN's
    engines, and no dim is marked as the feature dim.

    Nothing is read before it is needed; :meth:`check` looks whether all is there.

    :param path: the folder; by default ``librispeech`` in :func:`returnn_common.data.get_common_data_path`
    :param vocab: of the targets; by default :class:`.vocab.CharacterVocab`
    :param audio: ``"raw"``, or ``"log-mel"`` for engines on which the model cannot compute features
    :param train_splits: trained on altogether
    :param dev_splits: evaluated while training; the first one decides
    :param test_splits:
    :param train_epoch_split: how many of RETURNN's epochs one pass over the training data takes
    :param train_augment: see :mod:`.augment`; for training only
    :param train_seq_ordering: of RETURNN, see its ``Dataset``. The default shuffles, then sorts by length within every
        thousand utterances, up and down in turn.
    :param random_seed: for ``train_augment``, and in :meth:`get_config_opts` also for the order
    :raises ValueError: for options that make no sense
    """

    def __init__(
        self,
        *,
        path: str | os.PathLike[str] | None = None,
        vocab: VocabConfig | None = None,
        audio: str = "raw",
        train_splits: Sequence[str] = ("train-clean-100", "train-clean-360", "train-other-500"),
        dev_splits: Sequence[str] = ("dev-clean", "dev-other"),
        test_splits: Sequence[str] = ("test-clean", "test-other"),
        train_epoch_split: int = 20,
        train_augment: Augment | None = None,
        train_seq_ordering: str = "laplace:.1000",
        random_seed: int = 0,
    ):
        if audio not in ("raw", "log-mel"):
            raise ValueError(f"Librispeech: audio: expected 'raw' or 'log-mel', got {audio!r}")
        if vocab is not None and not isinstance(vocab, VocabConfig):
            raise TypeError(f"Librispeech: vocab: expected a VocabConfig, got {type(vocab).__name__} {vocab!r}")
        if train_augment is not None and not callable(train_augment):
            raise TypeError(f"Librispeech: train_augment: expected a function, got {train_augment!r}")
        self.path = get_common_data_path("librispeech") if path is None else os.fspath(path)
        self.vocab = CharacterVocab() if vocab is None else vocab
        self.audio = audio
        self.train_splits = _check_splits("train_splits", train_splits)
        self.dev_splits = _check_splits("dev_splits", dev_splits)
        self.test_splits = _check_splits("test_splits", test_splits, may_be_empty=True)
        self.train_epoch_split = _check_int("train_epoch_split", train_epoch_split, at_least=1)
        self.train_augment = train_augment
        self.train_seq_ordering = train_seq_ordering
        self.random_seed = _check_int("random_seed", random_seed, at_least=0)
        self._extern_data: dict[str, dict[str, Any]] | None = None

    def __repr__(self) -> str:
        return f"Librispeech(path={self.path!r}, vocab={self.vocab!r}, audio={self.audio!r})"

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
        order = {"seq_ordering": self.train_seq_ordering, "partition_epoch": self.train_epoch_split}
        return self._get_dataset(self.train_splits, augment=self.train_augment, **order)

    def get_eval_datasets(self) -> dict[str, dict[str, Any]]:
        """The datasets of ``dev_splits`` and ``test_splits`` by the split's name."""
        return {split: self.get_forward_dataset(split) for split in dict.fromkeys(self.dev_splits + self.test_splits)}

    def get_forward_dataset(self, split: str) -> dict[str, Any]:
        """
        Any one split, also one of ``train_splits``, sorted by length and without augmentation.

        :raises ValueError: if it is none of the splits of this corpus
        """
        return self._get_dataset([self._check_split(split)], augment=None, seq_ordering="sorted")

    def get_main_name(self) -> str:
        """see :class:`DatasetConfig`; the first of ``dev_splits``"""
        return self.dev_splits[0]

    def get_config_opts(self) -> dict[str, Any]:
        """see :class:`DatasetConfig`; RETURNN evaluates on all ``dev_splits`` after each epoch"""
        opts = super().get_config_opts()
        if len(self.dev_splits) > 1:
            opts["eval_datasets"] = {split: self.get_forward_dataset(split) for split in self.dev_splits[1:]}
        opts["dataset_random_seed_offset"] = self.random_seed
        return opts

    def get_references(self, split: str) -> dict[str, str]:
        """
        :return: utterance -> transcript
        :raises FileNotFoundError: if the split is not there
        """
        return {entry["seq_name"]: entry["text"] for entry in self._read_index(split)}

    def get_durations(self, split: str) -> dict[str, float]:
        """
        :return: utterance -> seconds
        :raises FileNotFoundError: if the split is not there
        """
        return {entry["seq_name"]: entry["duration"] for entry in self._read_index(split)}

    def check(self):
        """
        Looks whether all splits are there, and large enough.

        :raises FileNotFoundError: naming the splits that are not there
        :raises ValueError: if the training data cannot be split into ``train_epoch_split`` parts
        """
        self._check_present(list(dict.fromkeys(self.train_splits + self.dev_splits + self.test_splits)))
        num_train = sum(len(self._read_index(split)) for split in self.train_splits)
        if num_train < self.train_epoch_split:
            raise ValueError(
                f"Librispeech: train_epoch_split: expected at most the number of training utterances, {num_train}, "
                f"got {self.train_epoch_split}"
            )

    def _get_dataset(self, splits: Sequence[str], *, augment: Augment | None, **order: Any) -> dict[str, Any]:
        map_seq = MapSeq(log_mel=self.audio == "log-mel", augment=augment, seed=self.random_seed)
        return {
            "class": "PostprocessingDataset",
            "dataset": {
                "class": "OggZipDataset",
                "path": [self._zip_path(split) for split in splits],
                "audio": {"features": "raw", "sample_rate": 16_000, "peak_normalization": False},
                "targets": self.vocab.get_opts(),
                **order,
            },
            "seq_ordering": "default",  # RETURNN would set another one for dev data, but the inner dataset sorts
            "map_seq": map_seq,
            "map_outputs": map_seq.output_template(num_classes=self.vocab.get_num_classes()),
        }

    def _zip_path(self, split: str) -> str:
        return os.path.join(self.path, f"{split}.zip")

    def _check_split(self, split: str) -> str:
        splits = tuple(dict.fromkeys(self.train_splits + self.dev_splits + self.test_splits))
        if split not in splits:
            raise ValueError(f"Librispeech: split: expected one of {', '.join(splits)}, got {split!r}")
        return split

    def _check_present(self, splits: list[str]):
        missing = [split for split in splits if not os.path.isfile(self._zip_path(split))]
        if missing:
            raise FileNotFoundError(
                f"Librispeech: no split {', '.join(missing)} in {self.path}; to make them: "
                f"returnn-common prepare librispeech SRC {self.path}"
            )

    def _read_index(self, split: str) -> list[dict[str, Any]]:
        self._check_split(split)
        self._check_present([split])
        path = self._zip_path(split)
        try:
            with zipfile.ZipFile(path) as file:
                return ast.literal_eval(file.read(f"{split}.txt").decode("utf8"))
        except (zipfile.BadZipFile, KeyError, ValueError, SyntaxError) as error:
            raise ValueError(f"Librispeech: {path} is not a prepared split ({error})") from error


def _check_splits(name: str, splits: Sequence[str], *, may_be_empty: bool = False) -> tuple[str, ...]:
    if isinstance(splits, str) or not all(isinstance(split, str) for split in splits):
        raise TypeError(f"Librispeech: {name}: expected a sequence of names, got {splits!r}")
    for split in splits:
        if not split or os.path.basename(split) != split:
            raise ValueError(f"Librispeech: {name}: expected names of splits, got {split!r}")
    if len(set(splits)) != len(splits) or (not splits and not may_be_empty):
        raise ValueError(f"Librispeech: {name}: expected one or more different names, got {tuple(splits)!r}")
    return tuple(splits)


def _check_int(name: str, value: int, *, at_least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
        raise ValueError(f"Librispeech: {name}: expected an integer of at least {at_least}, got {value!r}")
    return value
